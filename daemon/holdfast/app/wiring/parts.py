"""Wires the parts of the daemon; what depends on what is read off here."""

from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec import Struct

from holdfast.allocation.allocator import Allocator
from holdfast.allocation.cdi import CdiSpecs, SpecWriter
from holdfast.allocation.gate import Gate
from holdfast.allocation.granting import Granting
from holdfast.allocation.preference import Preference
from holdfast.app.watches.drift import DriftWatch
from holdfast.app.watches.memory import MemoryWatch
from holdfast.app.watches.own_sockets import OwnSockets
from holdfast.app.wiring.foundation import Foundation
from holdfast.app.wiring.hosts import Hosts
from holdfast.app.wiring.kubelet_side import (
    Called,
    KubeletSide,
    build_kubelet_side,
    build_registrar,
)
from holdfast.app.wiring.lacks import lacks
from holdfast.app.wiring.reclaiming import Reclaiming, build_leaks, build_reclaiming
from holdfast.discovery.scanner import Scanner
from holdfast.discovery.source import Source, Sources
from holdfast.host.cgroup.memory import MemoryReader
from holdfast.host.files.cdi import SpecFolder
from holdfast.host.files.kernelfile import device_number
from holdfast.host.pci.sysfs import Sysfs
from holdfast.host.use.look import Look
from holdfast.kubelet.books import BooksReader
from holdfast.kubelet.checkpoint import FileId
from holdfast.kubelet.folder import FolderWatch
from holdfast.kubelet.offering import Offering
from holdfast.kubelet.registration import Registrar
from holdfast.ledger.ledger import Ledger
from holdfast.model.devices import Inventory
from holdfast.model.gate.promise import names_of_ours
from holdfast.model.ids import NO_CHECKPOINT, CheckpointId, DeviceName
from holdfast.reclaim.handrelease import HandRelease
from holdfast.reclaim.kernel import KernelWatch
from holdfast.reclaim.leaks import LeakedSandboxes
from holdfast.reclaim.reclaimer import Reclaimer
from holdfast.reclaim.resetter import Resetter
from holdfast.reclaim.watcher import Watcher
from holdfast.runtime.clock import Clock
from holdfast.settings import Settings
from holdfast.vendors.context import Context, Vendor
from holdfast.vendors.nvidia.adapter import nvidia
from holdfast.vendors.tpu.adapter import tpus
from holdfast.vendors.vfio.adapter import pools

VENDORS: tuple[Vendor, ...] = (
    tpus,
    pools,
    nvidia,
)
"""The adapters of this daemon, one line each; of a device that two find the first one's counts."""


class Parts(Struct, frozen=True, kw_only=True):
    """The running daemon."""

    settings: Settings
    clock: Clock
    host: Hosts
    ledger: Ledger
    specs: CdiSpecs
    scanner: Scanner
    folder: FolderWatch
    books: BooksReader
    offering: Offering
    registrar: Registrar
    kernel: KernelWatch
    watcher: Watcher
    look: Look
    gate: Gate
    reclaimer: Reclaimer
    resetter: Resetter
    leaks: LeakedSandboxes
    hand: HandRelease
    sources: Sources
    drift: DriftWatch
    memory: MemoryWatch
    sockets: OwnSockets
    lacks: tuple[str, ...]
    """What the daemon may not do though its settings ask for it; that is given at its start."""


