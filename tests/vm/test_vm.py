"""Each case of the test machine as a test of its own; they share one run."""

import time
from collections.abc import Callable, Iterator

import pytest

from vm.catalogue import Case, selected
from vm.session import FAILED, SKIPPED, Outcome, run_cases

_WHOLE_RUN = 1140
"""Seconds from the beginning, after which no case is begun: a run of all tests has half an hour."""
_ONE_TEST = _WHOLE_RUN + 600  # the first one waits until the machine's parts are there
_BEGAN = time.monotonic()

pytestmark = [pytest.mark.vm, pytest.mark.timeout(_ONE_TEST)]


@pytest.fixture(scope="session")
def outcome_of(request: pytest.FixtureRequest) -> Iterator[Callable[[Case], Outcome]]:
    """Run those cases that this session has asked for; each test waits for its own to end."""
    wanted: dict[str, Case] = {}
    for item in request.session.items:
        case = getattr(item, "callspec", None) and item.callspec.params.get("case")  # type: ignore[attr-defined]
        if isinstance(case, Case):
            wanted[case.name] = case
    found: dict[str, Outcome] = {}
    limit = _BEGAN + _WHOLE_RUN - time.monotonic()
    coming = run_cases(tuple(wanted.values()), tell=print, limit=limit)

    def outcome_of(case: Case) -> Outcome:
        while case.name not in found:
            outcome = next(coming)
            found[outcome.name] = outcome
        return found[case.name]

    yield outcome_of
    coming.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("case", selected(""), ids=lambda case: case.name)
def test_vm(
    case: Case,
    outcome_of: Callable[[Case], Outcome],
    record_property: Callable[[str, object], None],
) -> None:
    outcome = outcome_of(case)
    if outcome.verdict == SKIPPED:
        pytest.skip(outcome.text)
    if outcome.verdict == FAILED:
        pytest.fail(outcome.text, pytrace=False)
    if outcome.first_try:
        record_property("first_try", outcome.first_try)
