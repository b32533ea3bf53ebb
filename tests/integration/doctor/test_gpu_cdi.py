"""What can be wrong behind the CDI names of GPUs, on trees of files."""

import json

import pytest

from fakes.nodetree import NodeTree

_BY_NAME = ("--set", "gpu.deviceListStrategy=cdi-cri")
_HOOK = ("--set", "gpu.cdiHookPath=/usr/bin/nvidia-ctk")
_KIND = "k8s.device-plugin.nvidia.com/gpu"
_LIBRARY = "usr/lib64/libcuda.so.550.54.15"


@pytest.fixture
def gpu_node(node: NodeTree) -> NodeTree:
    """A node that hands GPUs over by name, and whose spec is true."""
    (node.folder / "run/cdi").mkdir(parents=True)
    (node.folder / "var/run").symlink_to("/run")
    node.write(_LIBRARY, "")
    mounts = [{"hostPath": f"/{_LIBRARY}", "containerPath": f"/{_LIBRARY}"}]
    device = {"name": "GPU-a", "containerEdits": {"env": ["A=b"]}}
    spec = {"kind": _KIND, "devices": [device], "containerEdits": {"mounts": mounts}}
    node.write("run/cdi/k8s.device-plugin.nvidia.com-gpu.json", json.dumps(spec))
    return node


def test_a_node_whose_specs_of_gpus_are_true_has_nothing_to_mend(gpu_node: NodeTree) -> None:
    told = gpu_node.told(*_BY_NAME)

    assert told.bad("gpu-cdi") == {}
    assert "all 1 files" in told.of("gpu-cdi", "files")["reason"]


def test_where_gpus_are_not_handed_over_by_name_nothing_is_checked(gpu_node: NodeTree) -> None:
    assert not [each for each in gpu_node.told().findings if each["area"] == "gpu-cdi"]


@pytest.mark.parametrize(("mode", "level"), [(None, "FAIL"), (0o644, "FAIL"), (0o755, "OK")])
def test_a_hook_that_is_no_program_of_the_host_fails_for_no_container_would_start(
    mode: int | None, level: str, gpu_node: NodeTree
) -> None:
    if mode is not None:
        gpu_node.write("usr/bin/nvidia-ctk", "#!/bin/sh\n")
        (gpu_node.folder / "usr/bin/nvidia-ctk").chmod(mode)

    assert gpu_node.told(*_BY_NAME, *_HOOK).of("gpu-cdi", "hook")["level"] == level


def test_a_hook_that_the_host_has_and_nobody_calls_is_pointed_out(gpu_node: NodeTree) -> None:
    assert "gpu.cdiHookPath" not in gpu_node.told(*_BY_NAME).of("gpu-cdi", "hook")["reason"]
    gpu_node.write("usr/local/nvidia/toolkit/nvidia-ctk", "#!/bin/sh\n")
    (gpu_node.folder / "usr/local/nvidia/toolkit/nvidia-ctk").chmod(0o755)

    found = gpu_node.told(*_BY_NAME).of("gpu-cdi", "hook")

    assert found["level"] == "OK"
    assert "the host has /usr/local/nvidia/toolkit/nvidia-ctk" in found["reason"]


def test_a_file_of_others_that_explains_gpus_too_fails(gpu_node: NodeTree) -> None:
    rival = {"kind": _KIND, "devices": [{"name": "GPU-a"}]}
    gpu_node.write("run/cdi/other.yaml", json.dumps(rival))

    found = gpu_node.told(*_BY_NAME).of("gpu-cdi", "rivals")

    assert (found["level"], f"{_KIND}=GPU-a" in found["reason"]) == ("FAIL", True)


def test_a_mount_of_what_the_host_has_not_fails_and_is_named(gpu_node: NodeTree) -> None:
    (gpu_node.folder / _LIBRARY).unlink()

    found = gpu_node.told(*_BY_NAME).of("gpu-cdi", "files")

    assert (found["level"], f"no /{_LIBRARY}" in found["reason"]) == ("FAIL", True)


_NO_PATHS = [
    json.dumps({"containerEdits": {"mounts": [{"hostPath": each}]}}) for each in (None, 1, ["/a"])
]


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}", *_NO_PATHS])
def test_a_spec_that_is_not_there_or_makes_no_sense_is_warned_of(
    text: str | None, gpu_node: NodeTree
) -> None:
    file = gpu_node.folder / "run/cdi/k8s.device-plugin.nvidia.com-gpu.json"
    file.unlink()
    if text is not None:
        file.write_text(text)

    assert gpu_node.told(*_BY_NAME).of("gpu-cdi", "files")["level"] == "WARN"
