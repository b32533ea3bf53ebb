"""The daemon on a node where hundreds of pods left processes that have their devices open."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable
from pathlib import Path
from threading import Event

import grpc

from bench.crowd import crowd
from bench.figures import Figure, Floor
from bench.floors import timed, visits
from bench.rig import TPU, Place, Rig, cpu_seconds, rig

_FILES = 16
_FIRST_GROUP = 10
"""How a simulated node numbers its groups."""
_WATCHED, _ASKED = 5.0, 1.0
_PAUSE, _LOOK = 0.005, 0.1
_HOLDERS = f'holdfast_holders{{resource="{TPU}"}}'


async def left(place: Place, *, chips: int = 256) -> list[Figure]:
    """Measure what it costs to watch what pods left, and when all of it lets go at once."""
    async with rig(place, chips=chips, reclaim={"mode": "observe"}) as made:
        nodes = [made.node.node(f"/dev/vfio/{_FIRST_GROUP + each}") for each in range(chips)]
        ids = sorted(made.kubelet.devices.endpoints[TPU].devices)
        with crowd(chips, _FILES, nodes) as pids:
            for id_, pid in zip(ids, pids, strict=True):
                pod = made.kubelet.count(TPU, id_)
                made.node.add_pod(pod.uid)
                made.node.enter(pod.uid, "main", pid)
            await made.until(lambda: made.lock_states() == ["held"] * chips, "pods have all")
            while await made.metric(_HOLDERS) < chips:
                await asyncio.sleep(_LOOK)
            made.kubelet.forget()
            made.kubelet.devices.write()
            await made.until(lambda: made.lock_states() == ["releasing"] * chips, "they are over")
            before, began = cpu_seconds(made.process.pid), time.monotonic()
            await asyncio.sleep(_WATCHED)
            share = (cpu_seconds(made.process.pid) - before) / (time.monotonic() - began)
            quiet = await _longest(made, asyncio.sleep(_ASKED))
            before = cpu_seconds(made.process.pid)
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            free = made.until(lambda: not made.lock_states(), "all are free")
            longest = await _longest(made, free)
            used = cpu_seconds(made.process.pid) - before
    return [
        Figure(
            name=f"left_cpu_percent_{chips}",
            samples=[100 * share],
            unit="%",
            note=f"of one core over {_WATCHED:g} s; {chips} pods that are over have a device each",
        ),
        Figure(
            name=f"loop_stall_{chips}_open",
            samples=[longest],
            reach=20.0,
            floor=Floor(what="the longest in a second before that", samples=[quiet]),
            note="kubelet's longest call, which decides nothing, while the devices of all these "
            "pods are let go at once, until all are free",
        ),
        Figure(
            name=f"let_go_cpu_{chips}",
            samples=[used * 1000],
            floor=visits(chips),
            note="CPU time of the daemon meanwhile",
        ),
    ]


def _calls(socket: Path, over: Event) -> list[float]:
    """Return how many milliseconds kubelet's calls take, one after the other until it is *over*.

    On a thread: our own loop is busy with the simulated node.
    """
    took: list[float] = []
    with grpc.insecure_channel(f"unix://{socket}") as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/v1beta1.DevicePlugin/GetDevicePluginOptions"
        )
        while not over.wait(_PAUSE):
            took.append(timed(lambda: call(b"")))
    return took


async def _longest(made: Rig, meanwhile: Awaitable[object]) -> float:
    (socket,) = made.kubelet.folder.glob("holdfast*.sock")
    over = Event()
    calls = asyncio.create_task(asyncio.to_thread(_calls, socket, over))
    await meanwhile
    over.set()
    return max(await calls)
