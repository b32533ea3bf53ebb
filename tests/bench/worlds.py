"""Nodes and books of any size, without a node: what the rules are measured on."""

from msgspec import Struct

from fakes.books import BOOT
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.draft import Draft
from holdfast.model.book.pods import Observation, PodSighting, reconcile
from holdfast.model.book.queue import settle
from holdfast.model.devices import Device, DeviceKind, DeviceNode, Inventory
from holdfast.model.ids import (
    CheckpointId,
    DeviceId,
    DeviceName,
    HardwareKey,
    PciAddress,
    PodUid,
    ProcessId,
    ResourceName,
)
from holdfast.model.kubelet import CheckpointEntry, KubeletView, ListedPod

TPU = ResourceName("google.com/tpu")
VF = ResourceName("example.com/vf")


def chips(count: int) -> Inventory:
    """Return a host with *count* TPU chips."""
    return _node(TPU, count, source="tpu", model="v5e")


def functions(count: int) -> Inventory:
    """Return a node with *count* virtual functions."""
    return _node(VF, count, source="vfio", model="vf")


class World(Struct, frozen=True, kw_only=True):
    """A node on which each of some devices is a pod's, and kubelet's checkpoint says so."""

    inventory: Inventory
    view: KubeletView
    around: Observation


def world_of(inventory: Inventory, *, counted: int | None = None) -> World:
    """Return a node whose first *counted* devices, all without it, have a pod each."""
    devices = inventory.devices[:counted]
    entries = tuple(
        CheckpointEntry(
            pod=PodUid(f"pod-{place}"),
            container="main",
            resource=device.name.resource,
            devices=frozenset({device.name.id}),
        )
        for place, device in enumerate(devices)
    )
    view = KubeletView(
        entries=entries,
        readable=True,
        problem="",
        file=CheckpointId("2"),
        read_at=5.0,
        kubelet=ProcessId(7, 7),
        questions=1,
        asked_at=5.0,
        answered=True,
        pods=tuple(
            ListedPod(
                namespace="default",
                name=each.pod,
                devices=frozenset(DeviceName(each.resource, id_) for id_ in each.devices),
            )
            for each in entries
        ),
    )
    sightings = {
        each.pod: PodSighting(
            cgroup=f"/kubepods/pod{each.pod}", inode=place, populated=True, processes=(place,)
        )
        for place, each in enumerate(entries, start=10)
    }
    around = Observation(
        view=view, inventory=inventory, boot=BOOT, sightings=sightings, pending_timeout=60.0
    )
    return World(inventory=inventory, view=view, around=around)


async def fill(ledger: Ledger, world: World) -> None:
    """Give each counted device to its pod, and let the book learn what there is to learn."""
    devices = world.inventory.devices

    def give(draft: Draft) -> None:
        for entry, device in zip(world.view.entries, devices, strict=False):
            keys = {device.name.id: device.keys}
            draft.activate(draft.allocate(entry.resource, keys, pod=entry.pod))
        settle(draft)

    await ledger.apply(give)
    await ledger.apply(lambda draft: reconcile(draft, world.around))


def _node(resource: ResourceName, count: int, *, source: str, model: str) -> Inventory:
    """Return a node with *count* devices at two NUMA nodes, the first half at the first."""
    devices = []
    for place in range(count):
        address = PciAddress(f"0000:{place >> 5:02x}:{place & 31:02x}.0")
        device = Device(
            name=DeviceName(resource, DeviceId(address)),
            kind=DeviceKind.VFIO,
            keys=frozenset({HardwareKey(f"pci:{address}"), HardwareKey(f"iommu:{place}")}),
            nodes=(DeviceNode(path=f"/dev/vfio/{place}", rdev=0),),
            functions=(address,),
            model=model,
            source=source,
            numa_node=place * 2 // count,
        )
        devices.append(device)
    return Inventory(resources=(resource,), devices=tuple(devices))
