"""What is free of a GPU: who uses it, how much memory it needs at rest, and is that back."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import Enum

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.model.book.book import ENDING, DeviceLock, LockState, named_pod
from holdfast.model.cards import card_of, clash, id_of, is_part, shares, whole_of
from holdfast.model.devices import Device
from holdfast.model.ids import DeviceId, DeviceName, HardwareKey, PodUid
from holdfast.model.nvidia.gpu import GpuUse
from holdfast.model.text import some
from holdfast.model.use.free import Verdict, free, in_use, unknown
from holdfast.model.use.holders import MOST_NAMED, DeviceAccess, Holder

MOST_RISE = 4
"""By how many times the slack the idle level may rise above the least that was ever seen."""
LONG = 10
"""After how many deadlines a small rise on a GPU that a pod had counts as need."""
BUSY = 50
"""From how many percent of use a GPU on which NVML names nobody counts as busy."""
_MPS = ("nvidia-cuda-mps-server", "nvidia-cuda-mps-control")
_COMM = 15
"""How many characters of a command the kernel keeps."""
_MIB = 1 << 20
_ACCESS: Mapping[str, DeviceAccess] = {"graphics": DeviceAccess.DRAWS}
_USES = frozenset({DeviceAccess.COMPUTES, DeviceAccess.DRAWS})


class IdleMemory(Struct, frozen=True, kw_only=True):
    """The memory of one GPU that is in use while nobody uses it, in bytes; the ledger keeps it.

    `now` is what counts, `least` the least that was seen since the driver was loaded, which `load`
    tells from any other load and boot: each gives all memory back, and may need more or less.
    """

    load: str
    least: int
    now: int


class IdleLevel(Struct, frozen=True, kw_only=True):
    """What is known of one GPU that nobody uses; bytes, and times in monotonic seconds.

    `idle` is its memory then, None until it was seen while the GPU was granted to nobody; `least`
    is the least that `idle` has been. `above_since` is since when more is in use although nobody
    uses it, `busy_since` since when it works for nobody.
    """

    idle: int | None = None
    least: int | None = None
    above_since: float | None = None
    busy_since: float | None = None

    def kept(self, load: str) -> IdleMemory | None:
        """Return what the ledger keeps of it; None: nothing is known yet."""
        if self.idle is None or self.least is None:
            return None
        return IdleMemory(load=load, least=self.least, now=self.idle)


class GpuRules(Struct, frozen=True, kw_only=True):
    """What can be set: commands as /proc shows them, and what counts as idle.

    `slack` is in bytes, `deadline` how many seconds memory may take to come back.
    """

    monitors: tuple[str, ...] = ()
    displays: tuple[str, ...] = ()
    slack: int
    deadline: float


class IdleLook(Struct, frozen=True, kw_only=True):
    """One look at a GPU on which nobody is; `memory` in bytes, `utilization` in percent.

    None where NVML does not tell, as of the use of a MIG slice. `unowned`: it is granted to nobody.
    """

    memory: int | None = None
    utilization: int | None = None
    unowned: bool = True


def restored(kept: IdleMemory | None, load: str) -> IdleLevel:
    """Return what is known at the start of a daemon, of the load of the driver that runs now."""
    if kept is None or kept.load != load:
        return IdleLevel()
    return IdleLevel(idle=kept.now, least=kept.least)


def follow(level: IdleLevel, look: IdleLook | None, *, now: float, rules: GpuRules) -> IdleLevel:
    """Return what is known after one more look; None: somebody is on it, or nobody can tell.

    The idle level is the least that was seen while the GPU was granted to nobody. A small rise that
    stands is taken for what the driver has come to need: nobody is there to give it back. What is
    more than that is a leak, however long it stands.
    """
    if look is None:
        return replace(level, above_since=None, busy_since=None)
    level = replace(level, busy_since=_since(level.busy_since, now, so=is_busy(look.utilization)))
    memory, idle = look.memory, level.idle
    if memory is None:
        return replace(level, above_since=None)
    if idle is None or level.least is None:
        return replace(level, idle=memory, least=memory) if look.unowned else level
    above = _since(level.above_since, now, so=memory > idle + rules.slack)
    if look.unowned and memory < idle:
        return replace(level, idle=memory, least=min(level.least, memory), above_since=None)
    stand = rules.deadline * (1 if look.unowned else LONG)
    stands = above is not None and now - above >= stand
    if stands and memory <= level.least + MOST_RISE * rules.slack:
        return replace(level, idle=memory, above_since=None)
    return replace(level, above_since=above)


def is_busy(utilization: int | None) -> bool:
    """Tell whether a GPU works, where it tells how much."""
    return utilization is not None and utilization >= BUSY


def _since(before: float | None, now: float, *, so: bool) -> float | None:
    if not so:
        return None
    return now if before is None else before


class Bystander(Enum):
    """Why a process that has to do with a GPU keeps it from no pod."""

    MONITOR = "a monitoring agent"
    MPS = "the MPS server"
    DISPLAY = "the display"
    ADMIN = "which has adminAccess to it"
    ONLOOKER = "which has it open and does not use it"
    NEIGHBOUR = "which has another replica of it"


class GpuSight(Struct, frozen=True, kw_only=True):
    """What NVML showed of a GPU, apart from processes that are in the way.

    `problem` says why it could not be asked. `ended` are pids that it names and that are no
    processes any more. `memory` is in use and no bystander's, in bytes, None where NVML does not
    tell; `idle` is what it is when nobody uses the GPU, None until that was seen, and `least` the
    least that `idle` has been. Up to `slack` more counts as idle. `overdue`: it has been above that
    for longer than the deadline.

    `utilization` is by how many percent it works though nobody is known to use it, None where NVML
    does not tell or a bystander works on it; `restless`: it did so for longer than the deadline.

    `shared`: pods use other replicas of it, so neither memory nor utilization tells anything.
    """

    problem: str = ""
    ended: tuple[int, ...] = ()
    bystanders: tuple[tuple[Holder, Bystander], ...] = ()
    memory: int | None = None
    idle: int | None = None
    least: int | None = None
    slack: int = 0
    overdue: bool = False
    utilization: int | None = None
    restless: bool = False
    shared: bool = False

    @property
    def above(self) -> int:
        """Return how many bytes are in use above the idle level and its slack, 0 for none."""
        if self.memory is None or self.idle is None or self.memory <= self.idle + self.slack:
            return 0
        return self.memory - self.idle

    @property
    def busy(self) -> bool:
        """Tell whether it works for nobody that is known."""
        return is_busy(self.utilization)

    def judge(self, *, looked: bool, gaps: tuple[str, ...]) -> Verdict:
        """Return whether the GPU is in use although no process is in the way, as `Sight` says."""
        return _judge(self, looked=looked, gaps=gaps)


class GpuOwners(Struct, frozen=True, kw_only=True):
    """Which pods a GPU or slice was granted to, and what its node alone says about them.

    None among `pods`: to a pod that is over, was never identified, and may have started a
    container. `elsewhere` are the pods that have another slice of its GPU as well: its node is the
    GPU's, so they may have it for that one. `neighbours` are the pods that share the GPU with a
    replica: they have started on another one. A pod that gives a replica back is none of its own.
    None among them: one that was not identified has started on another one. `unowned`: the ledger
    gave it to nobody. `admins` are the pods that have adminAccess to it.
    """

    pods: frozenset[PodUid | None] = frozenset()
    elsewhere: frozenset[PodUid | None] = frozenset()
    neighbours: frozenset[PodUid | None] = frozenset()
    unowned: bool = True
    admins: frozenset[PodUid] = frozenset()


class GpuHolders(Struct, frozen=True, kw_only=True):
    """All that have to do with a GPU, sorted: `holders` are in the way, others are only named."""

    holders: tuple[Holder, ...] = ()
    sight: GpuSight = field(default_factory=GpuSight)


def uuids(device: Device, divided: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return what NVML has to be asked for *device*: its own UUID first, then its slices'.

    *divided* has the slices of each GPU that has any: a GPU in MIG mode does not show the processes
    on them, and a replica of it has no key of theirs.
    """
    keys = {whole_of(key) for key in device.keys if card_of(key)}
    slices = {id_of(key) for key in keys if is_part(key)}
    whole = {id_of(key) for key in keys if not is_part(key)}
    slices.update(DeviceId(each) for gpu in whole for each in divided.get(gpu, ()))
    return (*sorted(whole), *sorted(slices))


