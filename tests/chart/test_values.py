"""Values that cannot be right are refused before anything is installed, by the path of their key."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from chart.keys import groups
from chart.rendering import CHART, RefusedError, objects, render, settings
from chart.theirs import VALUES
from chart.valuesschema import DOCUMENTS, values_schema
from holdfast.errors import SettingsError
from holdfast.settings import Settings, convert, known_paths, plain


def _at(path: str, value: object) -> dict[str, Any]:
    """Return *value* at *path*."""
    for name in reversed(path.split(".")):
        value = {name: value}
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("confg", {}, "'confg' not allowed"),
        ("image.tagg", "1", "'tagg' not allowed"),
        ("config.gate.wiat", "1s", "/config/gate': additional properties 'wiat'"),
        ("config.gate.wait", "soon", "/config/gate/wait"),
        ("config.gate.wait", None, "/config/gate/wait"),
        ("config.gate", None, "/config/gate'"),
        ("config.http.port", 65536, "/config/http/port"),
        ("config.reclaim.mode", "kill", "/config/reclaim/mode"),
        ("config.stateDir", "var/lib/holdfast", "/config/stateDir"),
        ("config.gpu.devRoot", "/", "/config/gpu/devRoot"),
        ("config.host.proc", "/host/proc", "'proc' not allowed"),
        ("config.pools", [{"resourceName": "a.b/c", "device": ["x"]}], "/config/pools/0"),
        ("config.pools", [{"devices": ["1b36:0010"]}], "/config/pools/0"),
        ("image.digest", "latest", "/image/digest"),
        ("updateStrategy.rollingUpdate.maxSurge", 1, "/updateStrategy/rollingUpdate/maxSurge"),
        ("runtimeFolders", ["run/containerd"], "/runtimeFolders/0"),
        ("appArmor", "off", "/appArmor"),
        ("probes.liveness.periodSeconds", 0, "/probes/liveness/periodSeconds"),
        ("runtimeClasses.kata", {}, "'kata' not allowed"),
        ("podLabels", {"a": 1}, "/podLabels/a"),
        (
            "extraEnv",
            [{"name": "HOLDFAST_RECLAIM_MODE", "value": "terminate"}],
            "extraEnv: .*HOLDFAST_RECLAIM_MODE.*; set config.reclaim.mode",
        ),
        (
            "extraEnv",
            [{"name": "MIG_STRATEGY", "value": "mixed"}],
            "extraEnv: .*MIG_STRATEGY.*; set config.gpu.migStrategy",
        ),
        ("extraEnv", [{"name": "HOLDFAST_NONSENSE"}], "there is no setting .*HOLDFAST_NONSENSE"),
        ("extraEnv", [{"name": "A", "valu": "b"}], "/extraEnv/0': additional properties 'valu'"),
        ("extraEnv", [{"value": "b"}], "/extraEnv/0': missing property 'name'"),
        ("migStrategy", "mixed", "migStrategy: .*NVIDIA's .*; set config.gpu.migStrategy"),
        ("compatWithCPUManager", True, "compatWithCPUManager: .*config.gpu.passDeviceSpecs"),
        ("gfd.enabled", True, "gfd: .*config.labels.enabled"),
        ("config.map", {"a": ["b"]}, "/config/map/a"),
        ("config", {"map": {"a": ""}, "name": "b"}, "config.map: config.name names another"),
        ("config.map", {"no such": ""}, "/config/map.*'no such' not allowed"),
        ("config.default", "a", "config.default.*there are no documents; set config.map"),
        ("config.fallbackStrategies", ["last"], "/config/fallbackStrategies/0"),
        ("config.named.folder", "/srv", "'folder' not allowed"),
        ("config.pools", [{"resourceName": "foo", "devices": ["*:*"]}], "/config/pools/0/resource"),
        (
            "config.pools",
            [{"resourceName": "a.b/c"}],
            "(?s)/config/pools/0.*'devices'.*'addresses'",
        ),
        ("config.pools", [{"resourceName": "a.b/c", "devices": []}], "/config/pools/0"),
        (
            "config.pools",
            [{"resourceName": "a.b/c", "devices": ["8086"]}],
            "/config/pools/0/devices/0",
        ),
        ("config.tpu.resourceName", "tpu", "/config/tpu/resourceName"),
        ("config.tpu.generation", "v99", "/config/tpu/generation"),
        ("config.gpu.cdiAnnotationPrefix", "cdi", "/config/gpu/cdiAnnotationPrefix"),
        (
            "config.reclaim",
            {"mode": "observe", "leakedSandbox": "restart"},
            "leakedSandbox: restart",
        ),
        (
            "config",
            {"tpu": {"enabled": False}, "gpu": {"enabled": False}},
            "config.tpu.enabled: nothing is left to advertise",
        ),
        ("resources.limits.memory", "lots", "/resources/limits/memory"),
        ("resources.limits.memori", "1Gi", "/resources/limits': additional properties 'memori'"),
        ("fullnameOverride", "Has_Upper", "/fullnameOverride"),
        ("seccompProfile", {"type": "Localhost"}, "/seccompProfile': .*'localhostProfile'"),
        (
            "seccompProfile",
            {"type": "RuntimeDefault", "localhostProfile": "a.json"},
            "/seccompProfile",
        ),
        ("config.http.address", "127.0.0.1", "config.http.address: a pod's address"),
        ("config.tpu.api", "dra", "the api of google.com/tpu is dra.*; set dra.enabled: true"),
        ("config.gpu.api", "dra", "the api of nvidia.com/gpu is dra.*; set dra.enabled: true"),
        (
            "config.pools",
            [{"resourceName": "a.b/c", "devices": ["*:*"], "api": "dra"}],
            "the api of a.b/c is dra.*; set dra.enabled: true",
        ),
        ("config.tpu.api", "claims", "/config/tpu/api"),
        ("config.dra.kubeletRoot", "kubelet", "/config/dra/kubeletRoot"),
        ("config.dra.driverName", "Holdfast", "/config/dra/driverName"),
        ("dra.enable", True, "'enable' not allowed"),
    ],
)
def test_a_value_that_cannot_be_right_is_refused_by_its_path(
    path: str, value: object, told: str
) -> None:
    with pytest.raises(RefusedError, match=told):
        _refuse(_at(path, value))


_SELECTORS: list[dict[str, list[str]]] = [
    {"devices": ["1B36:0010"]},
    {"devices": ["*:00?0"]},
    {"devices": ["1b36"]},
    {"classes": ["0X0302"]},
    {"classes": ["0302", "x"]},
    {"addresses": ["0000:3b:*"]},
    {"addresses": [""]},
    {"devices": [], "classes": []},
    {},
]


@pytest.mark.parametrize("selectors", _SELECTORS)
@pytest.mark.parametrize(
    "name", ["example.com/nvme", "a/b", "foo", "/b", "A.b/c", "a.b/c/d", "a.b/c_D.e", "a.b/"]
)
def test_the_chart_takes_a_pool_exactly_where_the_daemon_does(
    name: str, selectors: dict[str, list[str]]
) -> None:
    values = {"pools": [{"resourceName": name, **selectors}]}
    try:
        convert(values)
    except SettingsError:
        with pytest.raises(RefusedError):
            _refuse({"config": values})
    else:
        render({"config": values}, helm=False)


def test_there_is_nothing_to_scrape_without_a_port() -> None:
    with pytest.raises(RefusedError, match="podMonitor.enabled: there is nothing to scrape"):
        _refuse({"podMonitor": {"enabled": True}, "config": {"http": {"port": 0}}})


def _refuse(values: dict[str, Any]) -> None:
    """Have Helm's engine refuse *values*: each version of the binary has words of its own."""
    render(values, helm=False)


