"""VFIO's group nodes: the exclusive open, and functions enabled more often than at rest."""

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from holdfast.host.files.kernelfile import device_number
from holdfast.host.pci.sysfs import Binding, Sysfs
from holdfast.host.proc.procfs import Procfs
from holdfast.host.root import HostRoot
from holdfast.model.devices import DeviceNode
from holdfast.model.ids import PciAddress
from holdfast.model.use.free import OpenOutcome


def are_groups(root: HostRoot, nodes: Sequence[DeviceNode]) -> bool:
    """Tell whether *nodes* are VFIO groups, which only one process at a time can have open."""
    rdevs = [device_number(root.node(node.path)) for node in nodes]
    vfio = Procfs(root).char_major("vfio")
    return bool(rdevs) and all(rdev is not None and os.major(rdev) == vfio for rdev in rdevs)


def exclusive_open(root: HostRoot, nodes: Sequence[DeviceNode]) -> OpenOutcome:
    """Open and close group nodes. For the gate: a program that opens them meanwhile gets EBUSY.

    UNAVAILABLE also for nodes that are not VFIO groups: opening those proves nothing.
    """
    if not are_groups(root, nodes):
        return OpenOutcome.UNAVAILABLE
    with holding(root, nodes) as opened:
        return opened


@contextlib.contextmanager
def holding(root: HostRoot, nodes: Sequence[DeviceNode]) -> Iterator[OpenOutcome]:
    """Hold each group of *nodes* open meanwhile; yield the result.

    Success proves that no device of the groups is open, and nobody else can open one until this
    ends. It changes nothing and resets nothing, but a program that starts meanwhile gets EBUSY.
    UNAVAILABLE if the container's device cgroup or a node's mode forbids it.
    """
    with contextlib.ExitStack() as stack:
        said = {_open(root, node, stack) for node in nodes} or {OpenOutcome.UNAVAILABLE}
        worst = (OpenOutcome.BUSY, OpenOutcome.UNAVAILABLE, OpenOutcome.SUCCEEDED)
        yield next(each for each in worst if each in said)


def _open(root: HostRoot, node: DeviceNode, stack: contextlib.ExitStack) -> OpenOutcome:
    try:
        fd = os.open(root.node(node.path), os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        return OpenOutcome.BUSY if error.errno == errno.EBUSY else OpenOutcome.UNAVAILABLE
    stack.callback(os.close, fd)
    return OpenOutcome.SUCCEEDED if os.fstat(fd).st_rdev == node.rdev else OpenOutcome.UNAVAILABLE


class EnabledFunctions(Struct, frozen=True, kw_only=True):
    """A device's functions above their idle level, and those whose `enable` cannot be read."""

    above: tuple[PciAddress, ...] = ()
    unread: tuple[PciAddress, ...] = ()

    @property
    def gaps(self) -> tuple[str, ...]:
        """Return what could not be read, as texts."""
        return tuple(
            f"it cannot be read whether {address} is enabled: see its file enable in sysfs"
            for address in self.unread
        )


class _Baseline(Struct, frozen=True):
    count: int
    binding: Binding


class EnableLevels:
    """Reads `enable`, and remembers its level while a function is idle. Of use on any thread.

    The idle level is 0, unless an earlier driver or a person left the function enabled. Such a
    level counts while the function stays bound: after a new binding the level is 0 again.
    """

    def __init__(self, sysfs: Sysfs) -> None:
        """Read through *sysfs*."""
        self._sysfs = sysfs
        self._levels: dict[PciAddress, _Baseline] = {}

    def of(self, functions: Iterable[PciAddress]) -> EnabledFunctions:
        """Return which of *functions* are enabled above their idle level."""
        above: list[PciAddress] = []
        unread: list[PciAddress] = []
        for address in functions:
            count = self._sysfs.enable(address)
            if count is None:
                unread.append(address)
            elif count > self._idle(address, count):
                above.append(address)
        return EnabledFunctions(above=tuple(above), unread=tuple(unread))

    def learn(self, functions: Iterable[PciAddress]) -> None:
        """Take the levels of *functions* as idle; the caller knows that nobody has them open."""
        for address in functions:
            binding, count = self._sysfs.binding(address), self._sysfs.enable(address)
            if binding is not None and count:
                self._levels[address] = _Baseline(count, binding)

    def _idle(self, address: PciAddress, count: int) -> int:
        level = self._levels.get(address)
        binding = None if level is None else self._sysfs.binding(address)
        if level is None or binding is None:  # it has no driver now, or that cannot be read
            return 0
        if count < level.count or binding != level.binding:
            if self._levels.get(address) is level:  # else another thread was faster
                self._levels.pop(address, None)
            return 0
        return level.count
