"""A GPU that a person binds to VFIO and back, while a pod has it and no process on it."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from msgspec.structs import replace

from fakes.books import device_of, name
from fakes.gpustage import GPU, GpuStage, sharing, wants
from fakes.stage import asks, stage
from holdfast.app.wiring.parts import VENDORS
from holdfast.discovery.source import Source
from holdfast.host.pci.sysfs import Snapshot
from holdfast.model.book.book import CARDS
from holdfast.model.cards import card_key
from holdfast.model.devices import Device, DeviceKind, Identity, Inventory
from holdfast.model.ids import PciAddress, ResourceName
from holdfast.vendors.context import Context
from simulated.gpus import address
from simulated.nvml import uuid
from simulated.pods import Pod, PodSpec

MACHINE = "example.com/gpu-vm"
_GROUP = 16
_POOL = {"resourceName": MACHINE, "devices": ["10de:2330"]}


class Card:
    """The one GPU of *node*, with its function for sound in the same IOMMU group."""

    def __init__(self, node: GpuStage) -> None:
        self._node = node
        self._tree = node.stage.node.tree
        node.gpus.arrive(1)
        self.address = address(node.gpus.stub.cards[0])
        for place, device, kind in (
            (self.address, 0x2330, 0x030200),
            (self.sound, 0x22A3, 0x040300),
        ):
            self._tree.function(
                place, vendor=0x10DE, device=device, class_code=kind, driver=None, group=_GROUP
            )
        self._tree.bind(self.address, "nvidia")

    @property
    def sound(self) -> str:
        return self.address.replace(".0", ".1")

    def to_vfio(self, *, unload: bool = False) -> None:
        """Bind it to VFIO, which the kernel does where no process has it open."""
        gpus = self._node.gpus
        gpus.show(replace(gpus.stub, cards=()))
        if unload:
            gpus.leave()
        for place in (self.address, self.sound):
            self._tree.bind(place, "vfio-pci")
        self._tree.group_node(_GROUP)

    def to_nvidia(self) -> None:
        """Give it back to NVIDIA's driver."""
        self._tree.unbind(self.sound)
        self._tree.bind(self.address, "nvidia")
        self._node.gpus.arrive(1)


async def row(node: GpuStage, resource: str, id_: str) -> dict[str, Any]:
    """Return what `holdfast devices` says of a device, once it is there."""
    found: dict[str, Any] = {}

    async def so() -> bool:
        rows = await node.stage.asked("devices") or ()
        found.update(next((r for r in rows if (r["resource"], r["id"]) == (resource, id_)), {}))
        return bool(found)

    await node.stage.until(so, f"{resource}/{id_} to be there")
    return found


async def until_kept_from(node: GpuStage, resource: str, id_: str, by: Pod) -> None:
    """Return when a device that is well is kept from others, because *by* has its hardware."""
    seen: dict[str, Any] = {}

    async def so() -> bool:
        seen.update(await row(node, resource, id_))
        return not seen["reasons"] and seen["pod"] == by.uid

    await node.stage.until(so, lambda: f"{id_} to be kept from others; it is {seen}")


async def until_not_found(node: GpuStage, resource: str) -> None:
    """Return once no hardware of *resource* is found any more."""

    async def so() -> bool:
        rows = await node.stage.asked("devices")
        return rows is not None and all(each["resource"] != resource for each in rows)

    await node.stage.until(so, f"{resource} to be gone")


async def once_scanned(node: GpuStage, id_: str, *, resource: str) -> str:
    """Return why a container may not start, asked again until the daemon has scanned the node."""
    told = ""

    async def so() -> bool:
        nonlocal told
        told = await node.stage.pre_start(id_, resource=resource)
        return "has not scanned the node yet" not in told

    await node.stage.until(so, "the first scan")
    return told


async def whom_it_waits_for(node: GpuStage, pod: Pod) -> None:
    """Check that `holdfast locks` says for whom the Allocation that is queued waits."""
    rows = await node.stage.asked("locks")
    (queued,) = [each for each in rows if each["state"] == "queued"]
    assert "the same hardware: " in queued["reason"]
    assert pod.uid in queued["reason"]


