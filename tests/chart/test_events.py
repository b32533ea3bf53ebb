"""What `config.events.enabled` brings: two rights, the policies that narrow them, and a token."""

from typing import Any

import pytest

from chart.rendering import RefusedError, container, objects, one, pod, render
from fakes.apischemas import check
from holdfast.doctor.apiserver import EVENT_RIGHTS
from holdfast.model.events import CONDITION

_EVENTS: dict[str, Any] = {"config": {"events": {"enabled": True}}}


def _policies(values: dict[str, Any]) -> dict[str, Any]:
    found = objects(values)
    return {
        each["metadata"]["name"].rpartition("-")[2]: each["spec"]
        for each in found
        if each["kind"] == "ValidatingAdmissionPolicy"
    }


@pytest.mark.parametrize("minor", [34, 35, 36, 37])
def test_the_objects_are_what_kubernetes_takes(minor: int) -> None:
    found = objects(_EVENTS)

    assert {each["kind"] for each in found} >= {"ClusterRole", "ValidatingAdmissionPolicy"}
    for each in found:
        check(each, minor)


def test_it_may_create_events_and_patch_the_status_of_nodes_and_no_more() -> None:
    rules = one(objects(_EVENTS), "ClusterRole")["rules"]

    assert rules == [
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
    ]
    asked = ["/".join(filter(None, (each.resource, each.subresource))) for each in EVENT_RIGHTS]
    assert [rule["resources"][0] for rule in rules] == asked, "the doctor asks for these"
    assert [rule["verbs"][0] for rule in rules] == [each.verb for each in EVENT_RIGHTS]


def test_with_claims_the_rights_of_both_are_there() -> None:
    both = one(objects({**_EVENTS, "dra": {"enabled": True}}), "ClusterRole")["rules"]
    claims = one(objects({"dra": {"enabled": True}}), "ClusterRole")["rules"]

    assert both == claims + one(objects(_EVENTS), "ClusterRole")["rules"]


def test_the_daemon_is_given_a_token_and_the_name_of_its_node_and_no_folder_of_kubelets() -> None:
    assert pod(_EVENTS)["automountServiceAccountToken"] is True
    (name,) = [each for each in container(_EVENTS)["env"] if each["name"] == "NODE_NAME"]
    assert name["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    assert pod(_EVENTS)["volumes"] == pod()["volumes"]
    assert container(_EVENTS)["volumeMounts"] == container()["volumeMounts"]


def test_rights_are_given_to_no_account_that_other_pods_have() -> None:
    with pytest.raises(RefusedError, match=r"serviceAccount\.name: with .*config\.events\.enabled"):
        render({**_EVENTS, "serviceAccount": {"create": False}}, helm=False)


def test_the_policies_are_for_this_account_alone_and_bound() -> None:
    values = {**_EVENTS, "namespaceOverride": "hardware", "serviceAccount": {"name": "mine"}}
    found = _policies(values)

    assert set(found) == {"events", "condition"}
    for spec in found.values():
        (condition,) = spec["matchConditions"]
        user = "system:serviceaccount:hardware:mine"
        assert condition["expression"] == f'request.userInfo.username == "{user}"'
        assert spec["failurePolicy"] == "Fail"
    bound = [
        each["spec"]
        for each in objects(values)
        if each["kind"] == "ValidatingAdmissionPolicyBinding"
    ]
    assert [each["validationActions"] for each in bound] == [["Deny"], ["Deny"]]
    assert [each["policyName"] for each in bound] == [
        "holdfast.hardware-events",
        "holdfast.hardware-condition",
    ]


def test_an_event_names_the_daemon_and_its_node() -> None:
    spec = _policies(_EVENTS)["events"]

    (rule,) = spec["matchConstraints"]["resourceRules"]
    assert (rule["resources"], rule["operations"]) == (["events"], ["CREATE", "UPDATE"])
    said = " ".join(each["expression"] for each in spec["validations"])
    assert 'variables.podNode != ""' in said
    assert "object.source.host == variables.podNode" in said
    assert "object.reportingInstance == variables.podNode" in said
    assert "object.involvedObject.name == variables.podNode" in said


def test_of_the_own_node_only_the_condition_may_change() -> None:
    spec = _policies(_EVENTS)["condition"]

    (rule,) = spec["matchConstraints"]["resourceRules"]
    assert (rule["resources"], rule["operations"]) == (["nodes/status"], ["UPDATE"])
    said = [each["expression"] for each in spec["validations"]]
    assert said[0] == 'variables.podNode != "" && object.metadata.name == variables.podNode'
    assert said[1] == "variables.before == variables.after"
    for variable in spec["variables"][1:]:
        assert f'each.type != "{CONDITION}"' in variable["expression"]
    same = " ".join(said[2:])
    for field in ("metadata.labels", "metadata.annotations", "status.capacity"):
        assert f"object.{field} == oldObject.{field}" in same
