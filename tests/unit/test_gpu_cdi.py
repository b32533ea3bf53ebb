"""The CDI specs of GPUs: to the byte, of the version they claim, and what a runtime finds there."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from msgspec.structs import replace

from holdfast.model.ids import DeviceId
from holdfast.model.nvidia import REPLICAS
from holdfast.model.nvidia.cdi import (
    BesideNodes,
    DriverFiles,
    Feature,
    GpuSpecFacts,
    SpecFile,
    SpecGpu,
    SpecNode,
    SpecRules,
    described,
    gpu_spec_files,
    no_effect,
)
from holdfast.model.nvidia.names import GPU_KIND, GpuNames, found_in, unexplained

GOLDEN = Path(__file__).parent.parent / "golden" / "cdi"
SCHEMA = Path(__file__).parent.parent / "golden" / "cdi.schema.json"
VERSION = "550.54.15"
HOOK = SpecRules(hook="/usr/bin/nvidia-ctk")


def _node(name: str, minor: int, major: int = 195, **other: Any) -> SpecNode:
    path = f"/dev/{name}"
    return SpecNode(**{"path": path, "host_path": path, "rdev": os.makedev(major, minor), **other})


def _file(path: str, source: str = "") -> SpecFile:
    return SpecFile(path=path, source=source or path)


DRIVER = DriverFiles(
    version=VERSION,
    libraries=(
        _file(f"/usr/lib64/libcuda.so.{VERSION}"),
        _file(f"/usr/lib64/libnvidia-ml.so.{VERSION}"),
        _file(f"/usr/lib64/vdpau/libvdpau_nvidia.so.{VERSION}"),
    ),
    links=(
        _file("/usr/lib64/libcuda.so", f"/usr/lib64/libcuda.so.{VERSION}"),
        _file("/usr/lib64/libcuda.so.1", f"/usr/lib64/libcuda.so.{VERSION}"),
    ),
    files=(_file("/usr/bin/nvidia-smi"), _file(f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin")),
    sockets=(_file("/run/nvidia-persistenced/socket"),),
    control=(_node("nvidiactl", 255, mode=0o666), _node("nvidia-uvm", 0, 508, mode=0o666)),
)
TWO = (
    SpecGpu(id=DeviceId("GPU-a"), names=("GPU-a", "0"), nodes=(_node("nvidia0", 0, mode=0o666),)),
    SpecGpu(id=DeviceId("GPU-b"), names=("GPU-b", "1"), nodes=(_node("nvidia1", 1, mode=0o666),)),
)
SLICE = SpecGpu(
    id=DeviceId("MIG-m"),
    names=("MIG-m", "3:1"),
    nodes=(
        _node("nvidia3", 3, mode=0o666),
        _node("nvidia-caps/nvidia-cap66", 66, 237),
        _node("nvidia-caps/nvidia-cap67", 67, 237),
    ),
)
DRAWING = (
    replace(
        TWO[0],
        drm=(
            _node("dri/card1", 1, 226, mode=0o660, gid=44),
            _node("dri/renderD128", 128, 226, mode=0o660, gid=105),
        ),
        pci="0000:65:00.0",
    ),
    TWO[1],
)
PLAIN = GpuSpecFacts(driver=DRIVER, gpus=TWO)
OPERATOR = "/run/nvidia/driver"
BESIDE = {
    "imex-channel": BesideNodes(nodes=(_node("nvidia-caps-imex-channels/channel0", 0, 234),)),
    "gds": BesideNodes(nodes=(_node("nvidia-fs0", 0, 240),), mounts=("/run/udev",)),
    "gdrcopy": BesideNodes(nodes=(_node("gdrdrv", 0, 241),)),
    "mofed": BesideNodes(),
}

CASES: dict[str, tuple[GpuSpecFacts, SpecRules]] = {
    "two-gpus": (PLAIN, SpecRules()),
    "two-gpus-hooks": (PLAIN, HOOK),
    "mig-slice": (replace(PLAIN, gpus=(SLICE,)), SpecRules()),
    "operator-root": (
        GpuSpecFacts(
            driver=replace(
                DRIVER,
                root=OPERATOR,
                control=tuple(
                    replace(each, host_path=OPERATOR + each.path) for each in DRIVER.control
                ),
            ),
            gpus=tuple(
                replace(
                    gpu,
                    nodes=tuple(
                        replace(each, host_path=OPERATOR + each.path) for each in gpu.nodes
                    ),
                )
                for gpu in TWO
            ),
        ),
        SpecRules(hook="/usr/local/nvidia/toolkit/nvidia-cdi-hook"),
    ),
    "closed-nodes": (
        replace(
            PLAIN,
            gpus=tuple(
                replace(gpu, nodes=tuple(replace(n, mode=0o1660, gid=44) for n in gpu.nodes))
                for gpu in TWO
            ),
        ),
        SpecRules(),
    ),
    "drawing": (replace(PLAIN, gpus=DRAWING), HOOK),
    "beside": (GpuSpecFacts(driver=DRIVER, gpus=TWO[:1], beside=BESIDE), SpecRules()),
}


def _written(case: str) -> dict[str, str]:
    return dict(gpu_spec_files(*CASES[case]))


SPECS = {
    f"{case}/{name}": json.loads(text) for case in CASES for name, text in _written(case).items()
}


@pytest.mark.parametrize("case", CASES)
def test_specs_of_gpus_are_to_the_byte_what_is_on_record(case: str) -> None:
    assert _written(case) == {
        file.name: file.read_text() for file in sorted((GOLDEN / case).iterdir())
    }


def test_every_spec_on_record_has_its_case() -> None:
    assert {folder.name for folder in GOLDEN.iterdir()} == set(CASES)


@pytest.mark.parametrize("name", SPECS)
def test_each_spec_is_valid_and_claims_the_oldest_version_that_has_all_it_uses(
    name: str,
) -> None:
    spec = SPECS[name]
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(spec)
    edits = [spec["containerEdits"], *(each["containerEdits"] for each in spec["devices"])]
    nodes = [node for each in edits for node in each.get("deviceNodes", ())]
    needed = "0.3.0"
    if any("hostPath" in node for node in nodes):
        needed = "0.5.0"
    if any(re.match(r"\d", each["name"]) for each in spec["devices"]):
        needed = "0.5.0"
    if any("additionalGids" in each for each in edits):
        needed = "0.7.0"
    assert spec["cdiVersion"] == needed


@pytest.mark.parametrize(
    "damage",
    [
        {"devices": []},
        {"kind": "gpu"},
        {"cdiVersion": "1"},
        {"devices": [{"name": "GPU a", "containerEdits": {"env": ["A=b"]}}]},
        {"devices": [{"name": "0", "containerEdits": {}}]},
        {"containerEdits": {"deviceNodes": [{"major": 1}]}},
        {"containerEdits": {"mounts": [{"hostPath": "/a"}]}},
        {"containerEdits": {"hooks": [{"path": "/a", "hookName": "never"}]}},
        {"containerEdits": {"additionalGids": ["44"]}},
    ],
)
def test_the_schema_finds_a_spec_that_runtimes_would_refuse(damage: dict[str, Any]) -> None:
    spec = {**json.loads(_written("two-gpus")["gpu.json"]), **damage}

    assert not Draft202012Validator(json.loads(SCHEMA.read_text())).is_valid(spec)


@pytest.mark.parametrize("case", CASES)
def test_container_paths_are_those_of_a_driver_that_is_installed_plainly(case: str) -> None:
    for text in _written(case).values():
        spec = json.loads(text)
        for edits in (spec["containerEdits"], *(e["containerEdits"] for e in spec["devices"])):
            for node in edits.get("deviceNodes", ()):
                assert node["path"].startswith("/dev/")
            for mount in edits.get("mounts", ()):
                assert not mount["containerPath"].startswith(OPERATOR)


@pytest.mark.parametrize("name", SPECS)
def test_every_node_of_a_gpu_has_a_mode_without_which_runsc_does_not_start(name: str) -> None:
    spec = SPECS[name]
    edits = [spec["containerEdits"], *(each["containerEdits"] for each in spec["devices"])]

    for node in (node for each in edits for node in each.get("deviceNodes", ())):
        assert node["type"] == "c"
        assert 0 < node["fileMode"] <= 0o777


def _names(facts: GpuSpecFacts, rivals: dict[str, str]) -> GpuNames:
    return found_in(described(facts, SpecRules()), rivals)


def _mounts(rules: SpecRules) -> set[str]:
    (text,) = gpu_spec_files(PLAIN, rules).values()
    return {each["containerPath"] for each in json.loads(text)["containerEdits"]["mounts"]}


def test_programs_find_libcuda_by_its_usual_name_with_the_hook_and_without() -> None:
    linked = {each.path for each in DRIVER.links}

    assert linked <= _mounts(SpecRules())
    assert not linked & _mounts(HOOK)
    assert linked <= _mounts(replace(HOOK, disabled_hooks=frozenset({"create-symlinks"})))
    assert linked <= _mounts(replace(HOOK, disabled_hooks=frozenset({"all"})))


@pytest.mark.parametrize(
    ("disabled", "left"),
    [
        ((), 5),
        (("update-ldcache",), 4),
        (("update-ldcache", "enable-cuda-compat"), 3),
        (("update-application-profile",), 4),
        (("all",), 0),
    ],
)
def test_a_hook_that_is_disabled_is_not_called(disabled: tuple[str, ...], left: int) -> None:
    rules = replace(HOOK, disabled_hooks=frozenset(disabled))
    (text,) = gpu_spec_files(PLAIN, rules).values()
    called = [each["args"][2] for each in json.loads(text)["containerEdits"].get("hooks", ())]

    assert len(called) == left
    assert not set(called) & set(disabled)


def test_nodes_that_draw_on_a_gpu_are_for_it_alone_and_need_no_newer_runtime() -> None:
    spec = json.loads(_written("drawing")["gpu.json"])
    edits = {each["name"]: each["containerEdits"] for each in spec["devices"]}
    assert [node["path"] for node in edits["0"]["deviceNodes"]] == [
        "/dev/nvidia0",
        "/dev/dri/card1",
        "/dev/dri/renderD128",
    ]
    assert edits["1"] == {"deviceNodes": edits["1"]["deviceNodes"][:1]}
    assert spec["cdiVersion"] == "0.5.0"
    (hook,) = edits["0"]["hooks"]
    assert hook["args"][-3:] == [
        "../card1::/dev/dri/by-path/pci-0000:65:00.0-card",
        "--link",
        "../renderD128::/dev/dri/by-path/pci-0000:65:00.0-render",
    ]
    (bare,) = gpu_spec_files(replace(PLAIN, gpus=DRAWING), SpecRules()).values()
    assert "by-path" not in bare


def test_features_leave_out_groups_and_sockets() -> None:
    closed = CASES["closed-nodes"][0]
    plain = replace(closed, driver=replace(closed.driver, sockets=()))

    def written(facts: GpuSpecFacts, *features: Feature) -> str:
        (text,) = gpu_spec_files(facts, SpecRules(features=frozenset(features))).values()
        return text

    assert written(closed, Feature.NO_SOCKETS) == written(plain)
    without = json.loads(written(closed, Feature.NO_GROUPS))
    assert without["cdiVersion"] == "0.5.0"
    assert "additionalGids" not in json.dumps(without)


@pytest.mark.parametrize(
    ("feature", "why"),
    [
        *((each, "") for each in Feature),
        ("disable-nvsandboxutils", "never used"),
        ("disable-nvsandbox-utils", "never used"),
        ("enable-coherent-annotations", "no container runtime reads"),
        ("disable-multiple-csv-devices", "Tegra"),
        ("of-tomorrow", "no such feature"),
    ],
)
def test_a_feature_that_changes_nothing_says_why(feature: str, why: str) -> None:
    assert bool(why) is bool(no_effect(feature))
    assert why in no_effect(feature)


def test_without_gpus_there_is_no_spec_of_gpus_and_a_mode_without_nodes_has_none() -> None:
    assert gpu_spec_files(GpuSpecFacts(driver=DRIVER), HOOK) == {}
    assert set(gpu_spec_files(GpuSpecFacts(driver=DRIVER, beside=BESIDE), HOOK)) == {
        "imex-channel.json",
        "gds.json",
        "gdrcopy.json",
    }


def test_a_gpu_is_found_by_its_uuid_and_by_its_index() -> None:
    found = _names(replace(PLAIN, beside=BESIDE), {})

    assert found.devices == {
        f"{GPU_KIND}=GPU-a": "GPU-a",
        f"{GPU_KIND}=0": "GPU-a",
        f"{GPU_KIND}=GPU-b": "GPU-b",
        f"{GPU_KIND}=1": "GPU-b",
    }
    assert found.modes == {"gds", "gdrcopy"}
    assert found.problem == ""


def test_a_name_that_another_file_explains_too_is_found_by_nobody() -> None:
    found = _names(PLAIN, {f"{GPU_KIND}=GPU-a": "/var/run/cdi/nvidia.yaml"})

    assert f"{GPU_KIND}=GPU-a" not in found.devices
    assert f"{GPU_KIND}=GPU-b" in found.devices
    assert "/var/run/cdi/nvidia.yaml describes it as well" in found.problem


ALL = _names(replace(PLAIN, beside=BESIDE), {})


UUIDS = {DeviceId("GPU-a"): "GPU-a", DeviceId("GPU-b"): "GPU-b"}
INDEXES = {DeviceId("GPU-a"): "0", DeviceId("GPU-b"): "1"}


def _replicas(answers: dict[DeviceId, str]) -> dict[DeviceId, str | None]:
    return {REPLICAS.replica(id_, each): name for id_, name in answers.items() for each in range(2)}


RIVAL = _names(PLAIN, {f"{GPU_KIND}=GPU-a": "/var/run/cdi/nvidia.yaml"})


_UNEXPLAINED = {
    "all": (UUIDS, ALL, False, set()),
    "by index": (INDEXES, ALL, False, set()),
    "with the channel": (UUIDS, ALL, True, set()),
    "without the channel": (UUIDS, _names(PLAIN, {}), True, {"GPU-a", "GPU-b"}),
    "nothing": (UUIDS, GpuNames(), False, {"GPU-a", "GPU-b"}),
    "one is left out": (UUIDS, _names(replace(PLAIN, gpus=TWO[:1]), {}), False, {"GPU-b"}),
    "a rival of its UUID": (UUIDS, RIVAL, False, {"GPU-a"}),
    "a rival of another name": (INDEXES, RIVAL, False, set()),
    "the name leads to another": ({**INDEXES, DeviceId("GPU-b"): "0"}, ALL, False, {"GPU-b"}),
    "no name": ({DeviceId("GPU-c"): None}, ALL, False, {"GPU-c"}),
    "replicas": (_replicas(UUIDS), ALL, False, set()),
    "replicas by index": (_replicas(INDEXES), ALL, False, set()),
    "a rival of a GPU with replicas": (_replicas(UUIDS), RIVAL, False, {"GPU-a::0", "GPU-a::1"}),
}


@pytest.mark.parametrize(
    ("answers", "names", "imex", "lacking"), _UNEXPLAINED.values(), ids=_UNEXPLAINED.keys()
)
def test_what_no_spec_explains_by_the_name_it_would_be_given_by_is_told_with_its_reason(
    answers: dict[DeviceId, str | None], names: GpuNames, imex: bool, lacking: set[str]
) -> None:
    found = unexplained(answers, names, imex=imex)

    assert set(found) == lacking
    assert all(text.startswith("no CDI spec describes it: ") for text in found.values())
