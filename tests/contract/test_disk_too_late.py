"""Who is before whom, where the ledger's disk could not record that in its time."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
import yaml
from structlog.testing import capture_logs

from fakes.allocators import allocator
from fakes.books import WHOLE, X, Y, allocated, device_of, entry, ids, name, seen, silicon
from fakes.ledgers import ledger_in
from fakes.tpus import plain_tpus
from fakes.watchers import watcher_below
from holdfast.allocation.allocator import Allocator
from holdfast.discovery.source import Sources
from holdfast.errors import LaneStuckError
from holdfast.ledger import ledger as closing_in
from holdfast.ledger.ledger import CLOSES_IN, Ledger
from holdfast.model.book.draft import Draft
from holdfast.model.devices import Inventory
from holdfast.model.ids import DeviceId
from holdfast.runtime.clock import Clock
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched
from manual_clock import ManualClock


@asynccontextmanager
async def _node(
    folder: Path, clock: Clock | None = None
) -> AsyncIterator[tuple[Ledger, Lane, Allocator]]:
    """Yield an allocator of three devices, with the lane of its looks; it waits for no disk."""
    devices = tuple(device_of(name(each), f"pci/{each}", source="tpu") for each in "abc")
    inventory = Watched(Inventory(resources=(WHOLE,), devices=devices))
    with closing(Lane("kubelet", deadline=60.0)) as lane:
        async with ledger_in(folder) as ledger:
            limit = Watched(0.05)
            sources = Sources([plain_tpus()])
            made = allocator(ledger, inventory, sources, lane, commit_timeout=limit, clock=clock)
            yield ledger, lane, made
            limit.set(60.0)


@asynccontextmanager
async def _hanging(lane: Lane) -> AsyncIterator[None]:
    """Let every call on *lane* wait."""
    answers = threading.Event()
    call = asyncio.create_task(lane.run(answers.wait))
    await asyncio.sleep(0)  # it is in the queue first
    try:
        yield
    finally:
        answers.set()
        await call


async def _takes_no_write(ledger: Ledger, *, on: bool) -> None:
    sqlite = ledger.store._db
    await ledger.lane.run(lambda: sqlite.execute(f"PRAGMA query_only = {'ON' if on else 'OFF'}"))


@pytest.mark.parametrize("fault", ["fails", "hangs", "the look hangs"])
async def test_allocates_that_could_not_be_recorded_are_in_the_book_before_the_next(
    tmp_path: Path, fault: str
) -> None:
    async with _node(tmp_path) as (ledger, lane, made):
        if fault == "fails":
            await _takes_no_write(ledger, on=True)
            await made.allocate(WHOLE, (DeviceId("b"),))
            await made.allocate(WHOLE, (DeviceId("a"),))
            await _takes_no_write(ledger, on=False)
        else:
            async with _hanging(ledger.lane if fault == "hangs" else lane):
                await made.allocate(WHOLE, (DeviceId("b"),))
                await made.allocate(WHOLE, (DeviceId("a"),))
        assert not ledger.book.value.allocations
        assert ledger.may_lack((WHOLE, ids("a")))
        made.commit_timeout.set(60.0)
        await made.allocate(WHOLE, (DeviceId("c"),))
        assert [each.ids for each in ledger.book.value.queue()] == [ids(each) for each in "bac"]
        assert not ledger.may_lack((WHOLE, ids("a")))


async def test_the_look_and_the_commit_have_the_commit_timeout_together(tmp_path: Path) -> None:
    clock = ManualClock()
    async with _node(tmp_path, clock) as (ledger, lane, made):
        made.commit_timeout.set(1.0)
        with capture_logs() as logs:
            async with _hanging(ledger.lane):
                async with _hanging(lane):
                    answer = asyncio.create_task(made.allocate(WHOLE, (DeviceId("a"),)))
                    await asyncio.sleep(0)  # it has begun
                    clock.shift(0.75)
                await answer
        (told,) = logs
        assert told["reason"] == "cannot wait for lane ledger: no answer within 0.25 s"


async def test_of_one_set_of_devices_the_last_allocate_alone_waits_for_a_dead_disk(
    tmp_path: Path,
) -> None:
    """Pods come and go for days there: what is remembered must not grow with them."""
    async with _node(tmp_path) as (ledger, _, made):
        await _takes_no_write(ledger, on=True)
        for each in "abaab":
            await made.allocate(WHOLE, (DeviceId(each),))
        await _takes_no_write(ledger, on=False)
        await ledger.apply(Draft.pay)
        assert [each.ids for each in ledger.book.value.queue()] == [ids("a"), ids("b")]
        assert not ledger._owed


async def test_what_is_committed_is_owed_until_the_book_that_is_published_shows_it(
    tmp_path: Path,
) -> None:
    """A start must not look for its Allocation in a book from before it."""
    async with _node(tmp_path) as (ledger, _, made):
        await _takes_no_write(ledger, on=True)
        await made.allocate(WHOLE, (DeviceId("a"),))
        await _takes_no_write(ledger, on=False)
        await ledger.lane.run(lambda: ledger._apply(Draft.pay))  # and not published yet
        assert ledger.may_lack((WHOLE, ids("a")))


async def test_what_changes_nothing_is_owed_no_longer(tmp_path: Path) -> None:
    """It would be written down in days, when it is no longer true."""
    async with ledger_in(tmp_path) as ledger:
        ledger.owe("nothing", lambda _draft: None)
        assert not await ledger.apply_if_changing(Draft.pay)
        assert not ledger.may_lack("nothing")


async def test_a_commit_that_comes_too_late_is_not_done_twice(tmp_path: Path) -> None:
    async with _node(tmp_path) as (ledger, _, made):
        sqlite, goes_on = ledger.store._db, threading.Event()
        await ledger.lane.run(lambda: sqlite.set_trace_callback(lambda _text: goes_on.wait()))
        await made.allocate(WHOLE, (DeviceId("a"),))
        assert ledger.may_lack((WHOLE, ids("a")))
        goes_on.set()
        made.commit_timeout.set(60.0)
        await made.allocate(WHOLE, (DeviceId("b"),))
        assert [each.ids for each in ledger.book.value.queue()] == [ids("a"), ids("b")]


async def test_who_kubelet_named_at_the_start_is_in_the_book_before_who_comes_later(
    tmp_path: Path,
) -> None:
    async with watcher_below(
        tmp_path,
        view=lambda clock: seen(entry(X, "d0"), read_at=clock.uptime() + 1.0),
        devices={WHOLE: silicon(d0="a", d1="b")},
    ) as on:
        await _takes_no_write(on.ledger, on=True)
        await on.watcher.catch_up()
        assert not on.ledger.book.value.allocations
        await _takes_no_write(on.ledger, on=False)
        await on.ledger.apply(allocated(silicon(d1="b")))
        queue = on.ledger.book.value.queue()
        assert [(each.pod, each.ids) for each in queue] == [(X, ids("d0")), (None, ids("d1"))]


async def test_what_kubelet_named_at_the_start_ends_nobody_when_it_is_written_down(
    tmp_path: Path,
) -> None:
    """A full disk still takes a start by an Allocation that is in the book."""
    async with watcher_below(
        tmp_path,
        view=lambda clock: seen(entry(X, "d0"), read_at=clock.uptime() + 1.0),
        devices={WHOLE: silicon(d0="a", d1="b", d2="c")},
    ) as on:
        await on.ledger.apply(allocated(silicon(d1="b")))
        await _takes_no_write(on.ledger, on=True)
        await on.watcher.catch_up()
        await _takes_no_write(on.ledger, on=False)
        await on.ledger.apply(_started_by_y)
        await on.ledger.apply(allocated(silicon(d2="c")))
        queue = [(each.pod, each.ids) for each in on.ledger.book.value.queue()]
        assert queue == [(Y, ids("d1")), (X, ids("d0")), (None, ids("d2"))]


def _started_by_y(draft: Draft) -> None:
    """Let the one Allocation be that of a pod that kubelet has named only now, and starts."""
    (each,) = draft.holdings.allocations.values()
    draft.identify(each, Y)
    draft.activate(each)


async def test_a_disk_that_hangs_at_the_end_is_given_up_before_the_pod_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chart = yaml.safe_load(Path("deploy/helm/holdfast/values.yaml").read_text())
    others = 10.0  # streams, Allocates in flight and connections to the API server come first
    assert CLOSES_IN + others < chart["terminationGracePeriodSeconds"]
    monkeypatch.setattr(closing_in, "CLOSES_IN", 0.05)
    async with _node(tmp_path) as (ledger, _, _), _hanging(ledger.lane):
        closed = asyncio.create_task(ledger.close())
        await asyncio.wait([closed], timeout=5.0)
        assert closed.done()
        with pytest.raises(LaneStuckError):
            closed.result()
