"""Tells the cluster what keeps pods from their devices, by Events and by a condition of the node.

Nothing waits for it. What cannot be written is counted, and tried again while it is still so.
"""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Protocol

import structlog

from holdfast.errors import ApiServerError
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.standings import DeviceStandings
from holdfast.model.book.book import Move
from holdfast.model.events import (
    Condition,
    History,
    KeptDevice,
    Notice,
    StoredCondition,
    condition_of,
    due,
    is_due,
    kept_devices,
    noted,
    notices,
    reclaims_in,
)
from holdfast.model.gate.gate import WaitReport
from holdfast.runtime.clock import Clock, backoff
from holdfast.runtime.problem import Problem
from holdfast.runtime.watched import Watched

log = structlog.get_logger(__name__)

_BEAT = 1.0
"""Seconds between two looks at who waits and what is held: nothing of it goes over the network."""
_FIRST_PAUSE, _LAST_PAUSE = 5.0, 60.0


class EventWriter(Protocol):
    """Writes Events; see `apiserver.events`."""

    async def write(self, notice: Notice, *, at: float) -> None:
        """Write *notice*, which was so *at* (seconds since the epoch); raise ApiServerError."""
        ...


class ConditionOfNode(Protocol):
    """Reads and writes the node's condition; see `apiserver.nodecondition`."""

    async def read(self) -> StoredCondition:
        """Return the condition as it is stored; raise ApiServerError."""
        ...

    async def write(self, condition: Condition, *, since: str, at: float) -> StoredCondition:
        """Write *condition*, and return it as it is stored; raise ApiServerError."""
        ...


class WaitingPods(Protocol):
    """Knows which pods wait at a door; see `allocation.entry`."""

    def waiting(self, now: float) -> Iterable[WaitReport]:
        """Return who waits at *now*, in monotonic seconds."""
        ...


class ConfigurationState(Protocol):
    """Knows whether the configuration can be used; see `app.wiring.live`."""

    @property
    def refused(self) -> str:
        """Return why it is not in use as it is now; empty: it is."""
        ...


class NoticeObserver(Protocol):
    """Hears of what is written of waiting pods and held devices."""

    def wrote_notice(self, about: str, written: bool) -> None:
        """Hear of a try about a ``pod``, the ``node`` or its ``condition``; if it worked."""
        ...


class Notices:
    """Looks every second at what is to be told, and writes what is due."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        entries: Iterable[WaitingPods],
        standings: DeviceStandings,
        looked: asyncio.Event,
        events: EventWriter,
        condition: ConditionOfNode,
        clock: Clock,
        patience: Watched[float],
        configuration: ConfigurationState,
        observer: NoticeObserver,
    ) -> None:
        """Tell of devices that are not free for *patience* seconds, once the node was *looked* at.

        Pods wait at each of *entries*.
        """
        self._ledger = ledger
        self._entries = tuple(entries)
        self._standings = standings
        self._looked = looked
        self._events = events
        self._condition = condition
        self._clock = clock
        self._patience = patience
        self._configuration = configuration
        self._observer = observer
        self._history: History = {}
        self._reclaims = reclaims_in(ledger.book.value)
        self._stored: StoredCondition | None = None
        self._stored_at = -math.inf

    def committed(self, moves: tuple[Move, ...], _seconds: float) -> None:
        """Hear that locks moved."""
        book, now = self._ledger.book.value, self._clock.monotonic()
        self._reclaims = self._reclaims.followed(moves, book, now)

    async def run(self) -> None:
        """Look, and write what is due, until cancelled."""
        await self._looked.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._repeat("Events", self._tell), name="Events")
            group.create_task(self._repeat("node condition", self._show), name="node condition")

    async def _repeat(self, what: str, act: Callable[[], Awaitable[bool]]) -> None:
        """Do *act* at each beat; after a failure at growing pauses, which do not stop the other.

        It tells whether it wrote anything: only that shows that the server takes it again.
        """
        pauses = backoff(_FIRST_PAUSE, _LAST_PAUSE)
        problem = Problem(
            log, "cannot notify the cluster", over="cluster can be notified again", what=what
        )
        while True:
            try:
                written = await act()
            except ApiServerError as error:
                problem.set(str(error))
                await self._clock.sleep(next(pauses))
            else:
                if written and problem.text:
                    problem.set("")
                    pauses = backoff(_FIRST_PAUSE, _LAST_PAUSE)
            await self._clock.sleep(_BEAT)

    async def _tell(self) -> bool:
        """Write the Events that are due; raise ApiServerError at the first that cannot be."""
        now = self._clock.monotonic()
        self._reclaims = self._reclaims.lately(now)
        book, done = self._ledger.book.value, self._reclaims.done.values()
        waiting = [each for entry in self._entries for each in entry.waiting(now)]
        refused = self._configuration.refused
        found = notices(book, waiting, self._kept(), done, refused)
        wanted = due(found, self._history, now)
        for notice in wanted:
            about = "node" if notice.pod is None else "pod"
            self._history = noted(self._history, notice, now, failed=True)  # until it is written
            with self._counted(about):
                await self._events.write(notice, at=self._clock.wall())
            self._history = noted(self._history, notice, self._clock.monotonic(), failed=False)
        return bool(wanted)

    async def _show(self) -> bool:
        """Bring the node's condition in line, if that is due; raise ApiServerError."""
        wanted, now = condition_of(self._kept()), self._clock.monotonic()
        former = self._stored
        if former is not None and not is_due(wanted, former.condition, now - self._stored_at):
            return False
        self._stored = None  # until the server has answered, it is not known what it has
        with self._counted("condition"):
            before = former or await self._condition.read()
            same = before.condition is not None and before.condition.status is wanted.status
            self._stored = await self._condition.write(
                wanted, since=before.since if same else "", at=self._clock.wall()
            )
        self._stored_at = now
        return True

    def _kept(self) -> tuple[KeptDevice, ...]:
        return kept_devices(
            self._standings.now(),
            self._ledger.book.value.marks,
            patience=self._patience.value,
            now=self._clock.uptime(),
        )

    @contextlib.contextmanager
    def _counted(self, about: str) -> Iterator[None]:
        try:
            yield
        except ApiServerError:
            self._observer.wrote_notice(about, False)
            raise
        self._observer.wrote_notice(about, True)
