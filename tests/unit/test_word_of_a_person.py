"""How long a person's word stands: for one attempt, and for one end of one pod."""

from typing import Any

import pytest

from fakes.books import X, Y
from fakes.reclaimer import reclaimer
from holdfast.model.reclaim.ending import Grounds
from holdfast.reclaim.reclaimer import Reclaimer
from holdfast.runtime.watched import Watched
from holdfast.settings.sections import ReclaimSettings
from holdfast.settings.types import Duration
from manual_clock import ManualClock

_SETTINGS = ReclaimSettings(term_grace=Duration(10), kill_grace=Duration(10))


def _reclaimer(clock: ManualClock) -> Reclaimer:
    nothing: Any = None  # none of them is asked here
    return reclaimer(
        ledger=nothing,
        reader=nothing,
        pods=nothing,
        clock=clock,
        settings=Watched(_SETTINGS),
    )


@pytest.mark.parametrize("word", [Grounds.RELEASE, Grounds.FORCE])
async def test_a_word_is_good_for_as_long_as_an_attempt_takes_and_for_its_pod_alone(
    word: Grounds,
) -> None:
    clock = ManualClock()
    made = _reclaimer(clock)
    assert made._allowed(X) is Grounds.OVER
    made.retry(X, word)
    await clock.advance(29.9)
    assert made._allowed(X) is word
    assert made._allowed(Y) is Grounds.OVER
    await clock.advance(0.2)
    assert made._allowed(X) is Grounds.OVER


async def test_a_word_ends_when_its_pod_is_counted_again_and_when_the_retry_is_nobodys() -> None:
    clock = ManualClock()
    made = _reclaimer(clock)
    made.retry(X, Grounds.FORCE)
    made.keep((), ())
    assert made._allowed(X) is Grounds.OVER
    made.retry(X, Grounds.FORCE)
    made.retry(X)
    assert made._allowed(X) is Grounds.OVER
