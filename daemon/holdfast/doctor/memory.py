"""Checks memory: the daemon's limit, and what pods with devices have left and may lock."""

import re
from collections.abc import Iterator

from holdfast.doctor.finding import Check, Finding, Node
from holdfast.doctor.programs import ask_daemon, running
from holdfast.host.cgroup.memorylimit import MemoryReader
from holdfast.host.files.kernelfile import device_number, names_or_empty, seen
from holdfast.host.proc.procfs import Procfs
from holdfast.host.root import HostRoot
from holdfast.host.use.holders import HolderScan
from holdfast.ledger.disk import LOCK
from holdfast.model.ids import DeviceId, DeviceName, ResourceName
from holdfast.model.node.cgroup_names import pod_of
from holdfast.model.node.memory import VFIO_MEMLOCK, CgroupMemory, Memory
from holdfast.model.text import sized
from holdfast.model.use.holders import Holder, ScanTarget

NEED = 64 << 20
"""What the daemon needs, in bytes: 60 MiB with GPUs and TPUs, and what the kernel adds."""
COMMAND = 40 << 20
"""What a command of holdfast needs in addition, in the daemon's container, in bytes."""

_RUNTIMES = frozenset({"containerd", "crio", "dockerd"})
_NODES = {
    "vfio": re.compile(r"vfio/(devices/(vfio)?|(vfio)?)[0-9]+"),
    "gpu": re.compile(r"nvidia[0-9]+"),
    "accel": re.compile(r"(accel/)?accel[0-9]+"),
}
"""Kinds of device nodes, by their paths below /dev."""
_VFIO = ResourceName("vfio")

_ROOM = "raise the container's memory limit, or make it use less: at the limit the kernel kills it"
_LOCK_MORE = (
    "give the container the capability IPC_LOCK, or SYS_RESOURCE and `ulimit -l "
    f"{VFIO_MEMLOCK >> 10}` before the program"
)


def memory_findings(node: Node) -> Iterator[Finding]:
    """Yield what was found of memory."""
    seen(node.host.cgroup / "cgroup.controllers")  # raises: what cannot be read would be no limit
    reader = MemoryReader(node.host)
    yield from _own(node, reader)
    targets = tuple(_targets(node.host))
    if any(each.device.resource == _VFIO for each in targets):
        yield from _runtimes(node.host, reader)
    if targets:
        yield from _holders(node, reader, targets)
    else:
        yield Check("pods").ok("there are no device nodes that a pod could have")


def _own(node: Node, reader: MemoryReader) -> Iterator[Finding]:
    pid = Procfs(node.host).flock_holder(node.path(node.settings.state_dir) / LOCK)
    if not pid and node.live:  # some filesystems, such as btrfs, have two numbers for each file
        pid = ask_daemon(node).pid
    if not pid and not node.live:
        return  # our own limit says nothing about a node that was copied
    who = f"the daemon (pid {pid})" if pid else "this process"
    memory = reader.of_process(pid) if pid else reader.own()
    if memory.limit is None:
        yield Check("limit").warn(
            f"no memory limit can be read below {node.host.proc} and {node.host.cgroup}",
            remedy="mount the host's /proc and cgroup tree, and set host.proc and host.cgroup",
        )
        return
    where = f"by cgroup {memory.tightest.path}" if memory.tightest else "by the node's memory"
    limit = f"{who} is limited to {sized(memory.limit)} {where}"
    if memory.limit < NEED:
        yield Check("limit").fail(
            f"{limit}, but needs {sized(NEED)}",
            remedy="raise resources.limits.memory of the DaemonSet, or MemoryMax of the unit",
        )
    elif (near := memory.near) is not None:
        yield Check("limit").warn(
            f"{limit}: {_left(near)}",
            remedy="raise the limit of that cgroup, or find what fills it",
        )
    elif _in_container(memory) and memory.limit < NEED + COMMAND:
        yield Check("limit").warn(
            f"{limit}: enough for the daemon, but not for a command in the same container, which "
            f"needs up to {sized(COMMAND)}; the kernel might kill the daemon for it",
            remedy=f"raise the limit to {sized(NEED + COMMAND)} or more; the chart sets 128 MiB",
        )
    else:
        yield Check("limit").ok(limit)


def _in_container(memory: Memory) -> bool:
    path = memory.tightest.path if memory.tightest is not None else ""
    return path == "/" or pod_of(path)[0] is not None


def _runtimes(root: HostRoot, reader: MemoryReader) -> Iterator[Finding]:
    """Yield how much memory containers may lock by default, which is what their runtime may."""
    for facts in running(root, _RUNTIMES):
        memlock = reader.memlock(facts.process.pid)
        if memlock is None:
            continue
        name = f"{facts.comm} (pid {facts.process.pid})"
        if memlock.limit is None or memlock.limit >= VFIO_MEMLOCK:
            yield Check("runtime-memlock").ok(f"{name} lets containers lock enough")
        else:
            yield Check("runtime-memlock").warn(
                f"{name} lets containers lock {sized(memlock.limit)}; VFIO counts all memory that "
                "it pins, and fails above the limit",
                remedy=f"{_LOCK_MORE}; or set LimitMEMLOCK=infinity for the runtime's service",
            )


def _holders(
    node: Node, reader: MemoryReader, targets: tuple[ScanTarget, ...]
) -> Iterator[Finding]:
    scan = HolderScan(node.host).scan(targets)
    if scan.gaps and node.live:
        yield Check("pods").warn(
            f"cannot see every process that may have a device: {scan.gaps[0]}",
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
        yield Check("pods").ok(f"{who}, with memory left to use and to lock")


def _holder(
    reader: MemoryReader, holder: Holder, devices: tuple[DeviceName, ...]
) -> Iterator[Finding]:
    memory, memlock = reader.of_process(holder.process.pid), reader.memlock(holder.process.pid)
    pod = f" of pod {holder.pod}" if holder.pod else ""
    names = ", ".join(f"/dev/{each.id}" for each in devices)
    who = f"pid {holder.process.pid} ({holder.command}){pod}, which has {names},"
    if (near := memory.near) is not None:
        yield Check("near-limit").warn(f"{who} has {_left(near)}", remedy=_ROOM)
    if (slowed := memory.slowed) is not None:
        yield Check("slowed").warn(
            f"{who} is slowed by the kernel: {slowed.path} is above its memory.high",
            remedy="raise the container's memory request or limit, or make it use less",
        )
    if memlock is not None and memlock.too_low and any(each.resource == _VFIO for each in devices):
        now = "" if memlock.locked is None else f", of which {sized(memlock.locked)} are in use"
        yield Check("memlock").warn(
            f"{who} may lock {sized(memlock.bounded or 0)}{now}; VFIO refuses to map more",
            remedy=_LOCK_MORE,
        )


def _left(near: CgroupMemory) -> str:
    return f"{sized(near.left or 0)} left of the {sized(near.limit or 0)} of cgroup {near.path}"


def _targets(root: HostRoot) -> Iterator[ScanTarget]:
    """Yield every device node as a target: targets differ by number, not by driver."""
    folders = ("", "vfio", "vfio/devices", "accel")
    for path in (
        f"{each}/{name}".lstrip("/") for each in folders for name in names_or_empty(root.dev / each)
    ):
        kind = next((kind for kind, form in _NODES.items() if form.fullmatch(path)), "")
        rdev = device_number(root.dev / path) if kind else None
        if rdev is not None:
            device = DeviceName(ResourceName(kind), DeviceId(path))
            yield ScanTarget(device=device, rdevs=frozenset({rdev}), addresses=frozenset())
