"""Checks each function that is to be granted: its driver, its group, its node.

The rules are those by which discovery calls a device Unhealthy.
"""

import stat
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from holdfast.doctor.area import Area
from holdfast.doctor.finding import Finding
from holdfast.doctor.node import Node
from holdfast.errors import HostError
from holdfast.host.files.kernelfile import read_text
from holdfast.host.pci.sysfs import PciFunction, Sysfs
from holdfast.model.devices import DeviceKind
from holdfast.model.ids import PciAddress
from holdfast.model.tpu.generations import (
    GENERATIONS,
    GOOGLE_VENDOR,
    NOT_CHIPS,
    generation_of,
    slot_of,
)
from holdfast.model.vfio.viability import (
    FunctionFacts,
    NodeFacts,
    chip_faults,
    function_faults,
    group_faults,
    is_bridge,
    is_vfio_driver,
    node_faults,
)
from holdfast.settings import Settings

_AREA = Area("vfio")
_ACCELERATOR = 0x12
"""The PCI class of processing accelerators."""
_OTHERS = stat.S_IROTH | stat.S_IWOTH


class Wanted(Struct, frozen=True, kw_only=True):
    """A function that the settings want granted."""

    function: PciFunction
    model: str
    kind: DeviceKind
    chip_functions: int = 1


def wanted_functions(functions: Sequence[PciFunction], settings: Settings) -> tuple[Wanted, ...]:
    """Return those of *functions* that are parts of TPU chips, or belong to a pool."""
    specs = [pool.spec() for pool in settings.pools]
    found: list[Wanted] = []
    for each in functions:
        generation = generation_of(each.vendor, each.device, each.subsystem_device)
        if settings.tpu.enabled and generation is not None:
            # A chip of any generation may be handed over through VFIO, and then is granted so.
            vfio = is_vfio_driver(each.driver)
            kind = DeviceKind.VFIO if vfio else generation.kind
            parts = generation.functions_per_chip
            model = f"TPU {generation.name}"
            found.append(Wanted(function=each, model=model, kind=kind, chip_functions=parts))
        elif not is_bridge(each.class_code) and any(
            spec.matches(each.address, each.vendor, each.device, each.class_code) for spec in specs
        ):
            model = f"{each.vendor:04x}:{each.device:04x}"
            found.append(Wanted(function=each, model=model, kind=DeviceKind.VFIO))
    return tuple(found)


def unknown_findings(functions: Sequence[PciFunction]) -> Iterator[Finding]:
    """Yield a finding for each accelerator of Google's that no generation explains."""
    for each in functions:
        if (
            each.vendor == GOOGLE_VENDOR
            and each.class_code >> 16 == _ACCELERATOR
            and each.device not in NOT_CHIPS
            and generation_of(each.vendor, each.device, each.subsystem_device) is None
        ):
            yield _AREA.warn(
                check="unknown-device",
                reason=f"{each.address} is an accelerator of Google's with the id "
                f"{each.device:04x}, which is none of {', '.join(GENERATIONS)}: it is not granted",
                remedy="install a newer holdfast, or name its id in a pool (pools[].devices)",
            )


def function_findings(
    node: Node, wanted: Sequence[Wanted], functions: Sequence[PciFunction]
) -> Iterator[Finding]:
    """Yield what keeps each of *wanted* from being granted, or one OK for all of a kind."""
    look = _Look(node, functions)
    behind_vfio = [each for each in wanted if each.kind is DeviceKind.VFIO]
    of_accel = [each for each in wanted if each.kind is DeviceKind.ACCEL]
    readable = [
        _unreadable(each.function, text) for each in wanted for text in each.function.problems
    ]
    yield from readable
    yield from _chips(wanted)
    if behind_vfio:
        drivers = [found for each in behind_vfio for found in look.driver(each.function)]
        yield from drivers or [
            _AREA.ok(check="driver", reason=f"all {len(behind_vfio)} functions are on VFIO drivers")
        ]
        yield from look.groups([each.function for each in behind_vfio])
    for each in of_accel:
        yield look.accel(each)


