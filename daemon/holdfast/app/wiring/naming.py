"""Applies the rules for devices of the settings in use, beside what pods have."""

from collections.abc import Callable

from holdfast.app.wiring.live import LiveSettings
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.offers import names_had
from holdfast.model.devicerules import assigned, rule_for, taken
from holdfast.model.devices import Device, Inventory
from holdfast.model.ids import DeviceName, PodUid, ResourceName
from holdfast.model.kubelet import KubeletView
from holdfast.runtime.changes import Changes
from holdfast.runtime.watched import Watched

_OBSERVE = "observe"


class Naming:
    """Knows what the rules for devices make of each: its name, its API, what may be ended."""

    def __init__(
        self,
        live: LiveSettings,
        ledger: Ledger,
        view: Callable[[], Watched[KubeletView]],
        inventory: Callable[[], Watched[Inventory]],
    ) -> None:
        """Go by the settings in use, by *ledger*, and by kubelet's checkpoint in *view*."""
        self._live = live
        self._ledger = ledger
        self._view = view
        self._inventory = inventory

    def is_dra(self, resource: ResourceName) -> bool:
        """Tell whether the devices of *resource* are served by DRA."""
        return self._live.whole.is_dra(resource)

    def assigned(self, found: Inventory) -> Inventory:
        """Give the devices that were *found* the names that rules and pods make of them."""
        # Nothing makes kubelet write its checkpoint anew where hardware comes by claims.
        entries = [each for each in self._view().value.entries if not self.is_dra(each.resource)]
        had = names_had(self._ledger.book.value, entries)
        return assigned(found, self._live.whole.device_rules(), had)

    def taken(self, device: Device) -> bool:
        """Tell whether a rule of the settings takes *device* out of its resource."""
        return taken(device, self._live.whole.device_rules())

    def mode_of(self, pod: PodUid) -> str:
        """Return what is done about processes of *pod*: none is ended that may have a device so."""
        general, book = self._live.whole.reclaim.mode, self._ledger.book.value
        had = {name for name, lock in book.locks.items() if pod in book.pods_of(lock)}
        # What pods use beside its owner, by a claim with adminAccess, has no lock of theirs.
        had.update(*(each.admin for each in book.claims.values() if pod in each.pods))
        modes = {self._mode_on(name) or general for name in had}
        return _OBSERVE if _OBSERVE in modes else (modes or {general}).pop()

    def _mode_on(self, name: DeviceName) -> str:
        rules, device = self._live.whole.device_rules(), self._inventory().value.get(name)
        if device is None:  # which rule was for hardware that is gone cannot be told
            return _OBSERVE if any(rule.own.mode == _OBSERVE for rule in rules) else ""
        # By the rules of this moment: a scan, which would apply them, may hang with the hardware.
        rule = rule_for(device, rules)
        return "" if rule is None else rule.own.mode

    def changes(self) -> Changes:
        """Return what changes when the names may have to."""
        return Changes([self._ledger.book, self._view()])
