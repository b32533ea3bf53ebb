"""What of NVIDIA's driver a container needs, found on trees of files as drivers leave them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import HostError
from holdfast.host.nvidia.driver import NvidiaFiles
from holdfast.host.nvidia.needs import NvidiaDriver
from holdfast.host.root import HostRoot
from holdfast.model.devices import DeviceNode
from holdfast.model.ids import DeviceId, PciAddress
from holdfast.model.nvidia.cdi import GpuSpecFacts
from holdfast.model.nvidia.devices import GpuFacts
from holdfast.model.nvidia.gpu import DriverState, Gpu, GpuReading, MigSlice
from holdfast.model.nvidia.mig import MigStrategy, lay_out

VERSION = "550.54.15"
CHANNEL = "nvidia-caps-imex-channels/channel0"


class Host:
    """A node whose device nodes are links to one terminal."""

    def __init__(self, folder: Path, terminal: str) -> None:
        self.folder = folder
        self.root = HostRoot.under(folder)
        for each in (self.root.proc, self.root.dev, self.root.run, self.root.etc):
            each.mkdir(parents=True)
        self.terminal = terminal
        self.rdev = Path(terminal).stat().st_rdev
        (self.root.proc / "driver/nvidia").mkdir(parents=True)
        (self.root.proc / "devices").write_text(
            f"Character devices:\n{os.major(self.rdev)} nvidia\n237 nvidia-caps\n\nBlock devices:\n"
        )
        self.nodes("nvidiactl", "nvidia-uvm", "nvidia0")

    def nodes(self, *names: str) -> None:
        for name in names:
            path = self.root.dev / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(self.terminal)

    def have(self, root: Path, *paths: str) -> None:
        for path in paths:
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()

    def find(
        self,
        gpus: GpuFacts,
        *,
        more: bool = False,
        driver_root: str = "",
        driver_root_on_host: str = "",
    ) -> GpuSpecFacts:
        files = NvidiaFiles(
            self.root, driver_root=driver_root, driver_root_on_host=driver_root_on_host
        )
        return NvidiaDriver(root=self.root, files=files, more=more).facts(gpus)

    def gpus(self, gpu: Gpu | None = None, **facts: object) -> GpuFacts:
        gpu = gpu or Gpu(index=0, uuid="GPU-a", minor=0)
        reading = GpuReading(state=DriverState.READY, gpus=(gpu,))
        known = {
            "state": DriverState.READY,
            "layout": lay_out(reading, MigStrategy.MIXED),
            "nodes": {0: DeviceNode(path="/dev/nvidia0", rdev=self.rdev)},
            "control": ("/dev/nvidiactl", "/dev/nvidia-uvm"),
            "version": VERSION,
            **facts,
        }
        return GpuFacts(**known)  # type: ignore[arg-type]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    pair = os.openpty()
    yield Host(tmp_path / "host", os.ttyname(pair[1]))
    for fd in pair:
        os.close(fd)


def test_what_a_container_needs_of_the_driver_is_found_below_its_root(host: Host) -> None:
    root = host.root.run / "nvidia/driver"
    host.have(
        root,
        f"usr/lib64/libcuda.so.{VERSION}",
        f"usr/lib64/libnvidia-ml.so.{VERSION}",
        f"usr/lib64/vdpau/libvdpau_nvidia.so.{VERSION}",
        "usr/lib64/libnvidia-nvvm70.so.4",
        "usr/lib64/libcuda.so.535.1.2",
        "usr/lib64/libc.so.6",
        "usr/bin/nvidia-smi",
        "usr/bin/ls",
        f"lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin",
        "lib/firmware/nvidia/535.1.2/gsp_ga10x.bin",
        "usr/share/vulkan/icd.d/nvidia_icd.json",
        "run/nvidia-persistenced/socket",
    )
    (root / "lib64").symlink_to("usr/lib64")
    (root / "usr/lib64/libcuda.so.1").symlink_to(f"libcuda.so.{VERSION}")
    (root / "usr/lib64/libcuda.so").symlink_to("libcuda.so.1")
    (root / "usr/lib64/libc.so").symlink_to("libc.so.6")
    (root / "var").mkdir()

    found = host.find(host.gpus()).driver

    assert (found.version, found.root) == (VERSION, "/run/nvidia/driver")
    assert [each.path for each in found.libraries] == [
        f"/usr/lib64/libcuda.so.{VERSION}",
        f"/usr/lib64/libnvidia-ml.so.{VERSION}",
        "/usr/lib64/libnvidia-nvvm70.so.4",
        f"/usr/lib64/vdpau/libvdpau_nvidia.so.{VERSION}",
    ]
    assert {(each.path, each.source) for each in found.links} == {
        ("/usr/lib64/libcuda.so", f"/usr/lib64/libcuda.so.{VERSION}"),
        ("/usr/lib64/libcuda.so.1", f"/usr/lib64/libcuda.so.{VERSION}"),
    }
    assert [each.path for each in found.files] == [
        "/usr/bin/nvidia-smi",
        f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin",
        "/usr/share/vulkan/icd.d/nvidia_icd.json",
    ]
    assert [each.path for each in found.sockets] == ["/run/nvidia-persistenced/socket"]
    assert [node.path for node in found.control] == ["/dev/nvidiactl", "/dev/nvidia-uvm"]


def test_libraries_of_other_versions_are_handed_over_where_they_are_wanted(host: Host) -> None:
    root = host.root.run / "nvidia/driver"
    cuda, egl = f"usr/lib64/libcuda.so.{VERSION}", "usr/lib64/libEGL.so.1.1.0"
    host.have(root, cuda, egl, "usr/lib64/libEGL_mesa.so.0.0.0")
    (root / "usr/lib64/libEGL.so.1").symlink_to("libEGL.so.1.1.0")

    def found(*, more: bool) -> tuple[set[str], set[str]]:
        driver = host.find(host.gpus(), more=more).driver
        return {each.path for each in driver.libraries}, {each.path for each in driver.links}

    libraries, links = found(more=True)
    assert found(more=False)[0] == {f"/{cuda}"}
    assert libraries == {f"/{cuda}", f"/{egl}"}
    assert links == {"/usr/lib64/libcuda.so", "/usr/lib64/libEGL.so.1"}


def test_links_of_a_drivers_root_lead_to_its_own_files_and_never_to_ours(host: Host) -> None:
    root = host.root.run / "nvidia/driver"
    host.have(root, f"opt/lib/libcuda.so.{VERSION}")
    (root / "usr").mkdir()
    (root / "usr/lib64").symlink_to("/opt/lib")
    (root / "opt/lib/libcuda.so.1").symlink_to("/etc/passwd")

    found = host.find(host.gpus()).driver

    assert [each.source for each in found.libraries] == [f"/opt/lib/libcuda.so.{VERSION}"]
    assert {each.source for each in found.links} == {f"/opt/lib/libcuda.so.{VERSION}"}
    assert "/opt/lib/libcuda.so.1" not in {each.path for each in found.links}


def test_cudas_library_has_its_short_name_also_where_the_host_has_no_such_link(host: Host) -> None:
    root = host.root.run / "nvidia/driver"
    host.have(root, f"usr/lib64/libcuda.so.{VERSION}", f"usr/lib64/libnvidia-ml.so.{VERSION}")
    (root / "usr/lib64/libcuda.so.1").symlink_to(f"libcuda.so.{VERSION}")

    assert {(each.path, each.source) for each in host.find(host.gpus()).driver.links} == {
        ("/usr/lib64/libcuda.so", f"/usr/lib64/libcuda.so.{VERSION}"),
        ("/usr/lib64/libcuda.so.1", f"/usr/lib64/libcuda.so.{VERSION}"),
    }


def test_a_configured_root_is_first_and_is_called_what_the_host_calls_it(
    host: Host, tmp_path: Path
) -> None:
    mine = tmp_path / "driver-root"
    for root in (mine, host.root.run / "nvidia/driver"):
        host.have(root, f"usr/lib64/libcuda.so.{VERSION}")

    assert host.find(host.gpus(), driver_root=str(mine)).driver.root == str(mine)
    elsewhere = host.find(host.gpus(), driver_root=str(mine), driver_root_on_host="/")
    assert elsewhere.driver.root == "/"


@pytest.mark.parametrize("configured", ["", "/"])
def test_a_driver_on_the_host_itself_is_found_through_the_nodes_first_process(
    configured: str, host: Host
) -> None:
    """Our own root, in a container, has other files than the host's of the same names."""
    host.have(host.root.proc / "1/root", f"usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}")

    found = host.find(host.gpus(), driver_root=configured).driver

    assert found.root == "/"
    assert [each.path for each in found.libraries] == [
        f"/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}"
    ]


