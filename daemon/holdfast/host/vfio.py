"""The group node itself: its device number, and the exclusive open that the kernel answers."""

import errno
import os
import stat

from holdfast.host.procfs import Procfs
from holdfast.host.root import HostRoot
from holdfast.model.free import Opened


def node_rdev(root: HostRoot, path: str) -> int | None:
    """Return the device number of a character device node; None when there is no such node."""
    try:
        found = root.node(path).stat()
    except OSError:
        return None
    return found.st_rdev if stat.S_ISCHR(found.st_mode) else None


def exclusive_open(root: HostRoot, path: str) -> Opened:
    """Open and close a group node, which only one at a time can.

    Opening it changes nothing and resets nothing, but a workload that starts in that moment would
    get EBUSY: it is for the gate, before the container runs. UNAVAILABLE where the container's
    device cgroup or the node's mode forbids it, and for nodes that are not VFIO groups.
    """
    rdev = node_rdev(root, path)
    if rdev is None or os.major(rdev) != Procfs(root).char_major("vfio"):
        return Opened.UNAVAILABLE
    try:
        fd = os.open(root.node(path), os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        return Opened.BUSY if error.errno == errno.EBUSY else Opened.UNAVAILABLE
    os.close(fd)
    return Opened.SUCCEEDED
