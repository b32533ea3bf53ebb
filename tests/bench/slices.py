"""How long the scheduler waits for the node's devices: ResourceSlices on an API server."""

import asyncio
import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from msgspec.structs import replace

from bench.figures import Figure, Floor
from bench.rig import CHIPS, Place, Rig, resident_mib, rig
from bench.worlds import ledger_in
from holdfast.apiserver.access import Access, in_cluster
from holdfast.apiserver.client import ApiServer
from holdfast.apiserver.resourceslices import NodeSlices
from holdfast.apiserver.wire import Request, Wire
from holdfast.discovery.source import Sources
from holdfast.dra.mirror import SliceMirror
from holdfast.dra.pool import NodePool
from holdfast.dra.publisher import Publisher
from holdfast.ledger.ledger import Ledger
from holdfast.model.devices import Device, DeviceKind, Fault, FaultKind, Inventory, pci_key
from holdfast.model.ids import DeviceId, DeviceName, PciAddress, ResourceName
from holdfast.model.kubelet import Registration
from holdfast.names import PLUGINS, PLUGINS_REGISTRY
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched
from holdfast.vendors.tpu.adapter import Tpus
from simulated.cluster import server as cluster
from simulated.cluster.certificates import certificates
from simulated.cluster.rules import Rules
from simulated.cluster.store import Kind, Object, Selector, Store
from simulated.cluster.store import Place as At
from simulated.stage import running

_DRIVER, _NODE, _TOKEN = "holdfast.dev", "node-1", "token"
_TPU = ResourceName("google.com/tpu")
_SLICES = Kind(group_version="resource.k8s.io/v1", plural="resourceslices")
_DEVICES = 64
_PUBLISH, _TAINT_P99 = 300.0, 1000.0
_SETTLED = 2.0
_FAULT = Fault(kind=FaultKind.ILL, text="of the bench")


async def publish(place: Place, *, rounds: int = 20) -> list[Figure]:
    """Measure from the start of the publisher to its slice, and from a fault to its taint."""
    published: list[float] = []
    bare: list[float] = []
    tainted: list[float] = []
    with _cluster(place) as (store, account, variables):
        access = in_cluster(variables, account)
        async with ledger_in(place.state) as ledger:
            for _ in range(rounds):
                store.delete_collection(At(kind=_SLICES), Selector())
                inventory = Watched(Inventory(resources=(_TPU,), devices=_devices()))
                began = time.perf_counter()
                async with _publisher(access, ledger, inventory):
                    await _until(lambda: _slices(store))
                    published.append((time.perf_counter() - began) * 1000)
                    body = _as_sent(_slices(store)[0])
                    first, *others = inventory.value.devices
                    ill = replace(first, faults=(_FAULT,))
                    began = time.perf_counter()
                    inventory.set(replace(inventory.value, devices=(ill, *others)))
                    await _until(lambda: "taints" in _slices(store)[0]["spec"]["devices"][0])
                    tainted.append((time.perf_counter() - began) * 1000)
                store.delete_collection(At(kind=_SLICES), Selector())
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


async def memory(place: Place, *, n: int = 3) -> list[Figure]:
    """Measure how much more memory the daemon has when its chips come by claims."""
    without, more = [], []
    for _ in range(n):
        async with rig(place) as made:
            await asyncio.sleep(_SETTLED)
            without.append(resident_mib(made.process.pid))
        more.append(await _with_claims(place) - without[-1])
    return [
        Figure(
            name="dra_rss_mib",
            samples=more,
            unit="MiB",
            reach=8.0,
            floor=Floor(what="the same node by the device plugin, in all", samples=without),
            note="VmRSS two seconds after the slices are there, above the device plugin's",
        )
    ]


