"""Published values: the latest counts, anybody may follow it or wait for the first of several."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any, Generic, TypeVar

from holdfast.runtime.clock import Clock

T = TypeVar("T")
P = TypeVar("P")


class Watched(Generic[T]):
    """Holds the latest value. A slow follower skips versions and never blocks the writer.

    It belongs to one event loop: everything but construction happens on that loop's thread.
    """

    def __init__(self, value: T) -> None:
        self._value = value
        self.version = 0
        """How often the value has changed; grows by one with each change."""
        self._parts: tuple[Callable[[T], None], ...] = ()
        self.waiting: set[asyncio.Future[bool]] = set()
        """Who waits for the first change of this value and of others; see `Changes`."""

    @property
    def value(self) -> T:
        """The latest value."""
        return self._value

    def set(self, value: T) -> None:
        """Publish *value*, unless it equals the latest one."""
        if value != self._value:
            self._value = value
            self.version += 1
            for each in self.waiting:
                _answer(each, changed=True)
            for publish in self._parts:
                publish(value)

    def part(self, select: Callable[[T], P]) -> "Watched[P]":
        """Return what *select* takes from the value, published again whenever that changes.

        It lives as long as this one: take parts when the daemon is built, not again and again.
        """
        part = Watched(select(self._value))
        self._parts = (*self._parts, lambda value: part.set(select(value)))
        return part

    async def follow(self) -> AsyncIterator[T]:
        """Yield the current value, then the latest whenever it has changed, without end."""
        while True:
            changes = Changes([self])
            yield self._value
            await changes.wait()

    async def until(self, predicate: Callable[[T], bool]) -> T:
        """Return the first value seen that satisfies *predicate*; it may be the current one."""
        while True:
            changes = Changes([self])
            if predicate(self._value):
                return self._value
            await changes.wait()


class Nudges(Watched[int]):
    """Says again and again that something has changed, and counts how often."""

    def __init__(self) -> None:
        super().__init__(0)

    def nudge(self) -> None:
        """Have whoever follows this look again now."""
        self.set(self.value + 1)


class Changes:
    """Remembers what has been seen of some values, so that no change after that is missed."""

    def __init__(self, values: Iterable[Watched[Any]]) -> None:
        """Take the present versions of *values* as seen."""
        self._seen = [(value, value.version) for value in values]

    async def wait(self, timeout: float = math.inf) -> bool:  # noqa: ASYNC109 - its end is no error
        """Return at the first change since construction, or after *timeout* seconds.

        Tell whether there was one.
        """
        if any(value.version != seen for value, seen in self._seen):
            await asyncio.sleep(0)  # whoever changes a value in each turn leaves others theirs
            return True
        loop = asyncio.get_running_loop()
        first: asyncio.Future[bool] = loop.create_future()
        timer = loop.call_later(timeout, lambda: _answer(first, changed=False))
        for value, _ in self._seen:
            value.waiting.add(first)
        try:
            return await first
        finally:
            timer.cancel()
            for value, _ in self._seen:
                value.waiting.discard(first)


def _answer(waiting: "asyncio.Future[bool]", *, changed: bool) -> None:
    if not waiting.done():
        waiting.set_result(changed)


async def pause(
    clock: Clock, settings: Watched[T], seconds: Callable[[T], float], since: float | None = None
) -> None:
    """Return after so many *seconds* as *settings* say; a change of them counts at once.

    They begin now, or did *since* (monotonic seconds).
    """
    began = clock.monotonic() if since is None else since
    while (left := began + seconds(settings.value) - clock.monotonic()) > 0:
        sleep = asyncio.ensure_future(clock.sleep(left))
        change = asyncio.ensure_future(Changes([settings]).wait())
        await first_of(sleep, change)


async def first_of(*works: asyncio.Future[Any]) -> set[asyncio.Future[Any]]:
    """Return those of *works* that are over, once one is; the others are cancelled."""
    try:
        over, _ = await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in works:
            each.cancel()
        await asyncio.gather(*works, return_exceptions=True)
    return over


async def seen_through(work: Coroutine[Any, Any, T]) -> T:
    """Return what *work* returns; whoever is cancelled meanwhile hears of that at its end."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
