"""What is free: from what the kernel and kubelet show to a verdict with its reason."""

from collections.abc import Collection
from enum import Enum
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from holdfast.model.devices import DeviceKind
from holdfast.model.ids import PciAddress, PodUid
from holdfast.model.text import some
from holdfast.model.use.holders import MOST_NAMED, Holder, Sandbox, held_by

_WHOSE = (
    "; if that is the virtual machine of this very pod (Kata, with cold_plug_vfio), set "
    "sandbox_cgroup_only = true in Kata's configuration: it shows whose machine it is"
)


class Freedom(Enum):
    """Whether somebody uses a device; UNKNOWN means that we cannot see."""

    FREE = "free"
    IN_USE = "in use"
    UNKNOWN = "unknown"


class Verdict(Struct, frozen=True, kw_only=True):
    """A decision and the words that explain it."""

    freedom: Freedom
    reason: str
    holders: tuple[Holder, ...] = ()
    """The holders that the reason names."""
    final: bool = False
    """UNKNOWN until there is another answer: neither a start nor a release goes on."""
    brief: str = ""
    """The reason in few words, without figures that change by themselves; empty: as it is."""


def free(reason: str) -> Verdict:
    """Return that nobody uses the device."""
    return Verdict(freedom=Freedom.FREE, reason=reason)


def in_use(reason: str, *, brief: str = "") -> Verdict:
    """Return that somebody uses the device; only the reason says who."""
    return Verdict(freedom=Freedom.IN_USE, reason=reason, brief=brief)


def unknown(reason: str, *, final: bool = False) -> Verdict:
    """Return that it cannot be seen whether somebody uses the device."""
    return Verdict(freedom=Freedom.UNKNOWN, reason=reason, final=final)


class OpenOutcome(Enum):
    """What an exclusive open and close of every group node said."""

    SUCCEEDED = "succeeded"
    BUSY = "busy"
    UNAVAILABLE = "unavailable"


class Sight(Protocol):
    """What a vendor's driver reports of a device in addition to its holders, and its rule."""

    def judge(self, *, looked: bool, gaps: tuple[str, ...]) -> Verdict:
        """Return whether the device is in use although no process is known to hold it.

        *looked*: processes were scanned; *gaps* say what could not be seen. A value that the driver
        fails to report must never become FREE: it is UNKNOWN, and `final`.
        """


class OnVfio(Struct, frozen=True, kw_only=True):
    """The sight of a device whose driver has lost it: its PCI functions are on a VFIO driver."""

    functions: tuple[PciAddress, ...]

    def judge(self, *, looked: bool, gaps: tuple[str, ...]) -> Verdict:
        """Return FREE: the kernel takes a driver from nothing that a process uses."""
        del looked, gaps
        names = ", ".join(self.functions)
        return free(f"{names} is bound to a VFIO driver now, so nobody has it by its former one")


class KernelFacts(Struct, frozen=True, kw_only=True):
    """What one scan of the kernel showed of one device.

    `enabled` are the VFIO-bound functions above their idle baseline. `holders` is None when no
    scan was made; `gaps` say what could not be seen, `enable` of a function included. `unread` are
    the pids of processes that could not be inspected, and `of_unread` what `gaps` say of them.
    """

    kind: DeviceKind = DeviceKind.VFIO
    enabled: tuple[PciAddress, ...] = ()
    holders: tuple[Holder, ...] | None = None
    more: int = 0
    """How many more holders there are, for which those kept stand; of kind DRIVER 0 where some of
    those who have it open are not in the way."""
    gaps: tuple[str, ...] = ()
    unread: frozenset[int] = frozenset()
    of_unread: tuple[str, ...] = ()
    opened: OpenOutcome = OpenOutcome.UNAVAILABLE
    sight: Sight | None = None
    """Of kind DRIVER alone; None: it was not asked. `holders` are those that are in the way."""

    def gap(self, but: Collection[int] = ()) -> str:
        """Return what could not be seen of anybody else than the processes *but*; empty: nothing.

        Of those it is known by their pod's cgroup whose they are, however much they have open.
        """
        ours = self.of_unread if self.unread.issubset(but) else ()
        return next((each for each in self.gaps if each not in ours), "")


