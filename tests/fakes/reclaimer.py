"""A Reclaimer as the daemon builds it, with one mode for all pods, and what it did counted."""

from collections.abc import Callable
from typing import Any

from fakes.observers import Unobserved
from holdfast.model.ids import PodUid
from holdfast.reclaim.ending import Ending
from holdfast.reclaim.evidence import Evidence
from holdfast.reclaim.reclaimer import Reclaimer
from holdfast.runtime.clock import Clock
from holdfast.runtime.watched import Watched
from holdfast.settings.sections import ReclaimSettings


def by_general_mode(settings: Watched[ReclaimSettings]) -> Callable[[PodUid], bool]:
    """No device has a mode of its own: `reclaim.mode` of *settings* is for all pods."""
    return lambda _pod: settings.value.mode == "terminate"


def reclaimer(
    *,
    ledger: Any,
    reader: Any,
    pods: Any,
    clock: Clock,
    settings: Watched[ReclaimSettings],
    own_pid: int = 1,
    kind: Callable[..., Evidence] = Evidence,
) -> Reclaimer:
    """Return one that judges by the evidence that *kind* makes."""
    evidence = kind(
        ledger=ledger,
        reader=reader,
        pods=pods,
        clock=clock,
        settings=settings,
        may_end=by_general_mode(settings),
        question_timeout=Watched(5.0),
        own_pid=own_pid,
    )
    ending = Ending(pods=pods, clock=clock, settings=settings, count=Unobserved().reclaimed)
    return Reclaimer(ledger=ledger, evidence=evidence, ending=ending, clock=clock)
