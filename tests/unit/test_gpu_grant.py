"""What containers are given for GPUs: to the byte what NVIDIA's plugin answers."""

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from google.protobuf.text_format import MessageToString
from msgspec.structs import replace

from holdfast.kubelet.plugin import container_answer
from holdfast.model.grants import ContainerGrant
from holdfast.model.nvidia.grant import (
    BesideGpus,
    DeviceIds,
    DeviceList,
    GpuGrantRules,
    GrantedGpu,
    gpu_grant,
)

GOLDEN = Path(__file__).parent.parent / "golden" / "allocate"
ANSWER = "0b1c2d3e-4f50-4617-8829-3a4b5c6d7e8f"
CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
ALL_MODES = frozenset({"gds", "mofed", "gdrcopy"})

ENVVAR = DeviceList.ENVVAR
VOLUMES = DeviceList.VOLUME_MOUNTS
ANNOTATIONS = DeviceList.CDI_ANNOTATIONS
CRI = DeviceList.CDI_CRI


TWO = (
    GrantedGpu(uuid="GPU-a", index="0", nodes=("/dev/nvidia0",)),
    GrantedGpu(uuid="GPU-b", index="1", nodes=("/dev/nvidia1",)),
)
ONE_SLICE = (
    GrantedGpu(
        uuid="MIG-m",
        index="3:1",
        nodes=(
            "/dev/nvidia3",
            "/dev/nvidia-caps/nvidia-cap66",
            "/dev/nvidia-caps/nvidia-cap67",
        ),
    ),
)
OPERATOR = "/run/nvidia/driver"

PREFIX = "cdi.k8s.io/"
PLAIN = BesideGpus(control=CONTROL, explained=ALL_MODES, answer_id=ANSWER)
IMEX = replace(PLAIN, imex="/dev/nvidia-caps-imex-channels/channel0")

CASES: dict[str, tuple[tuple[GrantedGpu, ...], GpuGrantRules, BesideGpus]] = {
    "envvar": (TWO, GpuGrantRules(), PLAIN),
    "envvar-index": (TWO, GpuGrantRules(ids=DeviceIds.INDEX), PLAIN),
    "envvar-device-specs": (TWO, GpuGrantRules(pass_device_specs=True), PLAIN),
    "envvar-device-specs-dev-root": (
        tuple(replace(gpu, nodes=tuple(f"{OPERATOR}{node}" for node in gpu.nodes)) for gpu in TWO),
        GpuGrantRules(pass_device_specs=True),
        replace(PLAIN, control=tuple(f"{OPERATOR}{node}" for node in CONTROL)),
    ),
    "envvar-imex-device-specs": (TWO, GpuGrantRules(pass_device_specs=True), IMEX),
    "envvar-modes": (TWO, GpuGrantRules(modes=ALL_MODES), PLAIN),
    "envvar-mig-device-specs": (ONE_SLICE, GpuGrantRules(pass_device_specs=True), PLAIN),
    "envvar-mig-index": (ONE_SLICE, GpuGrantRules(ids=DeviceIds.INDEX), PLAIN),
    "volume-mounts": (TWO, GpuGrantRules(lists=(VOLUMES,)), PLAIN),
    "volume-mounts-imex": (TWO, GpuGrantRules(lists=(VOLUMES,)), IMEX),
    "cdi-annotations": (TWO, GpuGrantRules(lists=(ANNOTATIONS,), annotation_prefix=PREFIX), PLAIN),
    "cdi-annotations-prefix": (
        TWO,
        GpuGrantRules(lists=(ANNOTATIONS,), annotation_prefix="nvidia.cdi.k8s.io/"),
        PLAIN,
    ),
    "cdi-annotations-imex-modes": (
        TWO,
        GpuGrantRules(lists=(ANNOTATIONS,), annotation_prefix=PREFIX, modes=ALL_MODES),
        IMEX,
    ),
    "cdi-cri": (TWO, GpuGrantRules(lists=(CRI,)), PLAIN),
    "cdi-cri-mig-index": (ONE_SLICE, GpuGrantRules(lists=(CRI,), ids=DeviceIds.INDEX), PLAIN),
    "cdi-cri-device-specs": (TWO, GpuGrantRules(lists=(CRI,), pass_device_specs=True), PLAIN),
    "envvar,cdi-cri": (TWO, GpuGrantRules(lists=(ENVVAR, CRI)), PLAIN),
    "envvar,volume-mounts": (TWO, GpuGrantRules(lists=(ENVVAR, VOLUMES)), PLAIN),
    "all-four": (
        TWO,
        GpuGrantRules(lists=tuple(DeviceList), annotation_prefix=PREFIX, pass_device_specs=True),
        PLAIN,
    ),
}


def _grant(
    gpus: tuple[GrantedGpu, ...], rules: GpuGrantRules, beside: BesideGpus = PLAIN
) -> ContainerGrant:
    return gpu_grant(gpus, rules, beside)


@pytest.mark.parametrize("case", CASES)
def test_each_strategy_answers_to_the_byte_what_nvidias_plugin_does(case: str) -> None:
    message = container_answer(_grant(*CASES[case]))

    # Proto text as text_format has it: fields by number, maps by key, so the same to the byte.
    assert MessageToString(message) == (GOLDEN / f"{case}.txtpb").read_text()


def test_every_golden_answer_has_its_case() -> None:
    assert {file.stem for file in GOLDEN.glob("*.txtpb")} == set(CASES)


_RECORD: dict[str, list[dict[str, Any]]] = json.loads((GOLDEN / "plugin-0.20.0.json").read_text())
"""Answers for one GPU and for two, recorded from NVIDIA's plugin on its mock of NVML."""
_RULES = {
    "modes": GpuGrantRules(modes=ALL_MODES),
    "prefix": GpuGrantRules(lists=(ANNOTATIONS,), annotation_prefix="example.com/"),
}


@pytest.mark.parametrize("case", _RECORD)
def test_an_answer_is_as_nvidias_plugin_was_heard_to_give_it(case: str) -> None:
    rules = _RULES.get(case)
    if rules is None:
        lists, ids, specs = case.split("_")
        rules = GpuGrantRules(
            lists=tuple(map(DeviceList, lists.split(","))),
            ids=DeviceIds(ids),
            pass_device_specs=specs == "specs=true",
            annotation_prefix=PREFIX,
        )
    gpus = tuple(
        GrantedGpu(
            uuid=f"GPU-01000100-0000-0000-0000-00000000000{index}",
            index=str(index),
            nodes=(f"/dev/nvidia{index}",),
        )
        for index in range(2)
    )
    for count, there in enumerate(_RECORD[case], start=1):
        ours = MessageToDict(container_answer(_grant(gpus[:count], rules)))
        found = json.loads(json.dumps(ours).replace(ANSWER, "<uuid>"))
        for key in ("devices", "mounts"):
            assert _by_path(found.pop(key, [])) == _by_path(there.get(key, []))
        assert found == {
            key: each for key, each in there.items() if key not in {"devices", "mounts"}
        }


def _by_path(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(entries, key=lambda each: str(each["containerPath"]))
