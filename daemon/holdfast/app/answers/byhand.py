"""Answers what a person asks for by hand; who asks is the kernel's word, not theirs."""

from collections.abc import Callable, Mapping
from typing import Any

import structlog

from holdfast.app.answers import reports
from holdfast.app.wiring.assembly import Assembly
from holdfast.control.server import Handler
from holdfast.errors import RequestRefusedError
from holdfast.model.book.byhand import (
    RemovalFacts,
    Target,
    drain,
    lock_meant,
    quarantine,
    target,
    undrain,
    unquarantine,
    why_not_removable,
)
from holdfast.model.book.draft import Draft
from holdfast.model.book.marks import Asker, Mark

log = structlog.get_logger(__name__)

_LONGEST_REASON = 500

Question = Mapping[str, Any]


def handlers(parts: Assembly) -> dict[str, Handler]:
    """Return the requests that change something, and who carries them out."""
    hand = _Hand(parts)
    return {
        "quarantine": hand.quarantine,
        "unquarantine": hand.unquarantine,
        "drain": hand.drain,
        "undrain": hand.undrain,
        "removable": hand.removable,
        "releasable": hand.releasable,
        "release": hand.release,
    }


class _Hand:
    def __init__(self, parts: Assembly) -> None:
        self._core = parts.core
        self._sources = parts.discovery.sources
        self._kubelet = parts.kubelet
        self._reclaim = parts.reclaim
        self._dra = parts.dra

    async def quarantine(self, question: Question) -> reports.Report:
        what, asker = self._target(question, cards=True), _asker(question)
        reason = _reason(question)
        if not reason:
            raise RequestRefusedError(f"cannot quarantine {what.device}: give a reason (--reason)")
        text = await self._core.ledger.apply(
            lambda draft: quarantine(draft, what, Mark(asker=asker, at=draft.now, reason=reason))
        )
        return self._done("quarantined by hand", asker, text, device=what.device, reason=reason)

    async def unquarantine(self, question: Question) -> reports.Report:
        what, asker = self._target(question, cards=True), _asker(question)
        overruled = [(each, each.errors(what.device)) for each in self._sources]
        texts = [error.text for _, errors in overruled for error in errors]
        lifted = await self._core.ledger.apply(
            lambda draft: unquarantine(draft, what, Mark(asker=asker, at=draft.now), forgiven=texts)
        )
        for source, errors in overruled:
            if errors:
                source.forgive(what.device, errors)
        if lifted.retry is not None:
            self._reclaim.reclaimer.retry(lifted.retry)
            self._retry_reset(what)
            self._core.nudges.nudge()
        return self._done("unquarantined by hand", asker, lifted.text, device=what.device)

    async def drain(self, question: Question) -> reports.Report:
        return await self._mark_all(drain, "drain started by hand", question)

    async def undrain(self, question: Question) -> reports.Report:
        report = await self._mark_all(undrain, "drain ended by hand", question)
        for source in self._sources:
            await source.take_up()
        return report

    async def releasable(self, question: Question) -> reports.Report:
        """Return what a person is to see before they agree to a release."""
        seen = await self._reclaim.hand.look(self._target(question))
        return reports.release_report(seen, patience=self._reclaim.reclaimer.patience)

    async def release(self, question: Question) -> reports.Report:
        what, asker, shown = self._target(question), _asker(question), question.get("fence")
        if not isinstance(shown, int):
            raise RequestRefusedError(f"cannot release {what.device}: say which lock you saw")
        typed = question.get("pod")
        begun = await self._reclaim.hand.release(
            what,
            asker,
            shown=shown,
            typed=None if typed is None else str(typed),
        )
        self._retry_reset(what)
        if begun.claim is not None and self._dra is not None:
            self._dra.door.unpreparing.release(begun.claim)
        if begun.follows:
            self._core.nudges.nudge()
        report = self._done("released by hand", asker, begun.text, device=what.device, pod=typed)
        return report | {"follow": begun.follows}

    def _retry_reset(self, what: Target) -> None:
        lock = lock_meant(what, self._core.ledger.book.value)
        if lock is not None:
            self._reclaim.resetter.retry(lock.device)

    async def removable(self, _: Question) -> list[str]:
        """Return what still needs the plugin; once no pod does, the driver is let go as well.

        While a pod does, only the driver tells whether its device is free.
        """
        if needed := await self._needed():
            return needed
        reason = "holdfast is drained for removal and has closed the driver's library"
        return [left for each in self._sources if (left := await each.let_go(reason))]

    async def _needed(self) -> list[str]:
        claims = () if self._dra is None else await self._dra.why_stays()
        view = self._core.view.value
        return list(
            why_not_removable(
                RemovalFacts(
                    book=self._core.ledger.book.value,
                    offered=self._kubelet.offering.offers.value.healthy(),
                    # A node that never had a pod with devices has no checkpoint.
                    problem="" if view.readable or self._kubelet.reader.missing else view.problem,
                    looked=self._reclaim.watcher.looked.is_set(),
                    claims=claims,
                )
            )
        )

    async def _mark_all(
        self,
        change: Callable[[Draft, tuple[Target, ...], Mark], str],
        what: str,
        question: Question,
    ) -> reports.Report:
        asker, reason = _asker(question), _reason(question)
        devices = tuple(
            Target(device=each.name, keys=each.keys) for each in self._core.inventory.value.devices
        )
        text = await self._core.ledger.apply(
            lambda draft: change(draft, devices, Mark(asker=asker, at=draft.now, reason=reason))
        )
        return self._done(what, asker, text, reason=reason)

    def _target(self, question: Question, *, cards: bool = False) -> Target:
        return target(
            str(question.get("device")),
            self._core.inventory.value,
            self._core.ledger.book.value,
            cards=cards,
        )

    def _done(self, what: str, asker: Asker, text: str, **about: object) -> reports.Report:
        log.warning(
            what,
            uid=asker.uid,
            pid=asker.pid,
            **{name: str(each) for name, each in about.items() if each},
            done=text,
        )
        return {"text": text}


def _asker(question: Question) -> Asker:
    caller = question["caller"]
    return Asker(uid=caller["uid"], pid=caller["pid"])


def _reason(question: Question) -> str:
    """Return the reason as one line: it is shown in logs, tables and `kubectl describe`."""
    text = " ".join(str(question.get("reason") or "").split())
    return "".join(each for each in text if each.isprintable())[:_LONGEST_REASON]
