"""Builds the second door: what serves Dynamic Resource Allocation, beside the first."""

import os
from collections.abc import Collection, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.allocation.allocator import GrantBuilder
from holdfast.apiserver.client import AT_ONCE, ApiServer, ApiServers
from holdfast.apiserver.resourceslices import ClaimsOnServer, NodeSlices
from holdfast.apiserver.wire import Access, node_name
from holdfast.app.wiring.core import Core
from holdfast.app.wiring.parts import (
    DiscoveryParts,
    KubeletParts,
    ReclaimParts,
    build_entry,
    build_folder,
)
from holdfast.discovery.source import Sources
from holdfast.dra.claimdoor import ClaimDoor
from holdfast.dra.healthserver import HealthServer
from holdfast.dra.preparation import POLL, ClaimPreparation, ClaimRelease
from holdfast.dra.publisher import NodePool, Publisher, SliceMirror
from holdfast.dra.records import ClaimRecords, ClaimSight
from holdfast.dra.registration import DriverRegistrar
from holdfast.dra.server import ClaimServer
from holdfast.dra.specs import ClaimSpecs
from holdfast.host.cgroup.cgroups import Cgroups
from holdfast.host.files.paths import as_its_process
from holdfast.host.files.specfolder import SpecFolder
from holdfast.host.pci.sysfs import Sysfs
from holdfast.kubelet.checkpoint import CheckpointState
from holdfast.kubelet.claimstate import read
from holdfast.model.book.claims import claims_left
from holdfast.model.book.drift import ClaimDriftFacts
from holdfast.model.devices import Inventory
from holdfast.model.dra.advertised import AdvertisedDevice, as_found
from holdfast.model.dra.claims import LeavingFacts, why_driver_stays
from holdfast.model.dra.handover import as_whole
from holdfast.model.ids import DeviceName, PodUid
from holdfast.model.node.readiness import ReadinessCheck, check
from holdfast.names import PLUGINS, PLUGINS_REGISTRY
from holdfast.runtime.watched import Watched


class NodeSight(ClaimSight):
    """What the inventory and the pods' cgroups show of claims."""

    def __init__(self, core: Core, sources: Sources, cgroups: Cgroups) -> None:
        """Have *sources* describe the devices."""
        self._core = core
        self._sources = sources
        self._cgroups = cgroups
        self._known_in = Inventory()
        self._known: Mapping[str, AdvertisedDevice] = {}

    def advertised(self) -> Sequence[AdvertisedDevice]:
        """Return what the scheduler knows of, and what claims have that it knew of before."""
        inventory, by_claims = self._core.inventory.value, self._core.naming.is_dra
        told = self._sources.told(inventory, by_claims)
        locks = self._core.ledger.book.value.locks.values()
        had = {lock.device for lock in locks if lock.claim is not None}
        left = {each.resource for each in had if not by_claims(each.resource)}
        if not left:
            return told
        before = self._sources.told(inventory, left.__contains__)
        return (*told, *(each for each in before if each.is_of(had)))

    def known(self) -> Mapping[str, AdvertisedDevice]:
        """Return the devices that a claim may have by name, whatever API serves them at present.

        A claim from before a rule has them by the names that they had without it. They are asked
        for once for each claim, and so told once for each inventory.
        """
        inventory = self._core.inventory.value
        if inventory is not self._known_in:
            told = self._sources.told(inventory, lambda _resource: True)
            found = as_found(self._sources.advertised, inventory)
            self._known_in = inventory
            self._known = {each.name: each for each in (*found, *told)}
        return self._known

    async def with_cgroup(self, pods: Collection[PodUid]) -> Mapping[PodUid, bool]:
        """Return those of *pods* that have a cgroup, with whether a process may be in it."""
        found = await self._core.host.lanes["pods"].run(lambda: self._cgroups.pods(pods))
        return {pod: each.populated is not False for pod, each in found.items()}


