"""A published value: the latest one counts, and anybody may follow it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class WatchedClosedError(Exception):
    """Nothing will be published any more, so what was waited for cannot come."""


class Watched(Generic[T]):
    """Holds the latest value. A slow follower skips versions and never blocks the writer.

    It belongs to one event loop: everything but construction happens on that loop's thread.
    """

    def __init__(self, value: T) -> None:
        self._value = value
        self._version = 0
        self._closed = False
        self._changed = asyncio.Event()

    @property
    def value(self) -> T:
        """The latest value."""
        return self._value

    @property
    def version(self) -> int:
        """How often the value has changed; grows by one with each change."""
        return self._version

    @property
    def closed(self) -> bool:
        """Whether the last value has been published."""
        return self._closed

    def set(self, value: T) -> None:
        """Publish *value*, unless it equals the latest one."""
        if value != self._value:
            self._value = value
            self._version += 1
            self._wake()

    def close(self) -> None:
        """End every follower once it has seen the latest value. A second time does nothing."""
        self._closed = True
        self._wake()

    async def follow(self) -> AsyncIterator[T]:
        """Yield the current value, then the latest whenever it has changed, until closed."""
        seen = -1
        while True:
            changed = self._changed  # taken first, so that no change between is missed
            if seen != self._version:
                seen = self._version
                yield self._value
            elif self._closed:
                return
            else:
                await changed.wait()

    async def until(self, predicate: Callable[[T], bool]) -> T:
        """Return the first value seen that satisfies *predicate*; it may be the current one.

        Raise WatchedClosedError when it is closed before.
        """
        while True:
            changed = self._changed
            if predicate(self._value):
                return self._value
            if self._closed:
                raise WatchedClosedError("cannot wait for a value: nothing is published any more")
            await changed.wait()

    def _wake(self) -> None:
        # A new event for each change: whoever holds the old one wakes, however late it runs.
        self._changed.set()
        self._changed = asyncio.Event()
