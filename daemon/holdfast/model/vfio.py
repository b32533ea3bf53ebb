"""VFIO devices: whether one can be used at all, and which are pools under a name of their own."""

from collections.abc import Iterable

from msgspec import Struct

from holdfast.model.devices import Fault, FaultKind, major, minor
from holdfast.model.ids import PciAddress, ResourceName
from holdfast.model.text import like

_BRIDGE_CLASS = 0x06
_HARMLESS_DRIVERS = frozenset({"pci-stub", "pcieport"})
"""Drivers whose device does no DMA of its own, so the kernel lets its group be used."""


class FunctionFacts(Struct, frozen=True, kw_only=True):
    """One PCI function of a group. `was_bound`: it was on a VFIO driver, and may be in use yet."""

    address: PciAddress
    driver: str | None
    was_bound: bool = False


class VfioDeviceNode(Struct, frozen=True, kw_only=True):
    """A device node as sysfs and /dev show it; `problem` says why /dev could not be looked at.

    `expected` is the device number that sysfs names, `found` that of the character device at
    `path`; None means that there is none.
    """

    path: str
    expected: int | None
    found: int | None
    exists: bool
    problem: str = ""


def is_bridge(class_code: int) -> bool:
    """Tell whether a PCI class code is that of a bridge, which nobody uses by itself."""
    return class_code >> 16 == _BRIDGE_CLASS


def is_vfio_driver(driver: str | None) -> bool:
    """Tell whether *driver* hands its device to VFIO: vfio-pci, and its vendors' variants."""
    return driver is not None and "vfio" in driver


def pending_removal(function: FunctionFacts, node: VfioDeviceNode | None) -> bool:
    """Tell whether *function* is on its way out: its node is still there, its driver link gone.

    The kernel waits for whoever holds the device, sends no event, and keeps node and folder.
    """
    return function.was_bound and function.driver is None and node is not None and node.exists


def group_faults(group: int, members: Iterable[FunctionFacts]) -> tuple[Fault, ...]:
    """Return why the IOMMU group cannot be opened; none when the kernel calls it viable.

    A group is viable when each device in it is on a VFIO driver, on none, or on one that does no
    DMA (pci-stub, and pcieport for bridges).
    """
    return tuple(
        Fault(
            kind=FaultKind.NOT_VIABLE,
            text=(
                f"IOMMU group {group} cannot be used: {member.address} in it is bound to"
                f" {member.driver}; bind it to vfio-pci or unbind it"
            ),
        )
        for member in members
        if member.driver is not None
        and not is_vfio_driver(member.driver)
        and member.driver not in _HARMLESS_DRIVERS
    )


def removal(address: PciAddress, node: VfioDeviceNode) -> Fault:
    """Return the fault of a function that is being removed while *node* is still there."""
    text = (
        f"{address} is being removed or unbound: its driver link is gone while {node.path} is"
        " still there; it ends when nobody holds the device any more"
    )
    return Fault(kind=FaultKind.PENDING_REMOVAL, text=text)


def function_faults(function: FunctionFacts, node: VfioDeviceNode | None) -> tuple[Fault, ...]:
    """Return what keeps a function that is to be granted through VFIO from being used."""
    if is_vfio_driver(function.driver):
        return ()
    if node is not None and pending_removal(function, node):
        return (removal(function.address, node),)
    bound = f"it is bound to {function.driver}" if function.driver else "it has no driver"
    text = f"{function.address} cannot be used: {bound}; bind it to vfio-pci"
    return (Fault(kind=FaultKind.NO_DRIVER, text=text),)


def node_faults(node: VfioDeviceNode, subject: str) -> tuple[Fault, ...]:
    """Return what is wrong with the node through which *subject* would be reached."""
    if node.problem:
        kind, text = FaultKind.UNREADABLE, f"cannot look at {node.path}: {node.problem}"
    elif not node.exists:
        kind = FaultKind.NO_NODE
        text = f"{subject} has no node {node.path}; is /dev of the host mounted, is udev running?"
    elif node.found is None:
        kind = FaultKind.WRONG_NODE
        text = (
            f"{node.path} is not a character device; remove it and let the kernel create it again"
        )
    elif node.expected is None:
        kind = FaultKind.NO_NODE
        text = f"{node.path} belongs to nothing: the kernel shows no device number for {subject}"
    elif node.found != node.expected:
        kind = FaultKind.WRONG_NODE
        text = (
            f"{node.path} has device number {_number(node.found)}, but the kernel's for {subject}"
            f" is {_number(node.expected)}; remove the stale node and let the kernel create it"
            " again"
        )
    else:
        return ()
    return (Fault(kind=kind, text=text),)


def chip_faults(slot: str, found: int, expected: int) -> tuple[Fault, ...]:
    """Return the fault of a chip that shows fewer functions than it is made of."""
    if found >= expected:
        return ()
    shown = f"chip {slot} shows {found} of its {expected} functions"
    text = f"{shown}; rescan the PCI bus or reboot the node"
    return (Fault(kind=FaultKind.GONE, text=text),)


def _number(rdev: int) -> str:
    """Return a device number as people write it."""
    return f"{major(rdev)}:{minor(rdev)}"


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
    """Return the variable of KubeVirt's that names a pool's PCI addresses to the program.

    Its ResourceNameToEnvVar leaves a hyphen as it is.
    """
    name = resource.upper().translate(str.maketrans("./", "__"))
    return {f"PCI_RESOURCE_{name}": ",".join(addresses)}


def _any(text: str, patterns: tuple[str, ...]) -> bool:
    return not patterns or any(like(text, pattern) for pattern in patterns)
