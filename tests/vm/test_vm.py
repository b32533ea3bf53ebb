"""Each case of the test machine as a test of its own; they share one boot."""

import pytest

from vm.catalogue import Case, selected
from vm.session import FAILED, SKIPPED, Outcome, run_cases

_WHOLE_SESSION = 7200  # seconds; the first test waits for the boot and for every case

pytestmark = [pytest.mark.vm, pytest.mark.timeout(_WHOLE_SESSION)]


@pytest.fixture(scope="session")
def outcomes(request: pytest.FixtureRequest) -> dict[str, Outcome]:
    """Boot once and run those cases that this session has asked for."""
    wanted: dict[str, Case] = {}
    for item in request.session.items:
        case = getattr(item, "callspec", None) and item.callspec.params.get("case")  # type: ignore[attr-defined]
        if isinstance(case, Case):
            wanted[case.name] = case
    found: dict[str, Outcome] = {}
    run_cases(
        tuple(wanted.values()),
        report=lambda outcome: found.__setitem__(outcome.name, outcome),
        tell=lambda words: None,
    )
    return found


@pytest.mark.parametrize("case", selected(""), ids=lambda case: case.name)
def test_vm(case: Case, outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes[case.name]
    if outcome.verdict == SKIPPED:
        pytest.skip(outcome.text)
    print(outcome)
    assert outcome.verdict != FAILED, outcome.text
