"""Looks at one process after another, and leaves a thread behind if the kernel never answers.

Some files in /proc can block forever: while a mapping is removed in a stuck driver or on a dead
server, any reader of that process's maps or arguments waits behind it.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_MOST = 16
"""With more stuck threads than this, each process is looked at only carefully."""


class Visitor(Protocol[T_co]):
    """Looks at one process; returns None if there is nothing to keep."""

    def __call__(self, pid: int, *, careful: bool, beat: Callable[[], None]) -> T_co | None:
        """Visitor at *pid*. *careful*: read nothing that can hang. Call *beat* after each read."""
        ...


class Visits:
    """Remembers on which processes a thread is stuck, so that each blocks at most two threads.

    A process that blocked one look is looked at carefully while that thread is stuck. If it
    blocks a careful look too, it is not looked at. Several threads may use this at once.
    """

    def __init__(
        self,
        start_ticks: Callable[[int], int | None],
        *,
        patience: float = 2.0,
        later: float = 0.25,
    ) -> None:
        """Wait *patience* seconds for a read, and *later* seconds after one read got stuck.

        *start_ticks* tells a process from a later one with the same pid.
        """
        self._start_ticks = start_ticks
        self.patience = patience
        self._later = later
        self._lock = threading.Lock()
        self._held_up: dict[int, _HeldUp] = {}

    @property
    def hanging(self) -> frozenset[int]:
        """Return the pids on which a thread is still stuck in the kernel."""
        with self._lock:
            return frozenset(pid for pid, each in self._held_up.items() if each.hangs)

    def each(
        self, pids: Iterable[int], begin: Callable[[], Visitor[T]]
    ) -> tuple[dict[int, T], tuple[int, ...]]:
        """Return what the looks at *pids* found, and the pids that could not be looked at.

        *begin* makes a look. It is called again after a thread was left behind, so that the two
        threads share nothing. What a look raises is raised here.
        """
        found: dict[int, T] = {}
        unread: list[int] = []
        left = self._queue(pids, unread)
        patience = self.patience
        while left:
            stint = _Stint(left, found, begin())
            hung = stint.wait(patience)
            if hung is None:
                break
            pid, careful = hung
            patience = min(patience, self._later)
            self._remember(pid, stint.thread)
            again = [pid] if not careful else []
            unread += [pid] if careful else []
            # The number of stuck threads now decides how the rest are looked at.
            left = self._queue([*again, *(each for each, _ in left)], unread)
        return found, tuple(unread)

    def _queue(self, pids: Iterable[int], unread: list[int]) -> "deque[tuple[int, bool]]":
        """Return *pids*, each with whether to be careful; add those to skip to *unread*."""
        with self._lock:
            self._held_up = {pid: each for pid, each in self._held_up.items() if each.hangs}
            held_up = dict(self._held_up)
        if not held_up:
            return deque((pid, False) for pid in pids)
        threads = sum(each.hangs for each in held_up.values())
        left: deque[tuple[int, bool]] = deque()
        for pid in pids:
            times = self._times(pid, held_up)
            if times > 1 or threads >= 2 * _MOST:
                unread.append(pid)
            else:
                left.append((pid, times == 1 or threads >= _MOST))
        return left

    def _times(self, pid: int, held_up: "dict[int, _HeldUp]") -> int:
        known = held_up.get(pid)
        if known is None or known.start_ticks != self._start_ticks(pid):
            return 0
        return known.hangs

    def _remember(self, pid: int, thread: threading.Thread) -> None:
        ticks = self._start_ticks(pid)
        with self._lock:
            known = self._held_up.get(pid)
            before = known.threads if known is not None else ()
            self._held_up[pid] = _HeldUp(ticks, (*before, thread))


class _HeldUp:
    """The threads that are stuck on one process."""

    def __init__(self, start_ticks: int | None, threads: tuple[threading.Thread, ...]) -> None:
        self.start_ticks = start_ticks
        self.threads = threads

    @property
    def hangs(self) -> int:
        return sum(each.is_alive() for each in self.threads)


class _Stint(Generic[T]):
    """The work of one thread through the queue, until it is done or left behind."""

    def __init__(
        self, left: "deque[tuple[int, bool]]", found: dict[int, T], look: Visitor[T]
    ) -> None:
        self._left = left
        self._found = found
        self._look = look
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._abandoned = False
        self._error: BaseException | None = None
        self._at = (0, False)
        self._since = time.monotonic()
        self.thread = threading.Thread(target=self._work, name="visits", daemon=True)
        self.thread.start()

    def wait(self, patience: float) -> tuple[int, bool] | None:
        """Return None when all is done, or the pid on which the thread is stuck, and abandon it."""
        while not self._done.wait(max(0.001, self._since + patience - time.monotonic())):
            since = self._since
            if time.monotonic() - since < patience:
                continue
            # This whole process may have been stopped for a while; then the thread continues now.
            self._done.wait(patience / 4)
            with self._lock:
                if self._since == since and not self._done.is_set():
                    self._abandoned = True
                    return self._at
        if self._error is not None:
            raise self._error
        return None

    def _work(self) -> None:
        try:
            while self._next():
                pid, careful = self._at
                answer = self._look(pid, careful=careful, beat=self._beat)
                with self._lock:
                    if answer is not None and not self._abandoned:
                        self._found[pid] = answer
        except BaseException as error:  # noqa: BLE001 - handed to the caller, not hidden
            self._error = error
        finally:
            self._done.set()

    def _next(self) -> bool:
        with self._lock:
            if self._abandoned or not self._left:
                return False
            self._at = self._left.popleft()
            self._beat()
            return True

    def _beat(self) -> None:
        self._since = time.monotonic()
