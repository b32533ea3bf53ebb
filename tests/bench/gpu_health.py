"""How soon kubelet hears that a GPU is ill: the daemon with NVML's stub, from outside."""

import asyncio
import os
import tempfile
import time
from functools import partial
from pathlib import Path

from bench.figures import Figure
from bench.rig import Place, Rig, rig
from fakes.nvml import build
from holdfast.model.nvidia.gpu import GPU_RESOURCE
from simulated.gpus import SimulatedGpus
from simulated.nvml import CONTROL, uuid

_GPUS = 8
_PASSES = 63
"""An Xid that passes by itself, so that the GPU can be had again."""


async def xid_to_unhealthy(place: Place, *, n: int = 15) -> list[Figure]:
    """Measure from an Xid of the driver's to Unhealthy in kubelet's checkpoint."""
    samples: list[float] = []
    with tempfile.TemporaryDirectory(prefix="hf-") as folder:
        library = Path(folder) / "usr/lib64"
        library.mkdir(parents=True)
        build(library)
        control = Path(folder) / "nvml"
        os.environ[CONTROL] = str(control)  # the daemon inherits it
        settings = {
            "driverRoot": folder,
            "look": "100ms",
            "healthBeat": "100ms",
            "healthQuiet": "100ms",
        }
        async with rig(place, gpu=settings) as made:
            gpus = SimulatedGpus(made.node, control)
            gpus.arrive(_GPUS)
            await made.until(
                lambda: len(made.healthy(GPU_RESOURCE)) == _GPUS, "kubelet has every GPU"
            )
            await asyncio.sleep(1.0)  # events are only heard once the daemon listens
            for sample in range(n):
                wanted = uuid(sample % _GPUS)
                began = time.perf_counter()
                gpus.xid(wanted, _PASSES)
                seen = await made.until(partial(_is_ill, made, wanted), "the GPU is unhealthy")
                samples.append((seen - began) * 1000)
                await made.until(
                    lambda: len(made.healthy(GPU_RESOURCE)) == _GPUS, "the GPU is well again"
                )
    return [
        Figure(
            name="xid_to_unhealthy",
            samples=samples,
            budget={"p99": 100.0},
            note=f"one of {_GPUS} GPUs; the stub looks for an event every 10 ms",
        )
    ]


def _is_ill(made: Rig, gpu: str) -> bool:
    return gpu not in made.healthy(GPU_RESOURCE)
