"""Why a device is not given, or a pod or claim waits: what the daemon answered, put in order."""

import re
import textwrap

from msgspec import Struct

from holdfast.cli.tables import WIDTH, Names, Row, Rows, ago, device_id, device_of
from holdfast.errors import HoldfastError
from holdfast.model.text import printable

_ENDING = frozenset({"releasing", "reclaiming", "quarantined"})
_FEWEST = 4
"""Letters that an abbreviated id has at the least."""
_NAMED = re.compile(r"(\S+) \((.+)\)")


class Answers(Struct, frozen=True, kw_only=True):
    """The rows of `devices`, `locks` and `holders`; `holders` is None where nobody could look."""

    devices: Rows
    locks: Rows
    holders: Rows | None


def why(text: str, answers: Answers) -> Row:
    """Return what keeps the device, pod or claim that *text* names; raise HoldfastError.

    A device is named in full, by its id or by the beginning of that; a pod or claim by
    ``namespace/name``, by its name or UID.
    """
    found = _meant(text, answers)
    if len(found) != 1:
        raise HoldfastError(_unclear(text, found, all_known=answers.holders is not None))
    ((kind, key, name),) = found
    if kind == "device":
        told = [_device(key, answers)]
        return {"kind": kind, "name": name, "waits": [], "has": [], "devices": told}
    own = [row for row in answers.locks if key in (_pods(row) if kind == "pod" else _claims(row))]
    waits = [row for row in own if row.get("state") == "queued"]
    has = [row for row in own if row.get("state") != "queued"]
    about = dict.fromkeys(row["device"] for row in waits or has)
    return {
        "kind": kind,
        "name": name,
        "waits": [{each: row.get(each) for each in ("device", "since", "reason")} for row in waits],
        "has": [{each: row.get(each) for each in ("device", "since", "state")} for row in has],
        "devices": [_device(device, answers) for device in about],
    }


def why_lines(report: Row, answers: Answers, *, wide: bool) -> list[str]:
    """Return the report as lines of at most `WIDTH` columns; *wide*: with UIDs."""
    names = Names([] if wide else [*answers.devices, *answers.locks, *(answers.holders or ())])
    whose = f"{report['kind']} {names.text(report['name'])}"
    lines = [
        f"{whose} waits for {row['device']}, for {ago(row['since'])}: {names.text(row['reason'])}"
        for row in report["waits"]
    ]
    lines += [f"{whose} has {row['device']} ({row['state']})" + _for(row) for row in report["has"]]
    for each in report["devices"]:
        lines += [*([""] if lines else []), _headline(each, names)]
        for number, keep in enumerate(each["keeps"], 1):
            lines.append(f"  {number}. {keep['what']}: {names.text(keep['text'])}")
            if keep["help"]:
                lines.append(f"     {keep['help']}")
        for row in each["next"]:
            who = names.pod(row) or names.claim(row) or "a pod not yet known"
            lines.append(f"  next: {who}" + _for(row))
    return [part for line in lines for part in _wrapped(line)]


def _meant(text: str, answers: Answers) -> list[tuple[str, str, str]]:
    """Return the kind, key and full name of each that *text* may mean."""
    devices = {device_of(row) for row in answers.devices} | {row["device"] for row in answers.locks}
    exact = {each for each in devices if text in {each, device_id(each)}}
    pods: dict[str, str] = {}
    claims: dict[str, str] = {}
    for row in (*answers.locks, *answers.devices):
        pods |= {uid: name for uid, name in _pods(row).items() if name or uid not in pods}
        claims |= _claims(row)
    found = [("device", each, each) for each in sorted(exact)]
    for kind, known in (("pod", pods), ("claim", claims)):
        found += [
            (kind, uid, f"{name} ({uid})" if name else uid)
            for uid, name in known.items()
            if text in {uid, name, name.partition("/")[2]} - {""}
        ]
    if not found and len(text) >= _FEWEST:
        begun = (
            each for each in devices if each.startswith(text) or device_id(each).startswith(text)
        )
        found = [("device", each, each) for each in sorted(begun)]
    return found


