"""Waiting for the first change among several published values."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from holdfast.runtime.clock import Clock
from holdfast.runtime.watched import Watched

T = TypeVar("T")


class Changes:
    """Remembers what has been seen of some values, so that no change after that is missed."""

    def __init__(self, values: Iterable[Watched[Any]]) -> None:
        """Take the present versions of *values* as seen."""
        self._seen = [(value, value.version) for value in values]

    async def wait(self, timeout: float) -> bool:  # noqa: ASYNC109 - the end of the wait is no error
        """Return at the first change since construction, or after *timeout* seconds.

        Tell whether there was one.
        """
        waits = [asyncio.ensure_future(_beyond(value, seen)) for value, seen in self._seen]
        try:
            changed, _ = await asyncio.wait(
                waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        return bool(changed)


async def pause(clock: Clock, settings: Watched[T], seconds: Callable[[T], float]) -> None:
    """Return after so many *seconds* as *settings* say; a change of them counts at once."""
    began = clock.monotonic()
    while (left := began + seconds(settings.value) - clock.monotonic()) > 0:
        sleep = asyncio.ensure_future(clock.sleep(left))
        change = asyncio.ensure_future(_beyond(settings, settings.version))
        try:
            await asyncio.wait((sleep, change), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleep.cancel()
            change.cancel()
            await asyncio.gather(sleep, change, return_exceptions=True)


async def _beyond(value: Watched[Any], version: int) -> None:
    await value.until(lambda _: value.version != version)
