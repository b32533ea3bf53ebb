"""Looks at one GPU, and keeps in the ledger what is known of all."""

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
from holdfast.model.nvidia.health import GpuState
from holdfast.model.nvidia.xids import Cure, GpuObservation, Place
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

    def at_work(self, use: GpuUse, keys: frozenset[HardwareKey]) -> frozenset[int]:
        """Return the pids on the GPU or slice with *keys* that are no bystanders; it blocks."""
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


def observe(
    probe: "Nvml", gpu: Gpu, state: GpuState, *, at: float, driver: str, users: GpuUsers
) -> GpuObservation:
    """Ask *gpu*, of which *state* is known, of *driver*; it blocks. *at* is now."""
    waits_for_users = any(record.cure is Cure.RESTART for record in state.xids)
    return GpuObservation(
        at=at,
        driver=driver,
        condition=probe.condition(gpu.uuid),
        users=_users(probe, gpu, users) if waits_for_users else None,
        mig=gpu.mig,
    )


def unanswered(at: float, patience: float) -> GpuObservation:
    """Return the look at a GPU that gave no answer for *patience* seconds."""
    condition = GpuCondition(lost=f"no answer within {patience:g} s")
    return GpuObservation(at=at, driver="", condition=condition)


def _users(probe: "Nvml", gpu: Gpu, users: GpuUsers) -> Mapping[Place, frozenset[int] | None]:
    """Return who is at work on the GPU, slice by slice in MIG mode."""
    places: dict[Place, tuple[str, frozenset[HardwareKey]]] = (
        {
            (each.gi, each.ci): (each.uuid, frozenset({gpu.key_of(each), gpu.key}))
            for each in gpu.slices
        }
        if gpu.mig
        else {None: (gpu.uuid, gpu.keys)}
    )
    found: dict[Place, frozenset[int] | None] = {}
    for place, (uuid, keys) in places.items():
        use = probe.use(uuid)
        found[place] = None if use.problem else users.at_work(use, keys)
    return found


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
