"""Puts the parts of the daemon together; DRA and Events are loaded only where they are wanted."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from holdfast.app.watches.drift import DriftWatch
from holdfast.app.watches.featurefile import LabelWatch
from holdfast.app.watches.memory import MemoryWatch
from holdfast.app.watches.proof import LedgerProof, OwnSockets
from holdfast.app.wiring.core import Core
from holdfast.app.wiring.hosts import lacks
from holdfast.app.wiring.parts import (
    AllocationParts,
    DiscoveryParts,
    KubeletParts,
    ReclaimParts,
)
from holdfast.errors import ApiServerError
from holdfast.host.cgroup.memorylimit import MemoryReader
from holdfast.host.files.paths import as_its_process
from holdfast.model.book.claims import claims_left
from holdfast.settings import Settings
from holdfast.settings.sections import DraSettings
from holdfast.vendors.context import Vendor

if TYPE_CHECKING:
    from holdfast.app.wiring.dra import DraParts
    from holdfast.app.wiring.events import ClusterEvents

log = structlog.get_logger(__name__)


class Watches:
    """What compares, every few seconds, what should agree."""

    def __init__(
        self,
        core: Core,
        discovery: DiscoveryParts,
        kubelet: KubeletParts,
        allocation: AllocationParts,
        dra: "DraParts | None",
    ) -> None:
        host, live, clock = core.host, core.live, core.clock
        self.drift = DriftWatch(
            ledger=core.ledger,
            view=core.view,
            standings=core.standings,
            inventory=core.inventory,
            offers=kubelet.offering.offers,
            use=discovery.use,
            # It may wait for kubelet's next choice.
            preference=allocation.preference,
            clock=clock,
            settings=live.drift,
            pending_timeout=live.allocate.part(lambda now: now.pending_timeout),
            claims=lambda: None if dra is None else dra.drift_facts(),
        )
        self.memory = MemoryWatch(MemoryReader(host.root), lane=host.lanes["pods"], clock=clock)
        self.proof = LedgerProof(core.ledger, clock=clock)
        self.sockets = OwnSockets(allocation.registrar, Path(core.settings.state_dir), clock=clock)
        self.labels = LabelWatch(
            live.labels,
            sources=discovery.sources,
            inventory=core.inventory,
            lanes=host,
            clock=clock,
        )


class Assembly:
    """All parts of the daemon, by rooms, each built over *core* and those before it.

    Nothing runs yet.
    """

    def __init__(self, core: Core, vendors: Iterable[Vendor]) -> None:
        self.core = core
        self.discovery = DiscoveryParts(core, vendors)
        self.kubelet = KubeletParts(core, self.discovery.sources)
        self.reclaim = ReclaimParts(core, self.discovery.use, self.kubelet.reader)
        self.allocation = AllocationParts(core, self.discovery, self.kubelet, self.reclaim)
        self.dra = _second_door(core, self.discovery, self.kubelet, self.reclaim)
        self.events = _cluster_events(core, self.reclaim, self.allocation, self.dra)
        self.watches = Watches(core, self.discovery, self.kubelet, self.allocation, self.dra)
        self.lacks = core.live.in_use.part(lambda now: lacks(now, core.host.root))
        """What the daemon may not do although its settings ask for it."""

    def take_up(self, settings: Settings) -> None:
        """Use *settings*, which differ from those in use only in keys that are live."""
        self.core.live.in_use.set(settings)
        self.discovery.scanner.look_again()

    def stuck_calls(self) -> Iterator[str]:
        """Yield what has not come back from the kernel: its thread may outlive any execve(2)."""
        host = self.core.host
        yield from (name for name, lane in host.lanes.items() if lane.stuck_since is not None)
        if stuck := self.reclaim.resetter.stuck:
            yield stuck
        if hanging := self.discovery.look.hanging | host.procfs.hanging:
            yield f"scan of pid {', '.join(map(str, sorted(hanging)))}"
        for source in self.discovery.sources:
            yield from source.hanging()


def _second_door(
    core: Core, discovery: DiscoveryParts, kubelet: KubeletParts, reclaim: ReclaimParts
) -> "DraParts | None":
    """Build DRA's part; nothing of it is loaded where no hardware is behind it.

    Or where it was, and claims have still to end: kubelet cannot end their pods without us. A
    token that is missing stops no daemon: claims are prepared once it is there.
    """
    wanted = core.settings.has_dra()
    if not (wanted or claims_left(core.ledger.book.value) or _claims_recorded(core.settings.dra)):
        return None
    from holdfast.apiserver.wire import in_cluster  # noqa: PLC0415 - see above
    from holdfast.app.wiring.dra import DraParts  # noqa: PLC0415 - see above

    access = in_cluster(os.environ, Path(core.settings.dra.service_account))
    try:
        access.check()
    except ApiServerError as error:
        if not wanted:
            log.warning("cannot serve the claims that are left", reason=str(error))
            return None
        log.warning("cannot prepare claims yet", reason=str(error))
    return DraParts(core, discovery, kubelet, reclaim, access)


def _claims_recorded(settings: DraSettings) -> bool:
    """Tell whether kubelet has recorded claims of this driver: the ledger may have lost them."""
    path = as_its_process(settings.claim_file())
    if not os.path.exists(path):  # noqa: PTH110 - which does not raise where it may not look
        return False
    from holdfast.kubelet.claimstate import read  # noqa: PLC0415 - most nodes have no such file

    return any(each.devices.get(settings.driver_name) for each in read(path).contents)


def _cluster_events(
    core: Core, reclaim: ReclaimParts, allocation: AllocationParts, dra: "DraParts | None"
) -> "ClusterEvents | None":
    """Build what writes Events and the node's condition; nothing of it is loaded with events off.

    Outside of a pod the daemon does all the rest.
    """
    if not core.settings.events.enabled:
        return None
    from holdfast.app.wiring.events import ClusterEvents  # noqa: PLC0415 - see above

    first = allocation.gate.entry
    try:
        return ClusterEvents(core, reclaim.watcher, [first] if dra is None else [first, dra.entry])
    except ApiServerError as error:
        log.warning("cannot notify the cluster", what="Events", reason=str(error))
        return None
