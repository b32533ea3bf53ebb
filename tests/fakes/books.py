"""Short ways to write books, views and inventories down in tests."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from holdfast.model.book.book import Allocation, Book, DeviceLock, LockState, Phase, same_holder
from holdfast.model.book.draft import Draft
from holdfast.model.book.queue import settle
from holdfast.model.cards import CardNames, clash
from holdfast.model.devices import Device, DeviceKind, DeviceNode, Identity, Inventory
from holdfast.model.ids import (
    BootId,
    CheckpointId,
    DeviceId,
    DeviceName,
    HardwareKey,
    PciAddress,
    PodUid,
    ProcessId,
    ResourceName,
)
from holdfast.model.kubelet import CheckpointEntry, KubeletView
from holdfast.model.nvidia import REPLICAS
from holdfast.model.reclaim.ending import Parent

WHOLE = ResourceName("google.com/tpu")
HALF = ResourceName("example.com/half")
BOOT = BootId("boot-1")
NOW = 1_000_000.0
EPOCH = 900_000.0
"""When the machine booted, in the seconds that NOW is in: what is kept is counted from there."""
UPTIME = NOW - EPOCH
BEFORE, AFTER = CheckpointId("written before"), CheckpointId("written after")
KUBELET = ProcessId((1 << 22) + 700, 70)
"""Its pid is one that no process of this machine can have."""
INIT = Parent(pid=1, command="systemd", is_init=True)
NAMES = CardNames(vendors=(REPLICAS,))
"""How replicas are called on every node with the daemon's own adapters."""
SHIM = Parent(pid=812, command="containerd-shim")
X, Y, Z = PodUid("pod-x"), PodUid("pod-y"), PodUid("pod-z")

Silicon = Mapping[DeviceId, frozenset[HardwareKey]]


def silicon(**devices: str) -> Silicon:
    """Write ``d0="ab"`` for a device d0 with the keys a and b."""
    return {DeviceId(id_): keys(*letters) for id_, letters in devices.items()}


def keys(*names: str) -> frozenset[HardwareKey]:
    return frozenset(HardwareKey(name) for name in names)


def ids(*names: str) -> frozenset[DeviceId]:
    return frozenset(DeviceId(name) for name in names)


def name(id_: str, resource: ResourceName = WHOLE) -> DeviceName:
    return DeviceName(resource, DeviceId(id_))


def device_of(
    of: DeviceName, *its_keys: str, kind: DeviceKind = DeviceKind.VFIO, **more: Any
) -> Device:
    """Return a device called *of* with *its_keys*, and with no nodes or functions but *more*."""
    return Device(
        name=of, kind=kind, keys=keys(*its_keys), **{"nodes": (), "functions": (), **more}
    )


def device_lock(
    of: DeviceName,
    *its_keys: str,
    state: LockState = LockState.HELD,
    fence: int = 1,
    since: float = NOW,
    **more: Any,
) -> DeviceLock:
    """Return the lock of a device called *of* with *its_keys*."""
    return DeviceLock(
        device=of, keys=keys(*its_keys), state=state, fence=fence, since=since, boot=BOOT, **more
    )


def drafted(book: Book | None = None, *, now: float = NOW, boot: BootId = BOOT) -> Draft:
    return Draft(book if book is not None else Book(), now=now, uptime=now - EPOCH, boot=boot)


def book_of(*steps: Callable[[Draft], object]) -> Book:
    """Return the book after *steps*, each on the draft that the former one left."""
    draft = drafted()
    for step in steps:
        step(draft)
    settle(draft)
    return draft.book


def allocated(
    devices: Silicon,
    *,
    resource: ResourceName = WHOLE,
    pod: PodUid | None = None,
    active: bool = False,
) -> Callable[[Draft], Allocation]:
    """Return a step that records an Allocation."""

    def step(draft: Draft) -> Allocation:
        made = draft.allocate(resource, devices, pod=pod)
        if active:
            draft.activate(made)
        return draft.holdings.allocations[made.id]

    return step


def lock_of(book: Book, id_: str, resource: ResourceName = WHOLE) -> DeviceLock:
    return book.locks[name(id_, resource)]


def entry(
    pod: PodUid, *devices: str, resource: ResourceName = WHOLE, container: str = "main"
) -> CheckpointEntry:
    return CheckpointEntry(pod=pod, container=container, resource=resource, devices=ids(*devices))


def seen(
    *entries: CheckpointEntry,
    file: CheckpointId = AFTER,
    read_at: float = UPTIME + 0.5,
    kubelet: ProcessId | None = KUBELET,
    answered: bool = True,
    asked_at: float = UPTIME,
) -> KubeletView:
    """Return a readable view with *entries*; kubelet wrote it after what was allocated at NOW."""
    return KubeletView(
        entries=entries,
        readable=True,
        problem="",
        file=file,
        read_at=read_at,
        kubelet=kubelet,
        questions=1,
        asked_at=asked_at,
        answered=answered,
    )


def unreadable(view: KubeletView | None = None) -> KubeletView:
    """Return *view* as it is once the checkpoint cannot be read."""
    problem = "cannot understand kubelet's checkpoint"
    return replace(view or KubeletView(), readable=False, problem=problem, read_at=UPTIME + 0.5)


def inventory(devices: Mapping[ResourceName, Silicon]) -> Inventory:
    return Inventory(resources=tuple(devices), devices=tuple(_devices(devices)))


def breaches(book: Book) -> list[str]:
    """Return each way in which *book* breaks what must hold of every book."""
    found: list[str] = []
    places = book.holdings.places
    held: dict[HardwareKey, DeviceLock] = {}
    for lock in book.locks.values():
        if not lock.keys:
            found.append(f"{lock.device} is locked without any hardware")
        for key in lock.keys:
            if key in held:
                found.append(f"{key} is in the locks of {held[key].device} and {lock.device}")
            held[key] = lock
    found += [
        f"{one.device} and {other.device} are locked for two, and are of one card"
        for one in book.locks.values()
        for other in book.locks.values()
        if one.fence < other.fence
        and not same_holder(one, other)
        and clash(one.keys, other.keys, places)
    ]
    active = [each for each in book.allocations.values() if each.phase is Phase.ACTIVE]
    found += [
        f"Allocations {one.id} and {other.id} are both active on one key"
        for one in active
        for other in active
        if one.id < other.id and not same_holder(one, other) and clash(one.keys, other.keys, places)
    ]
    return found


def unlocked(book: Book) -> list[str]:
    """Return each key of an active Allocation that its pod does not have the lock of."""
    return [
        f"Allocation {each.id} is active without the lock of {key}"
        for each in book.allocations.values()
        if each.phase is Phase.ACTIVE
        for key in sorted(each.keys)
        if not any(
            key in lock.keys and (lock.allocation == each.id or same_holder(lock, each))
            for lock in book.locks_on(frozenset({key}))
        )
    ]


def _devices(devices: Mapping[ResourceName, Silicon]) -> Iterator[Device]:
    for resource, of_it in devices.items():
        for id_, its_keys in of_it.items():
            functions = tuple(PciAddress(key) for key in sorted(its_keys))
            yield device_of(
                name(id_, resource),
                *its_keys,
                nodes=_nodes(its_keys),
                functions=functions,
                identity=Identity(addresses=functions),
            )


def _nodes(its_keys: Iterable[HardwareKey]) -> tuple[DeviceNode, ...]:
    return tuple(DeviceNode(path=f"/dev/vfio/{key}", rdev=ord(key[0])) for key in sorted(its_keys))
