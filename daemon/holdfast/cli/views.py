"""What each command shows people, made of the daemon's answer: tables and lines."""

import re
from collections.abc import Callable

from holdfast.cli.tables import (
    Column,
    Names,
    Row,
    Rows,
    aged,
    ago,
    field,
    passing,
    short_table,
    table,
    utc,
)

_RESOURCES = ("name", "devices", "healthy", "offered", "locked", "waiting")
_DOWN = "unknown: the daemon is down"
_TAKEN_UP = {
    "live": "in use now",
    "restart": "in use after a restart in the same process, which begins now; locks stay",
}


def device_lines(rows: Rows) -> list[str]:
    """Return the devices: how they are, and who has them."""
    names = Names(rows)
    columns: list[Column] = [
        ("DEVICE", names.device),
        *((name.upper(), field(name)) for name in ("model", "health", "offered", "lock")),
        *names.owner_columns(rows),
        ("REASONS", lambda row: names.texts(row.get("reasons"))),
    ]
    return short_table(rows, columns)


def lock_lines(rows: Rows) -> list[str]:
    """Return the locks and what waits, with what happens next."""
    names = Names(rows)
    columns: list[Column] = [
        ("DEVICE", names.device),
        ("STATE", field("state")),
        ("AGE", lambda row: ago(row.get("since"))),
        *names.owner_columns(rows),
        ("NEXT", lambda row: next_step(row, names)),
    ]
    return short_table(rows, columns)


def next_step(row: Row, names: Names) -> str:
    """Return what happens next to the device of a lock: what frees it, or what the pod waits for.

    Only the running daemon knows what frees it.
    """
    if row.get("state") == "queued":
        own = f"{names.device(row)} "
        reason = names.text(row.get("reason"))
        return f"waits: {'it ' if reason.startswith(own) else ''}{reason.removeprefix(own)}"
    if row.get("state") == "admin":
        return ""
    until = names.text(row.get("until"))
    if claim := names.claim(row):
        until = re.sub(rf"^.* by claim {re.escape(claim)}(?!\S)", "its claim", until)
    if pod := names.pod(row):
        until = re.sub(rf"(?:\bpod )?(?<!\S){re.escape(pod)}(?!\S)", "its pod", until)
    return f"free when {until}" if until else _DOWN


def holder_lines(rows: Rows) -> list[str]:
    """Return the processes that have devices."""
    names = Names(rows)
    columns: list[Column] = [
        ("DEVICE", names.device),
        *((name.upper(), field(name)) for name in ("pid", "command", "access")),
        *names.owner_columns(rows),
        ("HEADROOM", field("headroom")),
        ("CAUSE", lambda row: names.text(row.get("cause"))),
    ]
    return short_table(rows, columns)


def history_lines(rows: Rows) -> list[str]:
    """Return the changes as a story, the oldest first: when, after how long, what, and why.

    *rows* are `with_durations`.
    """
    names = Names(rows)
    columns: list[Column] = [
        ("AGO", lambda row: ago(row.get("at"))),
        ("DEVICE", names.device),
        ("CHANGE", _change),
        ("AFTER", lambda row: "" if row.get("lasted") is None else aged(row["lasted"])),
        *names.owner_columns(rows),
        ("WHY", lambda row: names.text(row.get("evidence"))),
    ]
    if len({row.get("device") for row in rows}) == 1:
        columns = [each for each in columns if each[0] != "DEVICE"]
    return short_table(rows, columns)


def _change(row: Row) -> str:
    before, after = row.get("from"), row.get("to")
    return f"{before} → {after}" if before != after else f"{after}, note"


def with_durations(rows: Rows) -> Rows:
    """Return *rows* with `lasted`: the seconds in the former state, None where not known.

    A note changes nothing, so it ends no state.
    """
    entered: dict[str, float] = {}
    found = []
    for row in rows:
        device, at, lasted = row["device"], row["at"], None
        if row["from"] != row["to"]:
            lasted = at - entered[device] if device in entered else None
            entered[device] = at
        found.append({**row, "lasted": lasted})
    return found


