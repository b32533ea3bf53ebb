"""Unprepares one claim: the end that kubelet asks for, and the wait until its devices are free."""

import contextlib
from collections.abc import Callable

import structlog

from holdfast.dra.specs import ClaimSpecs
from holdfast.errors import LaneStuckError, LedgerError
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.book import Book
from holdfast.model.book.claims import end_claim, locks_of
from holdfast.model.book.draft import Draft
from holdfast.model.dra.outcomes import UnprepareOutcome
from holdfast.model.gate.gate import belongs_to
from holdfast.model.ids import ClaimRef, ClaimUid, DeviceName, ProcessId
from holdfast.model.kubelet import KubeletView
from holdfast.runtime.changes import Changes
from holdfast.runtime.clock import Clock
from holdfast.runtime.watched import Watched

log = structlog.get_logger(__name__)

_POLL = 1.0


class Unpreparing:
    """Ends a claim in the book at once, then waits for the kernel, for a bounded time.

    Kubelet says by the call that the containers are stopped. An error keeps the pod Terminating
    and the device allocated in the whole cluster, so it must not last: after `patience` seconds
    the claim is over for kubelet, and the lock stays until its device is free.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        view: Watched[KubeletView],
        ask: Callable[[str], None],
        specs: ClaimSpecs,
        obstacle: Callable[[DeviceName], str],
        nudges: Watched[int],
        clock: Clock,
        patience: Watched[float],
    ) -> None:
        """End claims in *ledger*; the kubelet of *view* is the one that says so.

        *ask* has kubelet asked for its pods, by which *view* tells who it is.
        """
        self._ledger = ledger
        self._view = view
        self._ask = ask
        self._specs = specs
        self._obstacle = obstacle
        self._nudges = nudges
        self._clock = clock
        self._patience = patience
        self._released: set[ClaimUid] = set()
        self.observe: Callable[[UnprepareOutcome, float], None] = lambda _outcome, _seconds: None
        """Hears how each claim's Unprepare ended, and after how many seconds."""

    async def unprepare(self, claim: ClaimRef, until: float) -> str:
        """Return why *claim* is not over yet at *until* (monotonic), empty where it is.

        A claim that we know nothing of is over.
        """
        began = self._clock.monotonic()
        text = await self._unprepare(claim, until)
        outcome = UnprepareOutcome.FREE
        if text:
            outcome = UnprepareOutcome.WAITING
        elif locks_of(self._ledger.book.value, claim.uid):
            outcome = UnprepareOutcome.HELD
        self.observe(outcome, self._clock.monotonic() - began)
        return text

    async def _unprepare(self, claim: ClaimRef, until: float) -> str:
        kubelet = self._view.value.kubelet
        try:
            book = await self._end(claim, kubelet)
        except (LedgerError, LaneStuckError) as error:
            return f"cannot unprepare claim {claim} yet: its end cannot be recorded: {error}"
        await self._specs.remove(claim.uid)
        self._ask("a claim is over")
        while True:
            changes = Changes([self._ledger.book, self._nudges, self._view, self._patience])
            if self._view.value.kubelet != kubelet:  # it is known only now which one calls
                kubelet = self._view.value.kubelet
                with contextlib.suppress(LedgerError, LaneStuckError):
                    await self._end(claim, kubelet)
            left = locks_of(book, claim.uid)
            if not left:
                self._released.discard(claim.uid)
                log.info("claim unprepared", claim=str(claim))
                return ""
            reason = belongs_to(left[0], book) + self._by_whom(book, claim)
            now = self._clock.monotonic()
            patience = self._patience_left(book, claim)
            if patience <= 0:
                log.warning(
                    "claim unprepared, and its devices are not free yet",
                    claim=str(claim),
                    reason=reason,
                    next="no pod gets them until they are free",
                )
                return ""
            if now >= until:
                return f"cannot unprepare claim {claim} yet: {reason} (kubelet will ask again)"
            await changes.wait(min(_POLL, until - now, patience))
            book = self._ledger.book.value

    async def _end(self, claim: ClaimRef, kubelet: ProcessId | None) -> Book:
        def over(draft: Draft) -> Book:
            end_claim(draft, claim.uid, f"kubelet unprepared claim {claim}", kubelet=kubelet)
            return draft.book

        return await self._ledger.apply(over)

    def release(self, claim: ClaimUid) -> None:
        """Keep *claim* from its end no longer: a person released its devices by hand."""
        self._released.add(claim)

    def _patience_left(self, book: Book, claim: ClaimRef) -> float:
        """Return for how many seconds *claim* may be kept from being over; of another boot: 0."""
        record = book.claims.get(claim.uid)
        if claim.uid in self._released:
            return 0.0
        if record is None or record.over_at is None or record.boot != self._ledger.boot:
            return 0.0
        return record.over_at + self._patience.value - self._clock.uptime()

    def _by_whom(self, book: Book, claim: ClaimRef) -> str:
        known = [self._obstacle(lock.device) for lock in locks_of(book, claim.uid)]
        return "".join(f"; {text}" for text in known if text)
