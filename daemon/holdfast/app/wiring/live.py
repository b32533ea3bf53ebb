"""The settings in use, what parts follow of them, and the rules for devices beside the pods'."""

from collections.abc import Iterator
from dataclasses import dataclass

import structlog

from holdfast.discovery.scanner import DeviceNames
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.offers import names_had
from holdfast.model.devicerules import assigned, rule_for, taken
from holdfast.model.devices import Device, Inventory
from holdfast.model.ids import DeviceName, PodUid, ResourceName
from holdfast.model.kubelet import KubeletView
from holdfast.model.node.readiness import ReadinessCheck
from holdfast.runtime.problem import Problem
from holdfast.runtime.watched import Changes, Watched
from holdfast.settings import Settings
from holdfast.settings.sources import LoadedSettings

log = structlog.get_logger(__name__)
_OBSERVE = "observe"


class LiveSettings:
    """Publishes the settings in use, and whatever parts follow of them."""

    def __init__(self, found: LoadedSettings) -> None:
        """Begin with *found*."""
        self.in_use = all_of = Watched(found.settings)
        """All keys; those that take a restart never change here (settings.reloading)."""
        self.basis = ""
        """What the settings in use were read from, for people: a document, or what counts instead.

        Empty where there is no document.
        """
        self._ineffective: tuple[str, ...] = ()
        self.goes_by(found)
        self.label = Watched(found.label)
        """The value of the label that names a document, as it was read last; None: unknown."""
        self.refused = found.refused
        """Why the configuration as it is now is not the one in use; empty: it is."""
        self.node_label = Problem(
            log, "cannot read the node's label", over="node label can be read again"
        )
        """Why the label that names the document cannot be read, see `NodeLabel`."""
        self.allocate = all_of.part(lambda now: now.allocate)
        self.discovery = all_of.part(lambda now: now.discovery)
        self.dra = all_of.part(lambda now: now.dra)
        self.drift = all_of.part(lambda now: now.drift)
        self.gate = all_of.part(lambda now: now.gate)
        self.history = all_of.part(lambda now: now.history)
        self.kubelet = all_of.part(lambda now: now.kubelet)
        self.labels = all_of.part(lambda now: now.labels)
        self.reclaim = all_of.part(lambda now: now.reclaim)
        self.withhold_after: Watched[float] = all_of.part(lambda now: now.withhold_after)

    @property
    def whole(self) -> Settings:
        """All settings as they are now."""
        return self.in_use.value

    def checks(self) -> Iterator[ReadinessCheck]:
        """Yield whether the configuration as it is now is the one in use."""
        reasons = (self.refused, self.basis, self.node_label.text)
        public = "the configuration as it is now cannot be used; another is in use"
        yield ReadinessCheck(
            name="configuration",
            passes=not self.refused,
            reason="; ".join(filter(None, reasons)),
            public=public if self.refused else "",
        )

    def goes_by(self, found: LoadedSettings) -> None:
        """Note what the settings in use were read from."""
        self.basis = found.instead
        if found.document is not None and not found.instead:
            self.basis = f"document {found.document.name}"
        for each in sorted({*found.ineffective} - {*self._ineffective}):
            log.warning("setting has no effect", reason=each)
        self._ineffective = found.ineffective


@dataclass(eq=False)
class RuleNames(DeviceNames):
    """Knows what the rules for devices make of each: its name, its API, what may be ended.

    It goes by the settings in use, by `ledger`, and by kubelet's checkpoint in `view`.
    """

    live: LiveSettings
    ledger: Ledger
    view: Watched[KubeletView]
    inventory: Watched[Inventory]

    def is_dra(self, resource: ResourceName) -> bool:
        """Tell whether the devices of *resource* are served by DRA.

        Where the settings do not have the name, the devices come by the device plugin, unless a
        rule gave it that is no more: then it ends with the pods that still have devices so.
        """
        settings = self.live.whole
        if (api := settings.api_of(resource)) is not None:
            return api == "dra"
        if (device := next(iter(self.inventory.value.of(resource)), None)) is not None:
            return device.found_as is not None and settings.is_dra(device.found_as)
        return any(
            lock.claim is not None and lock.device.resource == resource
            for lock in self.ledger.book.value.locks.values()
        )

    def assigned(self, found: Inventory) -> Inventory:
        """Give the devices that were *found* the names that rules and pods make of them."""
        # Nothing makes kubelet write its checkpoint again where hardware comes by claims.
        entries = [each for each in self.view.value.entries if not self.is_dra(each.resource)]
        had = names_had(self.ledger.book.value, entries)
        return assigned(found, self.live.whole.device_rules(), had)

    def taken(self, device: Device) -> bool:
        """Tell whether a rule of the settings takes *device* out of its resource."""
        return taken(device, self.live.whole.device_rules())

    def may_end(self, pod: PodUid) -> bool:
        """Tell whether processes of *pod* may be ended; from any thread.

        Not where the pod may have a device of which they are only observed.
        """
        general, book = self.live.whole.reclaim.mode, self.ledger.book.value
        if not any(rule.own.mode for rule in self.live.whole.device_rules()):
            return general != _OBSERVE  # at once: hundreds of pods may be over
        had = {
            name
            for name, lock in book.locks.items()
            if lock.pod == pod or (lock.claim and pod in book.pods_of(lock))
        }
        # What pods use beside its owner, by a claim with adminAccess, has no lock of theirs.
        had.update(*(each.admin for each in book.claims.values() if pod in each.pods))
        return _OBSERVE not in ({self._mode_on(name) or general for name in had} or {general})

    def _mode_on(self, name: DeviceName) -> str:
        rules, device = self.live.whole.device_rules(), self.inventory.value.get(name)
        if device is None:  # which rule was for hardware that is gone cannot be told
            return _OBSERVE if any(rule.own.mode == _OBSERVE for rule in rules) else ""
        # By the rules of this moment: a scan, which would apply them, may hang with the hardware.
        rule = rule_for(device, rules)
        return "" if rule is None else rule.own.mode

    def changes(self) -> Changes:
        """Return what changes when the names may have to."""
        return Changes([self.ledger.book, self.view])
