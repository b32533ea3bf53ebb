"""`python -m oneholder [--operations N] [--depth D] [--seed S]`: how often two pods had one piece."""

import argparse
import logging
import random
import sys
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TypeVar, cast

import structlog
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import invariant, run_state_machine_as_test
from msgspec.structs import replace

from fakes.books import HALF, WHOLE
from holdfast.model.book.book import Allocation, DeviceLock, same_holder
from holdfast.model.book.draft import Draft
from holdfast.model.ids import HardwareKey
from oneholder.orders import orders, play
from oneholder.twodoors import TwoDoors
from oneholder.world import REPLICA, SHARE, VFIO, Killed, OneHolder, Pod

T = TypeVar("T")

_WAYS = {WHOLE: "number", REPLICA: "share", HALF: "slice", SHARE: "s-share", VFIO: "vfio"}
_CLAIM, _CLAIMED_SHARE = "claim", "c-share"
_ASKED = (*_WAYS.values(), _CLAIM, _CLAIMED_SHARE)

_WORLDS = 50
"""Worlds between two looks at how many operations there were."""


@dataclass
class Tally:
    """What was tried by one of the doors, or both.

    An operation is anything that a scheduler, kubelet, a pod, the kernel, a person or the daemon
    does. A crash ends the daemon at a statement of a commit, which leaves what SIGKILL leaves. An
    interleaving is one order of operations, from an empty node on.
    """

    operations: int = 0
    crashes: int = 0
    interleavings: int = 0
    grants: int = 0
    """Starts that passed a gate, and claims that were prepared."""
    double_grants: int = 0
    """Those of which another live pod had hardware."""
    waits: dict[tuple[str, str], set[int]] = field(default_factory=lambda: defaultdict(set))
    """The interleavings in which somebody waited, by how another had the hardware and how it was
    asked for."""
    met: Counter[str] = field(default_factory=Counter)
    """How often the faults met something that they matter to."""
    other_failures: int = 0
    """Such as hardware that a live pod may touch and that is locked for another, or a queue that stands still."""


class _Counted(OneHolder):
    """The world of the device plugin, counting."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        super().__init__()
        self.met = tally.met
        tally.interleavings += 1
        tally.operations -= 1  # the look at the empty node follows no operation

    @invariant()
    def one_more_operation(self) -> None:
        self._tally.operations += 1
        for lock in self.book.locks.values():
            for each in self.book.holdings.contending(lock.keys):
                if each.id != lock.allocation and not same_holder(each, lock):
                    self._tally.waits[_way(lock), _way(each)].add(self._tally.interleavings)

    def _commit(self, decide: Callable[[Draft], T], crash: int | None) -> T:
        try:
            return super()._commit(decide, crash)
        except Killed:
            self._tally.crashes += 1
            raise

    def _nobody_else_has(self, keys: frozenset[HardwareKey], but: Collection[Pod]) -> None:
        self._tally.grants += 1
        try:
            super()._nobody_else_has(keys, but)
        except AssertionError:
            self._tally.double_grants += 1
            raise


def _way(each: Allocation | DeviceLock) -> str:
    """Return how whoever has *each*, or waits for it, has asked."""
    resource = each.device.resource if isinstance(each, DeviceLock) else each.resource
    if each.claim is not None:
        return _CLAIMED_SHARE if resource == REPLICA else _CLAIM
    return _WAYS[resource]


class _CountedTwoDoors(_Counted, TwoDoors):
    """The world of pods and claims, counting."""


def main() -> int:
    """Run, print a line for each world, and return 1 where a promise did not hold."""
    parser = argparse.ArgumentParser(prog="oneholder", description=__doc__)
    parser.add_argument("--operations", type=int, default=10_000, help="at least, in each world")
    parser.add_argument("--seed", type=int, help="try the same worlds again")
    parser.add_argument("--depth", type=int, default=1, help="variants of each order of claims")
    options = parser.parse_args()
    first = options.seed if options.seed is not None else random.randrange(1 << 32)
    kept = _try_orders(options.depth, first)
    for doors, world in (("device plugin", _Counted), ("both", _CountedTwoDoors)):
        kept &= _try(doors, world, options.operations, first)
    return int(not kept)


def _try_orders(depth: int, first: int) -> bool:
    """Play every order of six steps of two pods on one claim, and return whether all was kept.

    Each is played with the daemon killed at once, and again with it killed within its work.
    """
    chosen = random.Random(first)
    silent = structlog.make_filtering_bound_logger(logging.CRITICAL)
    structlog.configure(wrapper_class=silent)  # each crash and each refusal would be told
    plays, broken, steps, forced = 0, 0, set(), 0
    for order in orders(depth, chosen):
        steps.add(order.steps)
        tried, played = order, play(order)
        plays, forced = plays + 1, forced + bool(played.forced)
        if not played.broken and played.points:
            tried = replace(order, crash=chosen.randint(1, played.points))
            played = play(tried)
            plays += 1
        if played.broken:
            broken += 1
            print(f"{tried}: {played.broken}", flush=True)
    print(
        f"one-holder: orders={len(steps)} plays={plays} with a claim ended twice at once={forced} "
        f"broken promises={broken} (SEED={first})",
        flush=True,
    )
    structlog.reset_defaults()
    return not broken


def _try(doors: str, world: type[_Counted], operations: int, first: int) -> bool:
    tally, number, kept = Tally(), first, True
    while kept and tally.operations < operations:
        kept = _some_worlds(world, tally, number)
        number += 1
    print(
        f"one-holder: doors={doors} operations={tally.operations} crashes={tally.crashes} "
        f"interleavings={tally.interleavings} grants={tally.grants} "
        f"double grants={tally.double_grants} other failures={tally.other_failures} (SEED={first})",
        flush=True,
    )
    print("Met:", "; ".join(f"{each} {count}" for each, count in sorted(tally.met.items())))
    print("In how many interleavings somebody waited, by what another had (rows) and asked for:")
    print(f"{'':>8}", *(f"{asked:>8}" for asked in _ASKED))
    for had in _ASKED:
        print(f"{had:>8}", *(f"{len(tally.waits[had, asked]):>8}" for asked in _ASKED))
    return kept


def _some_worlds(world: type[_Counted], tally: Tally, number: int) -> bool:
    """Return whether everything held in some more worlds, which are those of *number*."""

    def made() -> OneHolder:
        return world(tally)

    try:
        run_state_machine_as_test(
            cast("type[OneHolder]", seed(number)(made)),  # whatever returns one will do
            settings=settings(
                max_examples=_WORLDS,
                stateful_step_count=40,
                phases=[Phase.generate],
                report_multiple_bugs=False,
                database=None,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    except AssertionError:
        traceback.print_exc()
        tally.other_failures += not tally.double_grants
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
