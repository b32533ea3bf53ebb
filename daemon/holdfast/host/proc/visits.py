"""Looks at one process after another, and leaves a thread behind if the kernel never answers.

Some files in /proc can block forever: while a mapping is removed in a stuck driver or on a dead
server, any reader of that process's maps or arguments waits behind it.
"""

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from holdfast.errors import HostError
from holdfast.host.files.kernelfile import read_bytes

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

PATIENCE = 1.0
"""How long one read may take, in seconds."""
_STALL = 0.05
"""After so many seconds without an answer the rest is looked at by another thread meanwhile."""
_NEXT_STALL = 0.01
"""The same, after `_FEW` reads got stuck."""
_FEW = 4
_FUTEX = {"x86_64": b"202", "aarch64": b"98"}.get(os.uname().machine)
"""The number of the system call in which a thread waits for others of its own process."""
_MOST = 64
"""With more stuck threads than this, each process is looked at only carefully."""


class Visitor(Protocol[T_co]):
    """Looks at one process; returns None if there is nothing to keep."""

    def __call__(self, pid: int, *, careful: bool, beat: Callable[[], None]) -> T_co | None:
        """Look at *pid*. *careful*: read nothing that can hang. Call *beat* after each read."""


class Waits(Struct):
    """How long several calls together may still wait for reads that give no answer.

    After that each process that is left is looked at only carefully. What a thread waits for a
    processor does not count.
    """

    left: float
    """Seconds for them all."""
    most: Callable[[int], float]
    """Tells how many there are for a process at the moment."""


class Visits:
    """Remembers on which processes a thread is stuck, so that each blocks at most two threads.

    A process that blocked one look is looked at carefully while that thread is stuck. If it
    blocks a careful look too, it is not looked at. Several threads may use this at once.
    """

    def __init__(self, start_ticks: Callable[[int], int | None], *, patience: float) -> None:
        """Wait *patience* seconds for a read, for all that are stuck at the same time.

        *start_ticks* tells a process from a later one with the same pid.
        """
        self._start_ticks = start_ticks
        self.patience = patience
        self._lock = threading.Lock()
        self._held_up: dict[int, _StuckThreads] = {}

    @property
    def hanging(self) -> frozenset[int]:
        """Return the pids on which a thread is still stuck in the kernel."""
        with self._lock:
            return frozenset(pid for pid, each in self._held_up.items() if each.hangs)

    def waits(self, most: Callable[[int], float] = lambda _pid: math.inf) -> Waits:
        """Return what a look may wait in all its calls, and for a process as *most* says."""
        return Waits(self.patience + _FEW * _STALL, most)

    def each(
        self, pids: Iterable[int], begin: Callable[[], Visitor[T]], *, waits: Waits | None = None
    ) -> tuple[dict[int, T], tuple[int, ...]]:
        """Return what the looks at *pids* found, and the pids that could not be looked at.

        *begin* makes a look. It is called again when a thread gets stuck, so that no two threads
        share anything. What a look raises is raised here. *waits* are of the calls of one look.
        Raise HostError where no thread can be started.
        """
        found: dict[int, T] = {}
        waits = waits or self.waits()
        queue = _Queue(pids, self._stuck(), waits)
        while stalled := self._go_through(queue, found, begin):
            began, blocked = time.monotonic(), any(stint.blocked for stint in stalled)
            patience = max(waits.left, min(self.patience, _STALL))
            # This whole process may have been stopped for a while; then the threads go on now.
            grace = patience / 4
            for stint in stalled:
                at = stint.at
                if stint.wait(min(patience, waits.most(at)) if at else patience, grace=grace):
                    continue
                grace = 0.0
                hung = stint.abandon()
                if hung is not None:
                    self._remember(hung[0], stint.thread)
                    queue.hung(*hung)
            if blocked:
                waits.left -= time.monotonic() - began
        return found, tuple(queue.unread)

    def _go_through(
        self, queue: "_Queue", found: dict[int, T], begin: Callable[[], Visitor[T]]
    ) -> "list[_Stint[T]]":
        """Look at all in *queue*; return the threads that are stuck, each on one process."""
        stalled: list[_Stint[T]] = []
        stint = _Stint(queue, found, begin())
        while not stint.ends(
            stall := min(self.patience, _STALL if len(stalled) < _FEW else _NEXT_STALL),
            self.patience,
        ):
            if stint.blocked:
                queue.waits.left -= stall
            stint.overtake()
            stalled.append(stint)
            queue.threads = queue.before + sum(each.thread.is_alive() for each in stalled)
            stint = _Stint(queue, found, begin())
        return stalled

    def _stuck(self) -> dict[int, int]:
        """Return how many threads are stuck on each process that still is the same."""
        with self._lock:
            self._held_up = {pid: each for pid, each in self._held_up.items() if each.hangs}
            held_up = dict(self._held_up)
        return {
            pid: each.hangs if each.start_ticks == self._start_ticks(pid) else 0
            for pid, each in held_up.items()
        }

    def _remember(self, pid: int, thread: threading.Thread) -> None:
        ticks = self._start_ticks(pid)
        with self._lock:
            known = self._held_up.get(pid)
            before = known.threads if known is not None else ()
            self._held_up[pid] = _StuckThreads(ticks, (*before, thread))


