"""What a vendor's adapter tells the scheduler of its devices."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.model.devices import Device, Inventory
from holdfast.model.dra.resourceslice import AttributeValue, label
from holdfast.model.ids import DeviceName, PciAddress, ResourceName

MOST_TEXT = 64
"""Bytes of an attribute's value, by the API's rules."""
_ANY = ResourceName("")
"""With this resource a device's label is what all of its labels end with."""

_VERSION = re.compile(r"(\d+)(?:\.(\d+))?(?:\.(\d+))?")


class AdvertisedDevice(Struct, frozen=True, kw_only=True):
    """What one claim can be given: a device, or several that are given together.

    `name` is a DNS label, unique among all devices of the node. `address` is the PCI function by
    which a single device is known; the attributes of the standard are made of it. Names of
    attributes and capacities are identifiers of at most 32 characters; capacities are in bytes, or
    how many there are of what is counted.
    `whole` is the name of all of a device that is shared, None for any other: as many claims as
    there are `devices` can have it, and each is given one of them.
    """

    name: str
    devices: tuple[DeviceName, ...]
    address: PciAddress | None = None
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)
    whole: DeviceName | None = None

    @property
    def shared(self) -> bool:
        """Tell whether several claims can have it at once."""
        return self.whole is not None

    def is_of(self, devices: set[DeviceName]) -> bool:
        """Tell whether *devices* have all of it, or a share of it."""
        own = devices & set(self.devices)
        return bool(own) if self.shared else len(own) == len(self.devices)


def plain(device: Device) -> AdvertisedDevice:
    """Return what is known of any device: its resource, what it is, and where it is."""
    return AdvertisedDevice(
        name=label(device.name),
        devices=(device.name,),
        address=next(iter(device.addresses), None),
        attributes=texts(
            type=device.name.resource.rpartition("/")[2],
            resource=device.name.resource,
            model=device.model,
        ),
    )


def as_assigned(
    told: Iterable[AdvertisedDevice], inventory: Inventory
) -> Iterator[AdvertisedDevice]:
    """Yield what of *told* the rules of the settings leave in *inventory*, as they call it.

    What has another resource has the last part of that as its type, so that no DeviceClass for the
    usual type selects it. A group is left out where a device of it is, or where its devices have
    different resources.
    """
    for each in told:
        devices = [inventory.get(name) for name in each.devices]
        if None in devices or len({name.resource for name in each.devices}) > 1:
            continue
        if not any(device is not None and device.found_as for device in devices):
            yield each
            continue
        resource = each.attributes["resource"].text or ""
        kind = texts(type=resource.rpartition("/")[2])
        yield replace(each, attributes={**each.attributes, **kind})


def told_apart(
    told: Iterable[AdvertisedDevice], hardware: Collection[Device]
) -> Iterator[AdvertisedDevice]:
    """Yield *told*; what would be called as an earlier device of *hardware* has a longer name.

    Pools that take the same function can have resources with the same last part: the later one's
    device is called by all of its resource.
    """
    times = Counter(device.name.id for device in hardware)
    first: dict[str, ResourceName] = {}
    for name in (device.name for device in hardware if times[device.name.id] > 1):
        first.setdefault(label(name), name.resource)
    for each in told:
        one = each.devices[0]
        if first.get(each.name, one.resource) == one.resource:
            yield each
        else:
            whole = ResourceName(one.resource.replace("/", "-"))
            yield replace(each, name=label(DeviceName(whole, one.id)))


def as_found(
    describe: Callable[[Iterable[Device]], Sequence[AdvertisedDevice]], inventory: Inventory
) -> Iterator[AdvertisedDevice]:
    """Yield what *describe* makes of the hardware in *inventory* as it was found, before any rule.

    The devices of each are those of *inventory*. Where no rule names hardware, nothing is yielded.
    """
    hardware = inventory.hardware or inventory.devices
    if all(each.found_as is None for each in hardware):
        return
    found = {
        DeviceName(each.found_as or each.name.resource, each.name.id): each for each in hardware
    }
    names = {name: each.name for name, each in found.items()}
    for told in describe([replace(each, name=name) for name, each in found.items()]):
        # Those of a shared device are names of shares.
        yield replace(told, devices=tuple(names.get(name, name) for name in told.devices))


def called_before(name: str, known: Iterable[AdvertisedDevice]) -> AdvertisedDevice | None:
    """Return what of *known* a rule that is gone called *name*; None where that is no one device.

    Whatever resource a rule gives a device, its id is at the end of its name.
    """
    found = {
        one.id: each
        for each in known
        if each.shared or len(each.devices) == 1
        for one in (each.whole or each.devices[0],)
        if name.endswith(label(DeviceName(_ANY, one.id)))
    }
    return next(iter(found.values())) if len(found) == 1 else None


def makes_no_group(devices: Collection[DeviceName], told: Iterable[AdvertisedDevice]) -> bool:
    """Tell whether *devices* are none of the groups of *told* that have as many of the resource.

    The scheduler takes single devices in their order, wherever they are.
    """
    resources = {each.resource for each in devices}
    groups = {
        frozenset(each.devices)
        for each in told
        if not each.shared
        and len(each.devices) == len(devices) > 1
        and {name.resource for name in each.devices} == resources
    }
    return bool(groups) and frozenset(devices) not in groups


def texts(**values: str) -> Mapping[str, AttributeValue]:
    """Return an attribute for each of *values* that is not empty, cut to what the API takes."""
    cut = {name: text.encode()[:MOST_TEXT].decode(errors="ignore") for name, text in values.items()}
    return {name: AttributeValue(text=text) for name, text in cut.items() if text}


def versions(**values: str) -> Mapping[str, AttributeValue]:
    """Return an attribute for each of *values* that can be written as a short semantic version.

    >>> versions(driver="535.129.03", none="N/A")
    {'driver': AttributeValue(text=None, number=None, truth=None, version='535.129.3')}
    """
    found: dict[str, AttributeValue] = {}
    for name, text in values.items():
        if (match := _VERSION.fullmatch(text)) is not None:
            version = ".".join(part.lstrip("0") or "0" for part in match.groups("0"))
            if len(version) <= MOST_TEXT:
                found[name] = AttributeValue(version=version)
    return found


def numbers(**values: int) -> Mapping[str, AttributeValue]:
    """Return an attribute for each of *values*."""
    return {name: AttributeValue(number=number) for name, number in values.items()}