def granted_on(
    keys: frozenset[HardwareKey],
    locks: Mapping[DeviceName, DeviceLock],
    admins: frozenset[PodUid] = frozenset(),
    pods_of: Callable[[DeviceLock], frozenset[PodUid]] = named_pod,
) -> GpuOwners:
    """Return which pods the ledger gave the hardware of a device; *admins* use it beside them.

    *pods_of* returns all pods that may use what a lock locks: several where a claim has it.
    """
    cards = {card_of(key) for key in keys}
    granted = [
        lock
        for lock in locks.values()
        if lock.state is not LockState.FOREIGN and any(card_of(key) in cards for key in lock.keys)
    ]
    mine = [lock for lock in granted if clash(lock.keys, keys)]
    beside = [lock for lock in granted if shares(lock.keys, keys)]
    on_it = {lock.device for lock in (*mine, *beside)}
    returning = {pod for lock in mine if lock.state in ENDING for pod in pods_of(lock)}
    is_slice = all(is_part(whole_of(key)) for key in keys)
    return GpuOwners(
        pods=frozenset(lock.pod for lock in mine if lock.pod is not None or _may_have_run(lock)),
        elsewhere=frozenset(
            lock.pod
            for lock in granted
            if is_slice and lock.state is LockState.HELD and lock.device not in on_it
        ),
        neighbours=frozenset(
            pod
            for lock in beside
            if lock.started
            for pod in pods_of(lock) or (None,)
            if pod not in returning
        ),
        unowned=not mine and not beside,
        admins=admins,
    )


