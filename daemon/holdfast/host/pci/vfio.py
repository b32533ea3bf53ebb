"""VFIO's group nodes, and the exclusive open by which the kernel says whether one is in use."""

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence

from holdfast.host.files.kernelfile import device_number
from holdfast.host.proc.procfs import Procfs
from holdfast.host.root import HostRoot
from holdfast.model.devices import DeviceNode
from holdfast.model.use.free import Opened


def are_groups(root: HostRoot, nodes: Sequence[DeviceNode]) -> bool:
    """Tell whether *nodes* are of VFIO's groups, which only one at a time can have open."""
    rdevs = [device_number(root.node(node.path)) for node in nodes]
    vfio = Procfs(root).char_major("vfio")
    return bool(rdevs) and all(rdev is not None and os.major(rdev) == vfio for rdev in rdevs)


def exclusive_open(root: HostRoot, nodes: Sequence[DeviceNode]) -> Opened:
    """Open and close group nodes, for the gate: a workload that starts meanwhile finds them busy.

    UNAVAILABLE also for nodes that are not VFIO groups, whose opening would prove nothing.
    """
    if not are_groups(root, nodes):
        return Opened.UNAVAILABLE
    with holding(root, nodes) as opened:
        return opened


@contextlib.contextmanager
def holding(root: HostRoot, nodes: Sequence[DeviceNode]) -> Iterator[Opened]:
    """Have every group of *nodes* open meanwhile; yield how that went.

    Success is the kernel's word that no device of the groups is open, and nobody else can open one
    until this ends. It changes nothing and resets nothing, but a workload that starts meanwhile
    gets EBUSY. UNAVAILABLE where the container's device cgroup or a node's mode forbids it.
    """
    with contextlib.ExitStack() as stack:
        said = {_open(root, node, stack) for node in nodes} or {Opened.UNAVAILABLE}
        worst = (Opened.BUSY, Opened.UNAVAILABLE, Opened.SUCCEEDED)
        yield next(each for each in worst if each in said)


def _open(root: HostRoot, node: DeviceNode, stack: contextlib.ExitStack) -> Opened:
    try:
        fd = os.open(root.node(node.path), os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        return Opened.BUSY if error.errno == errno.EBUSY else Opened.UNAVAILABLE
    stack.callback(os.close, fd)
    return Opened.SUCCEEDED if os.fstat(fd).st_rdev == node.rdev else Opened.UNAVAILABLE
