"""GPUs by CDI name on a whole node: no name is handed over that a runtime cannot look up.

The daemon is a process of its own: pynvml has one library for all of a process.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fakes.gpustage import GPU, GpuStage, sharing, wants
from fakes.opener import opener
from holdfast._pb.deviceplugin.v1beta1 import api_pb2 as api
from holdfast.model.nvidia.grant import CDI_VENDOR
from holdfast.model.nvidia.names import GPU_KIND, IMEX_KIND
from simulated.nvml import Slice, cards, uuid
from simulated.pods import Pod

SPEC = "k8s.device-plugin.nvidia.com-gpu.json"
IMEX_SPEC = "k8s.device-plugin.nvidia.com-imex-channel.json"
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
    (answer,) = node.stage.answers(of)
    return answer


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
        await node.arrive(2)
        made = await node.stage.run(wants("pod", 1))
        answer = _answer(node, made)
        (had,) = node.stage.ids(made, GPU)
        assert [each.name for each in answer.cdi_devices] == [f"{GPU_KIND}={had}"]
        assert (dict(answer.envs), list(answer.devices)) == ({}, [])
        index = [uuid(0), uuid(1)].index(had)
        assert _nodes(node, f"{GPU_KIND}={had}") == [f"/dev/nvidia{index}"]
        assert _nodes(node, f"{GPU_KIND}={index}") == [f"/dev/nvidia{index}"]
        assert {f"/usr/lib64/libcuda.so.{OLD}", "/usr/lib64/libcuda.so.1"} <= _mounts(node)


async def test_features_of_nvidias_specs_are_had_and_those_that_change_nothing_are_told(
    gpu_stage: Any, driver: Path
) -> None:
    socket = driver / "run/nvidia-persistenced/socket"
    socket.parent.mkdir(parents=True)
    socket.touch()
    features = ["disable-ipc-discoverer", "disable-nvsandboxutils"]
    async with gpu_stage(
        deviceListStrategy=["cdi-cri"], driverRoot=str(driver), cdiFeatureFlags=features
    ) as node:
        await node.arrive(1)
        assert "/run/nvidia-persistenced/socket" not in _mounts(node)
        lines = node.stage.log.splitlines()
    told = [line for line in lines if "CDI feature has no effect" in line]
    assert [feature in told[0] for feature in features] == [False, True]
    assert len(told) == 1


async def test_what_a_pod_left_drawing_on_a_gpu_keeps_it_from_the_next_pod(
    gpu_stage: Any, driver: Path
) -> None:
    async with gpu_stage(deviceListStrategy=["cdi-cri"], driverRoot=str(driver)) as node:
        path = node.gpus.add_renderer(cards(1)[0])
        await node.arrive(1)
        former = await node.stage.run(wants("former", 1))
        assert _nodes(node, f"{GPU_KIND}=0") == ["/dev/nvidia0", path]
        with opener(node.stage.node.node(path)) as left:
            (container,) = former.spec.containers
            node.stage.node.enter(former.uid, container.name, left.pid)
            await node.stage.end(former)
            following = await node.stage.submit(wants("next", 1))
            await node.stage.waiting(following, f"pid {left.pid}", former)
            left.end()
            await node.stage.running(following)


@pytest.mark.parametrize("ids", ["uuid", "index"])
@pytest.mark.parametrize("strategy", ["cdi-cri", "cdi-annotations"])
async def test_pods_share_a_gpu_that_they_are_given_by_its_cdi_name(
    gpu_stage: Any, driver: Path, strategy: str, ids: str
) -> None:
    gpu = {"deviceListStrategy": [strategy], "deviceIdStrategy": ids, "driverRoot": str(driver)}
    async with gpu_stage(others={"sharing": sharing(2)}, **gpu) as node:
        node.gpus.arrive(1)
        replicas = {f"{uuid(0)}::0", f"{uuid(0)}::1"}
        await node.stage.until(lambda: node.healthy() == replicas, lambda: str(node.healthy()))
        name = f"{GPU_KIND}={uuid(0) if ids == 'uuid' else 0}"
        for pod in ("one", "other"):
            answer = _answer(node, await node.stage.run(wants(pod, 1)))
            named = [*answer.annotations.values(), *(each.name for each in answer.cdi_devices)]
            assert named == [name]
            assert all(
                key.startswith("cdi.k8s.io/nvidia-device-plugin_") for key in answer.annotations
            )
        assert _nodes(node, name) == ["/dev/nvidia0"]
        # The other pod may start on a GPU that the first has open: they are neighbours.
        assert {each.split()[0] for each in node.stage.runtime.trespasses} <= {"other"}
        node.stage.runtime.trespasses.clear()


async def test_the_spec_is_written_anew_when_the_driver_is_replaced(
    gpu_stage: Any, driver: Path
) -> None:
    async with gpu_stage(deviceListStrategy=["cdi-cri"], driverRoot=str(driver)) as node:
        await node.arrive(1)
        assert f"/usr/lib64/libcuda.so.{OLD}" in _mounts(node)
        link = driver / "usr/lib64/libcuda.so.1"
        link.unlink()
        link.symlink_to(f"libcuda.so.{NEW}")
        node.gpus.replace_driver(NEW)
        library = "/usr/lib64/libcuda.so"
        new = {library, f"{library}.1", f"{library}.{NEW}"}
        await node.stage.until(lambda: _mounts(node) == new, "the spec to name the new driver")
        await node.until_healthy(0)


async def test_a_gpu_that_no_spec_can_explain_is_given_to_nobody_and_chips_go_on(
    gpu_stage: Any, driver: Path
) -> None:
    async with gpu_stage(deviceListStrategy=["cdi-cri"], driverRoot=str(driver)) as node:
        frozen = node.stage.specs / f"{SPEC}.tmp"
        frozen.mkdir()  # nobody can write that file
        node.gpus.arrive(1)
        await node.stage.until_problem("GPU CDI specs", "cannot write")
        await node.stage.for_some_beats()
        assert node.healthy() == set()
        assert any("no CDI spec describes it" in each for each in await node.reasons(0))
        assert node.stage.healthy()  # the chip
        frozen.rmdir()
        await node.until_healthy(0)
        await node.stage.until_problem("GPU CDI specs", "")


async def test_a_pod_with_a_name_waits_at_the_gate_until_a_spec_explains_it(
    gpu_stage: Any, driver: Path
) -> None:
    async with gpu_stage(deviceListStrategy=["cdi-cri"], driverRoot=str(driver)) as node:
        await node.arrive(1)
        made = await node.stage.submit(replace(wants("pod", 1), pull=1.0))
        frozen = node.stage.specs / f"{SPEC}.tmp"
        frozen.mkdir()
        (node.stage.specs / SPEC).unlink()
        await node.stage.waiting(made, ": no CDI spec ", "; let holdfast write to ")
        assert made.starts == 0
        frozen.rmdir()
        await node.stage.running(made)


async def test_pods_with_names_keep_them_when_new_ones_are_given_the_variable(
    gpu_stage: Any, driver: Path
) -> None:
    chosen = {"deviceListStrategy": ["cdi-cri"], "imexChannelIds": [0], "gdrcopyEnabled": True}
    async with gpu_stage(**chosen, driverRoot=str(driver)) as node:
        node.gpus.add_imex_channel()
        node.gpus.node.tree.terminal("/dev/gdrdrv")
        await node.arrive(1)
        named = await node.stage.run(wants("named", 1))
        names = {each.name for each in _answer(node, named).cdi_devices}
        assert {f"{IMEX_KIND}=0", f"{CDI_VENDOR}/gdrcopy=all"} < names
        await node.stage.stop()
        for file in node.stage.specs.iterdir():
            file.unlink()
        node.stage.settings["gpu"] = {
            **node.stage.settings["gpu"],
            "deviceListStrategy": ["envvar"],
            "imexChannelIds": [],
            "gdrcopyEnabled": False,
        }
        await node.stage.start_and_register()
        for name in (SPEC, IMEX_SPEC, f"{CDI_VENDOR}-gdrcopy.json"):
            await node.stage.until((node.stage.specs / name).exists, "a spec that a pod counts on")
        await node.stage.end(named)
        await node.stage.until_free()
        answer = _answer(node, await node.stage.run(wants("next", 1)))
        assert not {"NVIDIA_IMEX_CHANNELS", "NVIDIA_GDRCOPY"} & answer.envs.keys()


async def test_such_a_pod_waits_where_the_spec_that_it_counts_on_cannot_be_written(
    gpu_stage: Any, driver: Path
) -> None:
    async with gpu_stage(deviceListStrategy=["cdi-annotations"], driverRoot=str(driver)) as node:
        await node.arrive(1)
        made = await node.stage.run(replace(wants("named", 1, runs_for=0.5), restart="Always"))
        await node.stage.stop()
        (node.stage.specs / SPEC).unlink()
        frozen = node.stage.specs / f"{SPEC}.tmp"
        frozen.mkdir()
        node.stage.settings["gpu"] = {
            **node.stage.settings["gpu"],
            "deviceListStrategy": ["envvar"],
        }
        await node.stage.start_and_register()
        await node.until_healthy(0)  # a new pod would be given the variable
        await node.stage.until(
            lambda: "; let holdfast write to " in made.waiting,
            lambda: f"the pod to wait for its spec; it is told {made.waiting!r}",
        )
        starts = made.starts
        await node.stage.for_some_beats()
        assert made.starts == starts
        frozen.rmdir()
        await node.stage.until(lambda: made.starts > starts, "the container to start again")


@pytest.mark.parametrize("strategy", ["cdi-cri", "envvar", "volume-mounts"])
async def test_an_index_that_is_anothers_since_the_boot_starts_nothing(
    gpu_stage: Any, driver: Path, strategy: str
) -> None:
    chosen = {"deviceListStrategy": [strategy], "deviceIdStrategy": "index"}
    async with gpu_stage(**chosen, driverRoot=str(driver)) as node:
        await node.arrive(2)
        made = await node.stage.run(replace(wants("pod", 1, runs_for=0.5), restart="Always"))
        first, second = node.gpus.stub.cards
        node.gpus.show(replace(node.gpus.stub, cards=(second, first)))
        await node.stage.until(
            lambda: "delete the pod" in made.waiting,
            lambda: f"the pod to be told that its GPU is another; it is told {made.waiting!r}",
        )


async def test_the_spec_is_written_anew_when_a_gpu_is_divided(gpu_stage: Any, driver: Path) -> None:
    chosen = {"deviceListStrategy": ["cdi-cri"], "migStrategy": "mixed"}
    async with gpu_stage(**chosen, driverRoot=str(driver)) as node:
        await node.arrive(2)
        node.gpus.add_capabilities("gpu1/gi7/access 66", "gpu1/gi7/ci0/access 67")
        slices = (Slice("MIG-a", gi=7), Slice("MIG-b", gi=8))  # the latter has no nodes
        node.gpus.change(1, lambda card: replace(card, mig=1, slices=slices))
        small = "nvidia.com/mig-1g.10gb"
        await node.stage.until(
            lambda: node.stage.healthy(small) == {"MIG-a"}, "the slice that can be explained"
        )
        caps = [f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in (66, 67)]
        assert _nodes(node, f"{GPU_KIND}=MIG-a") == ["/dev/nvidia1", *caps]
        assert _nodes(node, f"{GPU_KIND}=1:0") == ["/dev/nvidia1", *caps]
        assert {each["name"] for each in _spec(node)["devices"]} == {
            uuid(0),
            "0",
            "MIG-a",
            "1:0",
            uuid(1),
            "1",
        }


async def test_what_nvidias_plugin_left_behind_is_replaced(gpu_stage: Any, driver: Path) -> None:
    """Two files that explain a name make it nobody's, so that no container would start."""
    async with gpu_stage(deviceListStrategy=["cdi-cri"], driverRoot=str(driver)) as node:
        old = {"cdiVersion": "0.5.0", "kind": GPU_KIND, "devices": [{"name": uuid(0)}]}
        (node.stage.specs / SPEC).write_text(json.dumps(old))
        left = node.stage.specs / "k8s.device-plugin.nvidia.com-gds.json"
        left.write_text(json.dumps({**old, "kind": "k8s.device-plugin.nvidia.com/gds"}))
        await node.arrive(1)
        await node.stage.run(wants("pod", 1))
        assert _nodes(node, f"{GPU_KIND}={uuid(0)}") == ["/dev/nvidia0"]
        assert not left.exists()