def sort(
    use: GpuUse,
    seen: tuple[Holder, ...],
    named: Mapping[int, Holder],
    to: GpuOwners,
    rules: GpuRules,
) -> GpuHolders:
    """Return who of all that were found is in the way of the next pod.

    *seen* have the device's node open or mapped; *named* are the processes that NVML names, by pid:
    one that is missing has ended, and what it had is being taken down.
    """
    known = {each.process.pid: each for each in seen}
    for each in use.processes:
        holder = known.get(each.pid) or named.get(each.pid)
        if holder is not None:
            known[each.pid] = replace(holder, access=holder.access | access_of((each.kind,)))
    roles = {pid: bystander(holder, to, rules) for pid, holder in known.items()}
    at_work = any(role and known[pid].access & _USES for pid, role in roles.items())
    theirs = [each for each in use.processes if roles.get(each.pid) is not None]
    most: Counter[int] = Counter()  # of one that draws and computes each list has all it has
    for each in theirs:
        most[each.pid] = max(most[each.pid], each.memory or 0)
    shared = Bystander.NEIGHBOUR in roles.values()
    told = not shared and all(each.memory is not None for each in theirs)
    return GpuHolders(
        holders=tuple(known[pid] for pid in sorted(known) if roles[pid] is None),
        sight=GpuSight(
            problem=use.problem,
            ended=tuple(sorted({each.pid for each in use.processes} - known.keys())),
            bystanders=tuple(
                (known[pid], role) for pid, role in sorted(roles.items()) if role is not None
            ),
            memory=max(0, use.memory_used - most.total())
            if told and use.memory_used is not None
            else None,
            utilization=None if at_work or shared else use.utilization,
            shared=shared,
        ),
    )


def access_of(kinds: Iterable[str]) -> frozenset[DeviceAccess]:
    """Return what a process does on a GPU, from the kinds of NVML's lists that name it."""
    return frozenset(_ACCESS.get(kind, DeviceAccess.COMPUTES) for kind in kinds)


def bystander(holder: Holder, to: GpuOwners, rules: GpuRules) -> Bystander | None:
    """Return what *holder* is if it is not in the way, None if it is.

    What a process is called excuses nothing that it does in a pod to which the GPU was granted, nor
    that it computes in any other. A pod with adminAccess may compute on what others have; one to
    which the GPU was granted as well has to end on it as any other has.
    """
    uses = holder.access & _USES
    if holder.pod is not None and holder.pod in to.neighbours:
        return Bystander.NEIGHBOUR
    if holder.pod is not None and holder.pod in to.pods:
        only_node = holder.access == {DeviceAccess.NODE}
        return Bystander.ONLOOKER if only_node and holder.pod in to.elsewhere else None
    if holder.pod is not None and holder.pod in to.admins:
        return Bystander.ADMIN
    may_watch = holder.pod is None or not uses
    if may_watch and _is(holder, _MPS):
        return Bystander.MPS
    if may_watch and _is(holder, rules.monitors):
        return Bystander.MONITOR
    if uses == {DeviceAccess.DRAWS} and holder.pod is None and _is(holder, rules.displays):
        return Bystander.DISPLAY
    # Of a pod that was never identified, any pod's process may be.
    if holder.pod is not None and None in to.pods:
        return None
    if holder.pod is not None and None in to.neighbours:
        return Bystander.NEIGHBOUR
    if uses:
        return None
    return Bystander.ONLOOKER


