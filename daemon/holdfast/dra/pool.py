"""What of the node the scheduler is to know: hardware, book and marks as the facts of slices."""

from collections.abc import Callable, Mapping

import structlog

from holdfast.discovery.source import Sources
from holdfast.errors import LaneStuckError
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.book import Book
from holdfast.model.book.locks import LockState
from holdfast.model.book.withheld import quarantines_on
from holdfast.model.devices import Device, Inventory
from holdfast.model.dra.advertised import Advertised
from holdfast.model.dra.resourceslice import Taint
from holdfast.model.dra.shares import as_whole
from holdfast.model.dra.slices import Kept, PoolFacts
from holdfast.model.dra.taints import TaintFacts, taints, withholds
from holdfast.model.ids import DeviceName, PciAddress, ResourceName
from holdfast.runtime.clock import Clock
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched

log = structlog.get_logger(__name__)

_BEAT = 30.0
"""Seconds after which all is looked at again: nobody says when the ledger begins to fail."""


class NodePool:
    """Turns what is known of the node into `PoolFacts`. It is looked at, and follows nobody."""

    def __init__(
        self,
        *,
        driver: str,
        serves: Callable[[ResourceName], bool],
        ledger: Ledger,
        inventory: Watched[Inventory],
        sources: Sources,
        pcie_root: Callable[[PciAddress], str],
        lane: Lane,
        clock: Clock,
        withhold_after: Watched[float],
        evict_lost: Watched[bool],
    ) -> None:
        """Tell of the devices whose resource *driver* serves.

        A lock has to withhold a device for *withhold_after* seconds before it is a taint.
        *pcie_root* reads the root port of a function, on *lane*; empty where it has none.
        """
        self._driver = driver
        self._serves = serves
        self._ledger = ledger
        self._inventory = inventory
        self._sources = sources
        self._pcie_root = pcie_root
        self._lane = lane
        self._clock = clock
        self._withhold_after = withhold_after
        self._evict_lost = evict_lost
        self._roots: dict[PciAddress, str] = {}
        self._since: dict[DeviceName, float] | None = None

    @property
    def unseen(self) -> bool:
        """Tell whether some of the hardware was not looked at yet, or cannot be."""
        return any(map(self._serves, self._inventory.value.unseen))

    async def facts(self, kept: Kept) -> tuple[PoolFacts, float]:
        """Return the facts as of now, and for how many seconds they stay true by themselves.

        *kept* is what the API server keeps of slices: without shares each GPU is offered whole.
        """
        inventory = self._inventory.value
        devices = {
            each.name: each for each in inventory.devices if self._serves(each.name.resource)
        }
        advertised = self._sources.told(inventory, self._serves)
        if not kept.shares:
            advertised = tuple(map(as_whole, advertised))
            devices |= {each.name: each for each in inventory.shared_cards()}
        roots = await self._roots_of(advertised)
        # From here on without a pause, so that all of it is of one moment.
        found, pause = self._taints(devices)
        facts = PoolFacts(
            devices=devices,
            advertised=advertised,
            taints=found,
            pcie_roots=roots,
            kept=kept,
        )
        return facts, pause

    async def _roots_of(self, advertised: tuple[Advertised, ...]) -> Mapping[PciAddress, str]:
        """Return the root of each function; where it is not known yet, the device has none."""
        wanted = {each.address for each in advertised if each.address is not None}
        if unread := wanted - self._roots.keys():
            try:
                self._roots |= await self._lane.run(
                    lambda: {each: self._pcie_root(each) for each in unread}
                )
            except LaneStuckError as error:  # a scan hangs: no reason to hide the devices
                log.debug("cannot read where PCI functions are", reason=str(error))
        self._roots = {each: root for each, root in self._roots.items() if each in wanted}
        return self._roots

    def _taints(
        self, devices: Mapping[DeviceName, Device]
    ) -> tuple[Mapping[DeviceName, tuple[Taint, ...]], float]:
        book, now = self._ledger.book.value, self._clock.monotonic()
        before, self._since = self._since, {}
        withhold_after = self._withhold_after.value
        found: dict[DeviceName, tuple[Taint, ...]] = {}
        pause = _BEAT
        for name, device in devices.items():
            lock = book.lock_on(device.keys)
            state = LockState.FREE if lock is None else lock.state
            # Of a claim that has the GPU in another way, as it was offered before, the scheduler
            # does not know that it keeps this away.
            for_claim = lock is None or (
                lock.claim is not None and not lock.keys.isdisjoint(device.keys)
            )
            brief = False
            if withholds(state, for_claim=for_claim):
                # What was so when the daemon started has been told before it stopped.
                started = now - withhold_after if before is None else before.get(name, now)
                self._since[name] = started
                left = started + withhold_after - now
                brief = left > 0
                pause = min(pause, left) if brief else pause
            found[name] = taints(
                self._driver,
                self._facts(device, book, state, for_claim=for_claim, brief=brief),
                evict_lost=self._evict_lost.value,
            )
        return {name: each for name, each in found.items() if each}, pause

    def _facts(
        self, device: Device, book: Book, state: LockState, *, for_claim: bool, brief: bool
    ) -> TaintFacts:
        failing = self._ledger.failing_since
        return TaintFacts(
            faults=device.faults,
            lock=state,
            for_claim=for_claim,
            brief=brief,
            quarantined=bool(quarantines_on(book, device.keys)),
            drained=book.marks.drain is not None,
            leaving=bool(device.leaving),
            uncommitted=failing is not None
            and self._clock.monotonic() - failing > self._withhold_after.value,
        )
