"""What `dra.enabled` brings is what claims take, for the hardware that they are to get, and no more."""

import re
from typing import Any

import pytest

from chart.rendering import RefusedError, container, objects, one, pod, render, settings
from fakes.apischemas import check
from holdfast.doctor.apiserver import RIGHTS
from holdfast.model.dra.advertised import texts

_POOL = {"resourceName": "example.com/nvme_X", "devices": ["8086:*"], "api": "dra"}
_DRA: dict[str, Any] = {
    "dra": {"enabled": True},
    "config": {
        "tpu": {"api": "dra"},
        "gpu": {"api": "dra", "migStrategy": "mixed"},
        "pools": [_POOL, {**_POOL, "devices": ["144d:*"]}],
    },
}
_KINDS = {
    "ClusterRole",
    "ClusterRoleBinding",
    "DeviceClass",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}

_RENAMED = {"name": "nvidia.com/gpu", "replicas": 2, "rename": "nvidia.com/gpu.shared"}


def _only(**config: Any) -> dict[str, Any]:
    return {"dra": {"enabled": True}, "config": config}


def _classes(values: dict[str, Any]) -> dict[str, Any]:
    found = objects(values)
    return {
        each["metadata"]["name"]: each["spec"] for each in found if each["kind"] == "DeviceClass"
    }


@pytest.mark.parametrize("minor", [34, 35, 36, 37])
def test_the_objects_are_what_kubernetes_takes(minor: int) -> None:
    found = objects(_DRA)

    assert {each["kind"] for each in found} >= _KINDS
    for each in found:
        check(each, minor)


def test_without_it_there_is_nothing_of_it() -> None:
    found = objects()

    assert not _KINDS & {each["kind"] for each in found}
    assert "dra" not in one(found, "ConfigMap")["data"]["config.yaml"]
    assert not [each for each in container()["env"] if each["name"] == "NODE_NAME"]
    assert not [each for each in pod()["volumes"] if "plugins_registry" in str(each)]
    assert pod()["automountServiceAccountToken"] is False


