"""How long a person's word stands: for one attempt, and for one end of one pod."""

from typing import Any

import pytest

from fakes.books import X, Y
from holdfast.model.reclaim.ending import ByHand
from holdfast.reclaim.evidence import Evidence
from holdfast.reclaim.reclaimer import Reclaimer
from holdfast.runtime.watched import Watched
from holdfast.settings.sections import Reclaim
from holdfast.settings.types import Duration
from manual_clock import ManualClock

_SETTINGS = Reclaim(term_grace=Duration(10), kill_grace=Duration(10))


def _reclaimer(clock: ManualClock) -> Reclaimer:
    nothing: Any = None  # none of them is asked here
    evidence = Evidence(
        ledger=nothing,
        reader=nothing,
        pods=nothing,
        clock=clock,
        settings=Watched(_SETTINGS),
        question_timeout=Watched(5.0),
        own_pid=1,
    )
    return Reclaimer(ledger=nothing, evidence=evidence, pods=nothing, pidfds=nothing, clock=clock)


@pytest.mark.parametrize("word", [ByHand.RELEASE, ByHand.FORCE])
async def test_a_word_is_good_for_as_long_as_an_attempt_takes_and_for_its_pod_alone(
    word: ByHand,
) -> None:
    clock = ManualClock()
    reclaimer = _reclaimer(clock)
    assert reclaimer._allowed(X) is ByHand.NOTHING
    reclaimer.retry(X, word)
    await clock.advance(29.9)
    assert reclaimer._allowed(X) is word
    assert reclaimer._allowed(Y) is ByHand.NOTHING
    await clock.advance(0.2)
    assert reclaimer._allowed(X) is ByHand.NOTHING


async def test_a_word_ends_when_its_pod_is_counted_again_and_when_the_retry_is_nobodys() -> None:
    clock = ManualClock()
    reclaimer = _reclaimer(clock)
    reclaimer.retry(X, ByHand.FORCE)
    reclaimer.start_over([X])
    assert reclaimer._allowed(X) is ByHand.NOTHING
    reclaimer.retry(X, ByHand.FORCE)
    reclaimer.retry(X)
    assert reclaimer._allowed(X) is ByHand.NOTHING
