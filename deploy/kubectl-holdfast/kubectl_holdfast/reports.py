"""Judges what the daemons answered, and puts what is wrong first."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from kubectl_holdfast.daemons import Answer, Daemon
from kubectl_holdfast.tables import WIDTH, Column, age, table

Row = Mapping[str, Any]


class State(Enum):
    """How a node is, by one question; the worst first."""

    NO_ANSWER = "no answer"
    WRONG = "wrong"
    """Something does not work, or a device cannot be given to a pod, and nobody asked for that."""
    NOTABLE = "notable"
    """Worth a look: something that a person asked for, or that goes on by itself."""
    WELL = "well"
    NOT_FOUND = "not found"
    """The node does not have what it was asked about."""


_UID = re.compile(r" \([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\)")
"""The UID of a pod or claim, behind its name."""
_RANK = {state: rank for rank, state in enumerate(State)}


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a table: how bad it is, and its cells by column."""

    state: State
    cells: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one node answered, judged: `state` is that of its worst line."""

    answer: Answer
    state: State
    lines: tuple[Line, ...] = ()

    @property
    def daemon(self) -> Daemon:
        """Return whose answer it is."""
        return self.answer.daemon

    @property
    def reason(self) -> str:
        """Return why there is no answer, or why it is not the running daemon's."""
        return self.answer.problem or self.answer.unknown or self.answer.note


@dataclass(frozen=True, slots=True)
class View:
    """How the answers to a question are shown: its columns after the node's, and its lines.

    `lines` gets an answer and the time, in seconds since the epoch. `more` are columns of the wide
    form. In an `overview` each node has one line, also without an answer.
    """

    columns: tuple[Column, ...]
    lines: Callable[[Any, float], Iterable[Line]]
    more: tuple[Column, ...] = ()
    overview: bool = False


def judged(answers: Iterable[Answer], view: View, now: float) -> list[Report]:
    """Return a report for each of *answers*, the worst first, then by node."""
    reports = [_judged(each, view, now) for each in answers]
    return sorted(reports, key=lambda each: (_RANK[each.state], each.daemon.node))


def lines(
    reports: Iterable[Report], view: View, *, wide: bool = False, width: int = WIDTH
) -> list[str]:
    """Return the table of *reports*: what is wrong first, then by node, in the node's order."""
    named = [
        (report.daemon.node, line)
        for report in sorted(reports, key=lambda each: each.daemon.node)
        for line in report.lines or _without_answer(report, view)
    ]
    named.sort(key=lambda each: _RANK[each[1].state])
    columns = (Column(key="node"), *view.columns, *(view.more if wide else ()))
    rows = [{"node": node, **line.cells} for node, line in named]
    if not wide:
        rows = [_without_uids(row) for row in _with_short_names(rows)]
    return table(columns, rows, None if wide else width)


def blocks(reports: Iterable[Report]) -> list[str]:
    """Return the lines of each node below its name, for texts that are for people as they are."""
    found: list[str] = []
    for report in reports:
        if report.lines:
            space = [""] if found else []
            told = (line.cells["why"] for line in report.lines)
            found += [*space, f"{report.daemon.node}:", *told]
    return found


def summary(reports: Sequence[Report]) -> str:
    """Return how many nodes are how, such as ``3 nodes: 1 no answer, 2 well``."""
    counts = Counter(each.state for each in reports)
    told = ", ".join(f"{counts[state]} {state.value}" for state in State if counts[state])
    return f"{_counted(len(reports), 'node')}: {told}"


def complaints(reports: Iterable[Report]) -> list[str]:
    """Return a line for each node without an answer of its running daemon, with the reason."""
    told = {State.NO_ANSWER: "cannot ask {}: {}", State.WRONG: "{}: {}"}
    return [
        told[each.state].format(each.daemon.node, each.reason)
        for each in reports
        if each.reason and each.state in told
    ]


def document(reports: Sequence[Report]) -> dict[str, Any]:
    """Return *reports* for programs: `nodes`, in the order of the table."""
    return {
        "nodes": [
            {
                "node": each.daemon.node,
                "namespace": each.daemon.namespace or None,
                "pod": each.daemon.pod or None,
                "state": each.state.value,
                "reason": each.reason or None,
                "answer": each.answer.content,
            }
            for each in reports
        ]
    }


def exit_status(reports: Iterable[Report]) -> int:
    """Return 2 where a node did not answer, else 1 where something is wrong, else 0."""
    states = {each.state for each in reports}
    return 2 if State.NO_ANSWER in states else int(State.WRONG in states)


