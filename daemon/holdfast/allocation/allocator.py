"""Allocate: validate, write it down, lock what is free, queue for the rest, and answer at once."""

from collections.abc import Callable, Mapping

import structlog

from holdfast.errors import AllocationRefusedError, LaneStuckError, LedgerError
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.draft import Draft
from holdfast.model.book.queue import settle
from holdfast.model.devices import Device, Inventory
from holdfast.model.grants import ContainerGrant
from holdfast.model.ids import CheckpointId, DeviceId, DeviceName, HardwareKey, ResourceName
from holdfast.runtime.clock import Clock
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched

log = structlog.get_logger(__name__)

_MOST_NAMED = 8
"""A refusal names at most so many devices: kubelet puts it into an event and a pod's status."""


Grant = Callable[[ResourceName, tuple[Device, ...], Inventory], ContainerGrant]
"""Returns the nodes, environment and mounts that a container is given for its devices."""


class Allocator:
    """Answers Allocate within milliseconds, whatever the device's former pod is doing.

    It runs on kubelet's one sync loop and an error there kills the pod for good. So it never
    scans, never waits, and refuses only what can never work; all else is queued for the gate.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        inventory: Watched[Inventory],
        grant: Grant,
        node_rdev: Callable[[str], int | None],
        checkpoint: Callable[[], CheckpointId],
        lane: Lane,
        clock: Clock,
        commit_timeout: Watched[float],
        refuses: Callable[[tuple[Device, ...]], str] = lambda _devices: "",
    ) -> None:
        """Answer from *inventory* and write to *ledger*.

        `node_rdev` returns the device number of a node, None where there is none; `checkpoint`
        which file kubelet's checkpoint is now. Both may block, and are called on *lane*. `refuses`
        says why a container never gets some devices together, empty where it may.
        """
        self._refuses = refuses
        self._ledger = ledger
        self._inventory = inventory
        self._grant = grant
        self._node_rdev = node_rdev
        self._checkpoint = checkpoint
        self._lane = lane
        self._clock = clock
        self._commit_timeout = commit_timeout

    async def allocate(self, resource: ResourceName, ids: tuple[DeviceId, ...]) -> ContainerGrant:
        """Record the Allocation, durably, and return what the container is given.

        Raises AllocationRefusedError for what can never work. A disk that does not answer in time
        is no reason to refuse: the gate, whose refusal is retried, commits before it passes.
        """
        inventory = self._inventory.value
        devices = {id_: self._usable(resource, id_, inventory) for id_ in dict.fromkeys(ids)}
        granted = tuple(dict.fromkeys(devices.values()))
        if reason := self._refuses(granted):
            raise AllocationRefusedError(f"cannot allocate {resource}: {reason}")
        keys = {device.name.id: device.keys for device in granted}
        try:
            if keys:
                await self._record(resource, granted, keys)
        except (LedgerError, LaneStuckError) as error:
            log.warning(
                "Allocate answered without a record in the ledger",
                resource=resource,
                devices=sorted(keys),
                reason=str(error),
                next="no container starts on it before the ledger can commit",
            )
        else:
            log.info("allocated", resource=resource, devices=sorted(keys))
        return self._grant(resource, granted, inventory)

    async def _record(
        self,
        resource: ResourceName,
        devices: tuple[Device, ...],
        keys: Mapping[DeviceId, frozenset[HardwareKey]],
    ) -> None:
        limit = self._commit_timeout.value
        checkpoint = await self._lane.run(lambda: self._look(devices), deadline=limit)
        moment = self._clock.uptime()  # a reading that began later shows it, or a newer one

        def record(draft: Draft) -> None:
            new = draft.allocate(resource, keys, checkpoint=checkpoint, answered_at=moment)
            settle(draft, near=new.keys)

        await self._ledger.apply(record, deadline=limit)

    def _look(self, devices: tuple[Device, ...]) -> CheckpointId:
        """Return kubelet's present checkpoint; refuse a device whose node is another's by now."""
        for device in devices:
            for node in device.nodes:
                rdev = self._node_rdev(node.path)
                if rdev is not None and rdev != node.rdev:
                    message = (
                        f"cannot allocate {device.name}: {node.path} is not this device any more "
                        "(its device number differs from sysfs); remove the stale node"
                    )
                    raise AllocationRefusedError(message)
        return self._checkpoint()

    def _usable(self, resource: ResourceName, id_: DeviceId, inventory: Inventory) -> Device:
        name = DeviceName(resource, id_)
        device = inventory.find(resource, id_)
        if device is None:
            known = _some(inventory.of(resource))
            left = next((each for each in inventory.left_out if each.device.name.id == id_), None)
            why = left.reason if left is not None else "the node has no such device"
            message = f"cannot allocate {name}: {why} (it has: {known})"
            raise AllocationRefusedError(message)
        for fault in device.faults:
            if fault.kind.permanent:
                message = f"cannot allocate {name}: {fault.text}"
                raise AllocationRefusedError(message)
        return device


def _some(devices: tuple[Device, ...]) -> str:
    """Name the first of *devices*, and say how many more there are."""
    named = ", ".join(str(each.name.id) for each in devices[:_MOST_NAMED]) or "none"
    more = len(devices) - _MOST_NAMED
    return f"{named} and {more} more" if more > 0 else named
