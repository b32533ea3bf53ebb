"""Checks what the daemon is allowed to do, and which feature each missing privilege costs."""

from collections.abc import Iterator

from msgspec.structs import replace

from holdfast.doctor.finding import Check, Finding, Node
from holdfast.doctor.programs import ask_daemon
from holdfast.host.own import privileges
from holdfast.host.proc.procfs import Procfs
from holdfast.model.node.privileges import Privileges
from holdfast.settings import Settings
from holdfast.settings.needs import NEEDS, Need, resets


def privileges_findings(node: Node) -> Iterator[Finding]:
    """Yield what the daemon, or else this process, may do."""
    if not node.live:
        yield Check("subject").ok("a copy of a node runs no daemon")
        return
    daemon, told = _subject(node)
    found = privileges(node.host, "self" if daemon is None else str(daemon))
    yield replace(told, reason=f"{told.reason}: {_described(found)}")
    yield from judge(found, node.settings, is_daemon=daemon is not None)
    yield from device_findings(found, node.settings)


def judge(found: Privileges, settings: Settings, *, is_daemon: bool) -> Iterator[Finding]:
    """Yield one finding for each need that *settings* have.

    What the daemon lacks is a FAIL. It is a WARN if only this process lacks it, because the daemon
    may be started with more; or if it costs the feature only in some cases.
    """
    for need in NEEDS:
        if need.asked(settings):
            yield _finding(need, found, certain=is_daemon and need.sure)


def device_findings(found: Privileges, settings: Settings) -> Iterator[Finding]:
    """Yield whether VFIO's nodes may be opened, if *settings* ask for something that opens them."""
    opens, is_reset = settings.gate.exclusive_open, resets(settings)
    if not opens and not is_reset:
        return
    if not found.pods_devices_only:
        known = found.pods_devices_only is False
        said = "no device rules keep" if known else "nothing seen here keeps"
        yield Check("device-nodes").ok(f"{said} VFIO's nodes from being opened")
        return
    why = "a container without privileges may not open VFIO's nodes"
    gate = "gate.exclusiveOpen has no effect: a full look at all processes decides instead"
    if not is_reset:
        yield Check("device-nodes").ok(f"{why}, so {gate}")
        return
    yield Check("device-nodes").warn(
        f"{why}, so reclaim.reset has no effect: a device that was released by force is checked, "
        "but not reset" + (f"; {gate}" if opens else ""),
        remedy="set privileged: true for the daemon's container, or reclaim.reset, and reset of "
        "each rule of devices, to never",
    )


def _subject(node: Node) -> tuple[int | None, Finding]:
    """Return the pid of the daemon, None for this process, and a finding that says which."""
    answer = ask_daemon(node)
    if answer.problem:
        return None, Check("subject").ok("no daemon answers; this is what the doctor itself may do")
    if Procfs(node.host).process(answer.pid) is None:
        return None, Check("subject").warn(
            "a daemon answers, but its process cannot be seen from here; this is what "
            "the doctor itself may do",
            remedy="run the doctor on the host, or in the daemon's own container",
        )
    return answer.pid, Check("subject").ok(f"this is what the daemon, pid {answer.pid}, may do")


def _described(found: Privileges) -> str:
    """Return what of *found* is no check by itself, but explains the others."""
    words = ["uid unknown" if found.uid is None else f"uid {found.uid}"]
    if found.in_init_cgroup_namespace is False:
        words.append("a cgroup namespace of its own")
    if found.no_new_privileges:
        words.append("no new privileges")
    return ", ".join([*words, found.label or "not confined"])


def _finding(need: Need, found: Privileges, *, certain: bool) -> Finding:
    check = Check(need.check)
    has = need.has(found)
    if has:
        return check.ok(f"{need.privilege} is as needed")
    if has is None:
        return check.warn(
            f"cannot tell whether {need.privilege} is as needed; without it, {need.lost}",
            remedy="run the doctor as root on the host, or in the daemon's own container",
        )
    seen = f" ({found.label})" if need.check == "confinement" else ""
    return check.warn_or_fail(
        f"without {need.privilege}{seen}, {need.lost}", remedy=need.remedy, fails=certain
    )
