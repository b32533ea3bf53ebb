"""Tells who is at work on one GPU, and keeps in the ledger what is known of all."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import HoldfastError
from holdfast.ledger.topic import LedgerTopic
from holdfast.model.book.book import Book
from holdfast.model.book.claims import admins_on
from holdfast.model.ids import HardwareKey
from holdfast.model.nvidia.free import (
    GpuRules,
    access_of,
    bystander,
    granted_on,
)
from holdfast.model.nvidia.gpu import Gpu, GpuCondition, GpuUse
from holdfast.model.nvidia.xids import GpuObservation, Place
from holdfast.model.use.holders import Holder
from holdfast.runtime.clock import Clock
from holdfast.runtime.problem import Problem
from holdfast.runtime.watched import Watched

if TYPE_CHECKING:
    from holdfast.host.nvidia.nvml import Nvml

T = TypeVar("T", bound=Struct)


class HealthTimes(Struct, frozen=True, kw_only=True):
    """In seconds: `beat` is between looks without cause, `quiet` the quiet period.

    `event_wait` is how long one wait for events blocks; `breath` the least between two looks, and
    two commits: Xids come in storms.
    """

    beat: float
    quiet: float
    event_wait: float = 1.0
    breath: float = 1.0


class GpuUsers(Struct, frozen=True, kw_only=True):
    """Tells which of the processes that NVML names on a GPU are somebody's work.

    The MPS server, a display and monitoring agents stay when the work is over.
    """

    named: Callable[[Iterable[int]], Mapping[int, Holder]]
    """Describes pids, and blocks; those of which nothing is known are left out."""
    book: Callable[[], Book]
    rules: Watched[GpuRules]

    def at_work(self, probe: "Nvml", gpu: Gpu) -> Mapping[Place, frozenset[int] | None]:
        """Return who is at work on *gpu*, slice by slice in MIG mode; it blocks.

        None where NVML does not tell who uses it.
        """
        places: list[tuple[Place, str, frozenset[HardwareKey]]] = [(None, gpu.uuid, gpu.keys)]
        if gpu.mig:
            places = [
                ((each.gi, each.ci), each.uuid, frozenset({gpu.key_of(each), gpu.key}))
                for each in gpu.slices
            ]
        uses = ((place, probe.use(uuid), keys) for place, uuid, keys in places)
        return {
            place: None if use.problem else self._working(use, keys) for place, use, keys in uses
        }

    def _working(self, use: GpuUse, keys: frozenset[HardwareKey]) -> frozenset[int]:
        """Return the pids on the GPU or slice with *keys* that are no bystanders."""
        book = self.book()
        to = granted_on(keys, book.locks, admins_on(book, keys))
        kinds: dict[int, set[str]] = defaultdict(set)
        for each in use.processes:
            kinds[each.pid].add(each.kind)
        named = self.named(kinds)
        return frozenset(
            pid
            for pid, ways in kinds.items()
            if (holder := named.get(pid)) is None
            or bystander(replace(holder, access=access_of(ways)), to, self.rules.value) is None
        )


def unanswered(at: float, patience: float) -> GpuObservation:
    """Return the look at a GPU that gave no answer for *patience* seconds."""
    condition = GpuCondition(lost=f"no answer within {patience:g} s")
    return GpuObservation(at=at, driver="", condition=condition)


async def keep(
    values: Watched[Mapping[str, T]],
    kept: LedgerTopic[T],
    problem: Problem,
    clock: Clock,
    *,
    breath: float = 1.0,
) -> None:
    """Keep the latest of *values*, until cancelled, and note in *problem* why it cannot be.

    Between two tries are *breath* seconds.
    """
    async for _ in values.follow():
        while True:
            with problem.noting(HoldfastError):
                await kept.keep(values.value)
            await clock.sleep(breath)
            if not problem.text:
                break