def _unclear(text: str, found: list[tuple[str, str, str]], *, all_known: bool) -> str:
    if not found:
        which, when = "of this node", ""
        if not all_known:
            which, when = "with a lock", ", those without a lock while the daemon runs"
        return (
            f"cannot find {text}: no device {which} is called that, and no pod or claim that "
            f"has or waits for one; `holdfast devices` and `holdfast locks` list them{when}"
        )
    several = " and ".join(f"{kind} {name}" for kind, _, name in found)
    return (
        f"cannot tell what {text} is: {several}; name a device in full, a pod or claim by its UID"
    )


def _device(device: str, answers: Answers) -> Row:
    """Return everything that keeps one device, in the order in which it has to end."""
    row = next((each for each in answers.devices if device_of(each) == device), {})
    on = row.get("lockDevice") or device
    lock = next((each for each in answers.locks if each["device"] == on and _holds(each)), {})
    faults = row.get("faults") or []
    state = lock.get("state") or row.get("lock") or "free"
    keeps = [_keep("hardware", fault) for fault in faults]
    if lock:
        keeps.append(_keep("lock", f"{_owner(lock)}: {lock.get('reason') or state}"))
    if row.get("obstacle"):
        keeps.append(_keep("seen", row["obstacle"]))
    release = f"`holdfast release {device}` ends what is left of a pod that has ended"
    keeps += [
        _keep("process", _process(each), release if state in _ENDING else None)
        for each in answers.holders or ()
        if each["device"] in {device, on}
    ]
    if answers.holders is None:
        keeps.append(_keep("process", "unknown: only the running daemon sees who has a device"))
    keeps += [_keep("rule", each) for each in (row.get("reasons") or ())[len(faults) :]]
    return {
        "device": device,
        "state": state,
        "since": lock.get("since"),
        "freeFor": row.get("freeFor"),
        "until": row.get("until") or lock.get("until"),
        "keeps": keeps,
        "next": [
            {each: other.get(each) for each in ("pod", "podName", "claim", "since", "reason")}
            for other in answers.locks
            if other["device"] == device and other.get("state") == "queued"
        ],
    }


def _keep(what: str, text: str, help_: str | None = None) -> Row:
    return {"what": what, "text": text, "help": help_}


def _owner(row: Row) -> str:
    """Return whose a lock is, as a claim or a pod with its UID."""
    if row.get("claim"):
        return f"claim {row['claim']}"
    if row.get("pod"):
        name = f"{row['podName']} ({row['pod']})" if row.get("podName") else row["pod"]
        return f"pod {name}"
    return "no pod" if row.get("state") == "foreign" else "a pod not yet known"


def _process(row: Row) -> str:
    of = f" of {_owner({**row, 'claim': None})}" if row.get("pod") else ""
    access = ", ".join(row.get("access") or ())
    told = "; ".join(filter(None, (access, row.get("cause"))))
    return f"pid {row['pid']} ({row['command']}){of}: {told}"


def _headline(each: Row, names: Names) -> str:
    until = names.text(each["until"])
    told = f"{each['device']}: {each['state']}" + _for(each)
    if each["freeFor"] == "any":
        return f"{told}; the next pod can have it"
    return f"{told}; a new pod can have it when {until}" if until else told


def _for(row: Row) -> str:
    return f", for {ago(row['since'])}" if row.get("since") is not None else ""


def _wrapped(line: str) -> list[str]:
    text = printable(line)
    indent = " " * (len(text) - len(text.lstrip()) + 3)
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False) or [""]


def _holds(row: Row) -> bool:
    return row.get("state") not in {"queued", "admin"}


def _pods(row: Row) -> dict[str, str]:
    """Return the UIDs of the row's pods with their names, empty where unknown."""
    found = {str(row["pod"]): str(row.get("podName") or "")} if row.get("pod") else {}
    return found | dict(_uid_and_name(each) for each in row.get("claimPods") or ())


def _claims(row: Row) -> dict[str, str]:
    return dict([_uid_and_name(row["claim"])]) if row.get("claim") else {}


def _uid_and_name(text: str) -> tuple[str, str]:
    """Split ``namespace/name (uid)``, of which the name may be missing."""
    named = _NAMED.fullmatch(text)
    return (named[2], named[1]) if named else (text, "")