async def _with_claims(place: Place) -> float:
    """Return the resident memory of a daemon whose chips come by claims, in MiB."""
    with (
        _cluster(place) as (store, account, variables),
        tempfile.TemporaryDirectory(prefix="hf-", dir="/tmp") as folder,
    ):
        root = Path(folder) / "kl"
        for name in (PLUGINS, PLUGINS_REGISTRY):
            (root / name).mkdir(parents=True)
        dra = {"nodeName": _NODE, "kubeletRoot": str(root), "serviceAccount": str(account)}
        node = Rig(
            Path(folder),
            place,
            gpus=0,
            chips=CHIPS,
            variables=variables,
            tpu={"api": "dra"},
            dra=dra,
        )
        async with running(node) as made:
            made.start()
            await made.until(lambda: _slices(store), "the slices to be published")
            await asyncio.sleep(_SETTLED)
            return resident_mib(made.process.pid)


@contextlib.contextmanager
def _cluster(place: Place) -> Iterator[tuple[Store, Path, dict[str, str]]]:
    """Yield the store of an API server, a service account, and what names the server to a pod."""
    account = place.state / "serviceaccount"
    store = Store(Rules())
    store.create(At(kind=Kind(group_version="v1", plural="nodes")), _node())
    files = certificates(place.state / "pki")
    api = cluster.ApiServer(store, files, token=_TOKEN, node=_NODE)
    cluster.write_service_account(account, files, _TOKEN)
    try:
        yield (
            store,
            account,
            {
                "KUBERNETES_SERVICE_HOST": "127.0.0.1",
                "KUBERNETES_SERVICE_PORT": str(api.port),
            },
        )
    finally:
        api.close()
        shutil.rmtree(account)


@contextlib.asynccontextmanager
async def _publisher(
    access: Access, ledger: Ledger, inventory: Watched[Inventory]
) -> AsyncIterator[None]:
    clock, lane = SystemClock(), Lane("pool", deadline=30.0)
    server = ApiServer(access, name="slices", clock=clock)
    slices = NodeSlices(server, access, driver=_DRIVER, node=_NODE)
    publisher = Publisher(
        driver=_DRIVER,
        node=_NODE,
        pool=NodePool(
            driver=_DRIVER,
            serves=lambda resource: resource == _TPU,
            ledger=ledger,
            inventory=inventory,
            sources=Sources([Tpus()]),
            pcie_root=lambda address: f"pci{address[:7]}",
            lane=lane,
            clock=clock,
            withhold_after=3.0,
            evict_lost=False,
        ),
        server=slices,
        mirror=SliceMirror(slices, clock=clock),
        changes=(inventory, ledger.book),
        registration=Watched(Registration(registrations=1)),
        clock=clock,
        write_every=0.0,
    )
    running = asyncio.create_task(publisher.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.wait([running])
        await server.close()
        lane.close()


def _bare(access: Access, body: bytes) -> float:
    """Return how many milliseconds a new connection takes for what the publisher cannot spare."""
    path = ("apis", "resource.k8s.io", "v1", "resourceslices")
    began = time.perf_counter()
    wire = Wire(access)
    for request in (
        Request(about="all", path=path),
        Request(about="node", path=("api", "v1", "nodes", _NODE)),
        Request(about="one", method="POST", path=path, body=body),
    ):
        wire.exchange(request, 30.0)
    took = (time.perf_counter() - began) * 1000
    wire.close()
    return took


def _as_sent(stored: Object) -> bytes:
    metadata = {"name": stored["metadata"]["name"]}
    return json.dumps({**stored, "metadata": metadata}).encode()


async def _until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def _slices(store: Store) -> list[Object]:
    return store.find(At(kind=_SLICES), Selector())[0]


def _node() -> Object:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": _NODE}}


def _devices() -> tuple[Device, ...]:
    addresses = [
        PciAddress(f"0000:{place // 32:02x}:{place % 32:02x}.0") for place in range(_DEVICES)
    ]
    return tuple(
        Device(
            name=DeviceName(_TPU, DeviceId(address)),
            kind=DeviceKind.VFIO,
            keys=frozenset({pci_key(address)}),
            nodes=(),
            functions=(address,),
            model="v5e",
            source="tpu",
        )
        for address in addresses
    )
