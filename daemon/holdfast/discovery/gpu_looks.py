"""Looks at one GPU: how it is, and, where that decides something, who is on it."""

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from holdfast.discovery.gpu_events import EventSource
from holdfast.model.gpu import Gpu, GpuCondition, GpuUse
from holdfast.model.gpu_health import GpuState
from holdfast.model.xid_marks import GpuLook, Place
from holdfast.model.xids import Cure

_MPS = "mps"


class HealthTimes(Struct, frozen=True, kw_only=True):
    """In seconds: `beat` between looks without cause, `quiet` the quiet period, `wait` per wait.

    `breath` is the least between two looks, and two commits: Xids come in storms.
    """

    beat: float = 10.0
    quiet: float = 60.0
    wait: float = 5.0
    breath: float = 1.0


class Probe(EventSource, Protocol):
    """What is needed of NVML besides."""

    def condition(self, uuid: str, /) -> GpuCondition:
        """Return what is told of the GPU's state."""
        ...

    def use(self, uuid: str, /) -> GpuUse:
        """Return who uses the GPU or slice."""
        ...


def look_at(probe: Probe, gpu: Gpu, state: GpuState, *, at: float) -> GpuLook:
    """Ask *gpu*, of which *state* is known; it blocks. *at* is now."""
    waits_for_users = any(mark.cure is Cure.RESTART for mark in state.marks)
    return GpuLook(
        at=at,
        driver=state.driver,
        condition=probe.condition(gpu.uuid),
        users=_users(probe, gpu) if waits_for_users else None,
        mig=gpu.mig,
    )


def unanswered(at: float, patience: float) -> GpuLook:
    """Return the look at a GPU that gave no answer for *patience* seconds."""
    condition = GpuCondition(lost=f"no answer within {patience:g} s")
    return GpuLook(at=at, driver="", condition=condition)


def _users(probe: Probe, gpu: Gpu) -> Mapping[Place, frozenset[int] | None]:
    """Return who is on the GPU, slice by slice in MIG mode; the MPS server is nobody's program."""
    places: dict[Place, str] = (
        {(each.gi, each.ci): each.uuid for each in gpu.slices} if gpu.mig else {None: gpu.uuid}
    )
    found: dict[Place, frozenset[int] | None] = {}
    for place, uuid in places.items():
        use = probe.use(uuid)
        found[place] = (
            None
            if use.problem
            else frozenset(each.pid for each in use.processes if each.kind != _MPS)
        )
    return found
