"""Checks what the daemon is allowed, and says which feature is lost without what it lacks."""

from collections.abc import Iterator

from msgspec.structs import replace

from holdfast.doctor.area import Area
from holdfast.doctor.finding import Finding
from holdfast.doctor.needs import NEEDS, Need
from holdfast.doctor.node import Node
from holdfast.host.own.privileges import Privileges, privileges
from holdfast.host.proc.peer import listener
from holdfast.host.proc.procfs import Procfs
from holdfast.names import CONTROL_SOCKET
from holdfast.settings import Settings

_AREA = Area("privileges")


def privileges_findings(node: Node) -> Iterator[Finding]:
    """Yield what the daemon, or else this process, may and may not do. Never raises."""
    if not node.live:
        yield _AREA.ok(check="subject", reason="a copied node runs nothing that has privileges")
        return
    daemon, told = _subject(node)
    found = privileges(node.host, "self" if daemon is None else str(daemon))
    yield replace(told, reason=f"{told.reason}: {_described(found)}")
    yield from judge(found, node.settings, is_daemon=daemon is not None)
    yield from device_findings(found, node.settings)


def judge(found: Privileges, settings: Settings, *, is_daemon: bool) -> Iterator[Finding]:
    """Yield one finding for each need that *settings* have.

    What the daemon lacks fails. What this process lacks need not be what the daemon will lack, and
    neither need what costs a feature in some cases only.
    """
    for need in NEEDS:
        if need.asked(settings):
            yield _finding(need, found, certain=is_daemon and need.sure)


def device_findings(found: Privileges, settings: Settings) -> Iterator[Finding]:
    """Yield whether VFIO's nodes may be opened, where *settings* ask for something that does so."""
    opens, resets = settings.gate.exclusive_open, settings.reclaim.reset != "never"
    if not opens and not resets:
        return
    if not found.pods_devices_only:
        known = found.pods_devices_only is False
        said = "no container's device rules keep" if known else "no sign that anything keeps"
        yield _AREA.ok(check="device-nodes", reason=f"{said} VFIO's nodes from being opened")
        return
    why = "a container without privileges may not open VFIO's nodes"
    gate = "gate.exclusiveOpen has no effect: a complete look at all processes decides instead"
    if not resets:
        yield _AREA.ok(check="device-nodes", reason=f"{why}, so {gate}")
        return
    yield _AREA.warn(
        check="device-nodes",
        reason=f"{why}, so reclaim.reset has no effect: a device that was released by force is "
        "checked, and not reset" + (f"; {gate}" if opens else ""),
        remedy="set privileged: true for the daemon's container, or reclaim.reset: never",
    )


def _subject(node: Node) -> tuple[int | None, Finding]:
    """Return the pid of the running daemon, None for ourselves, and whom the others are about."""
    socket = node.path(node.settings.state_dir) / CONTROL_SOCKET
    try:
        pid = listener(socket)
    except OSError:
        return None, _AREA.ok(
            check="subject",
            reason="no daemon answers, so this is what the doctor itself may do",
        )
    if Procfs(node.host).process(pid) is None:
        return None, _AREA.warn(
            check="subject",
            reason=f"a daemon answers on {socket}, but its process is not seen from here, so this "
            "is what the doctor itself may do",
            remedy="run the doctor on the host, or in the daemon's own container",
        )
    return pid, _AREA.ok(check="subject", reason=f"this is what the daemon, pid {pid}, may do")


def _described(found: Privileges) -> str:
    """Return what of *found* decides nothing, and explains the rest."""
    words = ["uid unknown" if found.uid is None else f"uid {found.uid}"]
    if found.in_init_cgroup_namespace is False:
        words.append("a cgroup namespace of its own")
    if found.no_new_privileges:
        words.append("no new privileges")
    return ", ".join([*words, found.label or "not confined"])


def _finding(need: Need, found: Privileges, *, certain: bool) -> Finding:
    has = need.has(found)
    if has:
        return _AREA.ok(check=need.check, reason=f"{need.privilege} is as it should be")
    if has is None:
        return _AREA.warn(
            check=need.check,
            reason=f"cannot tell whether {need.privilege} is as it should be: else {need.lost}",
            remedy="run the doctor as root on the host, or in the daemon's own container",
        )
    seen = f" ({found.label})" if need.check == "confinement" else ""
    reason = f"without {need.privilege}{seen} {need.lost}"
    make = _AREA.fail if certain else _AREA.warn
    return make(check=need.check, reason=reason, remedy=need.remedy)
