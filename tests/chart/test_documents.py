"""Named documents by the keys that the chart of NVIDIA's device plugin has for them."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from chart.rendering import container, objects, one, pod
from fakes.settingsfiles import load
from holdfast.doctor.apiserver import LABEL_RIGHTS
from holdfast.settings import Settings
from holdfast.settings.named import remember

_TEXT = """\
version: v1
flags:
  migStrategy: "none"
  failOnInitError: true
  nvidiaDriverRoot: "/"
  plugin:
    passDeviceSpecs: false
    deviceListStrategy: envvar
    deviceIDStrategy: uuid
"""
_THEIRS: dict[str, Any] = {
    "config": {
        "map": {"default": _TEXT, "mig-mixed": _TEXT.replace('"none"', "mixed")},
        "default": "",
        "fallbackStrategies": ["named", "single"],
    }
}
"""As values for NVIDIA's chart are."""


def _loaded(values: dict[str, Any], folder: Path, label: str) -> Settings:
    """Return the settings of a node with that label, whose kubelet has mounted the ConfigMaps."""
    maps = {
        each["metadata"]["name"]: each["data"]
        for each in objects(values)
        if each["kind"] == "ConfigMap"
    }
    (folder / "named").mkdir()
    for name, text in maps["holdfast-named"].items():
        (folder / "named" / name).write_text(text)
    main = yaml.safe_load(maps["holdfast"]["config.yaml"])
    mounts = {each["name"]: each["mountPath"] for each in container(values)["volumeMounts"]}
    assert main["named"]["folder"] == mounts["named"]
    main["named"]["folder"], main["stateDir"] = str(folder / "named"), str(folder / "state")
    (folder / "config.yaml").write_text(yaml.safe_dump(main))
    remember(main["stateDir"], label, None)
    return load(folder / "config.yaml", {})


def test_values_for_nvidias_chart_are_taken_as_they_stand(tmp_path: Path) -> None:
    assert _loaded(_THEIRS, tmp_path, "mig-mixed").gpu.mig_strategy == "mixed"


def test_a_node_without_the_label_goes_by_the_default(tmp_path: Path) -> None:
    values = {"config": {**_THEIRS["config"], "default": "mig-mixed", "gate": {"wait": "9s"}}}

    found = _loaded(values, tmp_path, "")

    assert found.gpu.mig_strategy == "mixed"
    assert float(found.gate.wait) == 9


def test_a_document_may_be_a_mapping(tmp_path: Path) -> None:
    pools = [{"resourceName": "example.com/nvme", "devices": ["1b36:0010"]}]
    values = {"config": {"map": {"a": {"pools": pools}, "b": {}}, "fallbackStrategies": ["empty"]}}

    found = _loaded(values, tmp_path, "a")

    assert [each.resource_name for each in found.pools] == ["example.com/nvme"]


def test_documents_of_a_configmap_of_ones_own_are_mounted() -> None:
    values = {"config": {"name": "mine"}}
    found = objects(values)

    assert len([each for each in found if each["kind"] == "ConfigMap"]) == 1
    (volume,) = [each for each in pod(values)["volumes"] if each["name"] == "named"]
    assert volume["configMap"] == {"name": "mine"}


@pytest.mark.parametrize("config", [{"map": {"a": ""}}, {"name": "mine"}])
def test_where_a_label_is_followed_there_are_a_token_the_right_and_the_nodes_name(
    config: dict[str, Any],
) -> None:
    found = objects({"config": config})

    (rule,) = one(found, "ClusterRole")["rules"]
    rights = [(each.verb, each.resource) for each in LABEL_RIGHTS]
    assert [(verb, *rule["resources"]) for verb in rule["verbs"]] == rights, "the doctor asks"
    assert one(found, "ClusterRoleBinding")["subjects"][0]["name"] == "holdfast"
    assert pod({"config": config})["automountServiceAccountToken"] is True
    assert "NODE_NAME" in {each["name"] for each in container({"config": config})["env"]}


@pytest.mark.parametrize("config", [{}, {"map": {"a": ""}, "named": {"labels": []}}])
def test_where_none_is_followed_there_is_neither(config: dict[str, Any]) -> None:
    found = objects({"config": config})

    assert not [each for each in found if "Role" in each["kind"]]
    assert pod({"config": config})["automountServiceAccountToken"] is False


@pytest.mark.parametrize(
    ("document", "monitors", "writes"),
    [
        (_TEXT, False, False),
        (_TEXT.replace('"none"', "single"), True, False),
        (_TEXT.replace("envvar", "cdi-cri"), False, True),
        (_TEXT.replace("envvar", "[envvar, cdi-annotations]"), False, True),
        ({"gpu": {"migStrategy": "mixed", "deviceListStrategy": ["cdi-cri"]}}, True, True),
        ({"deviceListStrategy": "cdi"}, False, True),
        ({"gate": {"wait": "9s"}}, False, False),
    ],
)
def test_the_pods_have_what_any_document_of_the_map_needs(
    document: object, monitors: bool, writes: bool
) -> None:
    values = {"config": {"gpu": {"enabled": True}, "map": {"default": {}, "other": document}}}
    made = container(values)
    assert ("SYS_ADMIN" in made["securityContext"]["capabilities"]["add"]) is monitors
    assert ("cdi" in {each["name"] for each in made["volumeMounts"]}) is writes


def test_another_document_leaves_the_pods_as_they_are() -> None:
    def pods(text: str) -> dict[str, Any]:
        return one(objects({"config": {"map": {"a": text}}}), "DaemonSet")

    assert pods("gate: {wait: 1s}") == pods("")
