"""Which cases there are, which run without being asked for, and what a pod of the chart can lack."""

from typing import Any

import pytest

from vm.catalogue import all_cases, selected
from vm.charts import take_away
from vm.modes import CHART, MODES, mode_of


def test_every_case_with_a_daemon_can_be_run_as_the_chart_does() -> None:
    cases = {case.name: case for case in all_cases()}
    # The guest's API server is not in the network of the chart's pod.
    plain = [
        case
        for case in cases.values()
        if case.daemon and not case.daemon.startswith(CHART) and not mode_of(case.daemon).by_claims
    ]
    assert plain
    for case in plain:
        twin = cases["chart_" + case.name.removeprefix("daemon_")]
        assert twin.run is case.run
        assert twin.daemon.startswith(CHART)
        assert mode_of(twin.daemon)


def test_each_name_is_of_one_case() -> None:
    names = [case.name for case in all_cases()]
    assert len(names) == len(set(names))


def test_every_daemon_of_a_case_is_a_mode() -> None:
    assert {case.daemon.removeprefix(CHART) for case in all_cases()} <= {"", *MODES}


def test_a_run_of_all_cases_leaves_out_what_has_to_be_asked_for() -> None:
    always, asked = selected(""), selected("chart")
    assert not [case for case in always if case.asked]
    assert [case for case in asked if case.asked]
    assert any(case.daemon.startswith(CHART) for case in always)


def _pod() -> dict[str, Any]:
    return {
        "hostPID": True,
        "containers": [
            {
                "securityContext": {"capabilities": {"drop": ["ALL"], "add": ["KILL"]}},
                "volumeMounts": [{"name": "sys-devices"}, {"name": "sys-bus-pci"}, {"name": "x"}],
            }
        ],
    }


@pytest.mark.parametrize(
    ("lack", "left"),
    [
        ("KILL", (True, [], 3)),
        ("hostPID", (False, ["KILL"], 3)),
        ("sys-", (True, ["KILL"], 1)),
    ],
)
def test_what_is_taken_away_is_gone_and_nothing_else(
    lack: str, left: tuple[bool, list[str], int]
) -> None:
    pod = _pod()
    take_away(pod, lack)
    (container,) = pod["containers"]
    added = container["securityContext"]["capabilities"]["add"]
    assert (bool(pod.get("hostPID")), added, len(container["volumeMounts"])) == left


def test_what_the_chart_does_not_give_cannot_be_taken_away() -> None:
    with pytest.raises(AssertionError, match="does not give SYS_ADMIN"):
        take_away(_pod(), "SYS_ADMIN")