def test_every_key_of_the_values_is_in_the_schema_and_every_key_of_the_schema_has_a_default() -> (
    None
):
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    found = values_schema()
    del found["properties"]["config"], values["config"]
    del found["properties"]["global"]  # Helm's own
    for name in VALUES:  # known to be refused with a word of help
        del found["properties"][name]

    assert set(_in_schema(found)) == set(_in_values(values, found))


_KUBERNETES = ("resources", "seccompProfile")
"""What stands in these is Kubernetes' own, of which the defaults need not have every key."""


def _in_schema(node: dict[str, Any], at: str = "") -> Iterator[str]:
    for name, below in node.get("properties", {}).items():
        if name in _KUBERNETES:
            yield name
            continue
        # Not written out among the defaults: kubelet's own is 0.
        if name != "initialDelaySeconds":
            yield f"{at}{name}"
        yield from _in_schema(below, f"{at}{name}.")


def _in_values(values: dict[str, Any], node: dict[str, Any], at: str = "") -> Iterator[str]:
    for name, below in values.items():
        yield f"{at}{name}"
        inner = node["properties"].get(name, {})
        if "properties" in inner and name not in _KUBERNETES:
            yield from _in_values(below, inner, f"{at}{name}.")


def test_the_schema_knows_every_key_of_the_settings_but_where_the_container_has_the_hosts_folders() -> (
    None
):
    def paths(node: dict[str, Any], at: str = "") -> Iterator[str]:
        for name, below in node["properties"].items():
            if "properties" in below:
                yield from paths(below, f"{at}{name}.")
            else:
                yield f"{at}{name}"

    found = set(paths(values_schema()["properties"]["config"])) - set(DOCUMENTS)

    fixed = {f"host.{name}" for name in ("sys", "proc", "cgroup", "etc", "run")}
    fixed |= {"named.folder"}
    assert found == set(known_paths()) - fixed


def test_every_default_of_the_daemon_is_a_value_that_the_chart_takes_and_hands_on() -> None:
    values = plain(Settings())
    del values["host"], values["named"]["folder"]

    found = settings(objects({"config": values}))

    assert plain(found) == {
        **plain(Settings()),
        "host": {**plain(Settings())["host"], "cgroup": "/host/cgroup"},
    }


def test_every_key_of_the_settings_has_its_meaning_below_it() -> None:
    assert [
        key.path for group in groups() for key in group.keys if len(key.meaning.split()) < 2
    ] == []


def test_whole_numbers_stay_whole_on_their_way_to_the_daemon() -> None:
    found = settings(objects({"config": {"history": {"perDevice": 10_000_000}}}))

    assert found.history.per_device == 10_000_000