async def test_a_gpu_is_given_to_nobody_by_a_name_without_libraries_or_that_another_file_has_too(
    gpu_stage: Any, driver: Path
) -> None:
    async with gpu_stage(deviceListStrategy=["cdi-cri"], driverRoot=str(driver)) as node:
        library = driver / f"usr/lib64/libcuda.so.{OLD}"
        library.unlink()
        node.gpus.arrive(2)
        await node.until_said(0, f"no libcuda.so.{OLD} below {driver}")
        assert node.healthy() == set()
        library.touch()
        await node.until_healthy(0, 1)

        other = node.stage.specs / "other.json"
        other.write_text(json.dumps({"kind": GPU_KIND, "devices": [{"name": uuid(0)}]}))
        await node.until_healthy(1)
        await node.until_said(0, f"{other} describes it as well")
        other.unlink()
        await node.until_healthy(0, 1)


async def test_by_the_variable_no_spec_of_gpus_is_written(gpu_stage: Any, driver: Path) -> None:
    async with gpu_stage(driverRoot=str(driver)) as node:
        await node.arrive(1)
        await node.stage.run(wants("pod", 1))
        assert list(node.stage.specs.iterdir()) == []


async def test_imex_channel_0_is_handed_over_where_the_node_has_it(
    gpu_stage: Any, driver: Path
) -> None:
    chosen = {"deviceListStrategy": ["envvar", "cdi-cri"], "imexChannelIds": [0]}
    async with gpu_stage(**chosen, driverRoot=str(driver)) as node:
        await node.arrive(1)
        without = await node.stage.run(wants("without", 1))
        assert "NVIDIA_IMEX_CHANNELS" not in _answer(node, without).envs
        await node.stage.end(without)
        await node.stage.until_free()
        node.gpus.add_imex_channel()
        spec = node.stage.specs / IMEX_SPEC
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
        await node.until_said(0, "IMEX channel 0 is required")
        assert node.healthy() == set()
        node.gpus.add_imex_channel()
        await node.until_healthy(0)


