"""Random stories on a simulated kernel: holdfast ends orphans, and nothing that anybody wants."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from fakes.books import INIT
from fakes.ending import otherwise
from holdfast.model.reclaim.ending import SHIMS, EndFacts, why_spare
from kills.daemon import Guards
from kills.story import tell

_STORIES = 150
pytestmark = [
    pytest.mark.timeout(600),  # on a busy machine
    pytest.mark.usefixtures("quiet"),
]


def _without(spoil: Callable[[EndFacts], EndFacts]) -> Guards:
    """Return the guards but for one: *spoil* lets its facts look as if it agreed."""
    return Guards(judge=lambda facts: why_spare(spoil(facts)))


def _kubelet_let_go(facts: EndFacts) -> EndFacts:
    pod = facts.pod and replace(facts.pod, counted_by=facts.kubelet, let_go_at=0.0)
    return replace(facts, pod=pod, let_go_at=0.0)


def _runtime_let_go(facts: EndFacts) -> EndFacts:
    """Let all that lives in the pod look like orphans of which the runtime knows nothing."""
    members = tuple(
        replace(each, command="any", parent=INIT, contains=False, sandbox=None)
        for each in facts.members
    )
    return otherwise(facts, members=members, gone_at=0.0, sandbox=None, command="any")


def _shims_by_name(facts: EndFacts) -> EndFacts:
    """Let a parent outside the pod count only if it is called as the best known shims are."""
    members = tuple(
        each
        if each.parent is None or each.parent.command in SHIMS
        else replace(each, parent=INIT, contains=False)
        for each in facts.members
    )
    return otherwise(facts, members=members, gone_at=0.0)


def _shims_outside(facts: EndFacts) -> EndFacts:
    """Let a shim inside the pod's cgroup count only by its name."""
    members = tuple(replace(each, contains=False) for each in facts.members)
    return otherwise(facts, members=members, gone_at=0.0)


async def test_in_random_stories_orphans_are_ended_and_nothing_that_anybody_wants() -> None:
    ended = prepared = 0
    for seed in range(_STORIES):
        outcome = await tell(seed)
        assert not outcome.wrong, "\n".join((f"seed {seed}:", *outcome.told))
        ended += outcome.ended
        prepared += any(each.endswith(" is prepared") for each in outcome.told)
    assert ended > _STORIES // 10, "without orphans that are ended, nothing is proved"
    assert prepared > _STORIES // 2, "without pods that have claims, nothing is proved of them"


async def test_a_story_is_the_same_each_time_it_is_told() -> None:
    assert await tell(3) == await tell(3)


@pytest.mark.parametrize(
    ("guards", "known"),
    [
        pytest.param(_without(_kubelet_let_go), 369, id="kubelet let go of the pod"),
        pytest.param(_without(_runtime_let_go), 26, id="the runtime let go of the pod"),
        pytest.param(_without(_shims_by_name), 316, id="no parent lives outside, by whatever name"),
        pytest.param(_without(_shims_outside), 338, id="no shim is inside, by whatever name"),
        pytest.param(Guards(thaws=False), 202, id="a daemon thaws what the former one has frozen"),
    ],
)
async def test_without_a_guard_the_stories_find_somebodys_work_hit(
    guards: Guards, known: int
) -> None:
    """*known* is a story that needs the guard; where stories have changed, another is looked for."""
    for seed in (known, *range(10 * _STORIES)):
        if (await tell(seed, guards)).wrong:
            return
    pytest.fail("no story needs this guard")
