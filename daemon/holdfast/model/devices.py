"""Devices and inventories: what discovery finds and every other part reads."""

from collections.abc import Iterable, Mapping
from enum import Enum
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from holdfast.model.cards import (
    CardNames,
    Places,
    card_key,
    card_of,
    id_of,
    is_replica,
    replica_of,
    replicas_in,
    whole_of,
)
from holdfast.model.groups import grouped
from holdfast.model.ids import DeviceId, DeviceName, HardwareKey, PciAddress, ResourceName

_PCI = "pci/"
_Told = TypeVar("_Told")


class DeviceKind(Enum):
    """How a container reaches the device, which decides what "in use" means."""

    VFIO = "vfio"
    """One or more IOMMU groups behind /dev/vfio/N; exclusive, `enable` follows use."""

    ACCEL = "accel"
    """A driver's own node /dev/accelN; `enable` says nothing, only holders do."""

    DRIVER = "driver"
    """Nodes of a vendor's driver that any program may open, and files beside them: the driver says
    who uses the device, and its adapter judges by that, hands it over and writes its CDI specs."""


class FaultKind(Enum):
    """Why a device cannot be used: `permanent` ones make Allocate refuse, others are waited out."""

    GONE = "gone"
    NOT_VIABLE = "not-viable"
    WRONG_NODE = "wrong-node"
    NO_DRIVER = "no-driver"
    NO_NODE = "no-node"
    PENDING_REMOVAL = "pending-removal"
    UNREADABLE = "unreadable"
    OCCUPIED = "occupied"
    """What reaches it reaches what a pod has, from before its hardware was divided as it is."""
    NO_SPEC = "no-spec"
    """It is handed over by its name only, and no CDI spec says what that is."""
    ILL = "ill"
    """The device itself reports an error; the text says what clears it."""

    @property
    def permanent(self) -> bool:
        """Tell whether a container that is started on the device all the same can never work."""
        return self in {FaultKind.GONE, FaultKind.NOT_VIABLE, FaultKind.WRONG_NODE}


class Fault(Struct, frozen=True, kw_only=True):
    """One reason why a device is Unhealthy; `text` names the thing and what was seen."""

    kind: FaultKind
    text: str


class DeviceNode(Struct, frozen=True, kw_only=True, order=True):
    """A device node on the host; `path` starts with /dev and is the same inside the container.

    `rdev` is the kernel's device number of the device (from sysfs), as os.makedev gives it.
    """

    path: str
    rdev: int


def major(rdev: int) -> int:
    """Return what os.major does: a number of the kernel's has its major in two places."""
    return (rdev >> 8) & 0xFFF | (rdev >> 32) & ~0xFFF


def minor(rdev: int) -> int:
    """Return what os.minor does."""
    return rdev & 0xFF | (rdev >> 12) & 0xFFFFFF00


class Identity(Struct, frozen=True, kw_only=True):
    """What else a person calls a device: its own names first, then those of what it is part of.

    `indexes` are its driver's numbers for it, `uuids` its driver's ids, `addresses` the PCI
    functions that it is, where these are not all of its keys.
    """

    indexes: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    addresses: tuple[PciAddress, ...] = ()


class OwnSettings(Struct, frozen=True, kw_only=True):
    """What the settings say of single devices; empty: what they say of all.

    `mode` and `reset` are as in the section reclaim. `ignore_health`: what the device itself
    reports makes it no less Healthy.
    """

    mode: str = ""
    reset: str = ""
    ignore_health: bool = False


