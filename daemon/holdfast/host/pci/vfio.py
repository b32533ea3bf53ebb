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
    """Tell whether *nodes* are VFIO groups, which only one process at a time can have open."""
    rdevs = [device_number(root.node(node.path)) for node in nodes]
    vfio = Procfs(root).char_major("vfio")
    return bool(rdevs) and all(rdev is not None and os.major(rdev) == vfio for rdev in rdevs)


def exclusive_open(root: HostRoot, nodes: Sequence[DeviceNode]) -> Opened:
    """Open and close group nodes. For the gate: a program that opens them meanwhile gets EBUSY.

    UNAVAILABLE also for nodes that are not VFIO groups: opening those proves nothing.
    """
    if not are_groups(root, nodes):
        return Opened.UNAVAILABLE
    with holding(root, nodes) as opened:
        return opened


@contextlib.contextmanager
def holding(root: HostRoot, nodes: Sequence[DeviceNode]) -> Iterator[Opened]:
    """Hold each group of *nodes* open meanwhile; yield the result.

    Success proves that no device of the groups is open, and nobody else can open one until this
    ends. It changes nothing and resets nothing, but a program that starts meanwhile gets EBUSY.
    UNAVAILABLE if the container's device cgroup or a node's mode forbids it.
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
