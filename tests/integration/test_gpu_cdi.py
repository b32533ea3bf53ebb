"""GPUs by CDI name on a whole node: no name is handed over that a runtime cannot look up.

The daemon is a process of its own: pynvml has one library for all of a process.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.gpustage import GPU, GpuStage, wants
from fakes.nvml import uuid
from holdfast._pb.deviceplugin.v1beta1 import api_pb2 as api
from holdfast.demo.pods import Pod
from holdfast.model.gpu_cdi import GPU_KIND, IMEX_KIND

SPEC = "k8s.device-plugin.nvidia.com-gpu.json"
IMEX = "/dev/nvidia-caps-imex-channels/channel0"
OLD, NEW = "550.54.15", "555.42.02"


@pytest.fixture
def driver(short_path: Path, driver_root: Path) -> Path:
    """A driver's root with libraries of two versions, as while one replaces the other."""
    root = short_path / "driver"
    folder = root / "usr/lib64"
    folder.mkdir(parents=True)
    (folder / "libnvidia-ml.so.1").write_bytes(
        (driver_root / "usr/lib64/libnvidia-ml.so.1").read_bytes()
    )
    for version in (OLD, NEW):
        (folder / f"libcuda.so.{version}").touch()
    (folder / "libcuda.so.1").symlink_to(f"libcuda.so.{OLD}")
    return root


def _answer(node: GpuStage, of: Pod) -> api.ContainerAllocateResponse:
    (entry,) = [each for each in node.stage.kubelet.books.entries if each.pod == of.uid]
    return api.ContainerAllocateResponse.FromString(entry.answer)


def _spec(node: GpuStage) -> dict[str, Any]:
    spec: dict[str, Any] = json.loads((node.stage.specs / SPEC).read_text())
    return spec


def _nodes(node: GpuStage, name: str) -> list[str]:
    """Return the nodes that the spec has for a name."""
    spec = _spec(node)
    kind, _, device = name.partition("=")
    assert spec["kind"] == kind
    (edits,) = [e["containerEdits"] for e in spec["devices"] if e["name"] == device]
    return [each["path"] for each in edits["deviceNodes"]]


def _mounts(node: GpuStage) -> set[str]:
    return {each["containerPath"] for each in _spec(node)["containerEdits"]["mounts"]}


async def test_a_pod_is_given_names_and_the_spec_has_the_nodes_and_the_driver_behind_them(
    gpu_stage: Any, driver: Path
) -> None:
    async with gpu_stage(deviceListStrategy=["cdi-cri"], driverRoot=str(driver)) as node:
        node.gpus.arrive(2)
        await node.until_healthy(0, 1)
        made = await node.stage.run(wants("pod", 1))
        answer = _answer(node, made)
        (had,) = node.stage.ids(made, GPU)
        assert [each.name for each in answer.cdi_devices] == [f"{GPU_KIND}={had}"]
        assert (dict(answer.envs), list(answer.devices)) == ({}, [])
        index = [uuid(0), uuid(1)].index(had)
        assert _nodes(node, f"{GPU_KIND}={had}") == [f"/dev/nvidia{index}"]
        assert _nodes(node, f"{GPU_KIND}={index}") == [f"/dev/nvidia{index}"]
        assert {f"/usr/lib64/libcuda.so.{OLD}", "/usr/lib64/libcuda.so.1"} <= _mounts(node)


async def test_annotations_name_what_the_spec_explains(gpu_stage: Any, driver: Path) -> None:
    chosen = {"deviceListStrategy": ["cdi-annotations"], "deviceIdStrategy": "index"}
    async with gpu_stage(**chosen, driverRoot=str(driver)) as node:
        node.gpus.arrive(1)
        await node.until_healthy(0)
        made = await node.stage.run(wants("pod", 1))
        ((key, names),) = _answer(node, made).annotations.items()
        assert key.startswith("cdi.k8s.io/nvidia-device-plugin_")
        assert _nodes(node, names) == ["/dev/nvidia0"]


async def test_the_spec_is_written_anew_when_the_driver_is_replaced(
    gpu_stage: Any, driver: Path
) -> None:
    async with gpu_stage(deviceListStrategy=["cdi-cri"], driverRoot=str(driver)) as node:
        node.gpus.arrive(1)
        await node.until_healthy(0)
        assert f"/usr/lib64/libcuda.so.{OLD}" in _mounts(node)
        link = driver / "usr/lib64/libcuda.so.1"
        link.unlink()
        link.symlink_to(f"libcuda.so.{NEW}")
        node.gpus.replace_driver(NEW)
        new = {f"/usr/lib64/libcuda.so.{NEW}", "/usr/lib64/libcuda.so.1"}
        await node.stage.until(lambda: _mounts(node) == new, "the spec to name the new driver")
        await node.until_healthy(0)