class Device(Struct, frozen=True, kw_only=True):
    """One unit that kubelet can grant.

    `keys` are the pieces of silicon that nobody else may have at the same time: every function of
    its IOMMU groups but bridges. `nodes` are the exclusive nodes (IOMMU groups, /dev/accelN; the
    shared /dev/vfio/vfio is not among them). `functions` are the PCI functions bound to a VFIO
    driver, whose sysfs `enable` follows use; empty for ACCEL and DRIVER.
    """

    name: DeviceName
    kind: DeviceKind
    keys: frozenset[HardwareKey]
    nodes: tuple[DeviceNode, ...]
    functions: tuple[PciAddress, ...]
    other_nodes: tuple[DeviceNode, ...] = ()
    """Nodes by which its hardware is used as well, such as /dev/dri/renderD128 of a GPU: who has
    one open holds the device. They are handed over by its adapter alone."""
    numa_node: int | None = None
    source: str = ""
    """The name of the vendor's adapter that found it."""
    model: str = ""
    """What it is: a TPU generation such as ``v5e``, or ``vendor:device``."""
    identity: Identity = Identity()
    own: OwnSettings = OwnSettings()
    faults: tuple[Fault, ...] = ()
    found_as: ResourceName | None = None
    """The resource that its adapter gave it, where it is under another; None: it is under that."""
    leaving: str = ""
    """Why no new pod is given it under this name, although pods still have it; empty: it stays."""

    @property
    def healthy(self) -> bool:
        """Tell whether the hardware can be used, whoever holds it."""
        return not self.faults

    @property
    def addresses(self) -> tuple[PciAddress, ...]:
        """Return the PCI functions that it is, whatever drivers they have; the first names it."""
        return self.identity.addresses or pci_addresses(self.keys)


class ExcludedDevice(Struct, frozen=True, kw_only=True):
    """A device that is under no name, and the rule of the settings that has left it out."""

    device: Device
    reason: str


class Inventory(Struct, frozen=True, kw_only=True, dict=True):
    """All devices of the node at one moment.

    `resources` are the names that are ours on this node, also those without any device. Devices are
    ordered by resource, then NUMA node, then PCI address.
    """

    resources: tuple[ResourceName, ...] = ()
    devices: tuple[Device, ...] = ()
    unseen: frozenset[ResourceName] = frozenset()
    """The resources whose hardware was not looked at yet, or cannot be, in whole or in part.

    Their devices may well be there. Names may have wildcards.
    """
    left_out: tuple[ExcludedDevice, ...] = ()
    hardware: tuple[Device, ...] = ()
    """Each piece of hardware once, also what is left out, in the order that its adapter gave; empty
    where no rule has changed anything, and `devices` are the same."""
    idle_rules: tuple[str, ...] = ()
    """The rules of the settings that did nothing, each with the reason."""
    names: CardNames = CardNames()
    """How replicas are called."""

    def of(self, resource: ResourceName) -> tuple[Device, ...]:
        """Return the devices of *resource*, in order."""
        return self._by_resource.get(resource, ())

    def get(self, name: DeviceName) -> Device | None:
        """Return the device called *name*, or None when the node has none.

        A card that is shared is there by its own name too, and one that is not by those of its
        replicas: pods may have it from before that changed. Neither is in `devices`.
        """
        return self._by_name.get(name) or self._from_before(name)

    def _from_before(self, name: DeviceName) -> Device | None:
        card, number = self.names.parted(name.id)
        known = self._cards.get(DeviceName(self.names.unshared(name.resource), card))
        if known is None or not (number or name.id == card):
            return None
        whole = next(whole_of(key) for key in known.keys if id_of(key) == card)
        key = replica_of(whole, number) if number else whole
        return replace(known, name=name, keys=frozenset({key}))

    @cached_property
    def shared_cards(self) -> tuple[Device, ...]:
        """Return the cards that are shared, each as a whole: `devices` has their replicas."""
        names = (self.names.whole(each.name) for each in self.devices if replicas_in(each.keys))
        return tuple(filter(None, map(self.get, dict.fromkeys(names))))

    @cached_property
    def replicas(self) -> Mapping[HardwareKey, Mapping[HardwareKey, None]]:
        """Return the keys of the replicas of each whole that is shared, in order."""
        found: dict[HardwareKey, dict[HardwareKey, None]] = {}
        for device in self.devices:
            for key in filter(is_replica, device.keys):
                found.setdefault(whole_of(key), {})[key] = None
        return found

    @cached_property
    def cards(self) -> Mapping[str, PciAddress]:
        """Return the PCI function that each card is, where its driver tells."""
        return {
            card: device.identity.addresses[0]
            for device in self.devices
            if device.identity.addresses
            for card in map(card_of, device.keys)
            if card
        }

    @cached_property
    def _cards(self) -> dict[DeviceName, Device]:
        """Return a device of each card, or part of one, that is, or could be, shared."""
        found: dict[DeviceName, Device] = {}
        for device in self.devices:
            card = self.names.parted(device.name.id)[0]
            if any(card == id_of(key) for key in device.keys):
                resource = self.names.unshared(device.name.resource)
                found.setdefault(DeviceName(resource, card), device)
        return found

    def found_as(self, *resources: ResourceName) -> tuple[Device, ...]:
        """Return what an adapter found as any of *resources*, whatever it is called, in order.

        Also what is left out.
        """
        return tuple(
            each
            for each in self.hardware or self.devices
            if (each.found_as or each.name.resource) in resources
        )

    @cached_property
    def _by_name(self) -> dict[DeviceName, Device]:
        return {device.name: device for device in reversed(self.devices)}

    @cached_property
    def _by_resource(self) -> dict[ResourceName, tuple[Device, ...]]:
        return grouped((device.name.resource, device) for device in self.devices)

    def find(self, resource: ResourceName, id_: DeviceId) -> Device | None:
        """Return the device that kubelet means by *id_*, or None when the node has none.

        The plugin that was here before may have used the name of the node as id (the group's
        number, ``accelN``), or have shared what is not shared any more.
        """
        if (device := self.get(DeviceName(resource, id_))) is not None:
            return device
        card = self.names.parted(id_)[0]
        if (device := self.get(DeviceName(resource, card))) is not None:
            return device
        named = (
            each
            for each in self.of(resource)
            if any(node.path.rsplit("/", 1)[-1] == id_ for node in each.nodes)
        )
        found = next(named, None)
        # It was all of the card.
        return found and self.get(DeviceName(resource, self.names.parted(found.name.id)[0]))

    def keys_of(self, id_: DeviceId) -> frozenset[HardwareKey]:
        """Return the hardware called *id_*, under whatever resource; empty when there is none.

        A card, a part of one and their replicas are known by what of the card is there otherwise.
        """
        card, number = self.names.parted(id_)
        if not number:
            return self._keys_by_id.get(id_, frozenset())
        keys = self._keys_by_id.get(card, frozenset())
        return frozenset(replica_of(whole_of(key), number) for key in keys if id_of(key) == card)

    @cached_property
    def _keys_by_id(self) -> dict[DeviceId, frozenset[HardwareKey]]:
        of_cards = {key for device in self.devices for key in device.keys if card_of(key)}
        wholes = {whole_of(key) for key in of_cards} | {card_key(card_of(key)) for key in of_cards}
        found = {id_of(key): frozenset({key}) for key in wholes}
        return found | {device.name.id: device.keys for device in self.devices}

    def may_have(self, resource: ResourceName) -> bool:
        """Tell whether devices of *resource* may be there that are not among `devices`."""
        return any(fnmatchcase(resource, each) for each in self.unseen)


