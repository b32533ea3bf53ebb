"""A published value: the latest one counts, and anybody may follow it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

T = TypeVar("T")
P = TypeVar("P")


class Watched(Generic[T]):
    """Holds the latest value. A slow follower skips versions and never blocks the writer.

    It belongs to one event loop: everything but construction happens on that loop's thread.
    """

    def __init__(self, value: T) -> None:
        self._value = value
        self._version = 0
        self._changed = asyncio.Event()
        self._parts: tuple[Callable[[T], None], ...] = ()

    @property
    def value(self) -> T:
        """The latest value."""
        return self._value

    @property
    def version(self) -> int:
        """How often the value has changed; grows by one with each change."""
        return self._version

    def set(self, value: T) -> None:
        """Publish *value*, unless it equals the latest one."""
        if value != self._value:
            self._value = value
            self._version += 1
            # A new event for each change: whoever holds the old one wakes, however late it runs.
            self._changed.set()
            self._changed = asyncio.Event()
            for publish in self._parts:
                publish(value)

    def part(self, select: Callable[[T], P]) -> "Watched[P]":
        """Return what *select* takes from the value, published anew whenever that changes.

        It lives as long as this one: take parts when the daemon is built, not again and again.
        """
        part = Watched(select(self._value))
        self._parts = (*self._parts, lambda value: part.set(select(value)))
        return part

    async def follow(self) -> AsyncIterator[T]:
        """Yield the current value, then the latest whenever it has changed, without end."""
        seen = -1
        while True:
            changed = self._changed  # taken first, so that no change between is missed
            if seen != self._version:
                seen = self._version
                yield self._value
            else:
                await changed.wait()

    async def until(self, predicate: Callable[[T], bool]) -> T:
        """Return the first value seen that satisfies *predicate*; it may be the current one."""
        while True:
            changed = self._changed
            if predicate(self._value):
                return self._value
            await changed.wait()
