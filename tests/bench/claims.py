"""Claims from outside: the daemon, an API server, and the calls that kubelet makes for a pod."""

import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from msgspec.structs import replace

from bench.figures import Figure, Floor, percentile
from bench.floors import Sync, synced_file, timed
from bench.rig import CHIPS, Place, Rig, resident_mib, rig
from fakes.claimstage import DRIVER
from fakes.controlplane import NODE, ControlPlane, control_plane
from holdfast._pb.dra.v1 import api_pb2
from holdfast.apiserver.wire import ApiRequest, Wire
from holdfast.names import PLUGINS, PLUGINS_REGISTRY
from holdfast.runtime.clock import SystemClock
from simulated.cluster.objects import CLAIMS, add, allocate, wanting
from simulated.dramanager import DraManager
from simulated.stage import running

_NAMESPACE = "team"
_PREPARE_ABOVE, _UNPREPARE, _MEMORY_ABOVE = 20.0, 50.0, 8.0
_CALL = 45.0
_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where specs are, which a node has below /var/run: in memory."""
_FIRST_BUS, _FIRST_GROUP = 5, 10
"""How a simulated node numbers its chips and their groups."""
_SETTLED = 2.0
_HOLD = "import os, sys, time; os.open(sys.argv[1], 258); print(flush=True); time.sleep(1e6)"


async def prepare(place: Place, *, n: int = 100) -> list[Figure]:
    """Measure Prepare of a free chip, and from Unprepare to its lock's being gone."""
    prepared: list[float] = []
    free: list[float] = []
    bare: list[float] = []
    async with _daemon(place) as made:
        with (
            synced_file(place) as sync,
            contextlib.closing(Wire(made.cluster.access, SystemClock())) as wire,
        ):
            for sample in range(n):
                claim, pod = made.allocate(f"claim-{sample}", sample % CHIPS)
                prepared.append(await made.prepare(claim))
                bare.append(timed(partial(_spare, claim, wire, sync)))
                await made.run(pod, sample % CHIPS)
                free.append(await made.unprepare(claim))
                made.rig.node.remove_pod(pod)
    floor = Floor(what=f"one GET of the claim, and {Sync.what}", samples=bare)
    return [
        Figure(
            name="dra_prepare_free",
            samples=prepared,
            reach=percentile(floor.samples, 0.99) + _PREPARE_ABOVE,
            judged="p99",
            floor=floor,
            note=f"the whole call for one free chip; the reach is the floor's p99 and {_PREPARE_ABOVE:g} ms",
        ),
        Figure(
            name="dra_unprepare_to_free",
            samples=free,
            reach=_UNPREPARE,
            floor=floor,
            note="the whole call, which returns when the chip is free; its pod has just exited",
        ),
    ]


async def memory(place: Place, *, n: int = 3) -> list[Figure]:
    """Measure how much more memory the daemon has when its chips come by claims."""
    without: list[float] = []
    more: list[float] = []
    for sample in range(n):
        state = place.state / f"claims-{sample}"  # a new ledger, without the former's claims
        state.mkdir()
        async with rig(place) as plain:
            await asyncio.sleep(_SETTLED)
            without.append(resident_mib(plain.process.pid))
        async with _daemon(replace(place, state=state)) as made:
            for chip in range(CHIPS):
                claim, _ = made.allocate(f"claim-{chip}", chip)
                await made.prepare(claim)
            await asyncio.sleep(_SETTLED)
            more.append(resident_mib(made.rig.process.pid) - without[-1])
    return [
        Figure(
            name="dra_rss_mib",
            samples=more,
            unit="MiB",
            reach=_MEMORY_ABOVE,
            floor=Floor(what="the same node by the device plugin, in all", samples=without),
            note=f"VmRSS with the slices there and {CHIPS} claims prepared, above the device plugin's",
        )
    ]


