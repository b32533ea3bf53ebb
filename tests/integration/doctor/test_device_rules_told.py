"""The rules for single devices are compared with what the node shows."""

import json
from typing import Any

from fakes.nodetree import CHIP, SECOND, NodeTree

_UUID = "GPU-11111111-2222-3333-4444-555555555555"


def _rules(*rules: dict[str, Any]) -> tuple[str, str]:
    return "--set", f"devices={json.dumps(rules)}"


def test_without_rules_nothing_is_told_of_them(node: NodeTree) -> None:
    assert "devices" not in {each["area"] for each in node.told().findings}


def test_each_rule_is_told_with_the_devices_that_it_is_for(node: NodeTree) -> None:
    node.write(
        "proc/driver/nvidia/gpus/0000:3b:00.0/information",
        f"Model: \t\t NVIDIA L4\nIRQ:   \t\t 5\nGPU UUID: \t {_UUID}\nDevice Minor: \t 0\n",
    )
    told = node.told(
        *_rules(
            {"match": {"pci": CHIP}, "exclude": True},
            {"match": {"uuid": _UUID[:12] + "*"}, "resource": "a.b/c"},
            {"match": {"index": 0}},
        )
    )

    reasons = [each["reason"] for each in told.findings if each["area"] == "devices"]
    assert reasons[0] == f"devices[0] (pci {CHIP}) is for {CHIP}"
    assert reasons[1].endswith(f"is for {_UUID}")
    assert told.bad("devices") == {"rules": "WARN"}
    assert "earlier rules take every device" in told.of("devices", "rules")["reason"]


def test_a_rule_that_no_device_matches_is_a_warning(node: NodeTree) -> None:
    found = node.told(*_rules({"match": {"model": "v9*"}, "exclude": True})).of("devices", "rules")

    assert found["level"] == "WARN"
    assert found["reason"] == (
        "devices[0] (model v9*) does nothing: it matches no device of this node"
    )
    assert "correct or remove the rule" in found["remedy"]


def test_of_slices_only_the_daemon_can_tell(node: NodeTree) -> None:
    told = node.told(*_rules({"match": {"uuid": "MIG-*"}, "exclude": True}))

    assert told.bad("devices") == {}
    assert "holdfast status" in told.of("devices", "rules")["reason"]


def test_of_a_gpu_that_nobody_has_opened_only_the_daemon_can_tell_the_uuid(
    node: NodeTree,
) -> None:
    # What the driver writes of a GPU that it has not set up.
    unknown = "GPU-????????-????-????-????-????????????"
    for minor, address in enumerate(("0000:3b:00.0", "0000:3c:00.0")):
        node.write(
            f"proc/driver/nvidia/gpus/{address}/information",
            f"Model: \t\t Tesla K80\nGPU UUID: \t {unknown}\nDevice Minor: \t {minor}\n",
        )
    by_uuid, by_model = {"match": {"uuid": _UUID}}, {"match": {"model": "Tesla*"}, "exclude": True}

    told = node.told(*_rules(by_uuid, by_model))

    reasons = [each["reason"] for each in told.findings if each["area"] == "devices"]
    assert told.bad("devices") == {}
    assert "`holdfast status` shows whether a slice, or a GPU" in reasons[0]
    assert "0000:3b:00.0, 0000:3c:00.0" in reasons[1]


def test_chips_of_a_rule_are_named_together(node: NodeTree) -> None:
    told = node.told(*_rules({"match": {"model": "v5e"}, "resource": "a.b/c"}))

    assert (
        told.of("devices", "rules")["reason"] == f"devices[0] (model v5e) is for {CHIP}, {SECOND}"
    )
