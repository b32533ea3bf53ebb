"""One look at the PCI functions, IOMMU groups and nodes of this host, each read once."""

import stat
from collections import defaultdict
from collections.abc import Mapping

from holdfast.errors import HostError
from holdfast.host.pci.sysfs import PciFunction, Sysfs
from holdfast.host.root import HostRoot
from holdfast.model.ids import PciAddress
from holdfast.model.vfio.viability import (
    FunctionFacts,
    VfioDeviceNode,
    is_bridge,
    is_vfio_driver,
    pending_removal,
)


class Snapshot:
    """The facts that one scan works from. Blocking: it belongs on a lane."""

    def __init__(
        self, root: HostRoot, sysfs: Sysfs, *, known: frozenset[PciAddress] = frozenset()
    ) -> None:
        """Read all PCI functions below *root*; *known* were bound to VFIO in the scan before.

        Raise HostError where there is no sysfs: its devices would all seem to be gone.
        """
        if not sysfs.is_there:
            raise HostError(
                f"{root.sys} is not a sysfs: it has no folder bus; mount the node's /sys there, or "
                "set host.sys"
            )
        self._root = root
        self._sysfs = sysfs
        self._known = known
        self._members: dict[int, tuple[PciFunction, ...]] = {}
        self._nodes: dict[int, VfioDeviceNode] = {}
        self.functions: Mapping[PciAddress, PciFunction] = {
            function.address: function for function in sysfs.pci_functions()
        }
        self._in_group: dict[int | None, set[PciAddress]] = defaultdict(set)
        for function in self.functions.values():
            self._in_group[function.iommu_group].add(function.address)
        self.accel = sysfs.accel_nodes()
        """The nodes of the accel class, with the numbers that sysfs gives them."""

    def members(self, group: int) -> tuple[PciFunction, ...]:
        """Return all functions of IOMMU group *group*, bridges included, by address."""
        if group not in self._members:
            addresses = set(self._sysfs.group_members(group))
            addresses |= self._in_group[group]
            self._members[group] = tuple(
                self.functions[address]
                for address in sorted(addresses)
                if address in self.functions
            )
        return self._members[group]

    def group_node(self, group: int) -> VfioDeviceNode:
        """Return the node of *group* as sysfs and /dev show it."""
        if group not in self._nodes:
            expected = self._sysfs.group_rdev(group)
            self._nodes[group] = self.node(f"/dev/vfio/{group}", expected)
        return self._nodes[group]

    def node(self, path: str, expected: int | None) -> VfioDeviceNode:
        """Return what is at *path*, which starts with /dev, beside the number sysfs *expected*."""
        exists, found, problem = True, None, ""
        try:
            status = self._root.node(path).stat()
        except (FileNotFoundError, NotADirectoryError):
            exists = False
        except OSError as error:
            exists, problem = False, error.strerror or str(error)
        else:
            found = status.st_rdev if stat.S_ISCHR(status.st_mode) else None
        return VfioDeviceNode(
            path=path, expected=expected, found=found, exists=exists, problem=problem
        )

    def facts(self, function: PciFunction) -> FunctionFacts:
        """Return what the rules need to know of *function*."""
        return FunctionFacts(
            address=function.address,
            driver=function.driver,
            was_bound=function.address in self._known or self._left_behind(function),
        )

    def grantable(self, function: PciFunction) -> bool:
        """Tell whether `enable` of *function* follows use: it is on VFIO, or just leaving it."""
        if is_vfio_driver(function.driver):
            return True
        group, facts = function.iommu_group, self.facts(function)
        if group is None or not facts.was_bound:  # most functions: spare them a look at the node
            return False
        return pending_removal(facts, self.group_node(group))

    def bound(self) -> frozenset[PciAddress]:
        """Return what the next scan should take for known: functions on VFIO, or leaving it."""
        return frozenset(f.address for f in self.functions.values() if self.grantable(f))

    def _left_behind(self, function: PciFunction) -> bool:
        """Tell whether *function* must have been on VFIO though no scan saw it there.

        The kernel keeps a group's number only while a member is on VFIO, so a group that has one
        with nobody on VFIO has a member that is being removed.
        """
        group = function.iommu_group
        return (
            group is not None
            and function.driver is None
            and not is_bridge(function.class_code)
            and self.group_node(group).expected is not None
            and not any(is_vfio_driver(member.driver) for member in self.members(group))
        )
