"""Rules of the settings for single devices: left out, under another resource, or set otherwise."""

import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.model.cards import card_of
from holdfast.model.devices import Device, ExcludedDevice, Inventory, OwnSettings, pci_addresses
from holdfast.model.ids import DeviceId, DeviceName, HardwareKey, PciAddress, ResourceName
from holdfast.model.text import like

Had = Mapping[DeviceName, frozenset[HardwareKey]]
"""Under which names pods have devices, with the hardware; without keys where that is not known."""

_NODE_NUMBER = re.compile(r"(\d+)$")


class DeviceRule(Struct, frozen=True, kw_only=True):
    """One rule: the devices that match every pattern that is given, and what becomes of them.

    `place` is where the rule stands in the settings. With nothing but patterns its devices stay as
    they are, and no later rule is asked about them.
    """

    place: str
    index: str | None = None
    uuid: str | None = None
    pci: str | None = None
    model: str | None = None
    exclude: bool = False
    resource: ResourceName | None = None
    own: OwnSettings = OwnSettings()

    def __str__(self) -> str:
        """Return the place of the rule and what it matches: ``devices[0] (uuid 1a*)``."""
        given = {"index": self.index, "uuid": self.uuid, "pci": self.pci, "model": self.model}
        told = (f"{name} {pattern}" for name, pattern in given.items() if pattern is not None)
        return f"{self.place} ({', '.join(told)})"

    def matches(self, device: Device) -> bool:
        """Tell whether *device* is one of the rule's. Upper and lower case are the same."""
        identity = device.identity
        return (
            _any(self.index, identity.indexes or _node_numbers(device))
            and _any(self.uuid, identity.uuids)
            and _any(self.pci, [form for each in device.addresses for form in _spellings(each)])
            and _any(self.model, (device.model,))
        )


def assigned(found: Inventory, rules: Sequence[DeviceRule], had: Had) -> Inventory:
    """Return what the adapters *found*, each device under the name that the first rule gives it.

    A device that pods have under another name keeps that name until they have let it go; only then
    it is left out, or is there under its new name. So nobody waits for hardware under one name
    while another gets it under the other, and whoever has it can start its containers again.
    """
    return _Assignment(found, rules, had).inventory()


def rule_for(device: Device, rules: Sequence[DeviceRule]) -> DeviceRule | None:
    """Return the rule that counts for *device*, which is the first that matches it."""
    return next((each for each in rules if each.matches(device)), None)


def taken(device: Device, rules: Sequence[DeviceRule]) -> bool:
    """Tell whether a rule takes *device* out of the resource under which it was found."""
    rule = rule_for(device, rules)
    if rule is None:
        return False
    return rule.exclude or rule.resource not in {None, device.name.resource}


