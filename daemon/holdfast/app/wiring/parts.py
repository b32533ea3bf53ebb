"""Builds the parts of the daemon by rooms: which part needs which is read off here."""

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from holdfast.allocation.allocator import Allocator, GrantBuilder, Preference
from holdfast.allocation.entry import Entry
from holdfast.allocation.gate import Gate
from holdfast.allocation.specwriter import CdiSpecs, SpecWriter
from holdfast.app.wiring.core import Core
from holdfast.discovery.scanner import Scanner
from holdfast.discovery.source import Sources
from holdfast.host.cgroup.cgroups import Cgroups
from holdfast.host.cgroup.runtimestate import RuntimeFiles
from holdfast.host.pci.reset import FunctionControl
from holdfast.host.use.look import Look
from holdfast.inuse.deviceuse import DeviceUse
from holdfast.kubelet.folder import FolderWatch
from holdfast.kubelet.plugin import DeviceDoor, Offering, PluginParts
from holdfast.kubelet.podresources import PodResources, Traffic
from holdfast.kubelet.reader import ViewReader
from holdfast.kubelet.registration import Registrar, RegistrationTimes
from holdfast.model.book.places import place
from holdfast.model.devices import Inventory
from holdfast.names import KUBELET_CHECKPOINT
from holdfast.reclaim.ending import Ending
from holdfast.reclaim.evidence import Evidence
from holdfast.reclaim.handrelease import HandRelease
from holdfast.reclaim.leaks import LeakedSandboxes
from holdfast.reclaim.pods import Pods
from holdfast.reclaim.reclaimer import Reclaimer
from holdfast.reclaim.resetter import Resetter
from holdfast.reclaim.sightings import PodSightings
from holdfast.reclaim.watcher import Watcher
from holdfast.runtime.watched import Watched
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


class DiscoveryParts:
    """Which devices there are, and who has them open."""

    def __init__(self, core: Core, vendors: Iterable[Vendor]) -> None:
        """Build what finds devices.

        Adapters ask discovery to look again, and discovery asks adapters what there is: it is made
        first, without any, and then adopts them.
        """
        self._core = core
        settings, host, live = core.settings, core.host, core.live
        writer = partial(SpecWriter, Path(settings.cdi.spec_dir), lane=host.lanes["cdi"])
        self.sources = Sources()
        self.specs = CdiSpecs(
            writer=writer(settings.kubelet.socket_prefix, "_"),
            by_name=_by_name(core),
            view=core.view,
        )
        self.scanner = Scanner(
            root=host.root,
            lane=host.lanes["discovery"],
            clock=core.clock,
            sources=self.sources,
            book=core.ledger.book,
            names=core.naming,
            prepare=self._prepare,
            inventory=core.inventory,
            settings=live.discovery,
        )
        context = Context(
            settings=live.in_use,
            root=host.root,
            boot=host.boot,
            ledger=core.ledger,
            clock=core.clock,
            lanes=host,
            specs=writer,
            view=core.view,
            discovery=self.scanner,
            taken=core.naming.taken,
            count=core.metrics.happened,
        )
        self.scanner.adopt(vendor(context) for vendor in vendors)
        self.look = Look(
            host.root,
            host.lanes["scan"],
            self.sources,
            core.clock,
            lanes=host,
            book=lambda: core.ledger.book.value,
        )
        self.use = DeviceUse(
            look=self.look,
            pidfds=host.pidfds,
            clock=core.clock,
            book=core.ledger.book,
            rescan=live.reclaim.part(lambda now: now.foreign_scan),
            exclusive_open=live.gate.part(lambda now: now.exclusive_open),
        )

    async def _prepare(self, found: Inventory) -> Inventory:
        # Before it is published. A lock of a card excludes all that gives the card away.
        await self._core.ledger.apply_if_changing(partial(place, found=found.cards))
        await self.specs.publish(found)
        return await self.sources.prepare(found)


def build_folder(
    core: Core, folder: Path, prefix: str, checkpoint: str = KUBELET_CHECKPOINT
) -> FolderWatch:
    """Build what watches a *folder* of kubelet's, in which our sockets' names have *prefix*."""
    return FolderWatch(
        folder=folder,
        checkpoint=checkpoint,
        prefix=prefix,
        paths=core.host.paths,
        lane=core.host.lanes["kubelet"],
        interval=core.live.kubelet.part(lambda now: now.poll),
    )


class KubeletParts:
    """What kubelet is sent, and what it has written down."""

    def __init__(self, core: Core, sources: Sources) -> None:
        host, kubelet, live = core.host, core.settings.kubelet, core.live.kubelet
        self.folder = build_folder(core, Path(kubelet.plugin_dir), f"{kubelet.socket_prefix}-")
        self.traffic = Traffic()
        self.offering = Offering(
            standings=core.standings,
            inventory=core.inventory,
            has_dra=core.live.in_use.part(lambda now: now.has_dra()),
        )
        self.reader = ViewReader(
            view=core.view,
            folder=self.folder,
            pods=PodResources(
                Path(kubelet.pod_resources_socket),
                deadline=live.part(lambda now: now.question.timeout),
            ),
            traffic=self.traffic,
            procfs=host.procfs,
            lists=self.offering,
            book=core.ledger.book,
            promises=sources,
            lane=host.lanes["kubelet"],
            clock=core.clock,
            settings=live.part(lambda now: now.question),
        )