class _Node:
    """The daemon on a node whose chips come by claims, and what is done to it."""

    def __init__(self, made: Rig, cluster: ControlPlane, stub: Any) -> None:
        self.rig = made
        self.cluster = cluster
        self._stub = stub

    def allocate(self, name: str, chip: int) -> tuple[api_pb2.Claim, str]:
        """Allocate *chip* to a new claim; return what kubelet says of it, and its pod."""
        pod = str(uuid4())
        store = self.cluster.store
        made = add(store, CLAIMS, name, namespace=_NAMESPACE, spec=wanting("chip", "chip"))
        device = {"request": "chip", "driver": DRIVER, "pool": NODE, "device": _label(chip)}
        allocate(store, made, [device], [{"name": name, "uid": pod}])
        uid = made["metadata"]["uid"]
        return api_pb2.Claim(namespace=_NAMESPACE, uid=uid, name=name), pod

    async def prepare(self, claim: api_pb2.Claim) -> float:
        """Return how many milliseconds the call takes."""
        request = api_pb2.NodePrepareResourcesRequest(claims=[claim])
        began = time.perf_counter()
        answer = await self._stub.NodePrepareResources(request, timeout=_CALL)
        took = (time.perf_counter() - began) * 1000
        _check(answer.claims[claim.uid].error)
        return took

    async def unprepare(self, claim: api_pb2.Claim) -> float:
        """Return how many milliseconds the call takes, after which the claim has no lock."""
        request = api_pb2.NodeUnprepareResourcesRequest(claims=[claim])
        began = time.perf_counter()
        answer = await self._stub.NodeUnprepareResources(request, timeout=_CALL)
        took = (time.perf_counter() - began) * 1000
        _check(answer.claims[claim.uid].error)
        if self.rig.lock_states():
            raise RuntimeError("the chip is not free")
        return took

    async def run(self, pod: str, chip: int) -> None:
        """Run a pod that opens *chip*, until it exits by itself."""
        node = self.rig.node
        node.add_pod(pod)
        path = str(node.node(f"/dev/vfio/{_FIRST_GROUP + chip}"))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", "-c", _HOLD, path, stdout=subprocess.PIPE
        )
        if process.stdout is not None:
            await process.stdout.readline()
        node.enter(pod, "main", process.pid)
        await asyncio.sleep(0.1)  # the daemon has seen the pod, and the kernel the open chip
        process.kill()
        await process.wait()
        await self.rig.until(lambda: not node.members(pod), "the pod's processes to be gone")


def _spare(claim: api_pb2.Claim, wire: Wire, sync: Sync) -> None:
    """Do what no Prepare can do without."""
    path = (
        "apis",
        *CLAIMS.group_version.split("/"),
        "namespaces",
        claim.namespace,
        CLAIMS.plural,
        claim.name,
    )
    wire.exchange(ApiRequest(about="claim", path=path), _CALL)
    sync()


@contextlib.asynccontextmanager
async def _daemon(place: Place) -> AsyncIterator[_Node]:
    """Yield a daemon that has registered as a driver, and published its slice."""
    # A unix socket's path has at most 107 bytes.
    with (
        tempfile.TemporaryDirectory(prefix="hf-", dir="/tmp") as name,
        tempfile.TemporaryDirectory(prefix="hf-", dir=_MEMORY) as specs,
        control_plane(place.state, validates=False) as served,
    ):
        folder = Path(name)
        root = folder / "kl"
        for each in (PLUGINS, PLUGINS_REGISTRY):
            (root / each).mkdir(parents=True)
        manager = DraManager(root)
        made = Rig(
            folder,
            place,
            gpus=0,
            chips=CHIPS,
            variables=served.server.environment,
            tpu={"api": "dra"},
            dra={
                "nodeName": NODE,
                "kubeletRoot": str(root),
                "serviceAccount": str(served.account),
            },
            cdi={"specDir": specs},
        )
        async with running(made):
            await manager.start()
            try:
                made.start()
                await made.until(lambda: manager.plugins.newest(DRIVER), "the driver to register")
                await made.until(served.slices, "its ResourceSlice")
                yield _Node(made, served, manager.plugins.plugins[DRIVER][0].stub)
            finally:
                await manager.stop()


def _label(chip: int) -> str:
    return f"tpu-0000-{_FIRST_BUS + chip >> 5:02x}-{_FIRST_BUS + chip & 31:02x}-0"


def _check(error: str) -> None:
    if error:
        raise RuntimeError(error)
