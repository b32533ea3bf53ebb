"""Readiness: each check, what alone makes it fail, and that nothing else would have noticed."""

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.model.ids import ResourceName
from holdfast.model.kubelet import Registration
from holdfast.model.node.readiness import (
    RULES,
    Check,
    Known,
    ReadinessFacts,
    Rule,
    checkpoint,
    configuration,
    devices,
    dra,
    first_look,
    hardware,
    judge_readiness,
    labels,
    lanes,
    ledger,
    privileges,
    registrations,
    resets,
    sight,
    sockets,
    specs,
    streams,
    vendors,
    watch,
)

_TPU = ResourceName("google.com/tpu")
_NOW = 1000.0
_OLD = 700.0
_GOOD = Known(at=990.0, patience=60.0)
_WELL = ReadinessFacts(
    now=_NOW,
    resources=(_TPU,),
    kubelet={_TPU: Registration(registered=True, streams=1, problem="")},
    sockets={"control": _GOOD, _TPU: _GOOD},
    checkpoint_readable=True,
    checkpoint_missing=False,
    checkpoint_problem="",
    ledger=_GOOD,
    ledger_failing_since=None,
    lanes={"scan": None, "ledger": None},
    resets="",
    hardware=_GOOD,
    devices=4,
    require_devices=True,
    specs="",
    configuration="",
    document="",
    node_label="",
    looked=True,
    watch=_GOOD,
    sighted=980.0,
    vendors=(Check(name="NVIDIA driver", passes=True),),
    dra=(Check(name="ResourceSlices", passes=True),),
)

_CASES: list[tuple[Rule, dict[str, Any], str, str]] = [
    (
        registrations,
        {"kubelet": {_TPU: Registration(streams=1, problem="kubelet is gone")}},
        f"registered {_TPU}",
        "kubelet is gone",
    ),
    (
        streams,
        {"kubelet": {_TPU: Registration(registered=True, problem="")}},
        f"stream {_TPU}",
        "no ListAndWatch stream",
    ),
    (
        sockets,
        {"sockets": {_TPU: replace(_GOOD, problem="it is not there")}},
        f"socket {_TPU}",
        "it is not there",
    ),
    (
        sockets,
        {"sockets": {"control": Known(at=None, patience=60.0)}},
        "socket control",
        "no result yet",
    ),
    (
        sockets,
        {"sockets": {"control": Known(at=_OLD, patience=60.0)}},
        "socket control",
        "the last result is 300 s old",
    ),
    (
        checkpoint,
        {"checkpoint_readable": False, "checkpoint_problem": "it is garbage"},
        "kubelet checkpoint",
        "it is garbage",
    ),
    (ledger, {"ledger_failing_since": 958.0}, "ledger", "no write has succeeded for 42 s"),
    (ledger, {"ledger": Known(at=None, patience=60.0)}, "ledger", "no result yet"),
    (ledger, {"ledger": Known(at=_OLD, patience=60.0)}, "ledger", "the last result is 300 s old"),
    (lanes, {"lanes": {"scan": 958.0, "ledger": None}}, "lane scan", "a call has hung for 42 s"),
    (resets, {"resets": "lane reset 0000:00:05.0 is stuck"}, "device resets", "is stuck"),
    (hardware, {"hardware": Known(at=None, patience=60.0)}, "hardware", "no result yet"),
    (hardware, {"hardware": replace(_GOOD, problem="cannot look")}, "hardware", "cannot look"),
    (
        hardware,
        {"hardware": Known(at=_OLD, patience=60.0)},
        "hardware",
        "the last result is 300 s old",
    ),
    (devices, {"devices": 0}, "devices", "no devices on this node"),
    (
        vendors,
        {"vendors": (Check(name="NVIDIA driver", passes=False, reason="no NVML"),)},
        "NVIDIA driver",
        "no NVML",
    ),
    (
        dra,
        {"dra": (Check(name="ResourceSlices", passes=False, reason="HTTP 403"),)},
        "ResourceSlices",
        "HTTP 403",
    ),
    (specs, {"specs": "the disk is full"}, "CDI specs", "the disk is full"),
    (labels, {"labels": "the disk is full"}, "node labels", "the disk is full"),
    (first_look, {"looked": False}, "first process scan", "has not finished"),
    (
        watch,
        {"watch": replace(_GOOD, problem="lane pods is stuck")},
        "lock reconciliation",
        "lane pods is stuck",
    ),
    (
        watch,
        {"watch": Known(at=_OLD, patience=60.0)},
        "lock reconciliation",
        "the last result is 300 s old",
    ),
    (configuration, {"configuration": "gate.wiat: no such key"}, "configuration", "gate.wiat"),
    (privileges, {"lacks": ("without KILL nobody is ended",)}, "privileges", "without KILL"),
    (sight, {"sight": ("set hostPID: true",)}, "process visibility", "set hostPID: true"),
]


