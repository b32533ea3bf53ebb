"""What every part is built on: the node, the ledger, the settings, and what parts publish."""

from collections.abc import Mapping

from msgspec import Struct

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


class Core(Struct, frozen=True, kw_only=True):
    """What is there before any part, so that a part follows another without knowing it."""

    live: LiveSettings
    host: Hosts
    ledger: Ledger
    clock: Clock
    metrics: Metrics
    inventory: Watched[Inventory]
    """Published by discovery."""
    view: Watched[KubeletView]
    """Published by the reader of kubelet's checkpoint."""
    obstacles: Watched[Mapping[DeviceName, BlockReason]]
    """Published by the watcher."""
    emptied: EmptyPods
    """Noted by the watcher, and begun again by each registration."""
    nudges: Nudges
    """Published by whoever saw that the node has changed, for the watcher."""
    naming: RuleNames
    standings: DeviceStandings

    @property
    def settings(self) -> Settings:
        """The settings in use."""
        return self.live.whole


def build_core(
    live: LiveSettings, host: Hosts, ledger: Ledger, clock: Clock, metrics: Metrics
) -> Core:
    """Make what the parts are built on; *metrics* hear of each commit of *ledger*."""
    inventory, view = Watched(Inventory()), Watched(KubeletView())
    obstacles: Watched[Mapping[DeviceName, BlockReason]] = Watched({})
    emptied = EmptyPods()
    naming = RuleNames(live, ledger, view, inventory)
    metrics.locks.know(ledger.book.value.locks.values())
    ledger.observe(metrics)
    return Core(
        live=live,
        host=host,
        ledger=ledger,
        clock=clock,
        metrics=metrics,
        inventory=inventory,
        view=view,
        obstacles=obstacles,
        emptied=emptied,
        nudges=Nudges(),
        naming=naming,
        standings=DeviceStandings(
            ledger=ledger,
            inventory=inventory,
            view=view,
            obstacles=obstacles,
            emptied=emptied,
            apis=naming,
            clock=clock,
            withhold_after=live.withhold_after,
        ),
    )