def build(
    settings: Settings,
    host: Hosts,
    ledger: Ledger,
    clock: Clock,
    *,
    vendors: Iterable[Vendor],
    called: Called,
    count: Callable[[str, str, str], None],
) -> Parts:
    """Wire everything; nothing runs yet.

    *called* hears of each of kubelet's calls, *count* of each event of the hardware.
    """

    def names_wanted() -> bool:
        # Pods that were promised names need them also where new ones get their nodes by path.
        return settings.device_list_strategy == "cdi" or any(
            entry.resource in scanner.inventory.value.resources and names_of_ours(entry)
            for entry in side.books.view.value.entries
        )

    def spec_writer(prefix: str, joint: str) -> SpecWriter:
        folder = SpecFolder(Path(settings.cdi.spec_dir), prefix=prefix, joint=joint)
        return SpecWriter(folder, lane=host.lanes["cdi"])

    def look_again() -> None:
        scanner.poke()

    def report() -> None:
        scanner.publish()

    def replace(source: Source) -> None:
        sources.put(source)

    specs = CdiSpecs(spec_writer(settings.kubelet.socket_prefix, "_"), wanted=names_wanted)
    context = Context(
        settings=settings,
        root=host.root,
        boot=host.boot,
        ledger=ledger,
        clock=clock,
        open_lane=host.open_lane,
        spec_writer=spec_writer,
        answers=lambda: side.books.view.value.entries,
        look_again=look_again,
        report=report,
        count=count,
        replace=replace,
    )
    sources = Sources(vendor(context) for vendor in vendors)
    scanner = _scanner(settings, host, ledger=ledger, specs=specs, sources=sources, clock=clock)
    on = Foundation(settings=settings, host=host, ledger=ledger, scanner=scanner, clock=clock)
    side = build_kubelet_side(on, sources)
    look = Look(host.root, host.lanes["scan"], sources.ask, monotonic=clock.monotonic)
    reclaiming = build_reclaiming(on, side.books, look)
    gate = _gate(on, side, sources=sources, specs=specs, look=look, reclaiming=reclaiming)
    by_name = settings.device_list_strategy == "cdi"
    allocator = Allocator(
        ledger=ledger,
        inventory=scanner.inventory,
        grant=Granting(sources, published=(lambda: specs.published) if by_name else None).grant,
        node_rdev=lambda path: device_number(host.root.node(path)),
        checkpoint=lambda: _checkpoint(side.folder.checkpoint),
        lane=host.lanes["kubelet"],
        clock=clock,
        commit_timeout=settings.allocate.commit_timeout,
    )
    preference = Preference(ledger=ledger, inventory=scanner.inventory, sources=sources)
    registrar = build_registrar(
        on,
        side,
        allocate=allocator.allocate,
        pre_start=gate.pre_start,
        prefer=preference.preferred,
        called=called,
    )
    return Parts(
        settings=settings,
        clock=clock,
        host=host,
        ledger=ledger,
        specs=specs,
        scanner=scanner,
        folder=side.folder,
        books=side.books,
        offering=side.offering,
        registrar=registrar,
        kernel=reclaiming.kernel,
        watcher=reclaiming.watcher,
        look=look,
        gate=gate,
        reclaimer=reclaiming.reclaimer,
        resetter=reclaiming.resetter,
        leaks=build_leaks(on, side.books, look, pods=reclaiming.pods, starts=gate.starts.held_up),
        hand=reclaiming.hand,
        sources=sources,
        drift=_drift(on, side, kernel=reclaiming.kernel, preference=preference),
        memory=MemoryWatch(MemoryReader(host.root), lane=host.lanes["pods"], clock=clock),
        sockets=OwnSockets(registrar, Path(settings.state_dir), clock=clock),
        lacks=lacks(settings, host.root),
    )


def _scanner(
    settings: Settings,
    host: Hosts,
    *,
    ledger: Ledger,
    specs: CdiSpecs,
    sources: Sources,
    clock: Clock,
) -> Scanner:
    def held() -> tuple[DeviceName, ...]:
        return tuple(ledger.book.value.locks)

    async def named(found: Inventory) -> Inventory:
        await specs.publish(found)
        return await sources.prepare(found)

    return Scanner(
        host.root,
        Sysfs(host.root),
        lane=host.lanes["discovery"],
        clock=clock,
        sources=sources,
        held=held,
        before=named,
        settings=settings.discovery,
    )


def _gate(
    on: Foundation,
    side: KubeletSide,
    *,
    sources: Sources,
    specs: CdiSpecs,
    look: Look,
    reclaiming: Reclaiming,
) -> Gate:
    return Gate(
        ledger=on.ledger,
        inventory=on.scanner.inventory,
        books=side.books,
        look=look,
        looked=reclaiming.watcher.looked,
        obstacle=reclaiming.watcher.obstacle,
        at_work=reclaiming.resetter.at_work,
        clock=on.clock,
        settings=on.settings.gate,
        published=lambda: specs.published,
        sources=sources,
        stirred=reclaiming.watcher.nudges,
    )


def _drift(
    on: Foundation, side: KubeletSide, *, kernel: KernelWatch, preference: Preference
) -> DriftWatch:
    return DriftWatch(
        ledger=on.ledger,
        view=side.books.view,
        inventory=on.scanner.inventory,
        offers=side.offering.offers,
        kernel=kernel,
        preference=preference,
        clock=on.clock,
        settings=on.settings.drift,
        pending_timeout=on.settings.allocate.pending_timeout,
    )


def _checkpoint(path: Path) -> CheckpointId:
    file = FileId.of(path)
    return NO_CHECKPOINT if file is None else file.checkpoint