def with_faults(
    devices: Iterable[Device], reported: Mapping[str, tuple[Fault, ...]]
) -> tuple[Device, ...]:
    """Return *devices*, each with what is *reported* about it added to what it shows itself."""
    return tuple(
        replace(device, faults=(*device.faults, *found))
        if (found := _counting(device, told_of(device, reported)))
        else device
        for device in devices
    )


def _counting(device: Device, faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """Return those of *faults* that the settings do not ignore for *device*."""
    ignores = device.own.ignore_health
    return tuple(each for each in faults if not (ignores and each.kind is FaultKind.ILL))


def told_of(device: Device, told: Mapping[str, tuple[_Told, ...]]) -> tuple[_Told, ...]:
    """Return the notes on *device* by its id; for a replica, also those on its card."""
    if not told:  # as most of the time, and this is asked of every device
        return ()
    ids = (device.name.id, *(card for card, _ in replicas_in(device.keys)))
    return tuple(each for name in ids for each in told.get(name, ()))


def pci_key(address: PciAddress) -> HardwareKey:
    """Return the key of a PCI function; it survives a renumbering of IOMMU groups."""
    return HardwareKey(f"{_PCI}{address}")


def places_of(addresses: Mapping[str, str]) -> Places:
    """Return where cards are, by the PCI *addresses* that their drivers told."""
    return Places(of={card: pci_key(PciAddress(text)) for card, text in addresses.items()})


def pci_addresses(keys: Iterable[HardwareKey]) -> tuple[PciAddress, ...]:
    """Return the PCI functions among *keys*, in order."""
    return tuple(PciAddress(key.removeprefix(_PCI)) for key in sorted(keys) if key.startswith(_PCI))