@pytest.mark.parametrize("version", ["555.42.02", "", "9" * 300, "\0", "*"])
def test_a_root_with_another_version_only_is_no_driver(host: Host, version: str) -> None:
    host.have(host.root.run / "nvidia/driver", f"usr/lib64/libcuda.so.{VERSION}")

    with pytest.raises(HostError, match=r"cannot find the libraries .*set gpu\.driverRoot"):
        host.find(host.gpus(version=version))


def test_without_nodes_of_the_driver_there_is_nothing_to_hand_over(host: Host) -> None:
    host.have(host.root.run / "nvidia/driver", f"usr/lib64/libcuda.so.{VERSION}")
    (host.root.dev / "nvidiactl").unlink()

    with pytest.raises(HostError, match="which nodes containers need"):
        host.find(host.gpus())


SLICE = MigSlice(uuid="MIG-a", gi=7, ci=0, profile="1g.10gb")


@pytest.mark.parametrize("minors", [(66, 67), ()])
def test_a_slice_has_its_gpus_node_and_its_capabilities_or_no_name_at_all(
    host: Host, minors: tuple[int, ...]
) -> None:
    host.have(host.root.run / "nvidia/driver", f"usr/lib64/libcuda.so.{VERSION}")
    caps = tuple(
        DeviceNode(path=f"/dev/nvidia-caps/nvidia-cap{minor}", rdev=os.makedev(237, minor))
        for minor in minors
    )
    gpu = Gpu(index=0, uuid="GPU-a", minor=0, mig=True, slices=(SLICE,))

    gpus = host.find(host.gpus(gpu, caps={DeviceId("MIG-a"): caps})).gpus

    found = {each.id: each for each in gpus}
    assert found.keys() == ({"GPU-a", "MIG-a"} if minors else {"GPU-a"})
    if minors:
        assert found[DeviceId("MIG-a")].names == ("MIG-a", "0:0")
        nodes = found[DeviceId("MIG-a")].nodes
        assert [(node.path, node.rdev) for node in nodes] == [
            ("/dev/nvidia0", host.rdev),
            *((node.path, node.rdev) for node in caps),
        ]


