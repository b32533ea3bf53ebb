"""Checks memory: the daemon's limit, and what pods with devices have left, and may lock."""

import stat
from collections.abc import Iterator
from pathlib import Path

from holdfast.doctor.area import Area
from holdfast.doctor.finding import Finding
from holdfast.doctor.node import Node
from holdfast.errors import HostError
from holdfast.host.cgroup.memory import MemoryReader
from holdfast.host.proc.peer import lock_holder
from holdfast.host.proc.procfs import Procfs
from holdfast.host.root import HostRoot
from holdfast.host.use.holders import HolderScan
from holdfast.ledger.store import LOCK
from holdfast.model.ids import DeviceId, DeviceName, ResourceName
from holdfast.model.node.cgroup_names import pod_of
from holdfast.model.node.memory import VFIO_MEMLOCK, CgroupMemory, Memlock, Memory, sized
from holdfast.model.use.use import Holder, ScanTarget

_AREA = Area("memory")

NEED = 64 << 20
"""What the daemon needs, in bytes: its 60 MiB with GPUs and TPUs on, and what the kernel adds."""
COMMAND = 40 << 20
"""What a command of holdfast needs besides when it is run in the daemon's container, in bytes."""

_RUNTIMES = frozenset({"containerd", "crio", "dockerd"})
_PLACES = {"vfio": ("vfio", "vfio/devices"), "gpu": ("",), "accel": ("", "accel")}
"""Kinds of nodes, each with the folders of /dev that they lie in."""
_NAMES = {"vfio": ("", "vfio"), "gpu": ("nvidia",), "accel": ("accel",)}
"""What comes before the number in their names."""
_VFIO = ResourceName("vfio")

_ROOM = "raise the container's memory limit, or have it use less: at the limit the kernel ends it"
_LOCK_MORE = (
    "give the container the capability IPC_LOCK, or SYS_RESOURCE and `ulimit -l "
    f"{VFIO_MEMLOCK >> 10}` before the program"
)


def memory_findings(node: Node) -> Iterator[Finding]:
    """Yield what was found of memory. Never raises."""
    reader = MemoryReader(node.host)
    yield from _own(node, reader)
    targets = tuple(_targets(node.host))
    if any(each.device.resource == _VFIO for each in targets):
        yield from _runtimes(node.host, reader)
    if targets:
        yield from _holders(node, reader, targets)
    else:
        yield _AREA.ok(check="pods", reason="there are no devices' nodes that a pod could have")


def _own(node: Node, reader: MemoryReader) -> Iterator[Finding]:
    pid = lock_holder(Procfs(node.host), node.path(node.settings.state_dir) / LOCK)
    if not pid and not node.live:
        return  # what limits us says nothing of a node that was copied
    who = f"the daemon (pid {pid})" if pid else "this process"
    memory = reader.of_process(pid) if pid else reader.own()
    if memory.limit is None:
        yield _AREA.warn(
            check="limit",
            reason=f"no memory limit can be read below {node.host.proc} and {node.host.cgroup}",
            remedy="mount the host's /proc and cgroup tree, and set host.proc and host.cgroup",
        )
        return
    where = f"by cgroup {memory.tightest.path}" if memory.tightest else "by the node's memory"
    limit = f"{who} is limited to {sized(memory.limit)} {where}"
    if memory.limit < NEED:
        yield _AREA.fail(
            check="limit",
            reason=f"{limit}, and needs {sized(NEED)}",
            remedy="raise resources.limits.memory of the DaemonSet, or MemoryMax of the unit",
        )
    elif (near := memory.near) is not None:
        yield _AREA.warn(
            check="limit",
            reason=f"{limit}: {_left(near)}",
            remedy="raise the limit of that cgroup, or find what fills it",
        )
    elif _in_container(memory) and memory.limit < NEED + COMMAND:
        yield _AREA.warn(
            check="limit",
            reason=f"{limit}: enough for the daemon, but not for a command beside it, which needs "
            f"up to {sized(COMMAND)} in the same container; the kernel might end the daemon for it",
            remedy=f"raise the limit to {sized(NEED + COMMAND)} or more; the chart sets 128 MiB",
        )
    else:
        yield _AREA.ok(check="limit", reason=limit)


def _in_container(memory: Memory) -> bool:
    path = memory.tightest.path if memory.tightest is not None else ""
    return path == "/" or pod_of(path)[0] is not None


