"""The real daemon on a simulated node, with a kubelet, to be measured from outside."""

import asyncio
import contextlib
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from fakes.http import metrics
from holdfast._pb.deviceplugin.v1beta1 import api_pb2 as api
from ports import free_port
from simulated import nvml
from simulated.gpunode import GpuNode
from simulated.node import SimulatedNode
from simulated.pods import Container, Pod, PodSpec, Workload
from simulated.podworker import KubeletTimes
from simulated.runtime import Runtime
from simulated.stage import Stage, running

TPU = "google.com/tpu"
GPU = "nvidia.com/gpu"
CHIPS = 8
SOON = {"minInterval": "50ms", "settle": "20ms"}
"""Settings under which kubelet is asked often: its patience is not what is measured."""


class Place(Struct, frozen=True, kw_only=True):
    """Where it is measured: with the ledger in *state*, on a disk, and by which Python."""

    state: Path
    python: Path


class Rig(Stage):
    """A node, its kubelet, and the daemon as `holdfast run` starts it."""

    look = rarest = 0.001

    def __init__(
        self,
        folder: Path,
        place: Place,
        *,
        gpus: int,
        chips: int,
        variables: Mapping[str, str] | None = None,
        **changes: object,
    ) -> None:
        """Keep sockets in *folder*, whose path is short. The node has so many GPUs and chips.

        *variables* are added to the daemon's environment.
        """
        node, environment = _node(folder, gpus, chips)
        super().__init__(
            folder,
            node,
            Runtime(node),
            settings={
                "http": {"address": "127.0.0.1", "port": free_port()},
                "log": {"format": "json"},
                **changes,
            },
            times=KubeletTimes(finished=0.0),
            environment={**environment, **(variables or {})},
            state=place.state,
            python=place.python,
        )
        self._wanted = {TPU: chips, **({GPU: gpus} if gpus else {})}

    def registered(self) -> bool:
        """Tell whether kubelet would grant every chip and GPU."""
        return all(len(self.healthy(resource)) == count for resource, count in self._wanted.items())

    async def allocate(self, *chips: str) -> None:
        """Ask the daemon for *chips*, for one container, as kubelet does."""
        request = api.AllocateRequest()
        request.container_requests.add(devices_ids=chips)
        await self.kubelet.devices.plugin(TPU).Allocate(request)

    async def metric(self, name: str) -> float:
        """Return the value of a metric without labels."""
        return (await asyncio.to_thread(metrics, self.settings["http"]["port"]))[name]

    def forget_registration(self) -> None:
        """Let `registered` be false until a new message has come."""
        for endpoint in self.kubelet.devices.endpoints.values():
            endpoint.stop()

    def lock_states(self) -> list[str]:
        """Return the states of all locks as they are on disk, without the daemon's help."""
        with contextlib.closing(
            sqlite3.connect(f"file:{self.state / 'ledger.db'}?mode=ro", uri=True)
        ) as db:
            found = db.execute("SELECT document ->> 'state' FROM things WHERE kind = 'lock'")
            return [state for (state,) in found]

    async def submit(
        self, chips: int, *, runs_for: float | None = None, orphan: int = 0, opens: bool = True
    ) -> Pod:
        """Submit a pod that asks for *chips*."""
        workload = Workload(runs_for=runs_for, orphan=orphan, opens=opens)
        container = Container(limits={TPU: chips}, workload=workload)
        pod = await self.kubelet.submit(PodSpec(name="bench", containers=(container,)))
        if pod.message:
            raise RuntimeError(pod.message)
        return pod


@contextlib.asynccontextmanager
async def rig(
    place: Place, *, gpus: int = 0, chips: int = CHIPS, **changes: Any
) -> AsyncIterator[Rig]:
    """Yield a rig whose kubelet and daemon run and know each other."""
    # A unix socket's path has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="hf-", dir="/tmp") as folder:
        async with running(Rig(Path(folder), place, gpus=gpus, chips=chips, **changes)) as made:
            made.start()
            await made.until(made.registered, "kubelet to have every device")
            yield made


def _node(folder: Path, gpus: int, chips: int) -> tuple[SimulatedNode, Mapping[str, str]]:
    """Return a node with *gpus* and *chips*, and what a daemon's environment must say of it."""
    if not gpus:
        return SimulatedNode(folder / "node", chips=chips), {}
    node = GpuNode(folder / "node", library=nvml.build(folder), gpus=gpus, chips=chips)
    node.load_driver()
    return node, {nvml.CONTROL: str(node.control)}


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    return _status_mib(pid, "VmRSS:")


def peak_mib(pid: int) -> float:
    """Return the most that the resident memory of a process has been, in MiB."""
    return _status_mib(pid, "VmHWM:")


def cpu_seconds(pid: int) -> float:
    """Return how much processor time a process has used, all its threads together."""
    # clock_getcpuclockid(3) makes the number of a process's clock so; it counts nanoseconds, and
    # /proc/PID/stat only hundredths of a second.
    return time.clock_gettime(~pid << 3 | 2)


def _status_mib(pid: int, field: str) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024
