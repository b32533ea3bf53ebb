"""The real daemon on a simulated node, with a kubelet, to be measured from outside."""

import asyncio
import contextlib
import os
import socket
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct

from simulated import nvml
from simulated.gpunode import GpuNode
from simulated.kubelet import Kubelet
from simulated.node import SimulatedNode
from simulated.pods import Container, Pod, PodSpec, Workload
from simulated.podworker import KubeletTimes
from simulated.runtime import Runtime

TPU = "google.com/tpu"
GPU = "nvidia.com/gpu"
CHIPS = 8
_LOOK = 0.001
_LIMIT = 60.0
SOON = {"minInterval": "50ms", "settle": "20ms"}
"""Settings under which kubelet is asked often: its patience is not what is measured."""


class Place(Struct, frozen=True, kw_only=True):
    """Where it is measured: with the ledger in *state*, on a disk, and by which Python."""

    state: Path
    python: Path


class Rig:
    """A node, its kubelet, and the daemon as `holdfast run` starts it."""

    def __init__(
        self, folder: Path, place: "Place", *, gpus: int = 0, chips: int = CHIPS, **changes: object
    ) -> None:
        """Keep sockets in *folder*, whose path is short. The node has so many GPUs and chips."""
        state = place.state
        self.state = state
        self._wanted = {TPU: chips, **({GPU: gpus} if gpus else {})}
        self._environment = dict(os.environ)
        self._gpus: GpuNode | None = None
        if gpus:
            library = nvml.build(folder)
            self._gpus = GpuNode(folder / "node", library=library, gpus=gpus, chips=chips)
            self._gpus.load_driver()
            self._environment[nvml.CONTROL] = str(self._gpus.control)
        self.node = self._gpus or SimulatedNode(folder / "node", chips=chips)
        self.runtime = Runtime(self.node)
        self.kubelet = Kubelet(
            folder / "dp", folder / "pr.sock", self.runtime, times=KubeletTimes(finished=0.0)
        )
        self._python = place.python
        self._log = folder / "daemon.log"
        self._config = folder / "config.yaml"
        self._config.write_text(yaml.safe_dump(_merged(self._settings(folder), changes)))
        self.daemon: subprocess.Popen[bytes] | None = None

    def _settings(self, folder: Path) -> dict[str, Any]:
        root = self.node.root
        names = ("sys", "proc", "dev", "cgroup", "etc", "run")
        return {
            "stateDir": str(self.state),
            "host": {name: str(getattr(root, name)) for name in names},
            "kubelet": {
                "pluginDir": str(folder / "dp"),
                "podResourcesSocket": str(folder / "pr.sock"),
            },
            "http": {"address": "127.0.0.1", "port": _free_port()},
            "log": {"format": "json"},
        }

    def start(self) -> float:
        """Start the daemon, and return when (perf_counter)."""
        began = time.perf_counter()
        with self._log.open("ab") as log:
            self.daemon = subprocess.Popen(
                [self._python, "-m", "holdfast", "run", "--config", str(self._config)],
                stderr=log,
                env=self._environment,
            )
        return began

    def stop(self) -> None:
        """Stop the daemon as a node does."""
        if self.daemon is not None:
            self.daemon.terminate()
            self.daemon.wait(20)
            self.daemon = None

    @property
    def pid(self) -> int:
        """Return the daemon's process."""
        if self.daemon is None:
            raise RuntimeError("the daemon does not run")
        return self.daemon.pid

    def registered(self) -> bool:
        """Tell whether kubelet would grant every chip and GPU."""
        return all(self.healthy(resource) == count for resource, count in self._wanted.items())

    def healthy(self, resource: str) -> int:
        """Return how many devices of *resource* kubelet would grant."""
        endpoint = self.kubelet.devices.endpoints.get(resource)
        return len(endpoint.healthy) if endpoint is not None else 0

    def forget_registration(self) -> None:
        """Let `registered` be false until a new message has come."""
        for endpoint in self.kubelet.devices.endpoints.values():
            endpoint.stop()

    def lock_states(self) -> list[str]:
        """Return the states of all locks as they are on disk, without the daemon's help."""
        with contextlib.closing(
            sqlite3.connect(f"file:{self.state / 'ledger.db'}?mode=ro", uri=True)
        ) as db:
            return [state for (state,) in db.execute("SELECT state FROM locks")]

    async def until(self, happened: Callable[[], bool], what: str) -> float:
        """Return when (perf_counter) *happened* was seen to be so."""
        end = time.perf_counter() + _LIMIT
        while not happened():
            if time.perf_counter() > end or (self.daemon and self.daemon.poll() is not None):
                tail = self._log.read_text()[-2000:]
                raise RuntimeError(f"it did not come that {what}; the daemon's log ends:\n{tail}")
            await asyncio.sleep(_LOOK)
        return time.perf_counter()

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
    place: Place, *, gpus: int = 0, chips: int = CHIPS, **changes: object
) -> AsyncIterator[Rig]:
    """Yield a rig whose kubelet and daemon run and know each other."""
    # A unix socket's path has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="hf-", dir="/tmp") as folder:
        made = Rig(Path(folder), place, gpus=gpus, chips=chips, **changes)
        keeper = asyncio.create_task(made.node.run())
        try:
            await made.kubelet.start()
            made.start()
            await made.until(made.registered, "kubelet has every device")
            yield made
        finally:
            await asyncio.to_thread(made.stop)
            await made.kubelet.close()
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
            made.node.close()


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def cpu_seconds(pid: int) -> float:
    """Return how much processor time a process has used, all its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _merged(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(below.get(key), dict)
        merged[key] = _merged(below[key], value) if both else value
    return merged


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