def _runtimes(root: HostRoot, reader: MemoryReader) -> Iterator[Finding]:
    """Tell how much containers may lock that say nothing of it: what their runtime may."""
    procfs = Procfs(root)
    for pid in _pids(procfs):
        facts = procfs.process(pid)
        memlock = reader.memlock(pid) if facts is not None and facts.comm in _RUNTIMES else None
        if facts is None or memlock is None:
            continue
        name = f"{facts.comm} (pid {pid})"
        if memlock.limit is None or memlock.limit >= VFIO_MEMLOCK:
            yield _AREA.ok(check="runtime-memlock", reason=f"{name} lets containers lock enough")
        else:
            yield _AREA.warn(
                check="runtime-memlock",
                reason=f"{name} gives containers {sized(memlock.limit)} to lock; VFIO counts all "
                "that it pins, and then refuses",
                remedy=f"{_LOCK_MORE}; or set LimitMEMLOCK=infinity for the runtime's service",
            )


def _holders(
    node: Node, reader: MemoryReader, targets: tuple[ScanTarget, ...]
) -> Iterator[Finding]:
    scan = HolderScan(node.host).scan(targets)
    if scan.gaps and node.live:
        yield _AREA.warn(
            check="pods",
            reason=f"not every process that has a device can be seen: {scan.gaps[0]}",
            remedy="run the doctor as root, in the node's pid namespace",
        )
    holders: dict[int, tuple[Holder, list[DeviceName]]] = {}
    for device, found in scan.holders.items():
        for holder in found:
            holders.setdefault(holder.process.pid, (holder, []))[1].append(device)
    worse = [
        finding for held in holders.values() for finding in _holder(reader, held[0], tuple(held[1]))
    ]
    yield from worse
    if not worse and not scan.gaps:
        count = len(holders)
        who = "1 process has a device" if count == 1 else f"{count} processes have devices"
        reason = f"{who}, with memory left to use and to lock"
        yield _AREA.ok(check="pods", reason=reason)


def _holder(
    reader: MemoryReader, holder: Holder, devices: tuple[DeviceName, ...]
) -> Iterator[Finding]:
    memory, memlock = reader.of_process(holder.process.pid), reader.memlock(holder.process.pid)
    pod = f" of pod {holder.pod}" if holder.pod else ""
    names = ", ".join(f"/dev/{each.id}" for each in devices)
    who = f"pid {holder.process.pid} ({holder.command}){pod}, which has {names},"
    if (near := memory.near) is not None:
        yield _AREA.warn(check="near-limit", reason=f"{who} has {_left(near)}", remedy=_ROOM)
    if (slowed := memory.slowed) is not None:
        yield _AREA.warn(
            check="slowed",
            reason=f"{who} is slowed by the kernel: {slowed.path} is above its memory.high",
            remedy="raise the container's memory request or limit, or have it use less",
        )
    if memlock is not None and memlock.too_low and any(each.resource == _VFIO for each in devices):
        yield _AREA.warn(check="memlock", reason=f"{who} {_may_lock(memlock)}", remedy=_LOCK_MORE)


def _left(near: CgroupMemory) -> str:
    return f"{sized(near.left or 0)} left of the {sized(near.limit or 0)} of cgroup {near.path}"


def _may_lock(memlock: Memlock) -> str:
    now = "" if memlock.locked is None else f", of which {sized(memlock.locked)} are used"
    return f"may lock {sized(memlock.bounded or 0)}{now}; VFIO refuses to map more"


def _pids(procfs: Procfs) -> list[int]:
    try:
        return procfs.pids()
    except HostError:
        return []


def _targets(root: HostRoot) -> Iterator[ScanTarget]:
    """Yield every device's node: what is looked for is told apart by number, not by driver."""
    for kind, folders in _PLACES.items():
        for folder in folders:
            for path in sorted(_listed(root.dev / folder)):
                rdev = _rdev(path) if _is_named(path.name, _NAMES[kind]) else None
                if rdev is not None:
                    name = DeviceName(ResourceName(kind), DeviceId(str(path.relative_to(root.dev))))
                    yield ScanTarget(device=name, rdevs=frozenset({rdev}), addresses=frozenset())


def _is_named(name: str, stems: tuple[str, ...]) -> bool:
    return any(name.removeprefix(stem).isdecimal() for stem in stems if name.startswith(stem))


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _rdev(path: Path) -> int | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_rdev if stat.S_ISCHR(found.st_mode) else None
