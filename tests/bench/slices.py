"""How long the scheduler waits for the node's devices: ResourceSlices on an API server."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable

from msgspec.structs import replace

from bench.figures import Figure, Floor
from bench.rig import Place
from fakes.books import device_of, name
from fakes.claimstage import DRIVER
from fakes.controlplane import NODE, ControlPlane, control_plane
from fakes.ledgers import ledger_in
from fakes.observers import Unobserved
from fakes.standings import device_standings
from fakes.tpus import plain_tpus
from holdfast.apiserver.client import ApiServer
from holdfast.apiserver.resourceslices import NodeSlices
from holdfast.apiserver.wire import Access, ApiRequest, Wire
from holdfast.discovery.source import Sources
from holdfast.dra.publisher import NodePool, Publisher, SliceMirror
from holdfast.ledger.ledger import Ledger
from holdfast.model.devices import Device, Fault, FaultKind, Inventory, pci_key
from holdfast.model.ids import PciAddress, ResourceName
from holdfast.model.kubelet import Registration
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched
from simulated.cluster.objects import SLICES
from simulated.cluster.store import Object, Selector
from simulated.cluster.store import Place as At

_TPU = ResourceName("google.com/tpu")
_DEVICES = 64
_ROUNDS = 20
_PUBLISH, _TAINT_P99 = 300.0, 1000.0
_FAULT = Fault(kind=FaultKind.ILL, text="of the bench")


async def publish(place: Place) -> list[Figure]:
    """Measure from the start of the publisher to its slice, and from a fault to its taint."""
    published: list[float] = []
    bare: list[float] = []
    tainted: list[float] = []
    with control_plane(place.state, validates=False) as served:
        store, access = served.store, served.access
        async with ledger_in(place.state) as ledger:
            for _ in range(_ROUNDS):
                store.delete_collection(At(kind=SLICES), Selector())
                inventory = Watched(Inventory(resources=(_TPU,), devices=_devices()))
                began = time.perf_counter()
                async with _publisher(access, ledger, inventory):
                    await _until(served.slices)
                    published.append((time.perf_counter() - began) * 1000)
                    (only,) = served.slices().values()
                    body = _as_sent(only)
                    first, *others = inventory.value.devices
                    ill = replace(first, faults=(_FAULT,))
                    began = time.perf_counter()
                    inventory.set(replace(inventory.value, devices=(ill, *others)))
                    await _until(lambda: _is_tainted(served))
                    tainted.append((time.perf_counter() - began) * 1000)
                store.delete_collection(At(kind=SLICES), Selector())
                bare.append(_bare(access, body))
    return [
        Figure(
            name="dra_publish_64",
            samples=published,
            reach=_PUBLISH,
            floor=Floor(what="the same three calls on a new connection", samples=bare),
            note="a new connection, the list, the node, and one slice of 64 devices",
        ),
        Figure(
            name="dra_health_to_taint",
            samples=tainted,
            reach=_TAINT_P99,
            judged="p99",
            note="from a fault in the inventory to its taint on the API server",
        ),
    ]


@contextlib.asynccontextmanager
async def _publisher(
    access: Access, ledger: Ledger, inventory: Watched[Inventory]
) -> AsyncIterator[None]:
    clock, lane = SystemClock(), Lane("pool", deadline=30.0)
    standings = device_standings(ledger, inventory, clock, is_dra=lambda resource: resource == _TPU)
    server = ApiServer(access, name="slices", clock=clock, observer=Unobserved())
    slices = NodeSlices(server, driver=DRIVER, node=NODE)
    publisher = Publisher(
        pool=NodePool(
            driver=DRIVER,
            serves=lambda resource: resource == _TPU,
            standings=standings,
            inventory=inventory,
            sources=Sources([plain_tpus()]),
            pcie_root=lambda address: f"pci{address[:7]}",
            lane=lane,
            evict_lost=Watched(False),
        ),
        server=slices,
        mirror=SliceMirror(slices, clock=clock),
        registration=Watched(Registration(registrations=1)),
        clock=clock,
        publishes=True,
        observer=Unobserved(),
        write_every=0.0,
    )
    running = [asyncio.create_task(each.run()) for each in (standings, publisher)]
    try:
        yield
    finally:
        for each in running:
            each.cancel()
        await asyncio.wait(running)
        await server.close()
        lane.close()


def _bare(access: Access, body: bytes) -> float:
    """Return how many milliseconds a new connection takes for what the publisher cannot spare."""
    path = ("apis", "resource.k8s.io", "v1", "resourceslices")
    began = time.perf_counter()
    wire = Wire(access, SystemClock())
    for request in (
        ApiRequest(about="all", path=path),
        ApiRequest(about="node", path=("api", "v1", "nodes", NODE)),
        ApiRequest(about="one", method="POST", path=path, body=body),
    ):
        wire.exchange(request, 30.0)
    took = (time.perf_counter() - began) * 1000
    wire.close()
    return took


def _is_tainted(served: ControlPlane) -> bool:
    (only,) = served.slices().values()
    return "taints" in only["spec"]["devices"][0]


def _as_sent(stored: Object) -> bytes:
    metadata = {"name": stored["metadata"]["name"]}
    return json.dumps({**stored, "metadata": metadata}).encode()


async def _until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def _devices() -> tuple[Device, ...]:
    addresses = [
        PciAddress(f"0000:{place // 32:02x}:{place % 32:02x}.0") for place in range(_DEVICES)
    ]
    return tuple(
        device_of(
            name(address, _TPU), pci_key(address), functions=(address,), model="v5e", source="tpu"
        )
        for address in addresses
    )
