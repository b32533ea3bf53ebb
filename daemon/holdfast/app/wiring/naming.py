"""Gives devices their names: by the rules of the settings in use, and by what pods have."""

from collections.abc import Callable

from holdfast.app.wiring.live import LiveSettings
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.offers import names_had
from holdfast.model.devicerules import assigned
from holdfast.model.devices import Inventory
from holdfast.model.ids import ResourceName
from holdfast.model.kubelet import KubeletView
from holdfast.runtime.changes import Changes
from holdfast.runtime.watched import Watched


class Naming:
    """Knows which names devices have, and by which API each name is served."""

    def __init__(
        self, live: LiveSettings, ledger: Ledger, view: Callable[[], Watched[KubeletView]]
    ) -> None:
        """Go by the settings in use, by *ledger*, and by kubelet's checkpoint in *view*."""
        self._live = live
        self._ledger = ledger
        self._view = view

    def is_dra(self, resource: ResourceName) -> bool:
        """Tell whether the devices of *resource* are served by DRA."""
        return self._live.whole.is_dra(resource)

    def assigned(self, found: Inventory) -> Inventory:
        """Give the devices that were *found* the names that rules and pods make of them."""
        # Nothing makes kubelet write its checkpoint anew where hardware comes by claims.
        entries = [each for each in self._view().value.entries if not self.is_dra(each.resource)]
        had = names_had(self._ledger.book.value, entries)
        return assigned(found, self._live.whole.device_rules(), had)

    def changes(self) -> Changes:
        """Return what changes when the names may have to."""
        return Changes([self._ledger.book, self._view()])
