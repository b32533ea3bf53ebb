"""What the chart makes of values is what Kubernetes takes and what was asked for."""

import json
from typing import Any

import pytest
import yaml
from jsonschema import ValidationError

from chart.rendering import (
    CHART,
    NAMESPACE,
    REPOSITORY,
    RefusedError,
    Values,
    container,
    daemon_set,
    engine,
    objects,
    one,
    pod,
    render,
    settings,
)
from fakes.apischemas import check

_KINDS_OF_OTHERS = {"PodMonitor", "PrometheusRule"}
"""Of Prometheus Operator's: Kubernetes itself has no schema of them."""

_MUCH: dict[str, Any] = {
    "imagePullSecrets": [{"name": "ours"}],
    "extraEnv": [{"name": "TZ", "value": "UTC"}],
    "runtimeClassName": "nvidia",
    "hostNetwork": True,
    "podAnnotations": {"a.example.com/b": "c"},
    "podLabels": {"team": "hardware"},
    "nodeSelector": {"pool": "gpu"},
    "serviceAccount": {"annotations": {"a": "b"}},
    "resourceQuota": {"create": True},
    "podMonitor": {"enabled": True},
    "prometheusRule": {"enabled": True},
    "dashboards": {"enabled": True},
    "runtimeClasses": {
        "gvisor": {"create": True, "nodeSelector": {"sandbox": "gvisor"}},
        "nvidia": {"create": True},
    },
    "config": {
        "deviceListStrategy": "cdi",
        "labels": {"enabled": True},
        "http": {"address": "0.0.0.0"},
        "reclaim": {"reset": "afterForcedRelease", "rebind": True},
        "tpu": {"envFile": "/etc/tpu/tpu-env"},
        "gpu": {"migStrategy": "mixed", "driverRoot": "/drivers", "devRoot": "/nodes"},
    },
}


@pytest.mark.parametrize("minor", [30, 33, 37])
@pytest.mark.parametrize("values", [{}, _MUCH], ids=["defaults", "much"])
def test_the_objects_are_what_kubernetes_takes(values: dict[str, Any], minor: int) -> None:
    for each in objects(values):
        if each["kind"] not in _KINDS_OF_OTHERS:
            check(each, minor)


@pytest.mark.parametrize("minor", [25, 29])
def test_before_1_30_kubernetes_takes_them_with_the_annotation(minor: int) -> None:
    for each in objects({"appArmor": "annotation"}):
        check(each, minor)


def test_before_1_30_kubernetes_does_not_take_the_field() -> None:
    with pytest.raises(ValidationError, match="appArmorProfile"):
        check(daemon_set(), 29)


def test_helm_has_nothing_to_say_against_the_chart() -> None:
    found = engine().lint(str(CHART))

    assert found["errors"] == []
    told = [each["error"] for each in found["messages"]]
    assert [each for each in told if "icon" not in each] == []


def test_the_charts_version_is_the_packages() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    from holdfast import __version__  # noqa: PLC0415 - the name says where it is from

    assert chart["appVersion"] == chart["version"] == __version__


def test_every_key_of_the_configuration_reaches_the_daemon() -> None:
    found = settings(objects({"config": {"gate": {"wait": "10s"}, "tpu": {"enabled": False}}}))

    assert float(found.gate.wait) == 10
    assert found.tpu.enabled is False
    assert found.host.cgroup == "/host/cgroup"


def test_what_the_daemon_takes_up_by_itself_leaves_its_pods_as_they_are() -> None:
    pools = [{"resourceName": "example.com/nvme", "devices": ["1b36:0010"]}]

    assert daemon_set({"config": {"gate": {"wait": "10s"}, "pools": pools}}) == daemon_set({})


@pytest.mark.parametrize(
    "config",
    [
        {"stateDir": "/srv/state"},
        {"host": {"dev": "/host/dev"}},
        {"http": {"port": 9000}},
        {"http": {"address": "127.0.0.1"}},
        {"kubelet": {"pluginDir": "/srv/device-plugins"}},
        {"kubelet": {"podResourcesSocket": "/srv/pod-resources/kubelet.sock"}},
        {"reclaim": {"mode": "observe"}},
    ],
)
def test_what_takes_another_pod_makes_one(config: dict[str, Any]) -> None:
    def changed(config: dict[str, Any]) -> dict[str, Any]:
        return daemon_set({"hostNetwork": True, "config": config})

    assert changed(config) != changed({})


def test_never_are_two_daemons_on_a_node() -> None:
    assert daemon_set()["spec"]["updateStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
    }


