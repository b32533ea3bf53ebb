"""What is free of a GPU: who of those that NVML and /proc show uses it, and is its memory back."""

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.model.devices import Device
from holdfast.model.gpu import GpuUse
from holdfast.model.holding import held_by
from holdfast.model.ids import DeviceName, PodUid
from holdfast.model.locks import ENDING, DeviceLock, LockState
from holdfast.model.use import Grip, Holder
from holdfast.model.verdict import Freedom, Verdict

MONITORS = (
    "nvidia-persistenced",
    "nv-hostengine",
    "dcgm-exporter",
    "dcgmi",
    "nvidia-smi",
    "nvtop",
    "nvidia-fabricmanager",
    "nv-fabricmanager",
    "nvidia-device-plugin",
    "gpu-feature-discovery",
    "config-manager",
    "nvidia-powerd",
)
"""Commands of programs that look after GPUs and compute on none."""
DISPLAYS = ("Xorg", "X", "Xwayland", "gnome-shell", "kwin_wayland", "weston", "sddm")
"""Commands of programs that draw on a node's own monitor."""

_MPS = ("nvidia-cuda-mps-server", "nvidia-cuda-mps-control")
_COMM = 15
"""How many characters of a command the kernel keeps."""
_GPU, _MIG = "gpu/", "mig/"
_SLACK = 64 << 20
"""How many bytes above its idle level a GPU's memory may be and count as back."""
_MIB = 1 << 20
_GRIPS: Mapping[str, Grip] = {"graphics": Grip.DRAWS}


class GpuRules(Struct, frozen=True, kw_only=True):
    """What can be set: commands as /proc shows them, and for how long memory may stay, seconds."""

    monitors: tuple[str, ...] = MONITORS
    displays: tuple[str, ...] = DISPLAYS
    memory_deadline: float = 60.0


class Bystander(Enum):
    """What a process is that has to do with a GPU and is in nobody's way."""

    MONITOR = "a monitoring agent"
    MPS = "the MPS server"
    DISPLAY = "the display"
    ONLOOKER = "which has it open and does not use it"


class Level(Struct, frozen=True, kw_only=True):
    """The memory of one GPU that nobody uses, in bytes.

    `idle` is None until it was seen while the GPU was granted to nobody. `above_since` (monotonic
    seconds) is since when more is in use although nobody uses it.
    """

    idle: int | None = None
    above_since: float | None = None


class GpuSight(Struct, frozen=True, kw_only=True):
    """What NVML showed of a GPU besides processes that are in the way.

    `problem` says why it could not be asked. `ended` are pids that it names and that are no
    processes any more. `memory` is in use and no bystander's, in bytes, None where NVML does not
    tell; `idle` is what it is when nobody uses the GPU, None until that was seen. `overdue`: it has
    been above that for longer than the deadline.
    """

    problem: str = ""
    ended: tuple[int, ...] = ()
    bystanders: tuple[tuple[Holder, Bystander], ...] = ()
    memory: int | None = None
    idle: int | None = None
    overdue: bool = False

    @property
    def above(self) -> int:
        """Return how many bytes are in use above the idle level and its slack, 0 for none."""
        if self.memory is None or self.idle is None or self.memory <= self.idle + _SLACK:
            return 0
        return self.memory - self.idle


class Granted(Struct, frozen=True, kw_only=True):
    """To whom a GPU or slice was granted, and what its node alone tells of them.

    None among `pods`: to a pod that is over and was never identified. `elsewhere` are the pods that
    have another device as well: the node of a slice is its GPU's, so they may have it for that one.
    `unowned`: the ledger gave it to nobody.
    """

    pods: frozenset[PodUid | None] = frozenset()
    elsewhere: frozenset[PodUid | None] = frozenset()
    unowned: bool = True


class Found(Struct, frozen=True, kw_only=True):
    """Everybody that has to do with a GPU, sorted: `holders` are in the way, others are told of."""

    holders: tuple[Holder, ...] = ()
    sight: GpuSight = field(default_factory=GpuSight)


def uuids(device: Device) -> tuple[str, ...]:
    """Return what NVML has to be asked for *device*: its own UUID first, then its slices'.

    A GPU in MIG mode does not tell of the processes on its slices.
    """
    whole = sorted(key.partition("/")[2] for key in device.keys if key.startswith(_GPU))
    slices = sorted(key.split("/", 3)[-1] for key in device.keys if key.startswith(_MIG))
    return (*whole, *slices)


def granted(device: Device, locks: Mapping[DeviceName, DeviceLock]) -> Granted:
    """Return to whom the ledger gave *device*."""
    mine = [lock for lock in locks.values() if lock.keys & device.keys]
    mine = [lock for lock in mine if lock.state is not LockState.FOREIGN]
    is_slice = all(key.startswith(_MIG) for key in device.keys)
    return Granted(
        pods=frozenset(lock.pod for lock in mine if lock.pod is not None or lock.state in ENDING),
        elsewhere=frozenset(
            lock.pod
            for lock in locks.values()
            if is_slice and lock.state is LockState.HELD and not lock.keys & device.keys
        ),
        unowned=not mine,
    )


