"""Allocate and GetPreferredAllocation: lock what is free, queue for the rest, answer at once."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import structlog
from msgspec import Struct
from msgspec.structs import replace

from holdfast.allocation.specwriter import CdiSpecs
from holdfast.discovery.source import Sources
from holdfast.errors import AllocationRefusedError, HostError, LaneStuckError, LedgerError
from holdfast.host.files.kernelfile import device_number
from holdfast.host.files.wholefile import FileId
from holdfast.host.root import HostRoot
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.standings import DeviceStandings
from holdfast.model.book.draft import Draft
from holdfast.model.book.messages import refusal
from holdfast.model.book.offers import kept_back
from holdfast.model.book.queue import settle
from holdfast.model.cards import is_replica
from holdfast.model.devices import Device, DeviceKind, DeviceNode, Inventory
from holdfast.model.gate.cdi import cdi_name
from holdfast.model.gate.placement import Choice
from holdfast.model.grants import VFIO_CONTAINER, ContainerGrant
from holdfast.model.ids import (
    NO_CHECKPOINT,
    CheckpointId,
    DeviceId,
    DeviceName,
    HardwareKey,
    ResourceName,
)
from holdfast.model.text import some
from holdfast.runtime.clock import Clock
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched

log = structlog.get_logger(__name__)


class GrantBuilder(Struct):
    """Builds answers to Allocate of what `sources` say; it asks nobody and never waits.

    `specs` are the CDI spec files; None: devices are never handed over by name.
    `by_claim`: by claims, also where the device plugin serves their resource now.
    """

    sources: Sources
    specs: CdiSpecs | None
    by_claim: bool = False

    def refuses(self, devices: tuple[Device, ...]) -> str:
        """Return why a container never gets *devices* together; empty where it may."""
        return self.sources.of(devices).refuses(devices)

    def grant(
        self, resource: ResourceName, devices: tuple[Device, ...], inventory: Inventory
    ) -> ContainerGrant:
        """Return exactly the granted nodes, the VFIO container's where needed, and variables.

        With a spec that has them all it returns CDI names for the nodes. Without one the nodes
        themselves: the container then runs as it would, and only a reboot may take it its chip.
        """
        if not devices:
            return ContainerGrant()
        own = self.sources.of(devices).grant(resource, devices, inventory, by_claim=self.by_claim)
        ours = [device for device in devices if device.kind is not DeviceKind.DRIVER]
        if ours and self.specs is not None and all(map(self.specs.published.covers, ours)):
            names = (cdi_name(device.name) for device in ours)
            return replace(own, cdi_devices=(*own.cdi_devices, *names))
        nodes = [node.path for device in ours for node in device.nodes]
        if any(device.kind is DeviceKind.VFIO for device in ours):
            nodes.append(VFIO_CONTAINER)
        return replace(own, nodes=tuple(dict.fromkeys((*own.nodes, *nodes))))


class Preference(Struct, frozen=True, kw_only=True):
    """Answers from the latest inventory, topology and book; nothing is read, nothing can fail.

    It prefers among the devices of `inventory` those that no lock keeps.
    """

    standings: DeviceStandings
    inventory: Watched[Inventory]
    sources: Sources
    kept_back: dict[ResourceName, frozenset[DeviceId]] = {}
    """What kubelet left out of its last question for each resource, without our knowing why."""

    def preferred(
        self,
        resource: ResourceName,
        available: tuple[DeviceId, ...],
        must_include: tuple[DeviceId, ...],
        size: int,
    ) -> tuple[DeviceId, ...]:
        """Return *size* of *available*, with all of *must_include*, close together."""
        inventory, now = self.inventory.value, self.standings.now()
        standings = now.of(resource)
        self.kept_back[resource] = kept_back(available, standings)
        devices = inventory.of(resource)
        avoid = {each.name.id for each in standings if each.lock is not None or each.quarantined}
        stay = tuple(
            id_
            for id_ in available
            if id_ in must_include or not now.refusal(DeviceName(resource, id_))
        )
        choice = Choice(
            # With too few that stay kubelet takes others itself, and Allocate says what is wrong.
            available=stay if len(stay) >= size else available,
            must_include=must_include,
            size=size,
            avoid=avoid,
        )
        # Where a device is on the node does not change with its name, or when others are left out.
        beside = inventory.found_as(*(each.found_as or each.name.resource for each in devices))
        return self.sources.of(devices).preferred(beside, choice)


def moved_nodes(
    devices: Iterable[Device], root: HostRoot
) -> Iterator[tuple[Device, DeviceNode, int | None]]:
    """Yield each node of *devices* whose number is not its device's, with the one that it has.

    None: it is not there, or cannot be seen below *root*.
    """
    for device in devices:
        for node in device.nodes:
            found = device_number(root.node(node.path))
            if found != node.rdev:
                yield device, node, found


class Allocator(Struct, frozen=True, kw_only=True):
    """Answers Allocate within milliseconds, whatever the device's former pod is doing.

    It runs on kubelet's one sync loop and an error there kills the pod for good. So it never
    scans, never waits, and refuses only what can never work; all else is queued for the gate.

    It answers from `inventory` and writes to `ledger`; by `standings`, what is for no new pod.
    Nodes below `root`, and which file kubelet's `checkpoint` is now, are looked at on `lane`.
    """

    ledger: Ledger
    inventory: Watched[Inventory]
    standings: DeviceStandings
    granting: GrantBuilder
    root: HostRoot
    checkpoint: Path
    lane: Lane
    clock: Clock
    commit_timeout: Watched[float]

    async def allocate(self, resource: ResourceName, ids: tuple[DeviceId, ...]) -> ContainerGrant:
        """Record the Allocation, durably, and return what the container is given.

        Raises AllocationRefusedError for what can never work. A disk that does not answer in time
        is no reason to refuse: the gate, whose refusal is retried, commits before it passes.
        """
        inventory = self.inventory.value
        devices = {id_: self._usable(resource, id_, inventory) for id_ in dict.fromkeys(ids)}
        granted = tuple(dict.fromkeys(devices.values()))
        if reason := self.granting.refuses(granted):
            raise AllocationRefusedError(refusal(f"allocate {resource}", reason))
        keys = {device.name.id: device.keys for device in granted}
        try:
            if keys:
                await self._record((resource, frozenset(ids)), granted, keys)
        except (LedgerError, LaneStuckError, HostError) as error:
            log.warning(
                "Allocate answered without a record in the ledger",
                resource=resource,
                devices=sorted(keys),
                reason=str(error),
                next="no container starts on it before the ledger can commit",
            )
        else:
            log.info("allocated", resource=resource, devices=sorted(keys))
        return self.granting.grant(resource, granted, inventory)

    async def _record(
        self,
        asked: tuple[ResourceName, frozenset[DeviceId]],
        devices: tuple[Device, ...],
        keys: Mapping[DeviceId, frozenset[HardwareKey]],
    ) -> None:
        began, limit = self.clock.monotonic(), self.commit_timeout.value
        record = partial(_record, resource=asked[0], keys=keys)
        try:
            checkpoint = await self.lane.run(lambda: self._look(devices), deadline=limit)
        except (LaneStuckError, HostError):  # recorded now, it could be over at once: `is_newer`
            self.ledger.owe(asked, record)
            raise
        moment = self.clock.uptime()  # a reading that began later shows it, or a newer one
        self.ledger.owe(asked, partial(record, checkpoint=checkpoint, answered_at=moment))
        left = max(0.0, began + limit - self.clock.monotonic())
        await self.ledger.apply(Draft.pay, deadline=left)

    def _look(self, devices: tuple[Device, ...]) -> CheckpointId:
        """Return kubelet's present checkpoint; refuse a device whose node is another's now."""
        for device, node, found in moved_nodes(devices, self.root):
            if found is not None:
                reason = (
                    f"{node.path} is not this device any more (its device number differs from "
                    "sysfs); remove the stale node"
                )
                raise AllocationRefusedError(refusal(f"allocate {device.name}", reason))
        file = FileId.of(self.checkpoint)
        return NO_CHECKPOINT if file is None else file.checkpoint

    def _usable(self, resource: ResourceName, id_: DeviceId, inventory: Inventory) -> Device:
        deed = f"allocate {DeviceName(resource, id_)}"
        device = inventory.find(resource, id_)
        if device is None:
            # A few: kubelet puts it into an event and a pod's status.
            known = some([each.name.id for each in inventory.of(resource)]) or "none"
            left = next((each for each in inventory.left_out if each.device.name.id == id_), None)
            why = left.reason if left is not None else "the node has no such device"
            raise AllocationRefusedError(refusal(deed, f"{why} (it has: {known})"))
        for fault in device.faults:
            if fault.kind.permanent:
                raise AllocationRefusedError(refusal(deed, fault.text))
        # Kubelet may have read a list from before, and would refuse the pod itself by the latest.
        if reason := self._refusal(device):
            raise AllocationRefusedError(refusal(deed, f"no new pod is given it: {reason}"))
        return device

    def _refusal(self, device: Device) -> str:
        # Made again only where it may be refused: of a thousand devices that takes time.
        may_be = device.leaving or any(map(is_replica, device.keys))
        standings = self.standings.now() if may_be else self.standings.latest.value
        return standings.refusal(device.name)


def _record(
    draft: Draft,
    resource: ResourceName,
    keys: Mapping[DeviceId, frozenset[HardwareKey]],
    checkpoint: CheckpointId = NO_CHECKPOINT,
    answered_at: float | None = None,
) -> None:
    new = draft.allocate(resource, keys, checkpoint=checkpoint, answered_at=answered_at)
    settle(draft, near=new.keys)