class _StuckThreads(Struct, frozen=True):
    """The threads that are stuck on one process."""

    start_ticks: int | None
    threads: tuple[threading.Thread, ...]

    @property
    def hangs(self) -> int:
        return sum(each.is_alive() for each in self.threads)


class _Queue:
    """Who is still to be looked at, and how carefully; shared by the threads of one call."""

    def __init__(self, pids: Iterable[int], stuck: Mapping[int, int], waits: Waits) -> None:
        self.waits = waits
        self._left = deque((pid, False) for pid in pids)
        self._stuck = stuck
        self._lock = threading.Lock()
        self.before = sum(stuck.values())
        self.threads = self.before
        self.unread: list[int] = []

    def take(self) -> tuple[int, bool] | None:
        """Return the next process, and whether to be careful; None: nobody is left."""
        with self._lock:
            while self._left:
                pid, careful = self._left.popleft()
                if not self.threads:  # as nearly always
                    return pid, careful
                times = self._stuck.get(pid, 0)
                if times <= 1 and self.threads < 2 * _MOST:
                    late = self.threads >= _MOST or self.waits.left <= 0
                    return pid, careful or times == 1 or late
                self.unread.append(pid)
            return None

    def hung(self, pid: int, careful: bool) -> None:
        """Put a process back on which a thread got stuck; *careful*: it was looked at so."""
        with self._lock:
            if careful:
                self.unread.append(pid)
            else:
                self._left.append((pid, True))


class _Stint(Generic[T]):
    """The work of one thread through the queue, until it is done, overtaken or left behind."""

    def __init__(self, queue: _Queue, found: dict[int, T], look: Visitor[T]) -> None:
        self._queue = queue
        self._found = found
        self._look = look
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._overtaken = False
        self._abandoned = False
        self._error: BaseException | None = None
        self._at: tuple[int, bool] | None = None
        self._since = time.monotonic()
        self.thread = threading.Thread(target=self._work, name="visits", daemon=True)
        try:
            self.thread.start()
        except RuntimeError as error:  # whoever is born without a pause may have all numbers
            raise HostError(f"cannot start a thread to look at processes: {error}") from error

    def wait(self, patience: float, *, grace: float) -> bool:
        """Tell whether its work is done, after waiting as long as there is some progress.

        Without any for *patience* seconds, *grace* seconds more are waited, once.
        """
        while not self._done.wait(max(0.001, self._since + patience - time.monotonic())):
            since = self._since
            if time.monotonic() - since < patience:
                continue
            if not self._done.wait(grace) and self._since == since:
                return False
        if self._error is not None:
            raise self._error
        return True

    def ends(self, stall: float, patience: float) -> bool:
        """Tell whether its work is done, after waiting as long as the kernel lets it go on.

        The kernel may take *stall* seconds for an answer. What it waits for a processor does not
        count, up to *patience* seconds: one more thread would only take that from it as well.
        """
        grace = 0.0
        while not self.wait(stall, grace=grace):
            stuck = self.blocked or time.monotonic() - self._since >= patience
            if stuck and not self._done.is_set():  # of a thread that has ended nothing is told
                return False
            grace = stall
        return True

    @property
    def at(self) -> int | None:
        """Return the process where it is; None: at none any more."""
        with self._lock:
            return self._at[0] if self._at is not None else None

    @property
    def blocked(self) -> bool:
        """Tell whether it waits in the kernel, and not just for other threads of this process.

        On a busy node it may only wait for a processor, or for its turn to run Python.
        """
        call, *_ = (read_bytes(f"/proc/self/task/{self.thread.native_id}/syscall") or b"?").split()
        return call not in (b"running", _FUTEX)

    def overtake(self) -> None:
        """Have it take nobody after the one where it is."""
        with self._lock:
            self._overtaken = True

    def abandon(self) -> tuple[int, bool] | None:
        """Ignore what it may still find; return where it is, None if it has just finished."""
        with self._lock:
            self._abandoned = not self._done.is_set()
            return self._at if self._abandoned else None

    def _work(self) -> None:
        try:
            at = self._next(None)
            while at is not None:
                pid, careful = at
                at = self._next(self._look(pid, careful=careful, beat=self._beat))
        except BaseException as error:  # noqa: BLE001 - handed to the caller, not hidden
            self._error = error
        finally:
            self._done.set()

    def _next(self, answer: T | None) -> tuple[int, bool] | None:
        """Keep the answer of the process where it is, and go on to the next."""
        with self._lock:
            if answer is not None and self._at is not None and not self._abandoned:
                self._found[self._at[0]] = answer
            self._at = None if self._abandoned or self._overtaken else self._queue.take()
            self._since = time.monotonic()
            return self._at

    def _beat(self) -> None:
        self._since = time.monotonic()