class FormerPod(Struct, frozen=True, kw_only=True):
    """What is known of the pod that a lock belongs to.

    `counted` is None until kubelet's checkpoint is read; `unreadable`: it cannot be read.
    `populated` tells whether a process is in its cgroup, False also where it has none; None:
    unknown, and `unlisted` says why. `processes` are those that could be listed, None if it has no
    cgroup: they name who lives, and prove nothing. `cgroup_seen`: its cgroup existed once.
    `uncounted_for` are the seconds since kubelet was first seen without the pod, or since the
    checkpoint could not be read.
    """

    counted: bool | None
    unreadable: bool = False
    populated: bool | None
    processes: tuple[int, ...] | None = None
    unlisted: str = ""
    cgroup_seen: bool = False
    uncounted_for: float = 0.0


class ReleaseFacts(Struct, frozen=True, kw_only=True):
    """All that decides whether an ending lock may become FREE; `pod` is None if there is none."""

    kernel: KernelFacts
    pod: FormerPod | None = None
    unseen_grace: float
    """How long, in seconds, to wait for a pod whose cgroup was never seen."""
    nobodys: bool = False
    """No pod can have it: it was granted to none, or to one whose gate never passed."""
    heir: PodUid | None = None
    """The pod that gets the device next; its own virtual machine may have it already."""


def judge_kernel(facts: KernelFacts) -> Verdict:
    """Return whether the kernel shows that the device is in use.

    A holder that was seen is proof even in a scan with gaps. An exclusive open fails as busy as
    long as there is a device fd anywhere, even one in flight. `enable` at its idle value and a
    complete scan without a holder are proof only together.
    """
    if facts.holders:
        reason = held_by(facts.holders, facts.more)
        return Verdict(freedom=Freedom.IN_USE, reason=reason, holders=facts.holders)
    if facts.kind is DeviceKind.DRIVER:
        return _by_driver(facts.sight, looked=facts.holders is not None, gaps=facts.gaps)
    if facts.opened is OpenOutcome.SUCCEEDED:
        return free("its group could be opened exclusively")
    enabled = ", ".join(facts.enabled)
    if facts.opened is OpenOutcome.BUSY or enabled:
        sign = f"{enabled} is enabled" if enabled else "its group cannot be opened: busy"
        if facts.holders is None:
            return in_use(f"in use: {sign}")
        if facts.gaps:
            return in_use(f"in use: {sign}; who holds it cannot be seen ({facts.gaps[0]})")
        return in_use(
            f"in use: {sign}, and no process has it open (an fd in flight between "
            "processes or in an io_uring, or the kernel itself: vhost, KVM); it becomes free when "
            "they close it: end the programs that pass it on, or the virtual machine that has it"
            f"{_left_on(facts)}",
            brief=f"in use: {sign}, and no process has it open (an fd in flight, vhost or KVM)",
        )
    if facts.holders is None:
        return unknown("the holders have not been scanned yet")
    if facts.gaps:
        return unknown(f"not every process can be seen: {facts.gaps[0]}")
    if facts.kind is DeviceKind.ACCEL:
        return free("no process has it open or mapped (before Linux 5.6 no fd in flight is seen)")
    return free("no process has it open; it is not enabled")


def _left_on(facts: KernelFacts) -> str:
    """Return what else an enabled function can mean where its group could not be opened."""
    if facts.opened is not OpenOutcome.UNAVAILABLE:
        return ""
    return (
        "; if nothing has it, it was left enabled: unbind it, write 0 to its file enable in sysfs "
        "and bind it again, or let holdfast open its group (privileged: true)"
    )


def _by_driver(sight: Sight | None, *, looked: bool, gaps: tuple[str, ...]) -> Verdict:
    if sight is None:
        return unknown("its driver has not been asked who uses it", final=True)
    return sight.judge(looked=looked, gaps=gaps)


def kept_by_driver(facts: KernelFacts) -> bool:
    """Return whether a device is not free by its driver's report, whoever has it open."""
    if facts.kind is not DeviceKind.DRIVER:
        return False
    verdict = _by_driver(facts.sight, looked=True, gaps=())
    return verdict.freedom is Freedom.IN_USE or verdict.final


def is_foreign(facts: KernelFacts) -> bool:
    """Return whether a device that was granted to no pod is proven to be in use.

    With a driver's report a process has to be known: memory that is still being freed has no owner.
    """
    verdict = judge_kernel(facts)
    if facts.gaps or verdict.freedom is not Freedom.IN_USE:
        return False
    return facts.kind is not DeviceKind.DRIVER or bool(verdict.holders)


