"""The one case in which a running pod's sandbox may be ended: it blocks the pod's own start."""

from collections.abc import Iterable

from msgspec import Struct

from holdfast.model.book.book import DeviceLock, LockState, PodRecord
from holdfast.model.ids import DeviceName, PodUid
from holdfast.model.reclaim.ending import Member, RuntimeState, why_observe, why_unproven
from holdfast.model.use.holders import GVISOR, DeviceAccess, Holder, Sandbox


class WaitingStart(Struct, frozen=True, kw_only=True):
    """A container start that waits at the gate only for processes of its own pod."""

    pod: PodUid
    device: DeviceName


def held_up(
    pod: PodUid | None, device: DeviceName, holders: Iterable[Holder]
) -> frozenset[WaitingStart]:
    """Return whether a start of *pod* is held up by what the pod itself has of *device*."""
    pods = {holder.pod for holder in holders}
    return frozenset(
        {WaitingStart(pod=pod, device=device)} if pod is not None and pods == {pod} else ()
    )


class LeakFacts(Struct, frozen=True, kw_only=True):
    """All that has to be so before the sandbox of a living pod is ended; times in seconds.

    `lock` is that of the device that a start of `pod` is `held_up` by, and `counted` whether
    kubelet has the pod in its checkpoint. `holders` are all that a scan found on any device of the
    pod; `members` are all processes of its cgroup. `leaking_for` is how long the leak has been
    seen, and `pause` how long to wait until the pod's sandbox may be ended once more.
    """

    restart: bool
    terminate: bool
    scan_complete: bool
    pod: PodUid
    record: PodRecord | None
    lock: DeviceLock | None
    held_up: bool
    counted: bool
    holders: tuple[Holder, ...]
    members: tuple[Member, ...]
    runtime: RuntimeState | None
    leaking_for: float
    leak_grace: float
    pause: float = 0.0


def why_keep(facts: LeakFacts) -> str | None:
    """Return why the pod's sandbox must not be ended, or None when every guard agrees.

    Kubelet has not let go of this pod. But while a start of it waits at the gate, kubelet starts
    nothing else of it; and a sandbox in which only pause runs does no work.
    """
    return _permission(facts) or _identity(facts) or _leak(facts) or _idle(facts) or _times(facts)


def _permission(facts: LeakFacts) -> str | None:
    if not facts.restart:
        return "reclaim.leakedSandbox is report"
    return why_observe(terminate=facts.terminate) or why_unproven(scan_complete=facts.scan_complete)


def _identity(facts: LeakFacts) -> str | None:
    if not facts.held_up:
        return "no container of the pod waits for it"
    if not facts.counted:
        return "kubelet does not count the pod"
    if facts.lock is None or facts.lock.state is not LockState.HELD or facts.lock.pod != facts.pod:
        return "the device is not held by the pod"
    inode = None if facts.record is None else facts.record.inode
    for member in facts.members:
        if member.in_pod != facts.pod or member.inode != inode:
            return f"pid {member.process} is not in the cgroup that the pod had"
    if facts.record is None or facts.record.cgroup is None:
        return "the cgroup that the pod had is not known"
    return None


def _leak(facts: LeakFacts) -> str | None:
    sandbox = {member.process for member in facts.members}
    if not facts.holders:
        return "nobody holds the device"
    for holder in facts.holders:
        if holder.process not in sandbox:
            return f"another process holds it as well: {holder}"
        if holder.access != {DeviceAccess.DEVICE_FD}:
            return f"a device of the pod is held by more than a leaked fd: {holder}"
    return None


def _idle(facts: LeakFacts) -> str | None:
    for member in facts.members:
        if member.sandbox not in GVISOR:
            return f"pid {member.process} ({member.command}) is not part of a gVisor sandbox"
    if not any(member.sandbox is Sandbox.SENTRY for member in facts.members):
        return "its sandbox cannot be seen"
    state = facts.runtime
    if state is None or state.problem:
        why = "" if state is None else f" ({state.problem})"
        return f"its runtime's state cannot be read{why}"
    if state.containers:
        return f"its runtime runs container {state.containers[0]} in it"
    return None


def _times(facts: LeakFacts) -> str | None:
    if facts.leaking_for < facts.leak_grace:
        return f"the leak has been seen for less than {facts.leak_grace:g} s"
    if facts.pause > 0:
        return "its sandbox was ended recently and leaks again, so it is kept for a while"
    return None
