"""Which PCI functions of a device are enabled more often than while nobody has it open."""

from collections.abc import Iterable

from msgspec import Struct

from holdfast.host.pci.sysfs import Binding, Sysfs
from holdfast.model.ids import PciAddress


class Enabled(Struct, frozen=True, kw_only=True):
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
    """Reads `enable`, and remembers its level while a function is idle. Belongs to one lane.

    The idle level is 0, unless an earlier driver or a person left the function enabled. Such a
    level counts while the function stays bound: after a new binding the level is 0 again.
    """

    def __init__(self, sysfs: Sysfs) -> None:
        """Read through *sysfs*."""
        self._sysfs = sysfs
        self._levels: dict[PciAddress, _Baseline] = {}

    def of(self, functions: Iterable[PciAddress]) -> Enabled:
        """Return which of *functions* are enabled above their idle level."""
        above: list[PciAddress] = []
        unread: list[PciAddress] = []
        for address in functions:
            count = self._sysfs.enable(address)
            if count is None:
                unread.append(address)
            elif count > self._idle(address, count):
                above.append(address)
        return Enabled(above=tuple(above), unread=tuple(unread))

    def learn(self, functions: Iterable[PciAddress]) -> None:
        """Take the levels of *functions* as idle; the caller knows that nobody has them open."""
        for address in functions:
            binding, count = self._sysfs.binding(address), self._sysfs.enable(address)
            if binding is not None and count:
                self._levels[address] = _Baseline(count, binding)

    def _idle(self, address: PciAddress, count: int) -> int:
        level = self._levels.get(address)
        if level is None:
            return 0
        if count < level.count or self._sysfs.binding(address) != level.binding:
            del self._levels[address]
            return 0
        return level.count