class ReclaimParts:
    """The way out: what moves locks towards free."""

    def __init__(self, core: Core, use: DeviceUse, reader: ViewReader) -> None:
        host, live, reclaim = core.host, core.live, core.live.reclaim
        self.cgroups = Cgroups(host.root, monotonic=core.clock.monotonic)
        self.pods = Pods(
            cgroups=self.cgroups,
            runtimes=RuntimeFiles(host.root),
            procfs=host.procfs,
            pidfds=host.pidfds,
            lane=host.lanes["pods"],
            ledger=core.ledger,
        )
        sightings = PodSightings(
            cgroups=self.cgroups,
            paths=host.paths,
            lane=host.lanes["pods"],
            clock=core.clock,
            nudges=core.nudges,
        )
        evidence = Evidence(
            ledger=core.ledger,
            reader=reader,
            pods=self.pods,
            clock=core.clock,
            settings=reclaim,
            may_end=core.naming.may_end,
            question_timeout=live.kubelet.part(lambda now: now.question.timeout),
            own_pid=os.getpid(),
        )
        self.ending = Ending(
            pods=self.pods,
            clock=core.clock,
            settings=reclaim,
            count=core.metrics.reclaimed,
        )
        self.reclaimer = Reclaimer(
            ledger=core.ledger, evidence=evidence, ending=self.ending, clock=core.clock
        )
        self.resetter = Resetter(
            ledger=core.ledger,
            control=FunctionControl(host.root),
            clock=core.clock,
            settings=reclaim,
            nudges=core.nudges,
            count=core.metrics.reclaimed,
        )
        self.watcher = Watcher(
            ledger=core.ledger,
            inventory=core.inventory,
            reader=reader,
            use=use,
            pods=sightings,
            reclaimer=self.reclaimer,
            resetter=self.resetter,
            clock=core.clock,
            settings=reclaim,
            pending_timeout=live.allocate.part(lambda now: now.pending_timeout),
            is_retired=core.naming.is_dra,
            obstacles=core.obstacles,
            emptied=core.emptied,
            nudges=core.nudges,
        )
        self.hand = HandRelease(
            ledger=core.ledger,
            inventory=core.inventory,
            use=use,
            reclaimer=self.reclaimer,
        )


def build_entry(core: Core, use: DeviceUse, reclaim: ReclaimParts, poll: Watched[float]) -> Entry:
    """Build an entry for a door at which a visit tries again every *poll* seconds."""
    return Entry(
        ledger=core.ledger,
        inventory=core.inventory,
        view=core.view,
        look=use,
        watcher=reclaim.watcher,
        resetter=reclaim.resetter,
        clock=core.clock,
        poll=poll,
    )


class AllocationParts:
    """The way in, by the device plugin.

    `leaks` ends sandboxes that keep a start at the gate waiting.
    """

    def __init__(
        self, core: Core, discovery: DiscoveryParts, kubelet: KubeletParts, reclaim: ReclaimParts
    ) -> None:
        ledger, inventory, live, sources = core.ledger, core.inventory, core.live, discovery.sources
        self.gate = Gate(
            entry=build_entry(core, discovery.use, reclaim, live.gate.part(lambda now: now.poll)),
            ledger=ledger,
            inventory=inventory,
            reader=kubelet.reader,
            sources=sources,
            specs=discovery.specs,
            clock=core.clock,
            settings=live.gate,
            observer=core.metrics,
        )
        allocator = Allocator(
            ledger=ledger,
            inventory=inventory,
            standings=core.standings,
            granting=GrantBuilder(sources, discovery.specs if _by_name(core) else None),
            root=core.host.root,
            checkpoint=kubelet.folder.checkpoint,
            lane=core.host.lanes["kubelet"],
            clock=core.clock,
            commit_timeout=live.allocate.part(lambda now: now.commit_timeout),
        )
        self.preference = Preference(standings=core.standings, inventory=inventory, sources=sources)
        self.registrar = Registrar(
            plugins=PluginParts(
                offers=kubelet.offering.offers,
                door=DeviceDoor(
                    allocate=allocator.allocate,
                    pre_start=self.gate.pre_start,
                    preferred=self.preference.preferred,
                ),
                traffic=kubelet.traffic,
                emptied=core.emptied,
                calls=core.metrics,
                clock=core.clock,
            ),
            folder=kubelet.folder,
            prefix=core.settings.kubelet.socket_prefix,
            times=live.kubelet.part(lambda now: RegistrationTimes(register=now.register_timeout)),
            view=core.view,
        )
        self.leaks = LeakedSandboxes(
            ledger=ledger,
            inventory=inventory,
            reader=kubelet.reader,
            starts=self.gate.entry.held_up,
            look=discovery.use,
            ending=reclaim.ending,
            clock=core.clock,
            settings=live.reclaim,
            may_end=core.naming.may_end,
        )


def _by_name(core: Core) -> bool:
    return core.settings.device_list_strategy == "cdi"
