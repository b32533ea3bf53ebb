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
from holdfast.ledger.ages import LockAges
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.locks import Move
from holdfast.model.events.condition import Condition, Stored, condition_of, is_due
from holdfast.model.events.kept import KeptDevice, kept_devices
from holdfast.model.events.notices import History, Notice, due, noted, notices
from holdfast.model.events.reclaims import reclaims_in
from holdfast.model.gate.waiting import Waiting
from holdfast.model.ids import DeviceName
from holdfast.runtime.clock import Clock, backoff
from holdfast.runtime.watched import Watched

log = structlog.get_logger(__name__)

_BEAT = 1.0
"""Seconds between two looks at who waits and what is held: nothing of it goes over the network."""
_FIRST_PAUSE, _LAST_PAUSE = 5.0, 60.0


class Events(Protocol):
    """Writes Events; see `apiserver.events`."""

    async def write(self, notice: Notice, *, at: float) -> None:
        """Write *notice*, which was so *at* (seconds since the epoch); raise ApiServerError."""
        ...


class ConditionOfNode(Protocol):
    """Reads and writes the node's condition; see `apiserver.nodecondition`."""

    async def read(self) -> Stored:
        """Return the condition as it is stored; raise ApiServerError."""
        ...

    async def write(self, condition: Condition, *, since: str, at: float) -> Stored:
        """Write *condition*, and return it as it is stored; raise ApiServerError."""
        ...


class Notices:
    """Looks every second at what is to be told, and writes what is due."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        waiting: Callable[[float], Iterable[Waiting]],
        obstacle: Callable[[DeviceName], str],
        looked: asyncio.Event,
        events: Events,
        condition: ConditionOfNode,
        clock: Clock,
        patience: Watched[float],
        refused: Callable[[], str] = lambda: "",
    ) -> None:
        """Tell of devices that are not free for *patience* seconds, once the node was *looked* at.

        *waiting* returns who waits at a moment (monotonic seconds); *obstacle* says what was last
        seen to keep a device from its next pod, empty for nothing; *refused* why the configuration
        as it is now is not in use.
        """
        self._ledger = ledger
        self._waiting = waiting
        self._obstacle = obstacle
        self._looked = looked
        self._events = events
        self._condition = condition
        self._clock = clock
        self._patience = patience
        self._refused = refused
        self._ages = LockAges(clock)
        self._inherited = ledger.book.value.fence
        """The last move before this daemon: what was held then has been told, and still counts."""
        self._history: History = {}
        self._reclaims = reclaims_in(ledger.book.value)
        self._stored: Stored | None = None
        self._stored_at = -math.inf
        self.observe: Callable[[str, bool], None] = lambda _about, _written: None
        """Hears of each try: about the ``pod``, the ``node`` or its ``condition``; if it worked."""

    def moved(self, moves: Iterable[Move]) -> None:
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
        problem = ""
        while True:
            try:
                written = await act()
            except ApiServerError as error:
                if str(error) != problem:
                    log.warning("cannot notify the cluster", what=what, reason=str(error))
                problem = str(error)
                await self._clock.sleep(next(pauses))
            else:
                if written and problem:
                    log.info("cluster can be notified again", what=what)
                    problem = ""
                    pauses = backoff(_FIRST_PAUSE, _LAST_PAUSE)
            await self._clock.sleep(_BEAT)

    async def _tell(self) -> bool:
        """Write the Events that are due; raise ApiServerError at the first that cannot be."""
        now = self._clock.monotonic()
        self._reclaims = self._reclaims.lately(now)
        book, done = self._ledger.book.value, self._reclaims.done.values()
        found = notices(book, self._waiting(now), self._kept(), done, self._refused())
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
        book = self._ledger.book.value
        self._ages.note(book)
        ages = {
            name: math.inf if lock.fence <= self._inherited else self._ages.age(lock)
            for name, lock in book.locks.items()
        }
        return kept_devices(book, ages, patience=self._patience.value, obstacle=self._obstacle)

    @contextlib.contextmanager
    def _counted(self, about: str) -> Iterator[None]:
        try:
            yield
        except ApiServerError:
            self.observe(about, False)
            raise
        self.observe(about, True)
