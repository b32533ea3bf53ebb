"""Builds the parts of the daemon and connects them: which part needs which is read off here."""

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from holdfast.allocation.allocator import Allocator
from holdfast.allocation.cdi import CdiSpecs, SpecWriter
from holdfast.allocation.gate import Gate
from holdfast.allocation.granting import Granting
from holdfast.allocation.preference import Preference
from holdfast.app.wiring.doors import cluster_events, is_silent, second_door, something_offered
from holdfast.app.wiring.hosts import Hosts
from holdfast.app.wiring.lacks import lacks
from holdfast.app.wiring.live import LiveSettings
from holdfast.app.wiring.naming import Naming
from holdfast.app.wiring.watches import Watches
from holdfast.discovery.scanner import Scanner
from holdfast.discovery.source import Source, Sources
from holdfast.host.cgroup.cgroups import Cgroups
from holdfast.host.cgroup.runtimestate import RuntimeFiles
from holdfast.host.files.cdi import SpecFolder
from holdfast.host.files.kernelfile import device_number
from holdfast.host.pci.reset import FunctionControl
from holdfast.host.pci.sysfs import Sysfs
from holdfast.host.proc.peer import peer_of
from holdfast.host.use.look import Look
from holdfast.kubelet.checkpoint import FileId
from holdfast.kubelet.folder import FolderWatch
from holdfast.kubelet.offering import Offering
from holdfast.kubelet.plugin import DevicePlugin
from holdfast.kubelet.podresources import PodResources
from holdfast.kubelet.reader import ViewReader
from holdfast.kubelet.registration import Registrar, RegistrationTimes
from holdfast.kubelet.traffic import Traffic
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.places import place
from holdfast.model.devices import Inventory
from holdfast.model.gate.promise import names_of_ours
from holdfast.model.ids import NO_CHECKPOINT, CheckpointId, PodUid, ResourceName
from holdfast.reclaim.evidence import Evidence
from holdfast.reclaim.handrelease import HandRelease
from holdfast.reclaim.kernel import KernelWatch
from holdfast.reclaim.leaks import LeakedSandboxes
from holdfast.reclaim.pods import Pods
from holdfast.reclaim.reclaimer import Reclaimer
from holdfast.reclaim.resetter import Resetter
from holdfast.reclaim.sightings import PodSightings
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

Called = Callable[[str, str, str, float], None]
"""Takes one call of kubelet's: the resource, the call's name, its status code, its seconds."""
Count = Callable[[str, str, str], None]
"""Takes one event of the hardware: its kind, its code, and what clears it."""


