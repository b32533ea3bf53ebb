"""The daemon on a node of eight GPUs and eight chips, from outside; NVML is a stub."""

import asyncio

from bench.figures import Figure
from bench.rig import Place, resident_mib, rig

_GPUS = 8


async def start(place: Place, *, n: int = 8) -> list[Figure]:
    """Measure from exec to registered, and memory, with GPUs and TPUs on."""
    starts: list[float] = []
    memory: list[float] = []
    async with rig(place, gpus=_GPUS) as made:
        for _ in range(n):
            await made.stop()
            made.forget_registration()
            began = made.start()
            starts.append((await made.until(made.registered, "it registered") - began) * 1000)
            await asyncio.sleep(2.0)
            memory.append(resident_mib(made.process.pid))
    return [
        Figure(
            name="start_to_registered_8_gpus",
            samples=starts,
            budget={"p50": 300.0},
            note=(
                "from exec to eight healthy GPUs and eight healthy chips in kubelet's checkpoint, "
                "Python's start included; a real NVML takes longer to start than the stub"
            ),
        ),
        Figure(
            name="rss_mib",
            samples=memory,
            unit="MiB",
            budget={"p50": 60.0},
            note="VmRSS two seconds after it registered, GPUs and TPUs on; NVML is the stub",
        ),
    ]