def _judge_but_for_heir(facts: ReleaseFacts) -> Verdict:
    verdict = judge_kernel(facts.kernel)
    # The kernel gives a group to one at a time, so the former pod cannot have it as well.
    vfio = facts.kernel.kind is DeviceKind.VFIO
    return but_for_own_machine(verdict, facts.heir) if vfio else verdict


def judge_release(facts: ReleaseFacts) -> Verdict:
    """Return whether a lock whose pod has ended may become FREE."""
    kernel = _judge_but_for_heir(facts)
    pod = facts.pod
    if pod is None:
        return _of_an_unknown_pod(kernel, facts)
    if pod.counted is None and not pod.unreadable:
        return unknown("kubelet's checkpoint has not been read")
    if pod.counted:
        return in_use("kubelet counts its pod")
    if pod.populated and not kernel.holders:
        return in_use(_living(pod))
    if kernel.freedom is Freedom.IN_USE or kernel.final or facts.kernel.holders is None:
        return kernel
    if pod.populated is None:
        return unknown(f"it is not known whether processes of its pod live: {pod.unlisted}")
    if pod.processes is None and not pod.cgroup_seen and pod.uncounted_for < facts.unseen_grace:
        return unknown("its pod's cgroup was never seen, so a process of it may still live")
    if kernel.freedom is Freedom.UNKNOWN:
        return _unverified(kernel, "its pod is gone")
    if pod.unreadable:
        return free(f"{kernel.reason} (unverified: kubelet's checkpoint cannot be read)")
    return kernel


def kept_only_by(facts: ReleaseFacts, others: Collection[PodUid]) -> bool:
    """Tell whether the pod is over, and only processes of *others* have the device."""
    holders = facts.kernel.holders or ()
    if not holders or any(each.pod not in others for each in holders):
        return False
    but_for_them = replace(facts, kernel=KernelFacts(holders=()))
    return judge_release(but_for_them).freedom is Freedom.FREE


def _living(pod: FormerPod) -> str:
    if not pod.processes:
        return "its pod's cgroup is populated: processes of it still live, whose pids were not seen"
    pids = some([str(pid) for pid in pod.processes], MOST_NAMED)
    return f"processes of its pod still live: pid {pids}"


def _of_an_unknown_pod(kernel: Verdict, facts: ReleaseFacts) -> Verdict:
    """Return *kernel*, but FREE where no pod had it, or every process was seen and none has it.

    Whatever else is unknown then, such as why it is busy, is not that pod's to end.
    """
    if facts.kernel.holders is None:
        return kernel
    if facts.nobodys:
        return _unverified(kernel, "no pod had it")
    return kernel if facts.kernel.gaps else _unverified(kernel, "no process has it")


def _unverified(kernel: Verdict, accounted: str) -> Verdict:
    """Return that a device is free although not every process can be seen, unless it is in use.

    *accounted* says what became of the former holder. The gate decides the rest, by an exclusive
    open, and marks the start as unverified: a node that would work without holdfast must not stop
    because a capability is missing or because one process hangs.
    """
    if kernel.final or kernel.freedom is not Freedom.UNKNOWN:
        return kernel
    return free(f"{accounted}; unverified: {kernel.reason}")


def but_for_own_machine(verdict: Verdict, pod: PodUid | None, *, had_none: bool = False) -> Verdict:
    """Return *verdict*, or FREE where only *pod*'s own virtual machine has the device.

    Kata can plug in VFIO devices when it creates a pod's sandbox (cold plug), before any container
    of the pod starts. Such a virtual machine is the pod itself.

    *had_none*: nobody had the device when a container of the pod started on it before. Then it was
    plugged in later, for that container, and the virtual machine has to close it first.
    """
    if verdict.freedom is not Freedom.IN_USE or not verdict.holders:
        return verdict
    own = pod is not None and all(
        each.sandbox is Sandbox.MACHINE and each.pod == pod for each in verdict.holders
    )
    if not own or had_none:
        return verdict
    pids = ", ".join(str(each.process) for each in verdict.holders)
    return free(f"only the virtual machine of pod {pod} itself has it (pid {pids})")


def asking_whose(verdict: Verdict) -> Verdict:
    """Return *verdict*; for a virtual machine outside any pod, with a hint how to identify it."""
    holders = verdict.holders
    if any(each.sandbox is Sandbox.MACHINE and each.pod is None for each in holders):
        return replace(verdict, reason=verdict.reason + _WHOSE)
    return verdict
