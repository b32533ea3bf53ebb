"""NVIDIA's driver on a node as the doctor finds it, and who looks for it in the wrong place."""

import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from fakes.doctortrees import bad, tree
from holdfast.doctor.areas import examine
from holdfast.doctor.finding import Finding, Level, Node
from holdfast.doctor.nvidia.checks import nvidia_findings
from holdfast.doctor.nvidia.facts import daemon_of
from holdfast.settings import Settings, convert

VERSION = "570.172.08"
OPERATOR = "run/nvidia/driver"


class Built:
    """A node's files; a terminal of ours stands in for the driver's devices."""

    def __init__(self, root: Path, terminal: str) -> None:
        self.root = root
        self.terminal = terminal
        self.major = os.major(Path(terminal).stat().st_rdev)

    def write(self, path: str, text: str = "") -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def device(self, *paths: str) -> None:
        for path in paths:
            file = self.root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.symlink_to(self.terminal)

    def function(self, address: str, code: str, driver: str = "") -> None:
        folder = f"sys/bus/pci/devices/{address}"
        for name, value in (("vendor", "0x10de"), ("device", "0x2330"), ("class", code)):
            self.write(f"{folder}/{name}", value + "\n")
        if driver:
            (self.root / folder / "driver").symlink_to(f"../../drivers/{driver}")

    def loaded(self, version: str = VERSION, *, uvm: int | None = None) -> None:
        self.write(
            "proc/driver/nvidia/version",
            f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build\n",
        )
        self.write(
            "proc/driver/nvidia/gpus/0000:3b:00.0/information", "Model: \t X\nDevice Minor: \t 0\n"
        )
        uvm = self.major if uvm is None else uvm
        self.write(
            "proc/devices",
            f"Character devices:\n{self.major} nvidia\n{uvm} nvidia-uvm\n\nBlock devices:\n",
        )

    def library(self, root: str = "") -> None:
        folder = f"{root}/usr/lib/x86_64-linux-gnu".lstrip("/")
        self.write(f"{folder}/libnvidia-ml.so.{VERSION}")
        (self.root / folder / "libnvidia-ml.so.1").symlink_to(f"libnvidia-ml.so.{VERSION}")

    def toolkit(self) -> None:
        self.write(
            "etc/containerd/config.toml",
            'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]\n'
            'runtime_type = "io.containerd.runc.v2"\n'
            '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]\n'
            'BinaryName = "/usr/bin/nvidia-container-runtime"\n',
        )

    def look(self, **settings: object) -> list[Finding]:
        return list(nvidia_findings(Node(settings=convert(settings), root=self.root)))

    def healthy(self) -> None:
        self.loaded()
        self.library()
        self.device("dev/nvidiactl", "dev/nvidia0", "dev/nvidia-uvm")
        self.toolkit()


@pytest.fixture
def built(tmp_path: Path) -> Iterator[Built]:
    pair = os.openpty()
    yield Built(tmp_path, os.ttyname(pair[1]))
    for fd in pair:
        os.close(fd)


def the(findings: list[Finding], check: str) -> Finding:
    (found,) = (each for each in findings if each.check == check)
    return found


def test_a_driver_on_the_host_with_all_its_parts_has_nothing_to_mend(built: Built) -> None:
    built.healthy()
    findings = built.look()
    assert bad(findings) == {}
    assert VERSION in the(findings, "driver").reason
    assert "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.172.08" in the(findings, "library").reason
    assert "/dev has nvidiactl" in the(findings, "device-root").reason


def test_nodes_that_only_the_operators_root_has_are_a_warning_as_criu_looks_in_dev_alone() -> None:
    findings = list(nvidia_findings(tree("nvidia-nodes-in-operators-root")))
    assert bad(findings) == {"criu": Level.WARN}
    assert "/run/nvidia/driver/dev has nvidiactl" in the(findings, "device-root").reason
    found = the(findings, "criu")
    assert "looks for /dev/nvidiactl alone" in found.reason
    assert "GPU Operator" in found.reason
    assert "criu#2509" in found.reason
    assert "CRIU 4.1" in found.remedy


def test_with_the_nodes_in_both_places_criu_finds_them(built: Built) -> None:
    built.healthy()
    built.library(OPERATOR)
    built.device(f"{OPERATOR}/dev/nvidiactl", f"{OPERATOR}/dev/nvidia0")
    assert bad(built.look()) == {}


def test_a_configured_root_goes_first_and_is_shown_as_the_node_calls_it(built: Built) -> None:
    built.loaded()
    built.toolkit()
    built.library("home/kubernetes/bin/nvidia")
    built.device("opt/n/dev/nvidiactl", "opt/n/dev/nvidia0", "opt/n/dev/nvidia-uvm")
    findings = built.look(gpu={"driverRoot": "/home/kubernetes/bin/nvidia", "devRoot": "/opt/n"})
    assert "/opt/n/dev has nvidiactl" in the(findings, "device-root").reason
    assert the(findings, "library").reason.startswith("/home/kubernetes/bin/nvidia/usr/lib")
    assert "it is so configured" in the(findings, "criu").reason


