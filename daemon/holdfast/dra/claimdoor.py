"""Answers kubelet's two calls: all claims of a call at once, and each claim one step at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

import structlog

from holdfast.dra.door import Door
from holdfast.dra.preparation import ClaimPreparation, ClaimRelease
from holdfast.errors import bug
from holdfast.model.book.messages import refusal
from holdfast.model.dra.claims import PrepareAnswer
from holdfast.model.ids import ClaimRef, ClaimUid
from holdfast.runtime.clock import Clock

log = structlog.get_logger(__name__)

T = TypeVar("T")

LONGEST = 40.0
"""Seconds for all claims of a call: kubelet gives up after 45, and its own text names nobody."""


@dataclass(eq=False)
class ClaimDoor(Door):
    """Prepares and unprepares; an Unprepare ends the Prepare of its claim that is under way.

    Each call is answered within `longest` seconds.
    """

    preparing: ClaimPreparation
    unpreparing: ClaimRelease
    clock: Clock
    longest: float = LONGEST

    def __post_init__(self) -> None:
        self._under_way: dict[asyncio.Task[PrepareAnswer], ClaimUid] = {}
        self._turns: WeakValueDictionary[ClaimUid, asyncio.Lock] = WeakValueDictionary()

    async def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, PrepareAnswer]:
        """Return once each claim may be used, or must wait longer."""
        until = self.clock.monotonic() + self.longest
        tasks = {each.uid: self._start(each, until) for each in claims}
        try:
            await asyncio.gather(*tasks.values(), return_exceptions=True)
        finally:
            for task in tasks.values():
                task.cancel()
        return {
            uid: PrepareAnswer(error="kubelet unprepared the claim meanwhile")
            if task.cancelled()
            else task.result()
            for uid, task in tasks.items()
        }

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, str]:
        """Return why each claim is not over yet, empty where it is."""
        until = self.clock.monotonic() + self.longest
        found = await asyncio.gather(*(self._end(each, until) for each in claims))
        return dict(zip((each.uid for each in claims), found, strict=True))

    def _start(self, claim: ClaimRef, until: float) -> asyncio.Task[PrepareAnswer]:
        act = partial(self.preparing.prepare, claim, until)
        work = self._in_turn("prepare", claim, until, act, lambda text: PrepareAnswer(error=text))
        task = asyncio.create_task(work, name=f"prepare {claim.uid}")
        self._under_way[task] = claim.uid
        task.add_done_callback(self._under_way.pop)
        return task

    async def _end(self, claim: ClaimRef, until: float) -> str:
        under_way = [task for task, uid in self._under_way.items() if uid == claim.uid]
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.wait(under_way)
        turn = self._turns.get(claim.uid)
        another = turn is not None and turn.locked()
        act = partial(self.unpreparing.unprepare, claim, until, another=another)
        return await self._in_turn("unprepare", claim, until, act, str)

    async def _in_turn(
        self,
        verb: str,
        claim: ClaimRef,
        until: float,
        act: Callable[[], Awaitable[T]],
        error: Callable[[str], T],
    ) -> T:
        """Return what *act* does once nobody else acts on *claim*, an *error* if that is too late.

        What *act* raises is an *error*, too: it must not cost the other claims their answers.
        """
        deed = f"{verb} claim {claim.namespace}/{claim.name}"
        turn = self._turns.setdefault(claim.uid, asyncio.Lock())
        try:
            async with asyncio.timeout(max(0.0, until - self.clock.monotonic())):
                await turn.acquire()
        except TimeoutError:
            return error(refusal(deed, "another call is about it; kubelet asks again"))
        try:
            return await act()
        except Exception as unforeseen:
            log.exception("claim call failed", call=verb, claim=str(claim))
            return error(refusal(deed, bug(unforeseen)))
        finally:
            turn.release()