def _failed(checks: tuple[Check, ...]) -> dict[str, str]:
    return {check.name: check.reason for check in checks if not check.passes}


def test_the_document_in_use_and_a_label_that_cannot_be_read_are_told() -> None:
    facts = replace(_WELL, document="a100", node_label="nodes is forbidden")

    (check,) = configuration(facts)

    assert check.passes
    assert check.reason == "document a100; nodes is forbidden"
    assert not check.public, "what the API server says is not for everybody"


def test_where_all_is_well_every_check_passes_and_none_gives_a_reason() -> None:
    checks = judge_readiness(_WELL)

    assert _failed(checks) == {}
    assert not any(check.reason for check in checks)
    assert len({check.name for check in checks}) == len(checks)


@pytest.mark.parametrize(("rule", "change", "name", "reason"), _CASES)
def test_each_fault_fails_the_check_of_its_name_and_no_other(
    rule: Rule, change: dict[str, Any], name: str, reason: str
) -> None:
    failed = _failed(judge_readiness(replace(_WELL, **change)))

    assert list(failed) == [name]
    assert reason in failed[name]


@pytest.mark.parametrize(("rule", "change", "name", "reason"), _CASES)
def test_without_the_check_the_same_fault_would_go_unnoticed(
    rule: Rule, change: dict[str, Any], name: str, reason: str
) -> None:
    others = [each for each in RULES if each is not rule]

    assert len(others) == len(RULES) - 1
    assert _failed(judge_readiness(replace(_WELL, **change), others)) == {}


def test_every_check_has_a_case_that_makes_it_fail() -> None:
    assert {rule for rule, *_ in _CASES} == set(RULES)


def test_a_resource_that_kubelet_never_heard_of_is_not_registered() -> None:
    assert set(_failed(judge_readiness(replace(_WELL, kubelet={})))) == {
        f"registered {_TPU}",
        f"stream {_TPU}",
    }


def test_a_node_whose_kubelet_has_no_checkpoint_yet_is_ready() -> None:
    new = replace(
        _WELL, checkpoint_readable=False, checkpoint_missing=True, checkpoint_problem="no such file"
    )

    assert _failed(judge_readiness(new)) == {}


def test_a_rule_for_devices_that_does_nothing_is_told_and_names_no_device_to_anybody() -> None:
    idle = ("devices[0] (uuid GPU-9) does nothing: it matches no device of this node",)
    checks = judge_readiness(replace(_WELL, idle_rules=idle))

    assert _failed(checks) == {}
    (told,) = [check for check in checks if check.name == "devices"]
    assert told.reason == idle[0]
    assert told.public == "rules that do nothing: 1"


def test_a_node_without_devices_is_ready_and_says_so_unless_they_are_asked_for() -> None:
    checks = judge_readiness(replace(_WELL, devices=0, require_devices=False))

    assert _failed(checks) == {}
    assert [check.reason for check in checks if check.name == "devices"] == [
        "no devices on this node"
    ]


def test_a_node_that_never_had_a_driver_is_not_asked_for_one() -> None:
    checks = judge_readiness(replace(_WELL, vendors=()))

    assert _failed(checks) == {}
    assert "NVIDIA driver" not in {check.name for check in checks}


def test_each_fact_that_is_learned_now_and_then_says_when_it_was() -> None:
    seen = {check.name: check.seen for check in judge_readiness(_WELL)}

    for name in ("ledger", "hardware", "lock reconciliation", "socket control", f"socket {_TPU}"):
        assert seen[name] == 990.0
    assert seen["process visibility"] == 980.0
    assert seen["CDI specs"] is None


def test_why_the_ledger_fails_is_told_to_root_and_not_over_http() -> None:
    """The reason names a path, and may name another daemon's pid."""
    why = replace(_GOOD, problem="cannot write the ledger /state/ledger.db: disk I/O error")
    (check,) = ledger(replace(_WELL, ledger=why, ledger_failing_since=958.0))

    assert check.reason == f"no write has succeeded for 42 s: {why.problem}"
    assert check.public == "no write has succeeded for 42 s"