def test_where_no_names_are_handed_over_nothing_of_specs_of_gpus_is_loaded() -> None:
    code = (
        "import json, sys, holdfast.vendors.nvidia.gpus\n"
        "print(json.dumps([name for name in sys.modules if name.startswith('holdfast')]))"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout
    loaded = set(json.loads(told))
    assert "holdfast.vendors.nvidia.specs" in loaded
    assert not loaded & {
        "holdfast.host.nvidia.needs",
        "holdfast.model.nvidia.cdi",
    }


async def test_a_slice_that_is_not_advertised_any_more_is_handed_over_to_its_pod_again(
    gpu_stage: Any, driver: Path
) -> None:
    chosen = {"deviceListStrategy": ["cdi-cri"], "migStrategy": "single"}
    async with gpu_stage(**chosen, driverRoot=str(driver)) as node:
        node.gpus.arrive(3, mig=1)
        node.gpus.make_capabilities(8)

        def divide(gpu: int, piece: Slice) -> None:
            node.gpus.change(gpu, lambda card: replace(card, slices=(piece,)))

        for gpu in range(3):
            divide(gpu, Slice(f"MIG-{gpu}", gi=7))
        await node.until_offered("MIG-0", "MIG-1", "MIG-2")
        made = await node.stage.run(replace(wants("pod", 1, runs_for=0.5), restart="Always"))
        (its,) = node.stage.ids(made, GPU)
        others = {0, 1, 2} - {int(its[-1])}
        for gpu in others:
            divide(gpu, Slice(f"MIG-{gpu}-large", gi=1, profile="3g.40gb", slices=(3, 3)))
        await node.until_offered(its, *(f"MIG-{gpu}-large" for gpu in others))
        starts = made.starts
        await node.stage.until(
            lambda: made.starts > starts + 1,
            lambda: f"the pod's next start; {made.waiting}",
        )