def reload_lines(answer: Row) -> list[str]:
    """Return a line for each key that differs, with how it is taken up."""
    if not (answer["changed"] or answer["problem"]):
        return ["configuration unchanged"]
    # A restart takes up everything, and with a problem nothing is.
    how = "restart" if "restart" in answer["changed"] else ""
    return [
        f"{path}: {'not in use' if answer['problem'] else _TAKEN_UP[how or each]}"
        for each, paths in answer["changed"].items()
        for path in paths
    ]


def status_lines(report: Row, *, every: bool = False, wide: bool = False) -> list[str]:
    """Return the status as lines: what is wrong first, then the devices, then what is well.

    The checks that pass share a paragraph; *every* gives each a line, with its age. *wide* has the
    tables in full, times in UTC and who asked.
    """
    from holdfast.telemetry.readyz import check_line  # noqa: PLC0415 - no other command needs it

    failed = [each for each in report["checks"] if not each["passes"]]
    passed = [each for each in report["checks"] if each["passes"]]
    lines = [_heading(report, failed=len(failed))]
    lines += map(check_line, failed)
    lines += [_mark_line(each, wide=wide) for each in report["byHand"]]
    lines += map(_drift_line, report["drift"])
    lines += map(_rule_line, report["rules"])
    if report["noDevices"]:
        lines.append("NO DEVICES on this node: `holdfast doctor` looks for the cause")
    columns = [(name.upper(), field(name)) for name in _RESOURCES]
    lines += short_table(report["resources"], columns)
    if claims := report["claims"]:
        lines += table(claims) if wide else _claim_lines(claims)
    if every or wide:
        lines += map(check_line, passed)
    elif passed:
        lines += passing(each["name"] for each in passed)
    return lines


def _claim_lines(rows: Rows) -> list[str]:
    names = Names(rows)

    def called(name: str) -> Callable[[Row], str]:
        return lambda row: ", ".join(map(names.called, row.get(name) or ()))

    cells = {
        "claim": names.claim,
        "phase": field("phase"),
        "pods": lambda row: names.texts(row.get("pods")),
        "devices": called("devices"),
        "adminDevices": called("adminDevices"),
        "waits": lambda row: names.text(row.get("waits")),
    }
    if not any(row["adminDevices"] for row in rows):
        del cells["adminDevices"]
    return short_table(rows, [(name.upper(), cell) for name, cell in cells.items()])


def _heading(report: Row, *, failed: int) -> str:
    count = len(report["checks"])
    state = f"NOT READY, {failed} of {count} checks fail" if failed else f"ready, {count} checks"
    if report["pid"] is None:
        return f"holdfast is down: {state}"
    return f"holdfast {report['version']}, pid {report['pid']}: {state}"


def _drift_line(each: Row) -> str:
    """Return one line for a disagreement between the ledger, kubelet and the kernel."""
    return (
        f"drift  {each['kind']}: {each['subject']}: {each['one']}, but {each['other']}; "
        f"{each['advice']}"
    )


def _rule_line(rule: Row) -> str:
    """Return one line for a device that a rule leaves out, or for a rule that does nothing."""
    what = f"{rule['device']}: {rule['reason']}" if rule["device"] else rule["reason"]
    return f"rule   {what}"


def _mark_line(mark: Row, *, wide: bool) -> str:
    """Return one line for a quarantine or a drain by hand: since when, and why.

    *wide* also has who asked.
    """
    what = f"QUARANTINED {mark['device']} by hand" if mark["device"] else "DRAINING"
    since = f"for {ago(mark['since'])}"
    if wide:
        since = f"since {utc(mark['since'])}, asked by uid {mark['uid']}, pid {mark['pid']}"
    return f"{what} {since}" + (f": {mark['reason']}" if mark["reason"] else "")