class _Assignment:
    """Goes through the devices once."""

    def __init__(self, found: Inventory, rules: Sequence[DeviceRule], had: Had) -> None:
        self._found = found
        self._rules = rules
        self._had = _by_card(found, had)
        self._targets = {rule.resource for rule in rules if rule.resource is not None}
        self._names = {device.name for device in found.devices}
        self._source_of: dict[ResourceName, str] = {}
        for device in found.devices:
            self._source_of.setdefault(device.name.resource, device.source)
        self._devices: dict[DeviceName, Device] = {}
        self._hardware: dict[DeviceName, Device] = {}
        self._left_out: list[ExcludedDevice] = []
        self._used: set[str] = set()

    def inventory(self) -> Inventory:
        for device in self._found.devices:
            self._place(device)
        found = replace(self._found, unseen=self._unseen(), idle_rules=tuple(self._idle()))
        devices = self._devices.values()
        if self._devices.keys() == self._names and not any(each.leaving for each in devices):
            return replace(found, devices=tuple(devices))
        resources = dict.fromkeys(self._found.resources)
        resources |= dict.fromkeys(name.resource for name in self._devices)
        order = {resource: place for place, resource in enumerate(resources)}
        return replace(
            found,
            resources=tuple(resources),
            devices=tuple(sorted(devices, key=lambda each: order[each.name.resource])),
            left_out=tuple(self._left_out),
            hardware=tuple(self._hardware.values()),
        )

    def _place(self, device: Device) -> None:
        rule = rule_for(device, self._rules)
        name, why = self._wanted(device, rule)
        if rule is not None:
            device = replace(device, own=rule.own)
        then = why or f"it is {name}"
        kept = [
            replace(_named(device, each), leaving=f"{then} once no pod has it under this name")
            for each in self._former(device)
            if each != name
        ]
        self._devices |= {each.name: each for each in kept}
        self._hardware[device.name] = kept[0] if kept else device
        if name is None:
            if not kept:
                self._left_out.append(ExcludedDevice(device=device, reason=why))
        elif not kept or name.resource in self._had.get(self._card(name), {}):
            self._devices.setdefault(name, _named(device, name))
            self._hardware[device.name] = _named(device, name)

    def _wanted(self, device: Device, rule: DeviceRule | None) -> tuple[DeviceName | None, str]:
        """Return the name that *device* is to have, None for none, and what its *rule* does."""
        if rule is None:
            return device.name, ""
        self._used.add(rule.place)
        if rule.exclude:
            return None, f"{rule} leaves it out"
        own = device.name.resource
        # Replicas have a name of their own so that no pod gets one that asks for a whole card: the
        # card's name leaves it to them.
        moved = rule.resource
        resource = own if moved is None or moved == self._found.names.unshared(own) else moved
        name = DeviceName(resource, device.name.id)
        if name == device.name:
            return name, ""
        # A container may get any devices of one resource, and one adapter has to explain them.
        if self._source_of.setdefault(resource, device.source) != device.source:
            return None, f"{rule} moves it to {resource}, which has hardware of another kind"
        return name, f"{rule} moves it to {resource}"

    def _former(self, device: Device) -> Iterator[DeviceName]:
        """Yield the names under which pods have *device*, and that no other device has.

        A shared card is let go as a whole: its replicas have the names that any of them has.
        """
        own = device.name
        had, unshared = self._had.get(self._card(own), {}), self._found.names.unshared
        if any(unshared(each) == unshared(own.resource) for each in had):
            yield own
        for resource, keys in had.items():
            name = DeviceName(resource, own.id)
            if unshared(resource) == unshared(own.resource) or name in self._names:
                continue
            if resource in self._targets or _is_same(keys, device.keys):
                yield name

    def _card(self, name: DeviceName) -> DeviceId:
        return self._found.names.parted(name.id)[0]

    def _unseen(self) -> frozenset[ResourceName]:
        """Return what may have more devices: what was not seen may be, or have been, moved there.

        What is known by its PCI functions is always seen.
        """
        unseen = self._found.unseen
        if not unseen:
            return unseen
        had = (each for resources in self._had.values() for each in resources.items())
        former = {resource for resource, keys in had if keys and not pci_addresses(keys)}
        # Beside what was moved there may be more of the same that was not seen.
        whole = (
            name.resource
            for name, device in self._devices.items()
            if not self._found.may_have(device.found_as or name.resource)
        )
        known = {*self._found.resources, *whole}
        return unseen | (self._targets | former) - known

    def _idle(self) -> Iterator[str]:
        unseen = " or ".join(sorted(self._found.unseen))
        for rule in self._rules:
            if rule.place in self._used:
                continue
            if any(map(rule.matches, self._found.devices)):
                why = "earlier rules take every device that it matches"
            elif unseen:
                why = f"it matches no device that was seen, and none of {unseen} was seen yet"
            else:
                why = "it matches no device of this node"
            yield f"{rule} does nothing: {why}"


def _by_card(
    found: Inventory, had: Had
) -> dict[DeviceId, dict[ResourceName, frozenset[HardwareKey]]]:
    """Return *had* by the id of the whole device, as it is today: not by that of a replica."""
    cards: dict[DeviceId, dict[ResourceName, frozenset[HardwareKey]]] = {}
    for name, keys in had.items():
        today = found.find(name.resource, name.id)
        id_ = name.id if today is None else today.name.id
        resources = cards.setdefault(found.names.parted(id_)[0], {})
        resources[name.resource] = resources.get(name.resource, frozenset()) | keys
    return cards


def _is_same(one: frozenset[HardwareKey], other: frozenset[HardwareKey]) -> bool:
    """Tell whether both are of one device, or of one card, which may be shared."""
    cards = {card_of(key) for key in one} & {card_of(key) for key in other}
    return not one.isdisjoint(other) or bool(cards - {""})


def _named(device: Device, name: DeviceName) -> Device:
    return (
        device if name == device.name else replace(device, name=name, found_as=device.name.resource)
    )


def _any(pattern: str | None, texts: Sequence[str]) -> bool:
    return pattern is None or any(like(text, pattern) for text in texts)


def _spellings(address: PciAddress) -> tuple[str, str, str]:
    """Return how the kernel, drivers and lspci write *address*."""
    return address, f"0000{address}", address.partition(":")[2]


def _node_numbers(device: Device) -> tuple[str, ...]:
    """Return the numbers of its nodes, such as 3 for /dev/accel3."""
    found = (_NODE_NUMBER.search(node.path) for node in device.nodes)
    return tuple(match[1] for match in found if match is not None)
