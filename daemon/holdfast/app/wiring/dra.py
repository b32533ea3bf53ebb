"""Builds the second door: what serves Dynamic Resource Allocation, over the parts of the first."""

import os
from collections.abc import Collection, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from holdfast.allocation.granting import Granting
from holdfast.apiserver.access import Access, node_name
from holdfast.apiserver.claims import ClaimsOnServer
from holdfast.apiserver.client import ApiServer
from holdfast.apiserver.connections import ApiServers
from holdfast.apiserver.resourceslices import NodeSlices
from holdfast.dra.claimdoor import ClaimDoor
from holdfast.dra.health import HealthServer
from holdfast.dra.mirror import SliceMirror
from holdfast.dra.pool import NodePool
from holdfast.dra.preparing import Node, Preparing
from holdfast.dra.publisher import Publisher
from holdfast.dra.records import ClaimRecords
from holdfast.dra.registration import DriverRegistrar, DriverTimes
from holdfast.dra.server import ClaimServer
from holdfast.dra.specs import ClaimSpecs
from holdfast.dra.unpreparing import Unpreparing
from holdfast.errors import HostError
from holdfast.host.files.cdi import SpecFolder
from holdfast.host.files.kernelfile import device_number
from holdfast.host.pci.sysfs import Sysfs
from holdfast.kubelet.checkpoint import CheckpointState
from holdfast.kubelet.claimstate import read
from holdfast.kubelet.folder import FolderWatch
from holdfast.model.book.claimdrift import ClaimDriftFacts
from holdfast.model.dra.advertised import Advertised
from holdfast.model.dra.leaving import LeavingFacts, why_driver_stays
from holdfast.model.ids import DeviceName, PodUid
from holdfast.model.node.readiness import Check
from holdfast.names import PLUGINS, PLUGINS_REGISTRY
from holdfast.runtime.watched import Watched

if TYPE_CHECKING:
    from holdfast.app.wiring.parts import Parts

log = structlog.get_logger(__name__)

_MOST_DEBOUNCE = 3.0
"""Seconds for which a device may be withheld before it gets a taint: unlike Unhealthy devices of a
device plugin, a tainted one fails no pod that is on its way."""