def test_the_daemon_is_given_a_token_and_the_name_of_its_node() -> None:
    assert pod(_DRA)["automountServiceAccountToken"] is True
    (name,) = [each for each in container(_DRA)["env"] if each["name"] == "NODE_NAME"]
    assert name["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}


def test_kubelets_folders_are_mounted_where_kubelet_has_them() -> None:
    values = {**_only(tpu={"api": "dra"}, dra={"driverName": "tpu.example.com"})}
    values["kubeletRoot"] = "/var/lib/k0s/kubelet/"
    volumes = {each["name"]: each.get("hostPath") for each in pod(values)["volumes"]}

    assert volumes["plugins-registry"] == {
        "path": "/var/lib/k0s/kubelet/plugins_registry",
        "type": "Directory",
    }
    assert volumes["dra-driver"]["path"] == "/var/lib/k0s/kubelet/plugins/tpu.example.com"
    found = settings(objects(values)).dra
    assert found.kubelet_root == "/var/lib/k0s/kubelet"
    # Through the node's first process, as a file alone cannot be mounted: kubelet replaces it.
    assert found.claim_file() == "/proc/1/root/var/lib/k0s/kubelet/dra_manager_state"
    mounts = {each["name"]: each for each in container(values)["volumeMounts"]}
    for name in ("plugins-registry", "dra-driver"):
        # Kubelet connects to the path that it is told.
        assert mounts[name]["mountPath"] == volumes[name]["path"]
        assert not mounts[name].get("readOnly")
    assert mounts["cdi"]["mountPath"] == "/var/run/cdi"


def test_it_may_read_claims_and_write_slices_and_no_more() -> None:
    found = objects(_DRA)

    assert [
        (rule["apiGroups"], rule["resources"], rule["verbs"])
        for rule in one(found, "ClusterRole")["rules"]
    ] == [
        (["resource.k8s.io"], ["resourceclaims"], ["get"]),
        (["resource.k8s.io"], ["resourceslices"], ["list", "watch"]),
        (["resource.k8s.io"], ["resourceslices"], ["create", "update", "delete"]),
        ([""], ["nodes"], ["get"]),
    ]
    assert {
        (verb, resource, group)
        for rule in one(found, "ClusterRole")["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
        for group in rule["apiGroups"]
    } == {(each.verb, each.resource, each.group) for each in RIGHTS}, "the doctor asks for these"
    binding = one(found, "ClusterRoleBinding")
    assert binding["roleRef"]["name"] == one(found, "ClusterRole")["metadata"]["name"]
    account = one(found, "ServiceAccount")["metadata"]
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
    ]


def test_the_policy_limits_every_write_of_this_account_to_its_node_and_driver() -> None:
    values = {**_DRA, "namespaceOverride": "hardware", "serviceAccount": {"name": "mine"}}
    found = objects(values)
    policy = one(found, "ValidatingAdmissionPolicy")["spec"]

    assert policy["failurePolicy"] == "Fail"
    (rule,) = policy["matchConstraints"]["resourceRules"]
    assert rule == {
        "apiGroups": ["resource.k8s.io"],
        "apiVersions": ["*"],
        "resources": ["resourceslices"],
        "operations": ["CREATE", "UPDATE", "DELETE"],
    }
    (condition,) = policy["matchConditions"]
    user = "system:serviceaccount:hardware:mine"
    assert condition["expression"] == f'request.userInfo.username == "{user}"'
    assert [each["expression"] for each in policy["validations"]] == [
        'variables.podNode != ""',
        "variables.sliceNode == variables.podNode",
        'request.operation == "DELETE" || variables.slice.spec.pool.name == variables.podNode',
        'variables.slice.spec.driver == "holdfast.dev"',
    ]
    variables = {each["name"]: each["expression"] for each in policy["variables"]}
    assert variables["slice"] == 'request.operation == "DELETE" ? oldObject : object'
    assert "authentication.kubernetes.io/node-name" in variables["podNode"]
    assert "variables.slice.spec.nodeName" in variables["sliceNode"]
    binding = one(found, "ValidatingAdmissionPolicyBinding")["spec"]
    assert binding == {
        "policyName": one(found, "ValidatingAdmissionPolicy")["metadata"]["name"],
        "validationActions": ["Deny"],
    }


def test_releases_of_one_name_in_two_namespaces_do_not_share_what_belongs_to_none() -> None:
    names = {
        (each["kind"], each["metadata"]["name"])
        for namespace in ("a", "b")
        for each in objects({**_DRA, "namespaceOverride": namespace})
        if each["kind"] in _KINDS - {"DeviceClass"}
    }
    assert len(names) == 2 * (len(_KINDS) - 1)


def test_each_resource_that_is_served_by_dra_has_a_class_that_is_it_to_pods() -> None:
    found = _classes(_DRA)

    assert {name: each.get("extendedResourceName") for name, each in found.items()} == {
        "tpu.holdfast.dev": "google.com/tpu",
        "tpu-shape.holdfast.dev": None,
        "gpu.holdfast.dev": "nvidia.com/gpu",
        "mig.holdfast.dev": None,
        "nvme-x.example.com.holdfast.dev": "example.com/nvme_X",
    }
    (selector,) = found["gpu.holdfast.dev"]["selectors"]
    assert selector["cel"]["expression"] == (
        'device.driver == "holdfast.dev" && has(device.attributes["holdfast.dev"].resource) && '
        'device.attributes["holdfast.dev"].resource == "nvidia.com/gpu"'
    )
    (selector,) = found["mig.holdfast.dev"]["selectors"]
    assert selector["cel"]["expression"] == (
        'device.driver == "holdfast.dev" && device.attributes["holdfast.dev"].type == "mig"'
    )


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (_only(gpu={"api": "dra"}), {"gpu.holdfast.dev"}),
        (_only(gpu={"api": "dra", "migStrategy": "single"}), {"gpu.holdfast.dev"}),
        (_only(tpu={"api": "dra"}), {"tpu.holdfast.dev", "tpu-shape.holdfast.dev"}),
        (
            _only(tpu={"enabled": False, "api": "dra"}, gpu={"api": "dra"}),
            {"gpu.holdfast.dev"},
        ),
        (_only(gpu={"api": "dra"}, dra={"driverName": "a.example.com"}), {"gpu.a.example.com"}),
        (
            {"dra": {"enabled": True, "deviceClasses": {"create": False}}}
            | {"config": {"gpu": {"api": "dra"}}},
            set(),
        ),
    ],
)
def test_what_stays_with_the_device_plugin_has_no_class(
    values: dict[str, Any], names: set[str]
) -> None:
    assert set(_classes(values)) == names