def _unreadable(function: PciFunction, problem: str) -> Finding:
    return _AREA.fail(
        check="readable",
        reason=f"{function.address} cannot be understood: {problem}",
        remedy="rescan the PCI bus, or restart the machine",
    )


def _chips(wanted: Sequence[Wanted]) -> Iterator[Finding]:
    found: dict[str, int] = {}
    expected: dict[str, int] = {}
    for each in wanted:
        slot = slot_of(each.function.address)
        found[slot] = found.get(slot, 0) + 1
        expected[slot] = each.chip_functions
    for slot, number in expected.items():
        for fault in chip_faults(slot, found[slot], number):
            what, _, remedy = fault.text.partition("; ")
            yield _AREA.fail(check="chip", reason=what, remedy=remedy)


class _Look:
    """What is read of groups and nodes, each once."""

    def __init__(self, node: Node, functions: Sequence[PciFunction]) -> None:
        self._node = node
        self._sysfs = Sysfs(node.host)
        self._functions: Mapping[PciAddress, PciFunction] = {
            each.address: each for each in functions
        }

    def driver(self, function: PciFunction) -> Iterator[Finding]:
        """Yield why *function* is not on a VFIO driver."""
        group = function.iommu_group
        node = None if group is None else self._group_node(group)
        # The kernel keeps a group's number only while a member is on VFIO.
        leaving = function.driver is None and node is not None and node.expected is not None
        facts = FunctionFacts(address=function.address, driver=function.driver, was_bound=leaving)
        for fault in function_faults(facts, node):
            what, _, _ = fault.text.partition("; ")
            if leaving:
                remedy = "end who holds the device: `holdfast holders` names them"
                yield _AREA.fail(check="driver", reason=what, remedy=remedy)
                continue
            override = self._override(function)
            yield _AREA.fail(
                check="driver",
                reason=f"{what}; driver_override is {override or 'not set'}",
                remedy=self._bind(function),
            )

    def groups(self, functions: Sequence[PciFunction]) -> Iterator[Finding]:
        """Yield what is wrong with the groups of *functions* and their nodes, or one OK."""
        problems: list[Finding] = []
        numbers: set[int] = set()
        for function in functions:
            if function.iommu_group is None:
                problems.append(
                    _AREA.fail(
                        check="group",
                        reason=f"{function.address} has no IOMMU group",
                        remedy="turn the IOMMU on in firmware and kernel",
                    )
                )
            else:
                numbers.add(function.iommu_group)
        wanted = {function.address for function in functions}
        for number in sorted(numbers):
            problems += self._viable(number, wanted)
        if not problems:
            reason = f"{len(numbers)} groups, and nothing in them that keeps them from being opened"
            problems.append(_AREA.ok(check="group", reason=reason))
        yield from problems
        # Without a function on VFIO there is no node, and the driver is what to name.
        yield from self._nodes([number for number in sorted(numbers) if self._has_node(number)])

    def accel(self, each: Wanted) -> Finding:
        """Return what was found of a chip that is reached by a node of the TPU's own driver."""
        address = each.function.address
        for name, (rdev, owner) in self._sysfs.accel_nodes().items():
            if owner != address:
                continue
            found = self._facts(f"/dev/{name}", rdev)
            if not self._copied(found):
                for fault in node_faults(found, address):
                    what, _, remedy = fault.text.partition("; ")
                    return _AREA.fail(check="accel", reason=what, remedy=remedy or "see its driver")
            return _AREA.ok(check="accel", reason=f"{address} is /dev/{name}")
        bound = f"is bound to {each.function.driver}" if each.function.driver else "has no driver"
        return _AREA.fail(
            check="accel",
            reason=f"{address} ({each.model}) {bound} and has no accel node",
            remedy="load the TPU's driver",
        )

    def _viable(self, number: int, wanted: set[PciAddress]) -> Iterator[Finding]:
        members = [each for each in self._members(number) if each.address not in wanted]
        facts = [
            FunctionFacts(
                address=each.address, driver=each.driver, bridge=is_bridge(each.class_code)
            )
            for each in members
        ]
        for fault in group_faults(number, facts):
            what, _, remedy = fault.text.partition("; ")
            yield _AREA.fail(
                check="group",
                reason=what,
                remedy=f"{remedy}; or put the card into a slot with a group of its own (ACS)",
            )

    def _nodes(self, numbers: Sequence[int]) -> Iterator[Finding]:
        problems: list[Finding] = []
        for number in numbers:
            found = self._group_node(number)
            if self._copied(found):
                yield _AREA.warn(
                    check="node",
                    reason=f"a copy has no device nodes: {found.path} and others are not checked",
                    remedy="run the doctor on the node itself",
                )
                return
            for fault in node_faults(found, f"IOMMU group {number}"):
                what, _, remedy = fault.text.partition("; ")
                problems.append(
                    _AREA.fail(check="node", reason=what, remedy=remedy or "mount the host's /dev")
                )
            problems += self._mode(found)
        if not problems and numbers:
            reason = f"the nodes of {len(numbers)} groups are there, with the kernel's numbers"
            problems.append(_AREA.ok(check="node", reason=reason))
        yield from problems

    def _mode(self, node: NodeFacts) -> Iterator[Finding]:
        if node.found is None:
            return
        mode = stat.S_IMODE(self._node.host.node(node.path).stat().st_mode)
        if mode & _OTHERS:
            yield _AREA.warn(
                check="node",
                reason=f"{node.path} has mode {mode:o}: any process outside of containers may take "
                "the device past holdfast, which then finds it busy",
                remedy=f"chmod 600 {node.path}, and remove the udev rule that opens it",
            )

    def _copied(self, node: NodeFacts) -> bool:
        """Tell whether a node is missing for the reason alone that copies have none."""
        return not self._node.live and node.found is None and not node.exists

    def _has_node(self, number: int) -> bool:
        return self._sysfs.group_rdev(number) is not None or any(
            is_vfio_driver(each.driver) for each in self._members(number)
        )

    def _members(self, number: int) -> list[PciFunction]:
        addresses = set(self._sysfs.group_members(number))
        addresses |= {
            each.address for each in self._functions.values() if each.iommu_group == number
        }
        return [self._functions[each] for each in sorted(addresses) if each in self._functions]

    def _group_node(self, number: int) -> NodeFacts:
        return self._facts(f"/dev/vfio/{number}", self._sysfs.group_rdev(number))

    def _facts(self, path: str, expected: int | None) -> NodeFacts:
        try:
            found = self._node.host.node(path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return NodeFacts(path=path, expected=expected, found=None, exists=False)
        except OSError as error:
            why = error.strerror or str(error)
            return NodeFacts(path=path, expected=expected, found=None, exists=False, problem=why)
        rdev = found.st_rdev if stat.S_ISCHR(found.st_mode) else None
        return NodeFacts(path=path, expected=expected, found=rdev, exists=True)

    def _override(self, function: PciFunction) -> str:
        path = self._node.host.sys / "bus/pci/devices" / function.address / "driver_override"
        try:
            text = read_text(path) or ""
        except HostError:
            return ""
        return "" if text == "(null)" else text

    def _bind(self, function: PciFunction) -> str:
        folder = f"/sys/bus/pci/devices/{function.address}"
        unbind = f"echo {function.address} > {folder}/driver/unbind; " if function.driver else ""
        return (
            f"{unbind}echo vfio-pci > {folder}/driver_override; "
            f"echo {function.address} > /sys/bus/pci/drivers_probe"
        )
