"""A whole node with GPUs for stories: the real daemon and pynvml, on a library like NVIDIA's."""

from dataclasses import dataclass
from typing import Any

from fakes.stage import Stage, asks
from simulated.gpus import SimulatedGpus
from simulated.nvml import uuid
from simulated.pods import PodSpec

GPU = "nvidia.com/gpu"
OFTEN = {"look": "100ms", "rescan": "200ms", "healthBeat": "200ms"}
"""Settings of GPUs under which a test has not to wait for the next look."""
RECLAIM = {
    "letGoGrace": "0s",
    "orphanGrace": "200ms",
    "termGrace": "200ms",
}


@dataclass
class GpuStage:
    """A stage, and the GPUs of its node."""

    stage: Stage
    gpus: SimulatedGpus

    def healthy(self) -> set[str]:
        """Return the GPUs that kubelet would grant."""
        return self.stage.healthy(GPU)

    async def until_offered(self, *ids: str, resource: str = GPU) -> None:
        """Return when exactly these devices of *resource* are healthy."""
        await self.stage.until(
            lambda: self.stage.healthy(resource) == set(ids),
            lambda: f"{resource} to be {ids}; it is {self.stage.healthy(resource)}",
        )

    async def until_healthy(self, *indexes: int) -> None:
        """Return when exactly these GPUs are healthy."""
        await self.until_offered(*map(uuid, indexes))

    async def arrive(self, count: int, **what: Any) -> None:
        """Let the driver come with *count* GPUs, and return when all of them are healthy."""
        self.gpus.arrive(count, **what)
        await self.until_healthy(*range(count))

    async def reasons(self, index: int) -> list[str]:
        """Return what is said of a GPU."""
        rows = await self.stage.asked("devices") or []
        return [reason for row in rows if row["id"] == uuid(index) for reason in row["reasons"]]

    async def until_said(self, index: int, text: str) -> None:
        """Return when *text* is said of a GPU."""
        said: list[str] = []

        async def so() -> bool:
            said[:] = await self.reasons(index)
            return any(text in each for each in said)

        await self.stage.until(so, lambda: f"{text!r} of GPU {index}; {said} is said")


def sharing(replicas: int, **rules: Any) -> dict[str, Any]:
    """Return the section of the settings, in the form of NVIDIA's file; 0 *replicas*: none."""
    resources = [{"name": GPU, "replicas": replicas}] if replicas else []
    return {"timeSlicing": {"resources": resources, **rules}}


def wants(name: str, count: int, **work: Any) -> PodSpec:
    """Return a pod that asks for *count* GPUs; *work* is what it does."""
    return PodSpec(name=name, containers=(asks(GPU, count, **work),))