def test_claims_that_are_left_can_end_after_the_hardware_went_back_to_the_device_plugin() -> None:
    values = {"dra": {"enabled": True}}

    assert pod(values)["automountServiceAccountToken"] is True
    assert one(objects(values), "ClusterRole")
    assert _classes(values) == {}


def test_rights_are_given_to_no_account_that_other_pods_have() -> None:
    values = {**_DRA, "serviceAccount": {"create": False}}
    with pytest.raises(RefusedError, match=r"serviceAccount\.name: with dra\.enabled"):
        render(values, helm=False)

    found = objects({**_DRA, "serviceAccount": {"create": False, "name": "mine"}})
    assert one(found, "ClusterRoleBinding")["subjects"][0]["name"] == "mine"


def test_the_class_of_a_long_resource_chooses_by_what_an_attribute_has_room_for() -> None:
    resource = f"{'a' * 50}.example.com/{'b' * 50}"
    values = _only(tpu={"api": "dra", "resourceName": resource})
    spec = _classes(values)["tpu.holdfast.dev"]
    assert spec["extendedResourceName"] == resource
    (selector,) = spec["selectors"]
    (told,) = re.findall('resource == "([^"]*)"', selector["cel"]["expression"])
    assert told == texts(resource=resource)["resource"].text


def test_the_resource_of_a_rule_has_a_class_where_all_hardware_comes_by_claims() -> None:
    rules = [{"match": {"index": 0}, "resource": "example.com/debug"}]
    name = "debug.example.com.holdfast.dev"
    assert name in _classes(_only(tpu={"api": "dra"}, gpu={"api": "dra"}, devices=rules))
    pool = {"resourceName": "a.b/c", "devices": ["1:2"], "api": "dra"}
    only = {"enabled": False}
    assert name in _classes(_only(tpu=only, gpu=only, pools=[pool], devices=rules))
    by_plugin = [{**rules[0], "api": "device-plugin"}]
    assert name not in _classes(_only(tpu={"api": "dra"}, devices=by_plugin))
    of_nvidia = [{"match": {"index": 0}, "resource": "nvidia.com/h100"}]
    found = _classes(_only(tpu={"api": "dra"}, gpu={"api": "dra"}, devices=of_nvidia))
    assert "h100.nvidia.com.holdfast.dev" in found


@pytest.mark.parametrize(
    "document",
    [
        "version: v1\nsharing: {timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/gpu}]}}",
        "version: v1\nsharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu}]}}",
        {"sharing": {"timeSlicing": {"resources": [_RENAMED]}}},
    ],
)
def test_shares_that_a_named_document_renames_have_a_class(document: object) -> None:
    name = "gpu-shared.holdfast.dev"
    assert name not in _classes(_only(gpu={"api": "dra"}))
    assert name in _classes(_only(gpu={"api": "dra"}, map={"some": document}))


_BY_CLAIM = {"api": "dra"}


@pytest.mark.parametrize(
    ("config", "document", "more"),
    [
        ({}, {"gpu": _BY_CLAIM}, {"gpu"}),
        ({}, "gpu: {api: dra}", {"gpu"}),
        ({}, {"tpu": _BY_CLAIM}, {"tpu", "tpu-shape"}),
        (
            {"tpu": {"enabled": False, "api": "dra"}},
            {"tpu": {"enabled": True}},
            {"tpu", "tpu-shape"},
        ),
        ({"gpu": _BY_CLAIM}, {"gpu": {"migStrategy": "mixed"}}, {"mig"}),
        ({"gpu": _BY_CLAIM}, "version: v1\nflags: {migStrategy: mixed}", {"mig"}),
        ({"gpu": {"migStrategy": "mixed"}}, {"gpu": _BY_CLAIM}, {"gpu", "mig"}),
        ({}, {"pools": [{"resourceName": "a.b/c", "devices": ["1:2"], "api": "dra"}]}, {"c.a.b"}),
    ],
)
def test_what_a_named_document_has_served_by_dra_has_its_classes_too(
    config: dict[str, Any], document: object, more: set[str]
) -> None:
    values = _only(**config, map={"default": {}, "some": document})

    found = set(_classes(values)) - set(_classes(_only(**config)))

    assert found == {f"{name}.holdfast.dev" for name in more}