def test_a_copy_without_device_nodes_tells_nothing_of_them(built: Built) -> None:
    built.loaded()
    built.library()
    built.toolkit()
    found = the(built.look(), "device-root")
    assert found.level is Level.WARN
    assert "leave out its device nodes" in found.remedy


def test_an_nvidiactl_of_another_major_is_not_the_drivers(built: Built) -> None:
    built.healthy()
    built.write("proc/devices", "Character devices:\n195 nvidia\n")
    found = the(built.look(), "device-root")
    assert found.level is Level.FAIL
    assert f"that of /dev has major {built.major}" in found.reason


def test_a_node_of_a_former_driver_is_named_with_both_numbers(built: Built) -> None:
    built.healthy()
    built.loaded(uvm=511)
    found = the(built.look(), "nodes")
    assert found.level is Level.FAIL
    assert f"/dev/nvidia-uvm has major {built.major}" in found.reason
    assert "gave its driver 511" in found.reason


def test_a_capability_of_mig_that_a_former_driver_left_is_named(built: Built) -> None:
    built.healthy()
    built.device("dev/nvidia-caps/nvidia-cap12")
    devices = built.root / "proc/devices"
    devices.write_text(devices.read_text().replace("\n\nBlock", "\n508 nvidia-caps\n\nBlock"))
    found = the(built.look(), "nodes")
    assert found.level is Level.FAIL
    assert "/dev/nvidia-caps/nvidia-cap12 has major" in found.reason


@pytest.mark.parametrize("strategy", ["cdi-annotations", "cdi-cri"])
def test_with_cdi_nobody_needs_the_toolkits_runtime(strategy: str, built: Built) -> None:
    built.healthy()
    built.write("etc/containerd/config.toml", "version = 2\n")
    found = the(built.look(gpu={"deviceListStrategy": [strategy]}), "toolkit")
    assert found.level is Level.OK


@pytest.mark.parametrize("name", ["nvidia0", "nvidia-uvm"])
def test_a_missing_node_is_named(name: str, built: Built) -> None:
    built.healthy()
    (built.root / "dev" / name).unlink()
    found = the(built.look(), "nodes")
    assert found.level is Level.WARN
    assert f"there is no /dev/{name}" in found.reason
    assert "nvidia-modprobe" in found.remedy


def test_who_makes_a_missing_node_depends_on_where_the_driver_is(built: Built) -> None:
    built.loaded()
    built.toolkit()
    built.library(OPERATOR)
    built.device(f"{OPERATOR}/dev/nvidiactl", f"{OPERATOR}/dev/nvidia0")
    found = the(built.look(), "nodes")
    assert f"there is no /{OPERATOR}/dev/nvidia-uvm" in found.reason
    assert "chroot /run/nvidia/driver nvidia-modprobe -u -c 0" in found.remedy


def test_without_unified_memory_cuda_cannot_start(built: Built) -> None:
    built.healthy()
    built.write("proc/devices", f"Character devices:\n{built.major} nvidia\n")
    assert "no nvidia-uvm" in the(built.look(), "nodes").reason


def test_a_library_of_another_version_than_the_kernels_is_a_failure(built: Built) -> None:
    built.healthy()
    built.loaded("580.65.06")
    found = the(built.look(), "library")
    assert found.level is Level.FAIL
    assert "is of driver 570.172.08, and the kernel has 580.65.06" in found.reason


