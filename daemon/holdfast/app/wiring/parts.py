"""Wires the parts of the daemon; what depends on what is read off here."""

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from holdfast.allocation.allocator import Allocator
from holdfast.allocation.cdi import CdiSpecs, SpecWriter
from holdfast.allocation.gate import Gate
from holdfast.allocation.granting import GpuInputs, Granting, TpuInputs
from holdfast.allocation.preference import Preference
from holdfast.app.watches.drift import DriftWatch
from holdfast.app.watches.memory import MemoryWatch
from holdfast.app.watches.own_sockets import OwnSockets
from holdfast.app.wiring.foundation import Foundation
from holdfast.app.wiring.gpus import NO_GPUS, Gpus, build_gpus
from holdfast.app.wiring.hosts import Hosts
from holdfast.app.wiring.kubelet_side import (
    Called,
    KubeletSide,
    build_kubelet_side,
    build_registrar,
)
from holdfast.app.wiring.lacks import lacks
from holdfast.app.wiring.reclaiming import Reclaiming, build_leaks, build_reclaiming
from holdfast.discovery.inventory import Offered
from holdfast.discovery.scanner import Scanner
from holdfast.discovery.tpu_env import read_tpu_env, tpu_env_path
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
from holdfast.model.gate.cdi import Published
from holdfast.model.gate.promise import gpu_names_in, names_of_ours
from holdfast.model.ids import NO_CHECKPOINT, CheckpointId, DeviceName, ResourceName
from holdfast.model.nvidia.slice_placement import SlicePolicy
from holdfast.model.tpu.env import TpuHostFacts
from holdfast.reclaim.handrelease import HandRelease
from holdfast.reclaim.kernel import KernelWatch
from holdfast.reclaim.leaks import LeakedSandboxes
from holdfast.reclaim.reclaimer import Reclaimer
from holdfast.reclaim.resetter import Resetter
from holdfast.reclaim.watcher import Watcher
from holdfast.runtime.clock import Clock
from holdfast.settings import Settings


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
    gpus: Gpus | None
    drift: DriftWatch
    memory: MemoryWatch
    sockets: OwnSockets
    lacks: tuple[str, ...]
    """What the daemon may not do though its settings ask for it; that is given at its start."""


def build(
    settings: Settings, host: Hosts, ledger: Ledger, clock: Clock, *, called: Called
) -> Parts:
    """Wire everything; nothing runs yet. *called* hears of each of kubelet's calls."""

    def names_wanted() -> bool:
        # Pods that were promised names need them also where new ones get their nodes by path.
        return settings.device_list_strategy == "cdi" or any(
            entry.resource in scanner.inventory.value.resources and names_of_ours(entry)
            for entry in side.books.view.value.entries
        )

    def gpus_promised() -> bool:
        return any(map(gpu_names_in, side.books.view.value.entries))

    folder = SpecFolder(Path(settings.cdi.spec_dir), prefix=settings.kubelet.socket_prefix)
    specs = CdiSpecs(SpecWriter(folder, lane=host.lanes["cdi"]), wanted=names_wanted)
    gpus = build_gpus(settings, host, ledger, clock, promised=gpus_promised)
    scanner = _scanner(settings, host, ledger=ledger, specs=specs, gpus=gpus, clock=clock)
    on = Foundation(settings=settings, host=host, ledger=ledger, scanner=scanner, clock=clock)
    side = build_kubelet_side(on)
    look = Look(
        host.root,
        host.lanes["scan"],
        gpus.uses if gpus is not None else None,
        monotonic=clock.monotonic,
    )
    reclaiming = build_reclaiming(on, side.books, look)

    def published() -> Published:
        if gpus is None:
            return specs.published
        return replace(specs.published, gpus=gpus.specs.names, indexes=gpus.indexes())

    gate = _gate(on, side, published=published, look=look, reclaiming=reclaiming)
    allocator = Allocator(
        ledger=ledger,
        inventory=scanner.inventory,
        grant=_granting(on, specs, gpus).grant,
        node_rdev=lambda path: device_number(host.root.node(path)),
        checkpoint=lambda: _checkpoint(side.folder.checkpoint),
        lane=host.lanes["kubelet"],
        clock=clock,
        commit_timeout=settings.allocate.commit_timeout,
    )
    preference = Preference(
        ledger=ledger,
        inventory=scanner.inventory,
        topology=gpus.source.topology if gpus is not None else None,
        slices=SlicePolicy(settings.gpu.shared_devices_allocation_policy),
    )
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
        gpus=gpus,
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
    gpus: Gpus | None,
    clock: Clock,
) -> Scanner:
    def held() -> tuple[DeviceName, ...]:
        return tuple(ledger.book.value.locks)

    async def named(found: Inventory) -> Inventory:
        await specs.publish(found)
        return found if gpus is None else await gpus.specs.publish(found)

    tpu = settings.tpu
    return Scanner(
        host.root,
        Sysfs(host.root),
        lane=host.lanes["discovery"],
        clock=clock,
        offered=Offered(
            tpu=ResourceName(tpu.resource_name) if tpu.enabled else None,
            pools=tuple(pool.spec() for pool in settings.pools),
        ),
        held=held,
        before=named,
        besides=gpus.besides if gpus is not None else lambda: NO_GPUS,
        reported=gpus.health.faults if gpus is not None else None,
        settings=settings.discovery,
    )


def _gate(
    on: Foundation,
    side: KubeletSide,
    *,
    published: Callable[[], Published],
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
        published=published,
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


def _granting(on: Foundation, specs: CdiSpecs, gpus: Gpus | None) -> Granting:
    tpu = on.settings.tpu
    file = Path(tpu.env_file) if tpu.env_file else tpu_env_path(on.host.root)
    configured = TpuHostFacts(
        topology=tpu.topology or None,
        accelerator_type=tpu.accelerator_type or None,
        worker_id=None if tpu.worker_id is None else str(tpu.worker_id),
        worker_hostnames=tpu.worker_hostnames,
        vbar_url=tpu.vbar_url or None,
    )
    inputs = TpuInputs(
        resource=ResourceName(tpu.resource_name),
        configured=configured,
        generation=tpu.generation,
    )
    by_name = on.settings.device_list_strategy == "cdi"
    return Granting(
        inputs if tpu.enabled else None,
        from_file=lambda: read_tpu_env(file).facts,
        published=(lambda: specs.published) if by_name else None,
        gpus=_gpu_inputs(gpus) if gpus is not None else None,
    )


def _gpu_inputs(gpus: Gpus) -> GpuInputs:
    return GpuInputs(rules=gpus.rules, facts=gpus.facts, modes=lambda: gpus.specs.names.modes)


def _checkpoint(path: Path) -> CheckpointId:
    file = FileId.of(path)
    return NO_CHECKPOINT if file is None else file.checkpoint
