"""What is written of who waits and what is held, as time passes and writes fail."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from fakes.books import BOOT, WHOLE, X, device_lock, inventory, name, silicon
from fakes.observers import Observed
from fakes.standings import BookOnly, device_standings
from holdfast.app.watches.notices import Notices
from holdfast.errors import ApiServerError
from holdfast.model.book.book import Book, DeviceLock, LockState, PodRecord
from holdfast.model.events import Condition, Notice, StoredCondition
from holdfast.model.gate.gate import WaitReport
from holdfast.runtime.watched import Watched
from manual_clock import ManualClock
from waiting import beside

D0 = name("d0")
NODE = inventory({WHOLE: silicon(d0="a")})


class Cluster:
    """What was written to it; it refuses while `away`."""

    def __init__(self) -> None:
        self.away = False
        self.events: list[Notice] = []
        self.stored = StoredCondition()
        self.tries = 0
        self.patches = 0

    async def write_event(self, notice: Notice, *, at: float) -> None:
        self.tries += 1
        self._answer()
        self.events.append(notice)

    async def read_condition(self) -> StoredCondition:
        self._answer()
        return self.stored

    async def write_condition(
        self, condition: Condition, *, since: str, at: float
    ) -> StoredCondition:
        self._answer()
        self.patches += 1
        self.stored = StoredCondition(condition=condition, since=since or f"at {at:.0f}")
        return self.stored

    def _answer(self) -> None:
        if self.away:
            raise ApiServerError("cannot ask the API server")


def lock(state: LockState, fence: int) -> DeviceLock:
    return device_lock(D0, "a", state=state, fence=fence, since=0.0, pod=X)


class Scene:
    """A node on which pod X may wait, and the device d0 be held."""

    def __init__(self, book: Book | None = None) -> None:
        self.clock = ManualClock()
        self.cluster = Cluster()
        self.waiting: list[WaitReport] = []
        self.looked = asyncio.Event()
        self.observed = Observed()
        pod = PodRecord(uid=X, boot=BOOT, namespace="team", name="x")
        self.book = Watched(replace(book or Book(), pods={X: pod}))
        ledger = BookOnly(self.book)
        self.notices = Notices(
            ledger=cast("Any", ledger),
            entries=[cast("Any", SimpleNamespace(waiting=lambda _now: self.waiting))],
            standings=device_standings(ledger, Watched(NODE), self.clock),
            looked=self.looked,
            cluster=cast("Any", self.cluster),
            clock=self.clock,
            patience=Watched(30.0),
            refused=lambda: "",
            wrote=self.observed.wrote_notice,
        )

    def wait(self, why: str = "in use") -> None:
        self.waiting = [WaitReport(pods=frozenset({X}), why=why, seconds=5.0)]

    def lock(self, state: LockState) -> None:
        fence = self.book.value.fence + 1
        self.book.set(replace(self.book.value, fence=fence, locks={D0: lock(state, fence)}))

    @property
    def status(self) -> bool | None:
        stored = self.cluster.stored.condition
        return None if stored is None else stored.status


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    made.looked.set()
    async with running(made):
        yield made


@contextlib.asynccontextmanager
async def running(scene: Scene) -> AsyncIterator[Scene]:
    async with beside(scene.notices.run()):
        yield scene


async def test_nothing_is_said_before_the_node_was_looked_at() -> None:
    async with running(Scene()) as scene:
        scene.wait()
        await scene.clock.advance(60.0)
        assert scene.cluster.events == []
        assert scene.status is None


async def test_what_a_former_daemon_told_of_still_counts_after_a_restart() -> None:
    before = Book(fence=7, locks={D0: lock(LockState.RELEASING, 7)})
    async with running(Scene(before)) as scene:
        scene.looked.set()
        await scene.clock.advance(1.0)
        assert scene.status is True


async def test_a_wait_is_told_once_and_again_when_the_reason_is_another(scene: Scene) -> None:
    scene.wait()
    await scene.clock.advance(50.0)
    assert len(scene.cluster.events) == 1
    scene.wait("another")
    await scene.clock.advance(5.0)
    assert len(scene.cluster.events) == 1
    await scene.clock.advance(10.0)
    assert [each.text for each in scene.cluster.events] == ["in use", "another"]


async def test_an_event_that_fails_is_counted_and_tried_again_while_it_is_so(scene: Scene) -> None:
    scene.cluster.away = True
    scene.wait()
    await scene.clock.advance(200.0)
    assert 2 <= scene.cluster.tries <= 4
    assert scene.observed.notices.count(("pod", False)) == scene.cluster.tries
    scene.cluster.away = False
    await scene.clock.advance(130.0)
    assert len(scene.cluster.events) == 1
    assert ("pod", True) in scene.observed.notices


async def test_a_failure_is_logged_once_and_its_end_with_the_next_event(scene: Scene) -> None:
    with capture_logs() as logged:
        scene.cluster.away = True
        scene.wait()
        await scene.clock.advance(400.0)
        told = [each["event"] for each in logged if each["what"] == "Events"]
        assert told == ["cannot notify the cluster"]
        scene.cluster.away = False
        await scene.clock.advance(130.0)
    told = [each["event"] for each in logged if each["what"] == "Events"]
    assert told == ["cannot notify the cluster", "cluster can be notified again"]


async def test_an_event_that_fails_and_is_so_no_more_is_dropped(scene: Scene) -> None:
    scene.cluster.away = True
    scene.wait()
    await scene.clock.advance(10.0)
    scene.waiting = []
    scene.cluster.away = False
    await scene.clock.advance(300.0)
    assert scene.cluster.events == []


async def test_the_condition_follows_what_is_held_for_long(scene: Scene) -> None:
    await scene.clock.advance(1.0)
    assert scene.status is False
    first = scene.cluster.stored.since
    scene.lock(LockState.RELEASING)
    await scene.clock.advance(29.0)
    assert scene.status is False
    await scene.clock.advance(5.0)
    assert scene.status is True
    assert scene.cluster.stored.since != first
    scene.book.set(replace(scene.book.value, locks={}))
    await scene.clock.advance(10.0)
    assert scene.status is False


async def test_a_condition_that_stays_is_written_rarely_and_keeps_its_beginning(
    scene: Scene,
) -> None:
    await scene.clock.advance(1700.0)
    first = scene.cluster.stored
    assert scene.cluster.patches == 1
    await scene.clock.advance(300.0)
    assert scene.cluster.patches == 2
    assert scene.cluster.stored == first


async def test_a_condition_that_is_there_already_keeps_its_beginning(scene: Scene) -> None:
    condition = Condition(status=False, reason="NoDeviceHeld", message="of a former daemon")
    scene.cluster.stored = StoredCondition(condition=condition, since="long ago")
    await scene.clock.advance(1.0)
    assert scene.cluster.stored.since == "long ago"
    assert scene.cluster.patches == 1


async def test_a_condition_that_cannot_be_written_is_counted_and_written_later(
    scene: Scene,
) -> None:
    scene.cluster.away = True
    scene.lock(LockState.QUARANTINED)
    await scene.clock.advance(30.0)
    assert ("condition", False) in scene.observed.notices
    scene.cluster.away = False
    await scene.clock.advance(70.0)
    assert scene.status is True
    assert [written for about, written in scene.observed.notices if about == "condition"][
        -1
    ] is True
