"""Allocate of a replica beside that of a whole GPU, by the real adapter with a stub of NVML."""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

from bench.figures import Figure, Floor
from bench.floors import Sync
from bench.rig import Place
from bench.scene import Call, Scene, scene_on
from fakes.books import BOOT
from fakes.ledgers import ledger_in
from fakes.observers import Unobserved
from holdfast.allocation.specwriter import SpecWriter
from holdfast.discovery.scanner import with_found
from holdfast.discovery.source import Source, Sources
from holdfast.ledger.ledger import Ledger
from holdfast.model.devices import Inventory
from holdfast.model.kubelet import KubeletView
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.lane import Lane, Lanes
from holdfast.runtime.watched import Watched
from holdfast.settings import Settings
from holdfast.settings.hardware import SharedResource, SharingSettings, TimeSlicing
from holdfast.vendors.context import Context
from holdfast.vendors.nvidia.gpus import Gpus
from simulated import nvml
from simulated.gpunode import GpuNode

_GPU = "nvidia.com/gpu"
_REPLICAS = 4
_CALLS = 960
_SPREAD = 0.1
"""By what share the medians of two scenes with the same whole GPUs differ on a busy machine."""


async def allocate_replica(place: Place) -> list[Figure]:
    """Measure Allocate on a node with eight GPUs, and on the same with four replicas of each."""
    shared = SharedResource(name=_GPU, replicas=_REPLICAS)
    sharing = SharingSettings(time_slicing=TimeSlicing(resources=(shared,)))
    wholes: list[Call] = []
    replicas: list[Call] = []
    with tempfile.TemporaryDirectory(prefix="hf-", dir="/tmp") as folder, _node(folder) as node:
        async with (
            _scene(place, node, Settings()) as whole,
            _scene(place, node, Settings(sharing=sharing)) as parts,
        ):
            for number in range(_CALLS):
                # In turn, so that whatever else is on the machine delays both.
                wholes.append(await _next(whole, number))
                replicas.append(await _next(parts, number))
    note = "the handler with its commit, eight GPUs"
    gpu = _figure("allocate_gpu", wholes, note=f"{note}, each one pod's")
    note = (
        f"{note} with {_REPLICAS} replicas each, in turn with allocate_gpu; the reach is that figure "
        f"and {_SPREAD:.0%}"
    )
    limit = gpu.p50 * (1 + _SPREAD)
    return [gpu, _figure("allocate_replica", replicas, reach=limit, note=note)]


async def _next(made: Scene, number: int) -> Call:
    """Measure the allocation of the next device; all are free again when the last has been."""
    place = number % len(made.devices)
    if not place:
        await made.end_all()
    return await made.call(made.devices[place])


def _figure(name: str, calls: list[Call], *, reach: float | None = None, note: str) -> Figure:
    floor = Floor(what=Sync.what, samples=[each.sync for each in calls])
    samples = [each.took for each in calls]
    return Figure(name=name, samples=samples, reach=reach, floor=floor, note=note)


@contextlib.contextmanager
def _node(folder: str) -> Iterator[GpuNode]:
    """Yield a node whose GPUs the stub of NVML tells this process of."""
    node = GpuNode(Path(folder, "node"), library=nvml.build(Path(folder)))
    node.load_driver()
    os.environ[nvml.CONTROL] = str(node.control)
    try:
        yield node
    finally:
        del os.environ[nvml.CONTROL]
        node.close()


@contextlib.asynccontextmanager
async def _scene(place: Place, node: GpuNode, settings: Settings) -> AsyncIterator[Scene]:
    """Yield a scene with the GPUs of *node* as *settings* share them."""
    sharing = settings.sharing.time_slicing.resources
    async with ledger_in(place.state / ("shared" if sharing else "whole")) as ledger:
        with contextlib.ExitStack() as lanes:
            gpus = await _read(node, ledger, settings, lanes)
            sources = Sources([gpus])
            inventory = with_found(Inventory(), sources)
            async with scene_on(place, ledger, inventory, sources) as made:
                yield made
            await gpus.let_go("it is measured")


class _Lanes(Lanes):
    """Opens lanes that end with a measurement."""

    def __init__(self, lanes: contextlib.ExitStack) -> None:
        self._lanes = lanes

    def open_lane(self, name: str, deadline: Watched[float]) -> Lane:
        return self._lanes.enter_context(contextlib.closing(Lane(name, deadline=deadline)))


class _Alone:
    """Stands in for discovery where there is but one adapter."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    def look_again(self) -> None:
        self.asked.set()

    def publish(self) -> None:
        pass

    def replace(self, source: Source) -> None:
        pass


async def _read(
    node: GpuNode, ledger: Ledger, settings: Settings, lanes: contextlib.ExitStack
) -> Gpus:
    """Return an adapter that has read the GPUs of *node* once."""
    opened, alone = _Lanes(lanes), _Alone()
    gpus = Gpus(
        Context(
            settings=Watched(settings),
            root=node.root,
            boot=BOOT,
            ledger=ledger,
            clock=SystemClock(),
            lanes=opened,
            specs=partial(SpecWriter, node.root.run, lane=opened.open_lane("cdi", Watched(5.0))),
            view=Watched(KubeletView()),
            discovery=alone,
            taken=lambda _device: False,
            count=Unobserved().happened,
        )
    )
    async with asyncio.TaskGroup() as group:
        running = group.create_task(gpus.run())
        while not gpus.found().devices:
            await alone.asked.wait()
            alone.asked.clear()
        running.cancel()
    return gpus
