"""The adapter of TPU chips as a node without settings for them has it."""

from collections.abc import Callable
from typing import TypeVar

from fakes.lanes import NewLanes
from holdfast.model.tpu.env import TpuEnvFile, TpuHostFacts
from holdfast.model.tpu.generations import TPU_RESOURCE
from holdfast.runtime.lane import Lanes
from holdfast.runtime.watched import Watched
from holdfast.vendors.tpu.adapter import Tpus

_Kind = TypeVar("_Kind", bound=Tpus)


def tpus_of(
    kind: type[_Kind],
    *,
    from_file: Callable[[], TpuEnvFile] = TpuEnvFile,
    lanes: Lanes | None = None,
) -> _Kind:
    """Return the adapter as *kind*."""
    return kind(
        resource=TPU_RESOURCE,
        pools=(),
        configured=TpuHostFacts(),
        generation="",
        gke_keys=Watched(False),
        from_file=from_file,
        lanes=lanes or NewLanes(),
    )


def plain_tpus() -> Tpus:
    return tpus_of(Tpus)