class Parts:
    """The parts of the daemon, each built in one place, from the lower to the upper ones.

    Where a lower part needs an upper one, it gets a function that looks it up when called. Nothing
    runs yet.
    """

    def __init__(
        self,
        live: LiveSettings,
        host: Hosts,
        ledger: Ledger,
        clock: Clock,
        *,
        vendors: Iterable[Vendor],
        called: Called,
        count: Count,
    ) -> None:
        """Build everything; *called* gets kubelet's calls, *count* hardware events."""
        self.live, self.host, self.ledger, self.clock = live, host, ledger, clock
        self.lacks = lacks(self.settings, host.root)
        """What the daemon may not do although its settings ask for it."""
        self.naming = Naming(live, ledger, lambda: self.reader.view, lambda: self.scanner.inventory)
        self._build_discovery(vendors, count)
        self._build_kubelet_side()
        self._build_reclaim()
        self._build_allocation(called)
        self._build_leaks()
        self.watches = Watches(self, self._preference)
        self.dra = second_door(self)
        self.events = cluster_events(self)

    @property
    def settings(self) -> Settings:
        """The settings in use."""
        return self.live.whole

    def take_up(self, settings: Settings) -> None:
        """Use *settings*, which differ from those in use only in keys that are live."""
        self.live.put(settings)
        self.scanner.poke()
        self.lacks = lacks(settings, self.host.root)

    def _build_discovery(self, vendors: Iterable[Vendor], count: Count) -> None:
        settings, host = self.settings, self.host
        self.specs = CdiSpecs(
            self._spec_writer(settings.kubelet.socket_prefix, "_"), wanted=self._names_wanted
        )
        context = Context(
            settings=self.live.in_use,
            root=host.root,
            boot=host.boot,
            ledger=self.ledger,
            clock=self.clock,
            open_lane=host.open_lane,
            spec_writer=self._spec_writer,
            answers=lambda: self.reader.view.value.entries,
            look_again=self._look_again,
            taken=self.naming.taken,
            report=self._report,
            count=count,
            replace=self._replace,
        )
        self.sources = Sources(vendor(context) for vendor in vendors)
        self.scanner = Scanner(
            host.root,
            Sysfs(host.root),
            lane=host.lanes["discovery"],
            clock=self.clock,
            sources=self.sources,
            held=lambda: tuple(self.ledger.book.value.locks),
            assign=self.naming.assigned,
            changes=self.naming.changes,
            before=self._prepared,
            settings=self.live.discovery,
        )
        self.look = Look(
            host.root, host.lanes["scan"], self.sources.ask, monotonic=self.clock.monotonic
        )

    def _build_kubelet_side(self) -> None:
        host, kubelet, live = self.host, self.settings.kubelet, self.live.kubelet
        self.folder = FolderWatch(
            folder=Path(kubelet.plugin_dir),
            prefix=f"{kubelet.socket_prefix}-",
            paths=host.paths,
            lane=host.lanes["kubelet"],
            interval=live.part(lambda now: now.poll),
        )
        self._traffic = Traffic()
        self.reader = ViewReader(
            folder=self.folder,
            pods=PodResources(
                Path(kubelet.pod_resources_socket),
                deadline=live.part(lambda now: now.question.timeout),
            ),
            traffic=self._traffic,
            peer=lambda socket: peer_of(socket, host.procfs),
            resend=self._resend,
            active=lambda: bool(self.ledger.book.value.locks),
            promised=self.sources.promised,
            offered=lambda: something_offered(self.offering, self.ledger, self._silent),
            silent=self._silent,
            lane=host.lanes["kubelet"],
            clock=self.clock,
            settings=live.part(lambda now: now.question),
        )
        self.offering = Offering(
            ledger=self.ledger,
            inventory=self.scanner.inventory,
            view=self.reader.view,
            clock=self.clock,
            withhold_after=self.live.withhold_after,
            elsewhere=self.naming.is_dra,
        )

    def _build_reclaim(self) -> None:
        host, live, reclaim = self.host, self.live, self.live.reclaim
        self.kernel = KernelWatch(
            look=self.look,
            pidfds=host.pidfds,
            clock=self.clock,
            exited=lambda _process: self.watcher.holder_exited(),
            rescan=reclaim.part(lambda now: now.foreign_scan),
            exclusive_open=live.gate.part(lambda now: now.exclusive_open),
        )
        self.cgroups = cgroups = Cgroups(host.root, monotonic=self.clock.monotonic)
        self._pods = pods = Pods(
            cgroups=cgroups,
            runtimes=RuntimeFiles(host.root),
            procfs=host.procfs,
            pidfds=host.pidfds,
            lane=host.lanes["pods"],
        )
        sightings = PodSightings(
            cgroups=cgroups,
            procfs=host.procfs,
            paths=host.paths,
            lane=host.lanes["pods"],
            clock=self.clock,
            changed=self._pod_changed,
        )
        evidence = Evidence(
            ledger=self.ledger,
            reader=self.reader,
            pods=pods,
            clock=self.clock,
            settings=reclaim,
            mode_of=self.naming.mode_of,
            question_timeout=live.kubelet.part(lambda now: now.question.timeout),
            own_pid=os.getpid(),
        )
        self.reclaimer = Reclaimer(
            ledger=self.ledger,
            evidence=evidence,
            pods=pods,
            pidfds=host.pidfds,
            clock=self.clock,
        )
        self.resetter = Resetter(
            ledger=self.ledger,
            control=FunctionControl(host.root),
            clock=self.clock,
            settings=reclaim,
            ended=self._nudge,
        )
        self.watcher = Watcher(
            ledger=self.ledger,
            inventory=self.scanner.inventory,
            reader=self.reader,
            kernel=self.kernel,
            pods=sightings,
            reclaimer=self.reclaimer,
            resetter=self.resetter,
            clock=self.clock,
            settings=reclaim,
            pending_timeout=live.allocate.part(lambda now: now.pending_timeout),
            is_retired=self.naming.is_dra,
        )
        self.hand = HandRelease(
            ledger=self.ledger,
            inventory=self.scanner.inventory,
            look=self.look,
            pods=pods,
            evidence=evidence,
            reclaimer=self.reclaimer,
            clock=self.clock,
        )

    def _build_allocation(self, called: Called) -> None:
        inventory = self.scanner.inventory
        self.gate = Gate(
            ledger=self.ledger,
            inventory=inventory,
            reader=self.reader,
            look=self.look,
            looked=self.watcher.looked,
            obstacle=self.watcher.obstacle,
            at_work=self.resetter.at_work,
            clock=self.clock,
            settings=self.live.gate,
            published=lambda: self.specs.published,
            sources=self.sources,
            stirred=self.watcher.nudges,
        )
        allocator = Allocator(
            ledger=self.ledger,
            inventory=inventory,
            grant=Granting(
                self.sources, published=(lambda: self.specs.published) if self._by_name else None
            ).grant,
            node_rdev=lambda path: device_number(self.host.root.node(path)),
            checkpoint=self._checkpoint,
            lane=self.host.lanes["kubelet"],
            clock=self.clock,
            commit_timeout=self.live.allocate.part(lambda now: now.commit_timeout),
            refuses=lambda devices: self.sources.of(devices).refuses(devices),
        )
        self._preference = Preference(ledger=self.ledger, inventory=inventory, sources=self.sources)

        def plugin(resource: ResourceName) -> DevicePlugin:
            return DevicePlugin(
                resource=resource,
                offers=self.offering.offers,
                allocate=allocator.allocate,
                pre_start=self.gate.pre_start,
                prefer=self._preference.preferred,
                traffic=self._traffic,
                clock=self.clock,
                observe=partial(called, resource),
            )

        self.registrar = Registrar(
            offers=self.offering.offers,
            plugin=plugin,
            folder=self.folder,
            prefix=self.settings.kubelet.socket_prefix,
            clock=self.clock,
            times=self.live.kubelet.part(
                lambda now: RegistrationTimes(register=now.register_timeout)
            ),
        )

    def _build_leaks(self) -> None:
        self.leaks = LeakedSandboxes(
            ledger=self.ledger,
            inventory=self.scanner.inventory,
            reader=self.reader,
            starts=self.gate.starts.held_up,
            look=self.look,
            pods=self._pods,
            pidfds=self.host.pidfds,
            clock=self.clock,
            settings=self.live.reclaim,
            mode_of=self.naming.mode_of,
        )

    @property
    def _by_name(self) -> bool:
        return self.settings.device_list_strategy == "cdi"

    def _names_wanted(self) -> bool:
        # Pods that were promised names need them also where new ones get their nodes by path.
        resources = self.scanner.inventory.value.resources
        return self._by_name or any(
            entry.resource in resources and names_of_ours(entry)
            for entry in self.reader.view.value.entries
        )

    def _spec_writer(self, prefix: str, joint: str) -> SpecWriter:
        folder = SpecFolder(Path(self.settings.cdi.spec_dir), prefix=prefix, joint=joint)
        return SpecWriter(folder, lane=self.host.lanes["cdi"])

    async def _prepared(self, found: Inventory) -> Inventory:
        """Write the CDI specs of what discovery *found* before it is published.

        Record where its cards are, too: a lock of a card excludes all that gives the card away.
        """
        await self.ledger.apply_if_changing(partial(place, found=found.cards))
        await self.specs.publish(found)
        return await self.sources.prepare(found)

    def _checkpoint(self) -> CheckpointId:
        file = FileId.of(self.folder.checkpoint)
        return NO_CHECKPOINT if file is None else file.checkpoint

    # Each of these is handed to a part that is built before the one it calls.

    def _look_again(self) -> None:
        self.scanner.poke()

    def _report(self) -> None:
        self.scanner.publish()

    def _replace(self, source: Source) -> None:
        self.sources.put(source)

    def _resend(self) -> None:
        """Send the device lists once more, so that kubelet writes its checkpoint."""
        self.offering.resend()

    def _silent(self) -> bool:
        return is_silent(self.settings, self.offering.offers.value, self.ledger.book.value)

    def _pod_changed(self, pod: PodUid) -> None:
        self.watcher.pod_changed(pod)

    def _nudge(self) -> None:
        self.watcher.nudge()