@pytest.mark.parametrize(("number", "held"), [(0, True), (1, False)])
def test_nodes_that_draw_on_a_gpu_are_those_of_the_number_that_sysfs_has(
    host: Host, number: int, held: bool
) -> None:
    host.have(host.root.run / "nvidia/driver", f"usr/lib64/libcuda.so.{VERSION}")
    host.nodes("dri/card0", "dri/renderD128")
    address = PciAddress("0000:65:00.0")
    drm = host.root.sys / "bus/pci/devices" / address / "drm"
    for name in ("card0", "renderD128", "controlD64", "card0-HDMI-A-1"):
        (drm / name).mkdir(parents=True)
        rdev = host.rdev + number
        (drm / name / "dev").write_text(f"{os.major(rdev)}:{os.minor(rdev)}\n")

    nodes = NvidiaFiles(host.root, driver_root="").drm_nodes(address)
    gpu = Gpu(index=0, uuid="GPU-a", minor=0, pci=address)
    (found,) = host.find(host.gpus(gpu, drm={"GPU-a": nodes})).gpus

    assert [each.path for each in nodes] == ["/dev/dri/card0", "/dev/dri/renderD128"]
    assert [each.path for each in found.drm] == [each.path for each in nodes if held]
    assert found.pci == address


def test_modes_and_the_imex_channel_have_the_nodes_that_the_node_has(host: Host) -> None:
    host.have(host.root.run / "nvidia/driver", f"usr/lib64/libcuda.so.{VERSION}")
    host.nodes("gdrdrv", "nvidia-fs0", "nvidia-fs1", CHANNEL)
    (host.root.run / "udev").mkdir()

    gpus = host.gpus(imex=f"/dev/{CHANNEL}")
    found = host.find(gpus).beside

    assert {kind: [node.path for node in each.nodes] for kind, each in found.items()} == {
        "gdrcopy": ["/dev/gdrdrv"],
        "gds": ["/dev/nvidia-fs0", "/dev/nvidia-fs1"],
        "mofed": [],
        "imex-channel": [f"/dev/{CHANNEL}"],
    }
    assert found["gds"].mounts == ("/run/udev",)