def unused(found: GpuHolders, to: GpuOwners) -> IdleLook | None:
    """Return what is to be learned of a GPU that nobody uses; None: somebody is on it."""
    sight = found.sight
    if sight.problem or found.holders or sight.ended or sight.shared:
        return None
    return IdleLook(memory=sight.memory, utilization=sight.utilization, unowned=to.unowned)


def with_level(found: GpuHolders, level: IdleLevel, *, now: float, rules: GpuRules) -> GpuHolders:
    """Return *found* with what is known of the GPU when nobody uses it."""

    def is_over(since: float | None) -> bool:
        return since is not None and now - since >= rules.deadline

    sight = replace(
        found.sight,
        idle=level.idle,
        least=level.least,
        slack=rules.slack,
        overdue=is_over(level.above_since),
        restless=is_over(level.busy_since),
    )
    return replace(found, sight=sight)


def _judge(sight: GpuSight, *, looked: bool, gaps: tuple[str, ...]) -> Verdict:
    if sight.problem:
        return unknown(sight.problem, final=True)
    if sight.ended:
        pids = some([str(pid) for pid in sight.ended], MOST_NAMED)
        reason = f"in use: what pid {pids} had on it is still being taken down (NVML names it)"
        return in_use(reason)
    if sight.above:
        # Each look shows another figure, and a text that changes is another event of kubelet's.
        reset = "; reset it (nvidia-smi --gpu-reset)" if sight.overdue else ""
        return in_use(_memory(sight), brief=f"in use: its memory is not freed{reset}")
    if sight.busy and not sight.restless:
        brief = "in use: it is busy although NVML names no process that uses it; it may be ending"
        return in_use(f"in use: {_works(sight)}; it may be ending", brief=brief)
    if not looked:
        return unknown("the holders have not been scanned yet", final=True)
    if sight.busy:
        return unknown(f"{_works(sight)}: reset it (nvidia-smi --gpu-reset) if a pod fails on it")
    back = _back(sight)
    # Neighbours can be many, and are what a shared GPU is for.
    others = (each for each in sight.bystanders if each[1] is not Bystander.NEIGHBOUR)
    named = some([f"{who}, {role.value}" for who, role in others], MOST_NAMED, "; beside it ")
    beside = f"; beside it {named}" if named else ""
    if gaps:
        return unknown(
            f"NVML names no process and {back}, but not every process can be seen: {gaps[0]}"
        )
    return free(f"NVML names no process that uses it, and {back}{beside}")


def _back(sight: GpuSight) -> str:
    if sight.shared:
        return "pods use other replicas of it, so only processes count"
    if sight.memory is None:
        return "NVML does not report its memory, so only processes count"
    if sight.idle is None:
        return "its idle memory is not known yet, so only processes count"
    risen = (sight.idle - (sight.least or 0)) // _MIB
    more = f", idle {risen} MiB more than at first" if risen > 0 else ""
    return f"its memory is back ({sight.memory // _MIB} MiB in use{more})"


def _works(sight: GpuSight) -> str:
    return f"it is {sight.utilization} % busy although NVML names no process that uses it"


def _may_have_run(lock: DeviceLock) -> bool:
    """Tell whether a pod that is over and was never identified can have left a process."""
    return lock.state in ENDING and lock.started


def _memory(sight: GpuSight) -> str:
    idle = (sight.idle or 0) // _MIB
    text = (
        f"in use: {sight.above // _MIB} MiB of its memory are not freed yet, although no "
        f"process uses it (idle it has {idle} MiB in use)"
    )
    if sight.overdue:
        text += (
            "; it returns by itself once they are: reset the GPU (nvidia-smi --gpu-reset) or "
            "reload its driver; if the driver itself needs the memory, raise gpu.memorySlackMib"
        )
    return text


def _is(holder: Holder, commands: tuple[str, ...]) -> bool:
    return holder.command[:_COMM] in {each[:_COMM] for each in commands}
