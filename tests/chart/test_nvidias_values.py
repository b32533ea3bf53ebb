"""Each value of the chart of NVIDIA's device plugin (v0.20) works here, or is refused by name."""

from typing import Any

import pytest

from chart.rendering import RefusedError, render
from chart.theirs import VALUES

_FILE = "version: v1\nflags: {migStrategy: mixed}\n"
_TAKEN: list[dict[str, Any]] = [
    {"config": {"map": {"config": _FILE}}},
    {"config": {"map": {"config": {"version": "v1", "flags": {"migStrategy": "mixed"}}}}},
    {"config": {"map": {"config0": "version: v1\n", "config1": _FILE}, "default": "config0"}},
    {"config": {"name": "nvidia-plugin-configs"}},
    {"config": {"name": "nvidia-plugin-configs", "default": "config0"}},
    {"config": {"map": {"a": _FILE}, "fallbackStrategies": ["named", "single"]}},
    {"config": {"map": {}, "name": "", "default": "", "fallbackStrategies": []}},
    {"runtimeClassName": "nvidia"},
    {"resources": {"requests": {"cpu": "100m"}, "limits": {"memory": "512Mi"}}},
    {"nodeSelector": {"nvidia.com/gpu.present": "true"}},
    {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]},
    {"affinity": {"nodeAffinity": {}}},
    {"priorityClassName": "system-node-critical"},
    {"podAnnotations": {"a": "b"}},
    {"imagePullSecrets": [{"name": "regcred"}]},
    {"image": {"repository": "example.com/holdfast", "tag": "1", "pullPolicy": "IfNotPresent"}},
    {"nameOverride": "a", "fullnameOverride": "b", "namespaceOverride": "c"},
    {"updateStrategy": {"type": "RollingUpdate"}},
]
_REFUSED: dict[str, tuple[Any, str]] = {
    "allowDefaultNamespace": (True, "leave it out"),
    "cdi": (
        {"nvidiaHookPath": None, "featureFlags": "a"},
        "gpu.cdiFeatureFlags for cdi.featureFlags",
    ),
    "compatWithCPUManager": (True, "config.gpu.passDeviceSpecs"),
    "componentSelectorLabels": ({"enabled": True}, "leave it out"),
    "configManager": ({"resources": {}}, "no such container; leave it out"),
    "deviceDiscoveryStrategy": ("nvml", "leave it out"),
    "deviceIDStrategy": ("uuid", "config.gpu.deviceIdStrategy"),
    "deviceListStrategy": ("envvar", "config.gpu.deviceListStrategy"),
    "devicePlugin": ({"enableHostNetwork": True}, "hostNetwork beside config for devicePlugin.e"),
    "failOnInitError": (False, "leave it out"),
    "gdrcopyEnabled": (True, "config.gpu.gdrcopyEnabled"),
    "gdsEnabled": (True, "config.gpu.gdsEnabled"),
    "gfd": ({"enabled": True}, "config.labels.enabled"),
    "legacyDaemonsetAPI": (True, "leave it out"),
    "logVerbosity": (4, "config.log.level"),
    "migStrategy": ("mixed", "config.gpu.migStrategy"),
    "mofedEnabled": (True, "config.gpu.mofedEnabled"),
    "mps": ({"root": "/run/nvidia/mps"}, "config.sharing.timeSlicing"),
    "namespace": ("nvidia", "helm --namespace"),
    "nfd": ({"enabled": False}, "install it beside"),
    "nvidiaDevRoot": ("/", "config.gpu.devRoot"),
    "nvidiaDriverCapabilities": ("compute", "leave it out"),
    "nvidiaDriverRoot": ("/run/nvidia/driver", "config.gpu.driverRoot"),
    "podSecurityContext": ({}, "leave it out"),
    "securityContext": ({}, "leave it out"),
    "selectorLabelsOverride": ({"a": "b"}, "nameOverride, or podLabels"),
}


@pytest.mark.parametrize("values", _TAKEN)
def test_a_value_for_nvidias_chart_is_taken(values: dict[str, Any]) -> None:
    assert "kind: DaemonSet" in render(values, helm=False)


@pytest.mark.parametrize("name", _REFUSED)
def test_a_value_for_nvidias_chart_that_is_not_taken_is_refused_with_what_to_use(name: str) -> None:
    value, told = _REFUSED[name]
    with pytest.raises(RefusedError, match=f"{name}: that is a value .*{told}"):
        render({name: value}, helm=False)


def test_every_value_that_is_refused_by_name_is_one_of_nvidias() -> None:
    assert VALUES.keys() == _REFUSED.keys()