def totals(reports: Iterable[Report]) -> str:
    """Return the devices of all nodes by state, such as ``64 devices: 60 held, 4 free``."""
    counts: Counter[str] = Counter()
    for report in reports:
        rows = report.answer.content if report.lines else []
        counts.update(_device_state(row) for row in rows)
    told = ", ".join(f"{count} {state}" for state, count in counts.most_common())
    return _counted(counts.total(), "device") + (f": {told}" if told else "")


def _judged(answer: Answer, view: View, now: float) -> Report:
    if answer.problem:
        return Report(answer=answer, state=State.NO_ANSWER)
    if answer.unknown:
        return Report(answer=answer, state=State.NOT_FOUND)
    try:
        found = tuple(view.lines(answer.content, now))
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, OSError):
        problem = "its answer has another form; install the plugin of the daemon's version"
        return Report(answer=replace(answer, problem=problem), state=State.NO_ANSWER)
    states = [line.state for line in found]
    if answer.note:  # the daemon is down
        states.append(State.WRONG)
    return Report(
        answer=answer, state=min(states, key=_RANK.__getitem__, default=State.WELL), lines=found
    )


def _with_short_names(rows: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Return *rows* with a device's id alone, where no other device of the node has that id."""
    devices = {(row["node"], row["device"]) for row in rows if "device" in row}
    alike = Counter((node, _id(device)) for node, device in devices)
    return [
        {**row, "device": _id(row["device"])}
        if "device" in row and alike[row["node"], _id(row["device"])] == 1
        else row
        for row in rows
    ]


def _without_uids(row: Mapping[str, str]) -> dict[str, str]:
    return {key: _UID.sub("", text) for key, text in row.items()}


def _id(device: str) -> str:
    return device.rpartition("/")[2]


def _without_answer(report: Report, view: View) -> tuple[Line, ...]:
    if not view.overview:
        return ()
    cells = {"state": report.state.value, "other": report.state.value, "what": report.reason}
    return (Line(report.state, cells),)


def _status(content: Row, _: float) -> Iterator[Line]:
    failed = [each for each in content["checks"] if not each["passes"]]
    marks, resources = content["byHand"], content["resources"]
    wrong = [f"{each['name']}: {each['reason']}" for each in failed]
    wrong += [f"drift {each['kind']}: {each['subject']}" for each in content["drift"]]
    # What is set by hand says nothing of the hardware: a drained device is healthy as well.
    unhealthy = _sum(resources, "devices") - _sum(resources, "healthy")
    if unhealthy:
        wrong.append(f"{_counted(unhealthy, 'device')} unhealthy: `top` and `locks` have more")
    notable = [_mark(each) for each in marks]
    notable += [
        f"claim {each['claim']} waits: {each['waits']}"
        for each in content["claims"]
        if each["waits"]
    ]
    if waited_for := _sum(resources, "waiting"):
        notable.append(f"{_counted(waited_for, 'device')} waited for: `locks` has the pods")
    if content["noDevices"]:
        notable.append("no devices")
    down = content["pid"] is None
    yield Line(
        State.WRONG if wrong else State.NOTABLE if notable else State.WELL,
        {
            "state": "down" if down else "NOT READY" if failed else "ready",
            "version": str(content["version"] or ""),
            **{key: str(_sum(resources, key)) for key in ("devices", "healthy", "locked")},
            "what": "; ".join([*wrong, *notable]),
        },
    )


def _mark(mark: Row) -> str:
    what = f"{mark['device']} quarantined" if mark["device"] else "draining"
    return f"{what} by hand" + (f": {mark['reason']}" if mark["reason"] else "")


_LOCK_STATES = {
    "quarantined": State.WRONG,
    "foreign": State.WRONG,
    "reclaiming": State.NOTABLE,
    "releasing": State.NOTABLE,
    "queued": State.NOTABLE,
}


def _locks(content: Iterable[Row], now: float) -> Iterator[Line]:
    for row in content:
        since = row["since"]
        yield Line(
            _LOCK_STATES.get(row["state"], State.WELL),
            {
                **_texts(row, "device", "state", "reason"),
                "age": "" if since is None else age(now - since),
                "pod": _whose(row),
                "next": _next(row),
            },
        )


def _next(row: Row) -> str:
    """Return what frees the device, or what its pod waits for; only a running daemon knows it."""
    if row["state"] == "queued":
        return f"waits: {row['reason']}"
    return f"free when {row['until']}" if row.get("until") else ""


def _holders(content: Iterable[Row], _: float) -> Iterator[Line]:
    for row in content:
        whose = _whose(row)
        yield Line(
            State.WELL if whose and not row["cause"] else State.NOTABLE,
            {
                **_texts(row, "device", "pid", "command", "cause"),
                "pod": whose,
                "access": ", ".join(row["access"]),
            },
        )


def _history(content: Iterable[Row], now: float) -> Iterator[Line]:
    for row in content:
        before, after = str(row["from"]), str(row["to"])
        yield Line(
            State.WELL,
            {
                "ago": age(now - row["at"]),
                "device": str(row["device"]),
                # A note of what a person asked changes nothing.
                "change": f"{after}, note" if before == after else f"{before} \u2192 {after}",
                "pod": _whose(row),
                "why": str(row["evidence"]),
                "at": datetime.fromtimestamp(row["at"], tz=UTC).isoformat(timespec="seconds"),
            },
        )


_LEVELS = {"FAIL": State.WRONG, "WARN": State.NOTABLE}


def _doctor(content: Row, _: float) -> Iterator[Line]:
    for row in content["findings"]:
        if row["level"] in _LEVELS:
            yield Line(
                _LEVELS[row["level"]],
                {
                    **_texts(row, "level", "reason", "remedy"),
                    "check": f"{row['area']} {row['check']}",
                },
            )


def _why(content: object, _: float) -> Iterator[Line]:
    """Yield the lines of a text; the form for programs has none."""
    if isinstance(content, str):
        for line in content.splitlines():
            yield Line(State.WELL, {"why": line})


def _devices(content: Sequence[Row], _: float) -> Iterator[Line]:
    counts = Counter(_device_state(row) for row in content)
    unhealthy = [row for row in content if row["health"] == "Unhealthy"]
    wrong = [key for key in ("unhealthy", "quarantined", "foreign") if counts[key]]
    passing = [key for key in ("releasing", "reclaiming", "unknown") if counts[key]]
    yield Line(
        State.WRONG if wrong else State.NOTABLE if passing else State.WELL,
        {
            **{key: str(counts[key]) for key in ("free", "held", "unhealthy")},
            "other": ", ".join(f"{counts[key]} {key}" for key in _OTHERS if counts[key]),
            "what": "; ".join(
                f"{row['id']}: {', '.join(map(str, row['reasons']))}" for row in unhealthy
            ),
        },
    )


_OTHERS = ("quarantined", "foreign", "reclaiming", "releasing", "withheld", "left out", "unknown")


def _device_state(row: Row) -> str:
    """Return the state of a device's lock; a free device that no pod can get has that state."""
    if row["lock"] is None:
        return "left out"
    if row["lock"] != "free":
        return str(row["lock"])
    if row["health"] != "Healthy":
        return "unhealthy" if row["health"] == "Unhealthy" else "unknown"
    return "withheld" if row.get("freeFor") == "none" else "free"


def _texts(row: Row, *keys: str) -> dict[str, str]:
    """Return the cells of *row* that are shown as they are, empty where there is no value."""
    return {key: "" if row[key] is None else str(row[key]) for key in keys}


def _whose(row: Row) -> str:
    """Return the name of the pod or claim; the pod's uid while it has no known name."""
    claim = str(row.get("claim") or "").partition(" (")[0]  # without its uid
    return str(row.get("podName") or claim or row.get("pod") or "")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _sum(resources: Iterable[Row], key: str) -> int:
    return sum(each.get(key) or 0 for each in resources)  # an older daemon lacks some


def _columns(*names: str, texts: tuple[str, ...] = ()) -> tuple[Column, ...]:
    """Return the columns of *names*, then those of *texts*."""
    named = (Column(key=each) for each in names)
    return (*named, *(Column(key=each, text=True) for each in texts))


VIEWS = {
    "status": View(
        _columns("state", "devices", "healthy", "locked", texts=("what",)),
        _status,
        _columns("version"),
        overview=True,
    ),
    "locks": View(
        _columns("device", "state", "age", "pod", texts=("next",)),
        _locks,
        _columns(texts=("reason",)),
    ),
    "holders": View(
        _columns("device", "pid", "command", "pod", texts=("cause",)),
        _holders,
        _columns(texts=("access",)),
    ),
    "history": View(
        _columns("ago", "device", "change", "pod", texts=("why",)), _history, _columns("at")
    ),
    "why": View(_columns(texts=("why",)), _why),
    "doctor": View(
        _columns("level", texts=("check", "reason")), _doctor, _columns(texts=("remedy",))
    ),
    "devices": View(
        _columns("free", "held", "unhealthy", texts=("other", "what")), _devices, overview=True
    ),
}
"""By the question that is asked. `devices` is what `top` asks."""
