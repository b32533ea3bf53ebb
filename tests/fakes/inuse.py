"""Looks at a node, and the memory of who holds its devices, as tests need them."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from fakes.books import device_of, name
from fakes.lanes import NewLanes
from holdfast.host.proc.pidfd import Pidfds
from holdfast.host.proc.procfs import Procfs
from holdfast.host.proc.visits import PATIENCE
from holdfast.host.root import HostRoot
from holdfast.host.use.holders import HolderScan
from holdfast.host.use.look import DriverAnswer, Drivers, Look
from holdfast.inuse.deviceuse import DeviceUse
from holdfast.model.book.book import Book, DeviceLock
from holdfast.model.devices import Device, DeviceNode
from holdfast.model.ids import DeviceName, PciAddress
from holdfast.model.use.free import KernelFacts
from holdfast.runtime.clock import Clock, SystemClock
from holdfast.runtime.lane import Lane, Lanes
from holdfast.runtime.watched import Watched
from simulated.node import SimulatedNode


class NoDrivers:
    """A node without a driver that knows its users."""

    async def ask(self, _devices: Iterable[Device], /) -> Mapping[DeviceName, DriverAnswer]:
        return {}


class CountedLook(Look):
    """A look that counts how often it went through every process, or only through some."""

    whole = 0
    partial = 0

    def __init__(self, root: HostRoot, lane: Lane, drivers: Drivers, clock: Clock) -> None:
        super().__init__(root, lane, drivers, clock, lanes=NewLanes(), book=Book)

    async def scan(
        self,
        devices: Iterable[Device],
        locks: Mapping[DeviceName, DeviceLock],
        *,
        pids: Sequence[int] | None = None,
    ) -> dict[DeviceName, KernelFacts]:
        self.whole += pids is None
        self.partial += pids is not None
        return await super().scan(devices, locks, pids=pids)


class SlowLook(CountedLook):
    """A look at every process that is over only when the test permits it; so many were."""

    over = 0

    def __init__(self, root: HostRoot, lane: Lane, drivers: Drivers, clock: Clock) -> None:
        super().__init__(root, lane, drivers, clock)
        self.permits = asyncio.Semaphore(0)

    async def scan(
        self,
        devices: Iterable[Device],
        locks: Mapping[DeviceName, DeviceLock],
        *,
        pids: Sequence[int] | None = None,
    ) -> dict[DeviceName, KernelFacts]:
        found = await super().scan(devices, locks, pids=pids)
        if pids is None:
            await self.permits.acquire()
            self.over += 1
        return found


def look_at(
    root: HostRoot,
    lane: Lane,
    drivers: Drivers | None = None,
    *,
    clock: Clock | None = None,
    lanes: Lanes | None = None,
    book: Callable[[], Book] = Book,
) -> Look:
    """Return looks below *root* with calls on *lane*, but for opens."""
    clock, lanes = clock or SystemClock(), lanes or NewLanes()
    return Look(root, lane, drivers or NoDrivers(), clock, lanes=lanes, book=book)


def device_use(
    look: Look,
    pidfds: HostRoot | Pidfds,
    clock: Clock,
    *,
    book: Watched[Book] | None = None,
    rescan: float | Watched[float] = 60.0,
    exclusive_open: bool | Watched[bool] = False,
) -> DeviceUse:
    """Return a memory of its own; *pidfds* may be the root below which they are opened."""
    return DeviceUse(
        look=look,
        pidfds=Pidfds(Procfs(pidfds)) if isinstance(pidfds, HostRoot) else pidfds,
        clock=clock,
        book=book or Watched(Book()),
        rescan=rescan if isinstance(rescan, Watched) else Watched(rescan),
        exclusive_open=(
            exclusive_open if isinstance(exclusive_open, Watched) else Watched(exclusive_open)
        ),
    )


async def known(
    use: DeviceUse,
    device: Device,
    locks: Mapping[DeviceName, DeviceLock] = MappingProxyType({}),
    *,
    enabled: tuple[PciAddress, ...],
    pids: Sequence[int] = (),
    to_free: bool = False,
) -> KernelFacts:
    """Return what *use* knows of one device alone."""
    name = device.name
    found = await use.known(
        [device],
        locks,
        enabled={name: enabled},
        pids={name: pids},
        to_free={name} if to_free else (),
    )
    return found[name]


def holder_scan(root: HostRoot, *, patience: float = PATIENCE) -> HolderScan:
    """Return scans below *root*, each read of which may take *patience* seconds."""
    return HolderScan(root, patience=patience)


def chip(node: SimulatedNode, place: int) -> Device:
    """Return the chip of *node* at a place."""
    address, path = PciAddress(f"0000:00:{5 + place:02x}.0"), f"/dev/vfio/{10 + place}"
    return device_of(
        name(address),
        f"pci/{address}",
        nodes=(DeviceNode(path=path, rdev=node.node(path).stat().st_rdev),),
        functions=(address,),
        model="v5e",
    )
