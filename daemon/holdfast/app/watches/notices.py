"""Tells the cluster what keeps pods from their devices, by Events and by a condition of the node.

Nothing waits for it. What cannot be written is counted, and tried again while it is still so.
"""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence

import structlog
from msgspec import Struct

from holdfast.allocation.entry import Entry
from holdfast.apiserver.events import ClusterNotices
from holdfast.errors import ApiServerError
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.standings import DeviceStandings
from holdfast.model.book.book import Move
from holdfast.model.events import (
    History,
    KeptDevice,
    Reclaims,
    StoredCondition,
    condition_of,
    due,
    is_due,
    kept_devices,
    noted,
    notices,
    reclaims_in,
)
from holdfast.runtime.clock import Clock, backoff
from holdfast.runtime.problem import Problem
from holdfast.runtime.watched import Watched

log = structlog.get_logger(__name__)

_BEAT = 1.0
"""Seconds between two looks at who waits and what is held: nothing of it goes over the network."""
_FIRST_PAUSE, _LAST_PAUSE = 5.0, 60.0


class Notices(Struct, kw_only=True):
    """Looks every second at what is to be told, and writes what is due.

    It tells of devices that are not free for `patience` seconds, once the node was `looked` at.
    Pods wait at each of `entries`. `refused` returns why the configuration as it is now is not in
    use; empty: it is. `wrote` hears of each try about a ``pod``, the ``node`` or its ``condition``,
    and whether it worked.
    """

    ledger: Ledger
    entries: Sequence[Entry]
    standings: DeviceStandings
    looked: asyncio.Event
    cluster: ClusterNotices
    clock: Clock
    patience: Watched[float]
    refused: Callable[[], str]
    wrote: Callable[[str, bool], None]
    _history: History = {}
    _reclaims: Reclaims = Reclaims()
    _stored: StoredCondition | None = None
    _stored_at: float = -math.inf

    def __post_init__(self) -> None:
        self._reclaims = reclaims_in(self.ledger.book.value)

    def committed(self, moves: tuple[Move, ...], _seconds: float) -> None:
        """Hear that locks moved."""
        book, now = self.ledger.book.value, self.clock.monotonic()
        self._reclaims = self._reclaims.followed(moves, book, now)

    async def run(self) -> None:
        """Look, and write what is due, until cancelled."""
        await self.looked.wait()
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
                await self.clock.sleep(next(pauses))
            else:
                if written and problem.text:
                    problem.set("")
                    pauses = backoff(_FIRST_PAUSE, _LAST_PAUSE)
            await self.clock.sleep(_BEAT)

    async def _tell(self) -> bool:
        """Write the Events that are due; raise ApiServerError at the first that cannot be."""
        now = self.clock.monotonic()
        self._reclaims = self._reclaims.lately(now)
        book, done = self.ledger.book.value, self._reclaims.done.values()
        waiting = [each for entry in self.entries for each in entry.waiting(now)]
        found = notices(book, waiting, self._kept(), done, self.refused())
        wanted = due(found, self._history, now)
        for notice in wanted:
            about = "node" if notice.pod is None else "pod"
            self._history = noted(self._history, notice, now, failed=True)  # until it is written
            with self._counted(about):
                await self.cluster.write_event(notice, at=self.clock.wall())
            self._history = noted(self._history, notice, self.clock.monotonic(), failed=False)
        return bool(wanted)

    async def _show(self) -> bool:
        """Bring the node's condition in line, if that is due; raise ApiServerError."""
        wanted, now = condition_of(self._kept()), self.clock.monotonic()
        former = self._stored
        if former is not None and not is_due(wanted, former.condition, now - self._stored_at):
            return False
        self._stored = None  # until the server has answered, it is not known what it has
        with self._counted("condition"):
            before = former or await self.cluster.read_condition()
            same = before.condition is not None and before.condition.status is wanted.status
            self._stored = await self.cluster.write_condition(
                wanted, since=before.since if same else "", at=self.clock.wall()
            )
        self._stored_at = now
        return True

    def _kept(self) -> tuple[KeptDevice, ...]:
        return kept_devices(
            self.standings.now(),
            self.ledger.book.value.marks,
            patience=self.patience.value,
            now=self.clock.uptime(),
        )

    @contextlib.contextmanager
    def _counted(self, about: str) -> Iterator[None]:
        try:
            yield
        except ApiServerError:
            self.wrote(about, False)
            raise
        self.wrote(about, True)
