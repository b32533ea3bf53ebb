"""Time that passes only when nothing is left to do: the daemon's real parts, one order at a time."""

import asyncio
import selectors
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.runtime.lane import Lane

T = TypeVar("T")

_AWAKE_FOR = 500_000.0
"""How much longer the machine has been up than awake, in seconds."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is the time of its next timer, once everything before has run."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self.now


class _Selector(selectors.DefaultSelector):
    """Waits for nothing: what a loop waits for is the next moment."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("everybody waits, and no moment is to come")
        self._loop.now += max(0.0, timeout)
        return super().select(0)


class VirtualClock:
    """The clock of a loop."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._asked = 0

    def monotonic(self) -> float:
        """Return a later moment each time, as a real clock does."""
        self._asked += 1
        return self._loop.now + self._asked * 1e-9

    def uptime(self) -> float:
        return self._loop.now + _AWAKE_FOR

    def wall(self) -> float:
        return self._loop.now + 1_700_000_000.0

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class VirtualLane(Lane):
    """Runs calls in order on the loop itself, and lets others go on before and after each."""

    def __init__(
        self, name: str, *, around: Callable[[Callable[[], Any]], Any], takes: float = 0.0
    ) -> None:
        """Have *around* make each call, after the disk took so many seconds."""
        self.name = name
        self._around = around
        self._takes = takes

    @property
    def stuck_since(self) -> float | None:
        return None

    async def run(
        self,
        call: Callable[[], T],
        *,
        deadline: float | None = None,
        after: Callable[[T], None] | None = None,
        ahead: bool = False,
    ) -> T:
        del deadline, ahead
        await asyncio.sleep(self._takes)
        answer: T = self._around(call)
        if after is not None:
            after(answer)
        await asyncio.sleep(0)
        return answer

    def close(self, *, patience: float = 0.0, last: Callable[[], object] | None = None) -> None:
        del patience
        if last is not None:
            last()