@pytest.mark.parametrize("replicas", [0, 2])
async def test_a_gpu_that_a_pod_has_is_given_to_no_virtual_machine_before_the_pod_is_over(
    gpu_stage: Any, replicas: int
) -> None:
    others = {"pools": [_POOL], "sharing": sharing(replicas)}
    async with gpu_stage(others=others) as node:
        card = Card(node)
        await node.stage.until(node.healthy, "the GPU to be offered")
        has_it = await node.stage.run(wants("trains", 1, opens=False))
        card.to_vfio()
        await until_kept_from(node, MACHINE, card.address, has_it)
        assert not node.stage.healthy(MACHINE)
        # Kubelet may have chosen the device before it heard that.
        machine = str(uuid4())
        await node.stage.kubelet.give(machine, MACHINE, card.address)
        for restart in (False, True):
            if restart:
                await node.stage.kill_and_start(MACHINE)
            await until_kept_from(node, MACHINE, card.address, has_it)
            told = await once_scanned(node, card.address, resource=MACHINE)
            assert f"waiting for {MACHINE}: {card.address} is held by " in told
            assert f" as {GPU}/GPU-" in told
            await whom_it_waits_for(node, has_it)
        await node.stage.end(has_it)
        await node.stage.until_locks({card.address: "held"})
        assert await node.stage.pre_start(card.address, resource=MACHINE) == ""
        assert await node.stage.owners() == {card.address: machine}


@pytest.mark.parametrize("replicas", [0, 2])
async def test_a_gpu_that_a_virtual_machine_has_is_given_to_no_pod_before_that_is_over(
    gpu_stage: Any, replicas: int
) -> None:
    others = {"pools": [_POOL], "sharing": sharing(replicas)}
    gpu = f"{uuid(0)}::1" if replicas else uuid(0)
    async with gpu_stage(others=others) as node:
        card = Card(node)
        await node.stage.until(node.healthy, "the GPU to be offered")
        card.to_vfio()
        await until_not_found(node, GPU)  # what is seen of it below is of after it came back
        await node.stage.until(lambda: node.stage.healthy(MACHINE), "VFIO to be offered")
        spec = PodSpec(name="machine", containers=(asks(MACHINE, 1, opens=False),))
        machine = await node.stage.run(spec)
        card.to_nvidia()
        await until_kept_from(node, GPU, gpu, machine)
        assert not node.stage.healthy(GPU)
        later = str(uuid4())
        await node.stage.kubelet.give(later, GPU, gpu)
        for restart in (False, True):
            if restart:
                await node.stage.kill_and_start(GPU)
            await until_kept_from(node, GPU, gpu, machine)
            told = await once_scanned(node, gpu, resource=GPU)
            assert f"waiting for {GPU}: {gpu} is held by " in told
            assert f" as {MACHINE}/{card.address}; " in told
            await whom_it_waits_for(node, machine)
        await node.stage.end(machine)
        await node.stage.until_locks({gpu: "held"})
        assert await node.stage.pre_start(gpu, resource=GPU) == ""
        assert await node.stage.owners() == {gpu: later}


@pytest.mark.parametrize("restart", [False, True])
async def test_a_virtual_machine_gets_a_gpu_whose_driver_is_gone_once_its_pod_is_over(
    gpu_stage: Any, restart: bool
) -> None:
    """NVML tells nothing any more; that the function is on VFIO tells that nobody is on the GPU."""
    async with gpu_stage(others={"pools": [_POOL]}) as node:
        card = Card(node)
        await node.until_healthy(0)
        has_it = await node.stage.run(wants("trains", 1, opens=False))
        card.to_vfio(unload=True)
        await until_kept_from(node, MACHINE, card.address, has_it)
        if restart:
            await node.stage.kill_and_start(MACHINE)
            await until_kept_from(node, MACHINE, card.address, has_it)
        await node.stage.end(has_it)
        await node.stage.until(lambda: node.stage.healthy(MACHINE), "VFIO to be offered")
        moves = await node.stage.ever("free")
        assert f"{card.address} is bound to a VFIO driver now" in moves[-1]["evidence"]


class Cards(Source):
    """A vendor whose driver tells of one card; `told` is where the book had it before that."""

    name = "acme"
    resources = (ResourceName(GPU),)

    def __init__(self, on: Context) -> None:
        self._ledger = on.ledger
        self.told: list[Mapping[str, str]] = []

    def scan(self, snapshot: Snapshot) -> Iterator[Device]:
        del snapshot
        yield device_of(
            name("G", ResourceName(GPU)),
            card_key("G"),
            kind=DeviceKind.DRIVER,
            identity=Identity(addresses=(PciAddress("0000:10:00.0"),)),
        )

    async def prepare(self, inventory: Inventory) -> Inventory:
        if inventory.of(ResourceName(GPU)):
            self.told.append(self._ledger.book.value.kept.get(CARDS, {}))
        return inventory


async def test_nobody_hears_of_a_card_before_the_book_has_where_it_is(short_path: Path) -> None:
    made: list[Cards] = []

    def cards(on: Context) -> Cards:
        made.append(Cards(on))
        return made[0]

    async with stage(short_path, chips=1, vendors=(*VENDORS, cards)) as node:
        await node.until(lambda: made[0].told, "the card to be found")
    assert made[0].told[0] == {"G": "0000:10:00.0"}