def test_the_pod_is_critical_to_its_node_and_has_a_network_of_its_own() -> None:
    found = pod()

    assert found["priorityClassName"] == "system-node-critical"
    assert "hostNetwork" not in found
    assert found["automountServiceAccountToken"] is False
    # Else a Service called holdfast would be read as settings.
    assert found["enableServiceLinks"] is False


@pytest.mark.parametrize(
    "labels",
    [
        {"cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice"},
        {"cloud.google.com/gke-accelerator": "nvidia-l4"},
        {"k8s.amazonaws.com/accelerator": "nvidia-tesla-v100"},
        {"karpenter.k8s.aws/instance-gpu-manufacturer": "nvidia"},
        {"nvidia.com/gpu.present": "true"},
        {"feature.node.kubernetes.io/pci-10de.present": "true"},
        {"feature.node.kubernetes.io/pci-0302_10de.present": "true"},
        {"feature.node.kubernetes.io/pci-0300_10de.present": "true"},
        {"feature.node.kubernetes.io/pci-1ae0.present": "true"},
        {"feature.node.kubernetes.io/pci-1200_1ae0.present": "true"},
        {"holdfast": "true"},
    ],
    ids=lambda labels: next(iter(labels)),
)
def test_each_label_that_tells_of_accelerators_is_enough_for_a_daemon(
    labels: dict[str, str],
) -> None:
    assert _matches(labels)


@pytest.mark.parametrize(
    "labels",
    [{}, {"nvidia.com/gpu.present": "false"}, {"holdfast": "false"}, {"kubernetes.io/os": "linux"}],
)
def test_other_nodes_have_no_daemon(labels: dict[str, str]) -> None:
    assert not _matches(labels)


def _matches(labels: dict[str, str]) -> bool:
    """Tell whether a node has a daemon, as the scheduler reads the terms."""
    required = pod()["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return any(
        all(
            each["key"] in labels
            and (each["operator"] == "Exists" or labels[each["key"]] in each["values"])
            for each in term["matchExpressions"]
        )
        for term in required["nodeSelectorTerms"]
    )


def test_no_taint_keeps_it_from_a_node_with_accelerators() -> None:
    assert pod()["tolerations"] == [{"operator": "Exists"}]


def test_terms_of_affinity_that_are_given_replace_the_default_ones() -> None:
    terms = [{"matchExpressions": [{"key": "mine", "operator": "Exists"}]}]
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    found = pod({"affinity": {"nodeAffinity": rule}})

    assert found["affinity"] == {"nodeAffinity": rule}
    assert "affinity" not in pod({"affinity": None})


def test_the_probes_ask_the_port_that_is_configured_and_the_budget_of_a_start_is_told() -> None:
    found = container({"config": {"http": {"port": 9009}}})

    assert found["ports"] == [{"name": "http", "containerPort": 9009, "protocol": "TCP"}]
    paths = {name: found[name]["httpGet"]["path"] for name in found if name.endswith("Probe")}
    assert paths == {
        "startupProbe": "/livez",
        "livenessProbe": "/livez",
        "readinessProbe": "/readyz?exclude=configuration&exclude=privileges",
    }
    assert "# 120 s to its first answer." in render()


def test_without_a_port_there_are_no_probes_and_no_test() -> None:
    found = objects({"config": {"http": {"port": 0}}})

    (only,) = one(found, "DaemonSet")["spec"]["template"]["spec"]["containers"]
    assert not [name for name in only if name.endswith("Probe") or name == "ports"]
    assert {each["kind"] for each in found} == {"ConfigMap", "ServiceAccount", "DaemonSet"}


def test_an_address_of_the_node_is_asked_where_the_pod_has_the_nodes_network() -> None:
    found = container(_bound("127.0.0.1"))

    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert found[name]["httpGet"]["host"] == "127.0.0.1"


def _bound(address: str, **values: Any) -> Values:
    return {"hostNetwork": True, "config": {"http": {"address": address}}, **values}


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.0.1", "::1", "localhost"])
def test_what_only_the_node_itself_reaches_has_no_test_and_nothing_to_scrape(address: str) -> None:
    found = {each["kind"] for each in objects(_bound(address))}

    assert found == {"ConfigMap", "ServiceAccount", "DaemonSet"}
    told = f"has no test: only the node itself reaches config.http.address, {address}."
    assert told in _notes(_bound(address))
    with pytest.raises(RefusedError, match=f"cannot reach config.http.address, {address}; leave"):
        objects(_bound(address, podMonitor={"enabled": True}))