class DraParts:
    """The parts of DRA, each built in one place. Nothing runs yet."""

    def __init__(
        self,
        core: Core,
        discovery: DiscoveryParts,
        kubelet: KubeletParts,
        reclaim: ReclaimParts,
        access: Access,
    ) -> None:
        """Build everything; the API server is asked by *access*."""
        self._core = core
        self._sight = NodeSight(core, discovery.sources, reclaim.cgroups)
        settings, host = core.settings, core.host
        dra = settings.dra
        self.driver = dra.driver_name
        self.node = node_name(dra.node_name, os.environ)
        # Neither a slow read of another claim nor a slow write of a slice keeps a claim waiting.
        observer = core.metrics.claims
        self.server = ApiServers(
            access=access,
            name="API server",
            clock=core.clock,
            observer=observer,
            at_once=AT_ONCE,
        )
        self._slices = ApiServer(
            access, name="slices on API server", clock=core.clock, observer=observer
        )
        self.specs = ClaimSpecs(
            SpecFolder(Path(settings.cdi.spec_dir), prefix=f"{self.driver}-claim"),
            driver=self.driver,
            root=host.root,
            lane=host.lanes["cdi"],
        )
        claims = ClaimsOnServer(self.server)
        self.entry = build_entry(core, discovery.use, reclaim, Watched(POLL))
        health = HealthServer(
            pool=self.node,
            advertised=self._sight.advertised,
            standings=core.standings,
            clock=core.clock,
        )
        granting = GrantBuilder(discovery.sources, None, by_claim=True)
        record = as_its_process(dra.claim_file())
        self._home = build_folder(core, record.parent, self.driver, record.name)
        self.records = ClaimRecords(
            driver=self.driver,
            pool=self.node,
            file=record,
            claims=claims,
            ledger=core.ledger,
            inventory=core.inventory,
            sight=self._sight,
            specs=self.specs,
            granting=granting,
            lane=host.lanes["kubelet"],
            written=self._home.state,
            kubelet=lambda: kubelet.reader.view.value.kubelet,
            clock=core.clock,
        )
        self.door = ClaimDoor(
            ClaimPreparation(
                driver=self.driver,
                pool=self.node,
                entry=self.entry,
                claims=claims,
                record=self.records,
                advertised=self._sight.advertised,
                serves=core.naming.is_dra,
                ledger=core.ledger,
                inventory=core.inventory,
                granting=granting,
                specs=self.specs,
                clock=core.clock,
                observer=core.metrics.claims,
            ),
            ClaimRelease(
                ledger=core.ledger,
                reader=kubelet.reader,
                record=self.records,
                specs=self.specs,
                watcher=reclaim.watcher,
                clock=core.clock,
                patience=core.live.dra.part(lambda now: now.unprepare_wait),
                observer=core.metrics.claims,
            ),
            clock=core.clock,
        )
        service = ClaimServer(self.door)
        root = Path(dra.kubelet_root)
        self._plugins = build_folder(core, root / PLUGINS / self.driver, "")
        self._registry = build_folder(core, root / PLUGINS_REGISTRY, self.driver)
        self.registrar = DriverRegistrar(
            driver=self.driver,
            plugins=self._plugins,
            registry=self._registry,
            services=(service.add_to, health.add_to),
            lane=host.lanes["kubelet"],
            clock=core.clock,
        )
        slices = NodeSlices(self._slices, driver=self.driver, node=self.node)
        self.publisher = Publisher(
            pool=NodePool(
                driver=self.driver,
                serves=core.naming.is_dra,
                standings=core.standings,
                inventory=core.inventory,
                sources=discovery.sources,
                pcie_root=Sysfs(core.host.root).pcie_root,
                lane=core.host.lanes["discovery"],
                evict_lost=core.live.dra.part(lambda now: now.evict_lost),
            ),
            server=slices,
            mirror=SliceMirror(slices, clock=core.clock),
            registration=self.registrar.registration,
            clock=core.clock,
            observer=core.metrics.claims,
            publishes=core.settings.has_dra(),
        )

    def offered(self) -> frozenset[DeviceName]:
        """Return the devices that the scheduler may allocate: the server has them untainted."""
        untainted = set(self.publisher.offered or ())
        return frozenset(
            name
            for each in self._sight.advertised()
            if each.name in untainted
            for name in each.devices
        )

    def drift_facts(self) -> ClaimDriftFacts:
        """Return what the ledger and kubelet say of claims."""
        return ClaimDriftFacts(
            book=self._core.ledger.book.value,
            boot=self._core.ledger.boot,
            driver=self.driver,
            pool=self.node,
            entries=self.records.entries,
            read_at=self.records.read_at,
            devices={each.name: as_whole(each).devices for each in self._sight.advertised()},
        )

    async def why_stays(self) -> tuple[str, ...]:
        """Return what still needs the driver; it has to leave the node after every claim."""
        record = await self._core.host.lanes["kubelet"].run(partial(read, self._home.checkpoint))
        # Kubelet makes the file at its first start with DRA.
        unread = "" if record.state is CheckpointState.MISSING else record.problem
        return why_driver_stays(
            LeavingFacts(
                driver=self.driver,
                entries=record.contents,
                unread=unread,
                offered=self.publisher.offered,
            )
        )

    def tasks(self) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
        """Yield what is to run until the daemon ends, by name."""
        yield "kubelet's folder", self._home.run()
        yield "DRA driver's folder", self._plugins.run()
        yield "plugins registry", self._registry.run()
        yield "DRA registrar", self.registrar.run()
        yield "ResourceSlices", self.publisher.run()
        yield "claims", self.records.run()

    def checks(self) -> Iterator[ReadinessCheck]:
        """Yield whether kubelet and the scheduler know of the driver and its devices.

        Nothing where it is there for claims from before, and they are over.
        """
        core = self._core
        if not (core.settings.has_dra() or claims_left(core.ledger.book.value)):
            return
        yield check(f"registered {self.driver}", self.registrar.registration.value.problem)
        problem = self.publisher.problem
        if self.publisher.agreed_at is None and not problem:
            problem = "not published yet"
        yield check("ResourceSlices", problem)

    async def close(self) -> None:
        """Take our sockets away, then cut what is asked of the API server."""
        await self.registrar.close()
        await self.server.close()
        await self._slices.close()
