"""The doors that pods come in by, built for tests, and what they ask that is quickly answered."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from fakes.observers import Unobserved
from holdfast.allocation.entry import Entry, HardwareWork, NodeWatch
from holdfast.allocation.gate import Gate
from holdfast.allocation.specwriter import CdiSpecs, SpecWriter
from holdfast.discovery.source import Sources
from holdfast.inuse.deviceuse import DeviceUse
from holdfast.kubelet.reader import KubeletReader
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.book import Book
from holdfast.model.book.messages import BlockReason
from holdfast.model.devices import Inventory
from holdfast.model.dra.passage import rights_of_claim
from holdfast.model.gate.gate import Caller, Passage, rights_of_start, why_not_yet
from holdfast.model.ids import ClaimUid, DeviceName, HardwareKey, PodUid
from holdfast.model.use.holders import Holder
from holdfast.runtime.clock import Clock, SystemClock
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched
from holdfast.settings import sections


@dataclass
class WatchedNode:
    """What the watcher and the resetter say of the node, as a test wants it said.

    `keeps` is why any device is not free, with ``{}`` for its id; `doing` is done to all hardware.
    `holders` have every device open.
    """

    looked: asyncio.Event = field(default_factory=asyncio.Event)
    nudges: Watched[int] = field(default_factory=lambda: Watched(0))
    keeps: str = ""
    holders: tuple[Holder, ...] = ()
    doing: str = ""

    def obstacle(self, device: DeviceName) -> BlockReason | None:
        reason = self.keeps.format(device.id)
        if not reason and not self.holders:
            return None
        return BlockReason(device=device, reason=reason, holders=self.holders)

    def at_work(self, _keys: frozenset[HardwareKey]) -> str:
        return self.doing


@dataclass
class SaidRecord:
    """Kubelet's record of claims: `pods` are those of each."""

    pods: frozenset[PodUid] = frozenset()

    def users(self, _claim: ClaimUid) -> frozenset[PodUid]:
        return self.pods

    def joined_lately(self, _claim: ClaimUid) -> bool:
        return False

    async def catch_up(self) -> None:
        pass


def entry_over(
    ledger: Ledger,
    use: DeviceUse,
    *,
    inventory: Watched[Inventory],
    reader: KubeletReader,
    watcher: NodeWatch,
    resetter: HardwareWork,
    clock: Clock,
    settings: sections.GateSettings,
) -> Entry:
    """Return an entry that knows by *use* who has devices."""
    return Entry(
        ledger=ledger,
        inventory=inventory,
        view=reader.view,
        look=use,
        watcher=watcher,
        resetter=resetter,
        clock=clock,
        poll=Watched(settings.poll),
    )


def gate_over(
    ledger: Ledger,
    use: DeviceUse,
    *,
    inventory: Watched[Inventory],
    reader: KubeletReader,
    watcher: NodeWatch,
    resetter: HardwareWork,
    lane: Lane,
    settings: sections.GateSettings,
) -> Gate:
    """Return a gate on a node whose CDI specs nobody writes."""
    clock = SystemClock()
    return Gate(
        entry=entry_over(
            ledger,
            use,
            inventory=inventory,
            reader=reader,
            watcher=watcher,
            resetter=resetter,
            clock=clock,
            settings=settings,
        ),
        ledger=ledger,
        inventory=inventory,
        reader=reader,
        sources=Sources(),
        specs=CdiSpecs(
            writer=SpecWriter(Path("nowhere"), "none", "_", lane=lane),
            by_name=False,
            view=reader.view,
        ),
        clock=clock,
        settings=Watched(settings),
        observer=Unobserved(),
    )


def why_wait(passage: Passage, caller: Caller, book: Book) -> str | None:
    """Return what a start waits for by the book before it is looked at, None for nothing."""
    found = why_not_yet(rights_of_start(passage, caller, book), book)
    return None if found is None else found.text


def why_claim_waits(book: Book, claim: ClaimUid, keys: frozenset[HardwareKey]) -> str | None:
    """Return what a claim waits for by the book, None for nothing."""
    found = why_not_yet(rights_of_claim(claim, keys, book), book)
    return None if found is None else found.text