@pytest.mark.parametrize("address", ["", "0.0.0.0", "::", "10.0.0.127", "2001:db8::1"])
def test_what_others_reach_has_both(address: str) -> None:
    values = _bound(address, podMonitor={"enabled": True})

    assert {"Service", "Pod", "PodMonitor"} <= {each["kind"] for each in objects(values)}
    assert "`helm test holdfast --namespace kube-system` asks each daemon" in _notes(values)


@pytest.mark.parametrize(
    ("image", "whole"),
    [
        ({}, "holdfast:0.1.0"),
        (
            {"repository": "registry.example.com/a/holdfast"},
            "registry.example.com/a/holdfast:0.1.0",
        ),
        ({"tag": "nightly"}, "holdfast:nightly"),
        ({"tag": "1", "digest": "sha256:" + "0" * 64}, "holdfast@sha256:" + "0" * 64),
    ],
)
def test_the_image_is_named_by_digest_else_by_tag_else_by_the_charts_version(
    image: dict[str, str], whole: str
) -> None:
    assert container({"image": image})["image"] == whole


def test_the_container_is_started_as_the_image_starts_the_daemon() -> None:
    text = (REPOSITORY / "Dockerfile").read_text()
    entry = next(line for line in text.splitlines() if line.startswith("ENTRYPOINT "))

    # With the node's pid namespace tini is not pid 1, and reaps all the same (-s).
    assert json.loads(entry.removeprefix("ENTRYPOINT ")) == ["tini", "-s", "--", "holdfast"]
    assert "command" not in container()
    assert container()["args"] == ["run"]
    # Its uid is the manifest's to say, and its root may be read-only: nothing is written there.
    assert "\nUSER " not in text


def test_what_is_given_for_the_pod_is_in_it() -> None:
    found = daemon_set(_MUCH)["spec"]["template"]

    assert found["metadata"]["annotations"]["a.example.com/b"] == "c"
    assert found["metadata"]["labels"]["team"] == "hardware"
    assert found["spec"]["imagePullSecrets"] == [{"name": "ours"}]
    assert found["spec"]["nodeSelector"] == {"pool": "gpu"}
    assert found["spec"]["runtimeClassName"] == "nvidia"
    assert {"name": "TZ", "value": "UTC"} in found["spec"]["containers"][0]["env"]


@pytest.mark.parametrize(
    ("gpu", "names"),
    [
        ({}, {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}),
        ({"enabled": False, "migStrategy": "single"}, set()),
        (
            {"migStrategy": "single"},
            {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_MIG_MONITOR_DEVICES"},
        ),
    ],
)
def test_nvidias_container_runtime_is_asked_for_what_is_used(
    gpu: dict[str, Any], names: set[str]
) -> None:
    found = {each["name"] for each in container({"config": {"gpu": gpu}})["env"]}

    assert found == {"HOLDFAST_CONFIG"} | names


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"image": {"pullPolicy": "Always"}}, "imagePullPolicy: Always"),
        ({"resources": {"limits": {"memory": "64Mi"}}}, "memory: 64Mi"),
        ({"probes": {"liveness": {"failureThreshold": 17}}}, "failureThreshold: 17"),
        ({"terminationGracePeriodSeconds": 44}, "terminationGracePeriodSeconds: 44"),
        ({"seccompProfile": {"type": "Unconfined"}}, "type: Unconfined"),
        ({"seLinuxType": "control_t"}, "type: control_t"),
        ({"runtimeFolders": ["/run/k3s/containerd"]}, "mountPath: /run/k3s/containerd"),
        ({"priorityClassName": "mine"}, "priorityClassName: mine"),
        ({"updateStrategy": {"type": "OnDelete", "rollingUpdate": None}}, "type: OnDelete"),
    ],
)
def test_what_is_said_of_the_pod_is_so(values: dict[str, Any], told: str) -> None:
    assert told in yaml.safe_dump(daemon_set(values))


@pytest.mark.parametrize(
    "values",
    [
        {"resources": None},
        {"seccompProfile": None},
        {"seLinuxType": ""},
        {"tolerations": None},
        {"priorityClassName": ""},
        {"runtimeFolders": []},
    ],
)
def test_what_is_left_out_is_left_out(values: dict[str, Any]) -> None:
    check(daemon_set(values), 33)
    (name,) = values
    if name != "runtimeFolders":
        absent = {"seLinuxType": "seLinuxOptions"}.get(name, name)
        # The pod of helm's test has some of its own.
        text = yaml.safe_dump(daemon_set(values))
        assert f"{absent}:" not in text