async def test_a_gpu_that_no_spec_can_explain_is_given_to_nobody_and_chips_go_on(
    gpu_stage: Any, driver: Path
) -> None:
    async with gpu_stage(deviceListStrategy=["cdi-cri"], driverRoot=str(driver)) as node:
        frozen = node.stage.specs / f"{SPEC}.tmp"
        frozen.mkdir()  # nobody can write that file
        node.gpus.arrive(1)
        await node.stage.until_problem("CDI specs of GPUs", "cannot write")
        await node.stage.for_some_beats()
        assert node.healthy() == set()
        assert any("no CDI spec explains it" in each for each in await node.reasons(0))
        assert node.stage.healthy()  # the chip
        frozen.rmdir()
        await node.until_healthy(0)
        await node.stage.until_problem("CDI specs of GPUs", "")


async def test_a_pod_with_a_name_waits_at_the_gate_until_a_spec_explains_it(
    gpu_stage: Any, driver: Path
) -> None:
    async with gpu_stage(deviceListStrategy=["cdi-cri"], driverRoot=str(driver)) as node:
        node.gpus.arrive(1)
        await node.until_healthy(0)
        made = await node.stage.submit(replace(wants("pod", 1), pull=1.0))
        frozen = node.stage.specs / f"{SPEC}.tmp"
        frozen.mkdir()
        (node.stage.specs / SPEC).unlink()
        await node.stage.waiting(made, "no CDI spec explains it", "cannot write")
        assert made.starts == 0
        frozen.rmdir()
        await node.stage.running(made)


async def test_pods_with_names_keep_them_when_new_ones_are_given_the_variable(
    gpu_stage: Any, driver: Path
) -> None:
    async with gpu_stage(deviceListStrategy=["cdi-cri"], driverRoot=str(driver)) as node:
        node.gpus.arrive(1)
        await node.until_healthy(0)
        await node.stage.run(wants("named", 1))
        await node.stage.stop()
        for file in node.stage.specs.iterdir():
            file.unlink()
        node.stage.changes["gpu"] = {**node.stage.changes["gpu"], "deviceListStrategy": ["envvar"]}
        await node.stage.start_and_register()
        await node.stage.until((node.stage.specs / SPEC).exists, "the spec that a pod counts on")


async def test_by_the_variable_no_spec_of_gpus_is_written(gpu_stage: Any, driver: Path) -> None:
    async with gpu_stage(driverRoot=str(driver)) as node:
        node.gpus.arrive(1)
        await node.until_healthy(0)
        await node.stage.run(wants("pod", 1))
        assert list(node.stage.specs.iterdir()) == []


async def test_imex_channel_0_is_handed_over_where_the_node_has_it(
    gpu_stage: Any, driver: Path
) -> None:
    chosen = {"deviceListStrategy": ["envvar", "cdi-cri"], "imexChannelIds": [0]}
    async with gpu_stage(**chosen, driverRoot=str(driver)) as node:
        node.gpus.arrive(1)
        await node.until_healthy(0)
        without = await node.stage.run(wants("without", 1))
        assert "NVIDIA_IMEX_CHANNELS" not in _answer(node, without).envs
        await node.stage.end(without)
        await node.stage.until_free()
        node.gpus.add_imex_channel()
        spec = node.stage.specs / "k8s.device-plugin.nvidia.com-imex-channel.json"
        await node.stage.until(spec.exists, "a spec of the channel")
        await node.until_healthy(0)
        answer = _answer(node, await node.stage.run(wants("with", 1)))
        assert answer.envs["NVIDIA_IMEX_CHANNELS"] == "0"
        assert IMEX in [each.container_path for each in answer.devices]
        assert [each.name for each in answer.cdi_devices][1:] == [f"{IMEX_KIND}=0"]
        (edits,) = [each["containerEdits"] for each in json.loads(spec.read_text())["devices"]]
        assert [each["path"] for each in edits["deviceNodes"]] == [IMEX]


async def test_a_gpu_without_the_imex_channel_that_is_required_is_given_to_nobody(
    gpu_stage: Any,
) -> None:
    async with gpu_stage(imexChannelIds=[0], imexRequired=True) as node:
        node.gpus.arrive(1)

        async def said() -> bool:
            return any("IMEX channel 0 is required" in each for each in await node.reasons(0))

        await node.stage.until(said, lambda: "the reason to be shown")
        assert node.healthy() == set()
        node.gpus.add_imex_channel()
        await node.until_healthy(0)
