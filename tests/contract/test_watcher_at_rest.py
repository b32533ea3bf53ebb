"""What the watcher leaves out while nothing changes, and what it does all the same."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fakes.books import X, allocated, entry, seen, silicon
from fakes.watchers import WatchedFolder, watcher_below
from holdfast.model.kubelet import CheckpointEntry
from holdfast.reclaim.watcher import Watcher
from waiting import beside, until

_TIMEOUT = 40.0
"""Less than what passes until nothing new is compared all the same."""


@asynccontextmanager
async def _node(
    folder: Path, *entries: CheckpointEntry
) -> AsyncIterator[tuple[Watcher, WatchedFolder]]:
    """Yield the watcher of a node with one device, which a pod may have."""
    async with watcher_below(
        folder, view=lambda clock: seen(*entries, read_at=clock.uptime() + 1.0), timeout=_TIMEOUT
    ) as on:
        await on.ledger.apply(allocated(silicon(d0="a")))
        await until(lambda: on.ledger.book.value.allocations)
        yield on.watcher, on


@pytest.mark.parametrize("passed", [False, True])
async def test_an_allocation_that_no_pod_is_named_for_ends_in_time_although_nothing_changes(
    tmp_path: Path, passed: bool
) -> None:
    async with _node(tmp_path) as (watcher, on):
        await watcher.catch_up()
        on.clock.shift(_TIMEOUT / 2)
        await watcher.catch_up()
        assert on.ledger.book.value.allocations
        on.clock.shift(_TIMEOUT / 2 if passed else _TIMEOUT / 2 - 1.0)
        await watcher.catch_up()
        if passed:
            await until(lambda: not on.ledger.book.value.allocations)
        assert bool(on.ledger.book.value.allocations) is not passed


async def test_that_a_holder_has_ended_makes_kubelet_worth_asking_at_once(tmp_path: Path) -> None:
    async with _node(tmp_path, entry(X, "d0")) as (watcher, on), beside(watcher.run()):
        await until(lambda: watcher.compared_at is not None)
        assert not on.reader.asked
        on.use.exits.set(1)
        await until(lambda: on.reader.asked)