def test_a_library_that_only_the_loader_knows_of_is_found_in_its_cache(built: Built) -> None:
    built.healthy()
    (built.root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1").unlink()
    assert the(built.look(), "library").level is Level.FAIL
    built.library("opt/nv")
    cache = b"glibc-ld.so.cache1.1\0libnvidia-ml.so.1\0/opt/nv/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1\0"
    (built.root / "etc/ld.so.cache").write_bytes(cache)
    found = the(built.look(), "library")
    assert found.level is Level.OK
    assert VERSION in found.reason


@pytest.mark.parametrize(
    ("driver", "level", "reason"),
    [
        ("", Level.WARN, "NVIDIA GPUs at 0000:3b:00.0"),
        ("nvidia", Level.WARN, "NVIDIA GPUs at 0000:3b:00.0"),
        ("vfio-pci", Level.OK, "0000:3b:00.0 has vfio-pci"),
    ],
)
def test_a_gpu_without_its_driver_is_named_unless_another_driver_has_it(
    driver: str, level: Level, reason: str, built: Built
) -> None:
    built.function("0000:3b:00.0", "0x030200", driver)
    (found,) = built.look()
    assert found.level is level
    assert reason in found.reason


def test_a_node_without_gpus_and_one_with_gpus_turned_off_have_nothing_to_mend(
    built: Built,
) -> None:
    (found,) = built.look()
    assert found.level is Level.OK
    built.loaded()
    (found,) = built.look(gpu={"enabled": False})
    assert found.reason == "gpu.enabled is false"


def test_with_nvswitches_fabric_manager_and_persistenced_are_missed(built: Built) -> None:
    built.healthy()
    built.function("0000:05:00.0", "0x068000")
    findings = built.look()
    assert bad(findings) == {"fabric-manager": Level.WARN, "persistenced": Level.WARN}
    assert "0000:05:00.0" in the(findings, "fabric-manager").reason
    assert "802" in the(findings, "fabric-manager").reason


@pytest.mark.parametrize("root", ["", f"{OPERATOR}/"])
def test_a_daemons_socket_shows_that_it_runs(
    root: str, built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    built.healthy()
    built.function("0000:05:00.0", "0x068000")
    sockets = []
    for name in ("nvidia-fabricmanager", "nvidia-persistenced"):
        folder = built.root / root / "run" / name
        folder.mkdir(parents=True)
        monkeypatch.chdir(folder)
        made = socket.socket(socket.AF_UNIX)
        made.bind("socket")
        sockets.append(made)
    findings = built.look()
    for made in sockets:
        made.close()
    assert bad(findings) == {}
    assert "/run/nvidia-fabricmanager/socket" in the(findings, "fabric-manager").reason


def test_on_a_live_node_somebody_must_listen_on_it(short_path: Path) -> None:
    live, name = Node(settings=Settings()), f"..{short_path}"
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(short_path / "socket"))
        made.listen()
        assert daemon_of(live, name, "none") == f"/run/{name}/socket"
    assert daemon_of(live, name, "none") == ""


def test_so_does_its_process(built: Built) -> None:
    built.healthy()
    built.function("0000:05:00.0", "0x068000")
    for pid, name in ((7, "nv-fabricmanage"), (8, "nvidia-persiste")):
        built.write(f"proc/{pid}/stat", f"{pid} ({name}) S 1 {' '.join(['0'] * 40)}\n")
    assert bad(built.look()) == {}


TOOLKIT = "etc/nvidia-container-runtime/config.toml"
VARIABLES = "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n"
MOUNTS = "accept-nvidia-visible-devices-as-volume-mounts = true\n"


@pytest.mark.parametrize(
    ("config", "strategy", "level"),
    [
        pytest.param("", "envvar", Level.OK, id="variables, as it comes"),
        pytest.param(VARIABLES, "envvar", Level.FAIL, id="variables are not listened to"),
        pytest.param(VARIABLES + MOUNTS, "volume-mounts", Level.OK, id="mounts alone"),
        pytest.param("", "volume-mounts", Level.FAIL, id="mounts are off, as it comes"),
        pytest.param("= 1", "envvar", Level.FAIL, id="no TOML"),
    ],
)
def test_the_toolkit_must_listen_to_what_the_strategy_says(
    config: str, strategy: str, level: Level, built: Built
) -> None:
    built.healthy()
    built.write(TOOLKIT, config)
    assert the(built.look(gpu={"deviceListStrategy": [strategy]}), "toolkit-config").level is level


@pytest.mark.parametrize(
    ("change", "settings", "level"),
    [
        pytest.param("", {}, Level.OK, id="containerd starts it"),
        pytest.param("containerd", {}, Level.FAIL, id="containerd starts runc alone"),
        pytest.param("containerd", {"passDeviceSpecs": True}, Level.WARN, id="nodes, no libraries"),
        pytest.param("none", {}, Level.WARN, id="nothing is known of the runtime"),
        pytest.param("hook", {}, Level.OK, id="a hook of CRI-O's"),
    ],
)
def test_somebody_must_act_on_the_variable_that_names_a_gpu(
    change: str, settings: Mapping[str, object], level: Level, built: Built
) -> None:
    built.healthy()
    if change:
        (built.root / "etc/containerd/config.toml").unlink()
    if change == "containerd":
        built.write("etc/containerd/config.toml", "version = 2\n")
    if change == "hook":
        built.write("usr/share/containers/oci/hooks.d/oci-nvidia-hook.json", "{}")
    assert the(built.look(gpu=dict(settings)), "toolkit").level is level


@pytest.mark.parametrize("containerds", ["", 'disabled_plugins = ["cri"]'])
def test_a_runtime_whose_configuration_is_not_read_is_named(containerds: str, built: Built) -> None:
    built.healthy()
    built.write("etc/containerd/config.toml", containerds)
    if not containerds:
        (built.root / "etc/containerd/config.toml").unlink()
    built.write("etc/crio/crio.conf", "")
    told = the(built.look(), "toolkit")

    assert told.level is Level.WARN
    assert "the configuration of CRI-O is not read" in told.reason


@pytest.mark.parametrize("name", [TOOLKIT, "etc/containerd/config.toml"])
def test_a_file_that_is_nested_without_end_is_no_bug_of_ours(name: str, built: Built) -> None:
    built.healthy()
    built.write(name, "x = " + "[" * 100_000)
    found = list(examine(Node(settings=Settings(), root=built.root)))

    assert "doctor" not in {each.check for each in found}
    assert any("it is nested too deep" in each.reason for each in found)