def sort(
    use: GpuUse,
    seen: tuple[Holder, ...],
    named: Mapping[int, Holder],
    to: Granted,
    rules: GpuRules,
) -> Found:
    """Return who of all that were found is in the way of the next pod.

    *seen* have the device's node open or mapped; *named* are the processes that NVML names, by pid:
    one that is missing has ended, and what it had is being taken down.
    """
    known = {each.process.pid: each for each in seen}
    for each in use.processes:
        holder = known.get(each.pid) or named.get(each.pid)
        if holder is not None:
            grip = _GRIPS.get(each.kind, Grip.COMPUTES)
            known[each.pid] = replace(holder, grips=holder.grips | {grip})
    roles = {pid: bystander(holder, to, rules) for pid, holder in known.items()}
    theirs = sum(each.memory or 0 for each in use.processes if roles.get(each.pid) is not None)
    return Found(
        holders=tuple(known[pid] for pid in sorted(known) if roles[pid] is None),
        sight=GpuSight(
            problem=use.problem,
            ended=tuple(sorted({each.pid for each in use.processes} - known.keys())),
            bystanders=tuple(
                (known[pid], role) for pid, role in sorted(roles.items()) if role is not None
            ),
            memory=None if use.memory_used is None else max(0, use.memory_used - theirs),
        ),
    )


def bystander(holder: Holder, to: Granted, rules: GpuRules) -> Bystander | None:
    """Return what *holder* is if it is in nobody's way, None if it is in the way.

    What a process is called excuses nothing that it does in a pod to which the GPU was granted, nor
    that it computes in any other.
    """
    uses = holder.grips & {Grip.COMPUTES, Grip.DRAWS}
    if holder.pod is not None and holder.pod in to.pods:
        only_node = holder.grips == {Grip.NODE}
        return Bystander.ONLOOKER if only_node and holder.pod in to.elsewhere else None
    if _is(holder, _MPS):
        return Bystander.MPS
    if _is(holder, rules.monitors) and (holder.pod is None or not uses):
        return Bystander.MONITOR
    if uses == {Grip.DRAWS} and holder.pod is None and _is(holder, rules.displays):
        return Bystander.DISPLAY
    # Of a pod that was never identified, any pod's process may be.
    if uses or (holder.pod is not None and None in to.pods):
        return None
    return Bystander.ONLOOKER


def follow(level: Level, found: Found, to: Granted, *, now: float, deadline: float) -> Level:
    """Return what is known of the idle memory after one more look.

    It is the least that was seen while the GPU was granted to nobody and nobody used it. What
    stands above it for the whole deadline on such a GPU is its idle level from then on: a driver
    may come to need more, and nobody is there to give it back.
    """
    sight = found.sight
    if sight.problem or sight.memory is None or found.holders or sight.ended:
        return replace(level, above_since=None)
    above = bool(replace(sight, idle=level.idle).above)
    since = (level.above_since if level.above_since is not None else now) if above else None
    stands = since is not None and now - since >= deadline
    if to.unowned and (level.idle is None or sight.memory < level.idle or stands):
        return Level(idle=sight.memory)
    return replace(level, above_since=since)


def with_level(found: Found, level: Level, *, now: float, deadline: float) -> Found:
    """Return *found* with what is known of the GPU's memory when nobody uses it."""
    since = level.above_since
    overdue = since is not None and now - since >= deadline
    return replace(found, sight=replace(found.sight, idle=level.idle, overdue=overdue))


def judge_gpu(
    sight: GpuSight | None, holders: tuple[Holder, ...] | None, gaps: tuple[str, ...]
) -> Verdict:
    """Return whether anybody uses a GPU; what NVML fails to tell is never taken for nobody."""
    if holders:
        return Verdict(freedom=Freedom.IN_USE, reason=held_by(holders), holders=holders)
    if sight is None:
        return _unknown("NVML has not been asked who uses it", final=True)
    if sight.problem:
        return _unknown(sight.problem, final=True)
    if sight.ended:
        pids = ", ".join(str(pid) for pid in sight.ended)
        reason = f"in use: what pid {pids} had on it is still being taken down (NVML names it)"
        return Verdict(freedom=Freedom.IN_USE, reason=reason)
    if sight.above:
        return Verdict(freedom=Freedom.IN_USE, reason=_memory(sight))
    if holders is None:
        return _unknown("nobody has looked for holders yet", final=True)
    back = "its idle memory is not known yet, so processes alone tell"
    if sight.memory is None:
        back = "NVML does not tell its memory, so processes alone tell"
    elif sight.idle is not None:
        back = f"its memory is back ({sight.memory // _MIB} MiB in use)"
    beside = "".join(f"; beside it {who}, {role.value}" for who, role in sight.bystanders)
    if gaps:
        return _unknown(
            f"NVML names nobody and {back}, but not every process can be seen: {gaps[0]}"
        )
    return Verdict(
        freedom=Freedom.FREE, reason=f"NVML names nobody that uses it, and {back}{beside}"
    )


def _memory(sight: GpuSight) -> str:
    idle = (sight.idle or 0) // _MIB
    text = (
        f"in use: {sight.above // _MIB} MiB of its memory are not given back yet, although no "
        f"process uses it (idle it has {idle} MiB in use)"
    )
    if sight.overdue:
        text += (
            "; it returns by itself when they are: reset the GPU (nvidia-smi --gpu-reset), or "
            "restart holdfast if the driver has come to need more"
        )
    return text


def _unknown(reason: str, *, final: bool = False) -> Verdict:
    return Verdict(freedom=Freedom.UNKNOWN, reason=reason, final=final)


def _is(holder: Holder, commands: tuple[str, ...]) -> bool:
    return holder.command[:_COMM] in {each[:_COMM] for each in commands}
