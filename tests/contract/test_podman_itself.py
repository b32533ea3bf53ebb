"""That the library by which container runtimes read CDI specs makes of ours what we mean.

Podman is asked, since it takes names without an image or a daemon: it writes the configuration of a
container, with what the specs add, before it calls a runtime, which here only keeps that.
"""

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from fetched import program
from holdfast.model.nvidia.names import GPU_KIND, IMEX_KIND

GOLDEN = Path(__file__).parent.parent / "golden/cdi"
MODE = "k8s.device-plugin.nvidia.com/{}=all"
# What podman needs beside itself, where it is fetched.
_LIBRARIES = ("libgpgme11", "libassuan0", "libsubid4", "libdevmapper1.02.1", "libseccomp2")
_KEEPS = """#!/bin/sh
while [ $# -gt 0 ]; do
    [ "$1" = --bundle ] && cp "$2/config.json" "$0.json"
    shift
done
exit 1
"""


class Podman(Struct, frozen=True):
    """`program`, run with `environ`, calls `conmon`; it keeps what it does below `folder`."""

    program: Path
    conmon: Path
    environ: Mapping[str, str]
    folder: Path

    def container(self, specs: Path, *names: str) -> dict[str, Any]:
        """Return the configuration of a container with *names*; fail with what podman says."""
        keeps, kept, root = (self.folder / name for name in ("keeps", "keeps.json", "rootfs"))
        keeps.write_text(_KEEPS)
        keeps.chmod(0o755)
        root.mkdir()
        podman = [str(self.program), "--storage-driver=vfs", "--events-backend=none"]
        podman += [f"--root={self.folder}/root", f"--runroot={self.folder}/run"]
        podman += ["--cgroup-manager=cgroupfs", f"--conmon={self.conmon}", f"--runtime={keeps}"]
        made = [*podman, "create", "--name=asked", "--network=none", "--rootfs"]
        made += [f"--device={name}" for name in names]
        steps = [
            *(["mount", "-t", "tmpfs", "none", folder] for folder in ("/run", "/dev/shm")),
            ["mkdir", "-p", "/var/run/cdi"],
            *(
                ["cp", str(file), f"/var/run/cdi/k8s.device-plugin.nvidia.com-{file.name}"]
                for file in specs.iterdir()
            ),
            [*made, str(root), "/bin/true"],
            [*podman, "init", "asked"],
        ]
        # In a mount namespace of its own, so that this machine's folders are as they were.
        script = "\n".join(" ".join(step) for step in steps)
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", script],
            env={**os.environ, **self.environ},
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert kept.exists(), (done.stdout + done.stderr).decode(errors="replace")
        found: dict[str, Any] = json.loads(kept.read_text())
        return found


@pytest.fixture
def podman(short_path: Path) -> Podman:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("podman is asked in a mount namespace, which takes root and unshare")
    asked = program("podman", package="podman")
    settings = short_path / "containers.conf"
    settings.write_text("[engine]\n")
    environ = {"CONTAINERS_CONF": str(settings)}
    if shutil.which("podman") is None:
        machine = f"usr/lib/{platform.machine()}-linux-gnu"
        trees = [program(name, package=name).parents[2] for name in _LIBRARIES]
        folders = [f"{tree}/{part}" for tree in trees for part in (machine, machine[4:])]
        environ["LD_LIBRARY_PATH"] = ":".join(folders)
    said = subprocess.run(
        [asked, "--version"], env={**os.environ, **environ}, capture_output=True, check=False
    )
    if said.returncode:
        pytest.skip(f"podman does not run here: {said.stderr.decode(errors='replace')}")
    return Podman(asked, program("conmon", package="conmon"), environ, short_path)


@pytest.mark.parametrize(
    ("case", "names", "minors"),
    [
        ("two-gpus", (f"{GPU_KIND}=GPU-a",), [0]),
        ("two-gpus", (f"{GPU_KIND}=0", f"{GPU_KIND}=GPU-b"), [0, 1]),
        ("two-gpus-hooks", (f"{GPU_KIND}=1",), [1]),
        ("operator-root", (f"{GPU_KIND}=GPU-b",), [1]),
        ("mig-slice", (f"{GPU_KIND}=3:1",), [3, 66, 67]),
        ("mig-slice", (f"{GPU_KIND}=MIG-m",), [3, 66, 67]),
    ],
)
def test_it_gives_a_container_the_nodes_and_the_driver_behind_a_gpus_name(
    case: str, names: tuple[str, ...], minors: list[int], podman: Podman
) -> None:
    found = podman.container(GOLDEN / case, *names)

    nodes = [each for each in found["linux"]["devices"] if each["path"].startswith("/dev/nvidia")]
    assert [each["path"] for each in nodes[:2]] == ["/dev/nvidiactl", "/dev/nvidia-uvm"]
    assert [each["minor"] for each in nodes[2:]] == minors
    assert {each["fileMode"] for each in nodes} == {0o666}
    assert "NVIDIA_VISIBLE_DEVICES=void" in found["process"]["env"]
    mounted = {each["destination"] for each in found["mounts"]}
    hooks = [" ".join(each["args"]) for each in found.get("hooks", {}).get("createContainer", ())]
    linked = any("::/usr/lib64/libcuda.so.1" in each for each in hooks)
    assert linked != ("/usr/lib64/libcuda.so.1" in mounted)
    assert "/usr/lib64/libcuda.so.550.54.15" in mounted


def test_it_gives_a_container_what_modes_and_the_imex_channel_stand_for(podman: Podman) -> None:
    names = (f"{GPU_KIND}=GPU-a", f"{IMEX_KIND}=0", MODE.format("gds"), MODE.format("gdrcopy"))

    found = podman.container(GOLDEN / "beside", *names)

    paths = {each["path"] for each in found["linux"]["devices"]}
    assert paths >= {
        "/dev/nvidia0",
        "/dev/nvidia-caps-imex-channels/channel0",
        "/dev/nvidia-fs0",
        "/dev/gdrdrv",
    }
    assert "/run/udev" in {each["destination"] for each in found["mounts"]}
