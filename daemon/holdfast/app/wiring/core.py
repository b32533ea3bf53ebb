"""What every part is built on: the node, the ledger, the settings, and what parts publish."""

from collections.abc import Mapping

from holdfast.app.wiring.hosts import Hosts
from holdfast.app.wiring.live import LiveSettings, RuleNames
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.standings import DeviceStandings, EmptyPods
from holdfast.model.book.messages import BlockReason
from holdfast.model.devices import Inventory
from holdfast.model.ids import DeviceName
from holdfast.model.kubelet import KubeletView
from holdfast.runtime.clock import Clock
from holdfast.runtime.watched import Nudges, Watched
from holdfast.settings import Settings
from holdfast.telemetry.metrics import Metrics


class Core:
    """What is there before any part, so that a part follows another without knowing it."""

    def __init__(
        self, live: LiveSettings, host: Hosts, ledger: Ledger, clock: Clock, metrics: Metrics
    ) -> None:
        """Make what the parts are built on; *metrics* hear of each commit of *ledger*."""
        self.live = live
        self.host = host
        self.ledger = ledger
        self.clock = clock
        self.metrics = metrics
        self.inventory = Watched(Inventory())
        """Published by discovery."""
        self.view = Watched(KubeletView())
        """Published by the reader of kubelet's checkpoint."""
        self.obstacles: Watched[Mapping[DeviceName, BlockReason]] = Watched({})
        """Published by the watcher."""
        self.emptied = EmptyPods()
        """Noted by the watcher, and begun again by each registration."""
        self.nudges = Nudges()
        """Published by whoever saw that the node has changed, for the watcher."""
        self.naming = RuleNames(live, ledger, self.view, self.inventory)
        self.standings = DeviceStandings(
            ledger=ledger,
            inventory=self.inventory,
            view=self.view,
            obstacles=self.obstacles,
            emptied=self.emptied,
            is_dra=self.naming.is_dra,
            clock=clock,
            withhold_after=live.withhold_after,
        )
        metrics.locks.know(ledger.book.value.locks.values())
        ledger.observe(metrics)

    @property
    def settings(self) -> Settings:
        """The settings in use."""
        return self.live.whole