class Dra:
    """The parts of DRA, each built in one place. Nothing runs yet."""

    def __init__(self, parts: "Parts", access: Access) -> None:
        """Build everything over *parts*; the API server is asked by *access*."""
        self._parts = parts
        settings, host = parts.settings, parts.host
        dra = settings.dra
        self.driver = dra.driver_name
        self.node = node_name(dra.node_name, os.environ)
        # Neither a slow read of another claim nor a slow write of a slice keeps a claim waiting.
        self.server = ApiServers(access, name="API server", clock=parts.clock)
        self._slices = ApiServer(access, name="slices on API server", clock=parts.clock)
        self.specs = ClaimSpecs(
            SpecFolder(Path(settings.cdi.spec_dir), prefix=f"{self.driver}-claim"),
            driver=self.driver,
            node_rdev=lambda path: device_number(host.root.node(path)),
            lane=host.lanes["cdi"],
        )
        claims = ClaimsOnServer(self.server)
        self.door = self._door(claims)
        service = ClaimServer(self.door)
        health = HealthServer(
            pool=self.node,
            serves=parts.naming.is_dra,
            advertised=self.advertised,
            inventory=parts.scanner.inventory,
            book=parts.ledger.book,
            obstacle=parts.watcher.obstacle,
            clock=parts.clock,
        )
        self._written: Watched[int] = Watched(0)
        self.records = ClaimRecords(
            driver=self.driver,
            pool=self.node,
            state=Path(dra.claim_file()),
            claims=claims,
            ledger=parts.ledger,
            inventory=parts.scanner.inventory,
            advertised=self.advertised,
            sight=self._with_cgroup,
            specs=self.specs,
            lane=host.lanes["kubelet"],
            written=self._written,
            clock=parts.clock,
        )
        root = Path(dra.kubelet_root)
        self._plugins = self._watch(root / PLUGINS / self.driver, "")
        self._registry = self._watch(root / PLUGINS_REGISTRY, self.driver)
        self.registrar = DriverRegistrar(
            driver=self.driver,
            plugins=self._plugins,
            registry=self._registry,
            services=(service, health),
            lane=host.lanes["kubelet"],
            clock=parts.clock,
            times=DriverTimes(),
        )
        slices = NodeSlices(self._slices, access, driver=self.driver, node=self.node)
        self._mirror = SliceMirror(slices, clock=parts.clock)
        self.publisher = self._publisher(slices)

    @property
    def servers(self) -> tuple[ApiServer | ApiServers, ...]:
        """Return every connection to the API server."""
        return self.server, self._slices

    def advertised(self) -> Sequence[Advertised]:
        """Return the devices that the scheduler knows of."""
        parts = self._parts
        return parts.sources.told(parts.scanner.inventory.value, parts.naming.is_dra)

    def offered(self) -> frozenset[DeviceName]:
        """Return the devices that the scheduler may allocate: the server has them untainted."""
        untainted = set(self.publisher.offered or ())
        return frozenset(
            name for each in self.advertised() if each.name in untainted for name in each.devices
        )

    def drift_facts(self) -> ClaimDriftFacts:
        """Return what the ledger and kubelet say of claims."""
        return ClaimDriftFacts(
            book=self._parts.ledger.book.value,
            boot=self._parts.ledger.boot,
            driver=self.driver,
            pool=self.node,
            entries=self.records.entries,
            read_at=self.records.read_at,
            devices={each.name: each.devices for each in self.advertised()},
        )

    async def why_stays(self) -> tuple[str, ...]:
        """Return what still needs the driver; it has to leave the node after every claim."""
        path = Path(self._parts.settings.dra.claim_file())
        record = await self._parts.host.lanes["kubelet"].run(lambda: read(path))
        # Kubelet makes the file at its first start with DRA.
        unread = "" if record.state is CheckpointState.MISSING else record.problem
        return why_driver_stays(
            LeavingFacts(
                driver=self.driver,
                entries=record.entries,
                unread=unread,
                offered=self.publisher.offered,
            )
        )

    def tasks(self) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
        """Yield what is to run until the daemon ends, by name."""
        yield "DRA driver's folder", self._plugins.run()
        yield "plugins registry", self._registry.run()
        yield "DRA registrar", self.registrar.run()
        yield "ResourceSlices", self.publisher.run()
        yield "claims", self.records.run()

    async def catch_up(self) -> None:
        """Bring the book in line with kubelet's record of claims, before anything is served."""
        record = Path(self._parts.settings.dra.claim_file())

        def happened(name: str, _mask: int) -> None:
            # Kubelet writes a file of another name first; without a name events were lost.
            if name in {record.name, ""}:
                self._written.set(self._written.value + 1)

        try:
            self._parts.host.paths.watch(record.parent, happened)
        except HostError as error:
            log.warning("cannot watch kubelet's record of claims", reason=str(error))
        await self.records.catch_up()

    def checks(self) -> Iterator[Check]:
        """Yield whether kubelet and the scheduler know of the driver and its devices."""
        state = self.registrar.registration.value
        problem = "" if state.registered else state.problem
        yield Check(name=f"registered {self.driver}", passes=not problem, reason=problem)
        problem = self.publisher.problem or self._mirror.problem
        if self.publisher.agreed_at is None and not problem:
            problem = "not published yet"
        yield Check(name="ResourceSlices", passes=not problem, reason=problem)

    async def close(self) -> None:
        """Take our sockets away, then cut what is asked of the API server."""
        await self.registrar.close()
        await self.server.close()
        await self._slices.close()

    def _door(self, claims: ClaimsOnServer) -> ClaimDoor:
        parts = self._parts
        return ClaimDoor(
            Preparing(
                driver=self.driver,
                pool=self.node,
                claims=claims,
                ledger=parts.ledger,
                node=Node(
                    inventory=parts.scanner.inventory,
                    advertised=self.advertised,
                    serves=parts.naming.is_dra,
                    look=parts.gate.look,
                    looked=parts.watcher.looked,
                    obstacle=parts.watcher.obstacle,
                    at_work=parts.resetter.at_work,
                    grant=Granting(parts.sources).grant,
                    refuses=lambda shares: parts.sources.of(shares).refuses(shares),
                    stirred=parts.watcher.nudges,
                ),
                specs=self.specs,
                clock=parts.clock,
            ),
            Unpreparing(
                ledger=parts.ledger,
                view=parts.reader.view,
                ask=parts.reader.ask,
                specs=self.specs,
                obstacle=parts.watcher.obstacle,
                nudges=parts.watcher.nudges,
                clock=parts.clock,
                patience=parts.live.dra.part(lambda now: now.unprepare_wait),
            ),
            clock=parts.clock,
        )

    def _publisher(self, slices: NodeSlices) -> Publisher:
        parts = self._parts
        debounce: Watched[float] = parts.live.withhold_after.part(
            lambda now: min(now, _MOST_DEBOUNCE)
        )
        evict_lost = parts.live.dra.part(lambda now: now.evict_lost)
        return Publisher(
            driver=self.driver,
            node=self.node,
            pool=NodePool(
                driver=self.driver,
                serves=parts.naming.is_dra,
                ledger=parts.ledger,
                inventory=parts.scanner.inventory,
                sources=parts.sources,
                pcie_root=Sysfs(parts.host.root).pcie_root,
                lane=parts.host.lanes["discovery"],
                clock=parts.clock,
                withhold_after=debounce,
                evict_lost=evict_lost,
            ),
            server=slices,
            mirror=self._mirror,
            changes=(parts.scanner.inventory, parts.ledger.book, debounce, evict_lost),
            registration=self.registrar.registration,
            clock=parts.clock,
            publishes=parts.settings.has_dra(),
        )

    async def _with_cgroup(self, pods: Collection[PodUid]) -> Collection[PodUid]:
        cgroups, lane = self._parts.cgroups, self._parts.host.lanes["pods"]
        return await lane.run(lambda: [pod for pod in pods if cgroups.pod(pod) is not None])

    def _watch(self, folder: Path, prefix: str) -> FolderWatch:
        parts = self._parts
        return FolderWatch(
            folder=folder,
            prefix=prefix,
            paths=parts.host.paths,
            lane=parts.host.lanes["kubelet"],
            interval=parts.live.kubelet.part(lambda now: now.poll),
        )