def test_names_and_namespace_can_be_chosen() -> None:
    def name(values: dict[str, Any], release: str) -> str:
        return str(one(objects(values, name=release), "DaemonSet")["metadata"]["name"])

    assert name({}, "holdfast") == "holdfast"
    assert name({}, "tpu") == "tpu-holdfast"
    assert name({}, "my-holdfast") == "my-holdfast"
    assert name({"nameOverride": "plugin"}, "tpu") == "tpu-plugin"
    assert name({"fullnameOverride": "plugin"}, "tpu") == "plugin"
    namespaces = {
        each["metadata"].get("namespace")
        for each in objects({**_MUCH, "namespaceOverride": "hardware"})
    }
    assert namespaces == {"hardware", None}  # a RuntimeClass belongs to none
    assert {each["metadata"].get("namespace") for each in objects()} == {NAMESPACE}


def test_a_service_account_of_ones_own_is_used_and_none_is_made() -> None:
    found = objects({"serviceAccount": {"create": False, "name": "mine"}})

    assert not [each for each in found if each["kind"] == "ServiceAccount"]
    spec = one(found, "DaemonSet")["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == "mine"


def test_the_monitor_finds_the_daemons_and_nothing_else() -> None:
    found = objects({"podMonitor": {"enabled": True, "labels": {"release": "prometheus"}}})

    monitor = one(found, "PodMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    template = one(found, "DaemonSet")["spec"]["template"]
    assert wanted <= template["metadata"]["labels"].items()
    assert not wanted <= one(found, "Pod")["metadata"]["labels"].items()
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["podMetricsEndpoints"][0]["path"] == "/metrics"


def test_the_rules_are_those_of_the_file_word_for_word() -> None:
    values = {"prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}}}

    rule = one(objects(values), "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((REPOSITORY / "deploy/alerts/holdfast.yaml").read_text())
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    assert not [each for each in objects() if each["kind"] == "PrometheusRule"]


def test_the_dashboards_are_those_of_the_folder_where_grafana_looks_for_them() -> None:
    found = objects({"dashboards": {"enabled": True}})

    (only,) = [each for each in found if "dashboards" in each["metadata"]["name"]]
    assert only["metadata"]["labels"]["grafana_dashboard"] == "1"
    folder = REPOSITORY / "deploy/dashboards"
    assert {name: json.loads(text) for name, text in (only["data"] or {}).items()} == {
        each.name: json.loads(each.read_text()) for each in folder.glob("*.json")
    }


def test_runtime_classes_are_made_when_asked_for() -> None:
    assert not [each for each in objects() if each["kind"] == "RuntimeClass"]

    classes = [each for each in objects(_MUCH) if each["kind"] == "RuntimeClass"]
    assert {each["metadata"]["name"]: each["handler"] for each in classes} == {
        "gvisor": "runsc",
        "nvidia": "nvidia",
    }


def test_the_quota_is_for_pods_of_the_class_that_the_daemon_has() -> None:
    quota = one(objects({"resourceQuota": {"create": True}}), "ResourceQuota")

    (scope,) = quota["spec"]["scopeSelector"]["matchExpressions"]
    assert scope["values"] == [pod()["priorityClassName"]]


def _notes(values: Values) -> str:
    with engine().Chart.load(CHART) as chart:
        rendered: dict[str, str] = chart.render(values, name="holdfast", namespace=NAMESPACE)
    return rendered["holdfast/templates/NOTES.txt"]


def test_the_notes_say_that_a_reset_takes_a_privileged_container() -> None:
    values: Values = {"config": {"reclaim": {"reset": "afterForcedRelease"}}}

    assert "config.reclaim.reset has no effect" in _notes(values)
    assert "config.reclaim.reset has no effect" not in _notes({**values, "privileged": True})


def test_the_notes_say_what_is_served_by_claims_and_when_nothing_is() -> None:
    served: Values = {"dra": {"enabled": True}, "config": {"tpu": {"api": "dra"}}}

    assert "By claims (DRA): google.com/tpu." in _notes(served)
    assert "no hardware is served by DRA" in _notes({"dra": {"enabled": True}})
    assert "DRA" not in _notes({})


def test_the_notes_have_three_commands_to_check_an_installation() -> None:
    commands = [line.strip() for line in _notes({}).splitlines() if line.startswith("    ")]
    assert [each.split(" -- ")[-1] for each in commands] == [
        "kubectl --namespace kube-system rollout status daemonset/holdfast",
        "holdfast status",
        "holdfast doctor",
    ]
