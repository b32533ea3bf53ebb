"""How soon kubelet hears that a GPU is ill: the daemon with NVML's stub, from outside."""

import asyncio
import time
from functools import partial

from bench.figures import Figure, Floor
from bench.floors import bare_plugin
from bench.rig import GPU, Place, Rig, rig
from simulated.gpunode import GpuNode

_GPUS = 8
_PASSES = 63
"""An Xid that passes by itself, so that the GPU can be had again."""
_SOON = {"look": "100ms", "healthBeat": "100ms", "healthQuiet": "100ms"}


async def xid_to_unhealthy(place: Place, *, n: int = 15) -> list[Figure]:
    """Measure from an Xid of the driver's to Unhealthy in kubelet's checkpoint."""
    samples: list[float] = []
    async with rig(place, gpus=_GPUS, gpu=_SOON) as made:
        node = made.node
        if not isinstance(node, GpuNode):
            raise TypeError("the node has no GPUs")
        await asyncio.sleep(1.0)  # events are only heard once the daemon listens
        for sample in range(n):
            gpu = sample % _GPUS
            began = time.perf_counter()
            node.xid(gpu, _PASSES)
            ill = partial(_is_ill, made, node.uuids[gpu])
            samples.append((await made.until(ill, "the GPU is unhealthy") - began) * 1000)
            await made.until(made.registered, "the GPU is well again")
    async with bare_plugin(place, devices=n + 1) as bare:
        floor = [await bare.change() for _ in range(n)]
    return [
        Figure(
            name="xid_to_unhealthy",
            samples=samples,
            reach=100.0,
            judged="p99",
            floor=Floor(what="a bare grpc.aio plugin, told to send its list", samples=floor),
            note=f"one of {_GPUS} GPUs; the stub looks for an event every 10 ms",
        )
    ]


def _is_ill(made: Rig, gpu: str) -> bool:
    return gpu not in made.healthy(GPU)
