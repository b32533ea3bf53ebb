"""Pools: which VFIO devices, other than TPU chips, are advertised under which resource name."""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from msgspec import Struct

from holdfast.model.ids import PciAddress, ResourceName

_DEVICE = re.compile(r"[0-9a-f?*]{1,4}:[0-9a-f?*]{1,4}")
_CLASS = re.compile(r"(0x)?[0-9a-f]{2,6}")
_RESOURCE = re.compile(
    r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)


class PoolSpec(Struct, frozen=True, kw_only=True):
    """One rule that says which PCI functions belong to a resource.

    `devices` are ``vendor:device`` in hex, where ``*`` and ``?`` stand for any digits;
    `classes` are beginnings of the class code, such as ``0302`` for 3D controllers; `addresses`
    are patterns of PCI addresses, such as ``0000:3b:*``. A function belongs to the pool when it
    matches one entry of each list that is not empty. Several pools may name one resource.
    """

    resource: ResourceName
    devices: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()

    def problems(self) -> tuple[str, ...]:
        """Return what is wrong with this rule, each text naming the key; empty when it is sound."""
        found = []
        if not _RESOURCE.fullmatch(self.resource):
            found.append(f"resource: {self.resource!r} is not of the form domain/name")
        if not (self.devices or self.classes or self.addresses):
            found.append("devices: give at least one of devices, classes and addresses")
        found += [
            f"devices: {text!r} is not of the form vendor:device, such as '8086:1572'"
            for text in self.devices
            if not _DEVICE.fullmatch(text.lower())
        ]
        found += [
            f"classes: {text!r} is not the beginning of a PCI class, such as '0302'"
            for text in self.classes
            if not _CLASS.fullmatch(text.lower())
        ]
        found += [
            "addresses: an empty pattern matches nothing" for text in self.addresses if not text
        ]
        return tuple(found)

    def matches(self, address: PciAddress, vendor: int, device: int, class_code: int) -> bool:
        """Tell whether the function at *address* belongs to this pool."""
        identity = f"{vendor:04x}:{device:04x}"
        digits = f"{class_code:06x}"
        return (
            _any(identity, self.devices)
            and (
                not self.classes
                or any(digits.startswith(text.lower().removeprefix("0x")) for text in self.classes)
            )
            and _any(address, self.addresses)
        )


def pool_variables(resource: ResourceName, addresses: Iterable[PciAddress]) -> dict[str, str]:
    """Return the variable of KubeVirt's that names a pool's PCI addresses to the program."""
    name = resource.upper().translate(str.maketrans("./-", "___"))
    return {f"PCI_RESOURCE_{name}": ",".join(addresses)}


def _any(text: str, patterns: tuple[str, ...]) -> bool:
    return not patterns or any(fnmatchcase(text, pattern.lower()) for pattern in patterns)
