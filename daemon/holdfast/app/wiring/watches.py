"""Builds what compares, every few seconds, what should agree, over the parts of the daemon."""

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.allocation.preference import Preference
from holdfast.app.watches.drift import DriftWatch
from holdfast.app.watches.labels import LabelWatch
from holdfast.app.watches.memory import MemoryWatch
from holdfast.app.watches.own_sockets import OwnSockets
from holdfast.host.cgroup.memory import MemoryReader

if TYPE_CHECKING:
    from holdfast.app.wiring.parts import Parts


class Watches:
    """The watches, each built in one place. Nothing runs yet."""

    def __init__(self, parts: "Parts", preference: Preference) -> None:
        """Build everything over *parts*; *preference* may wait for kubelet's next choice."""
        settings, host, clock = parts.settings, parts.host, parts.clock
        self.drift = DriftWatch(
            ledger=parts.ledger,
            view=parts.reader.view,
            inventory=parts.scanner.inventory,
            offers=parts.offering.offers,
            kernel=parts.kernel,
            preference=preference,
            clock=clock,
            settings=parts.live.drift,
            pending_timeout=parts.live.allocate.part(lambda now: now.pending_timeout),
            claims=lambda: None if parts.dra is None else parts.dra.drift_facts(),
        )
        self.memory = MemoryWatch(MemoryReader(host.root), lane=host.lanes["pods"], clock=clock)
        self.sockets = OwnSockets(parts.registrar, Path(settings.state_dir), clock=clock)
        self.labels = LabelWatch(
            parts.live.labels,
            labels=parts.sources.labels,
            inventory=parts.scanner.inventory,
            open_lane=host.open_lane,
            clock=clock,
        )
