"""NVIDIA's driver on a node, as files and nodes show it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.needs import root_with
from holdfast.host.nvidia.driver import NvidiaFiles
from holdfast.host.root import HostRoot
from holdfast.model.nvidia.roots import device_root


@pytest.fixture
def root(tmp_path: Path) -> HostRoot:
    made = HostRoot.under(tmp_path)
    for folder in (made.proc, made.dev, made.run, made.sys / "bus/pci/devices"):
        folder.mkdir(parents=True)
    return made


@pytest.fixture
def terminal() -> Iterator[str]:
    """The path of a character device."""
    pair = os.openpty()
    yield os.ttyname(pair[1])
    for fd in pair:
        os.close(fd)


def loaded(root: HostRoot, terminal: str) -> None:
    (root.proc / "driver/nvidia").mkdir(parents=True)
    major = os.major(Path(terminal).stat().st_rdev)
    (root.proc / "devices").write_text(
        f"Character devices:\n  1 mem\n{major} nvidia\n\nBlock devices:\n"
    )


def library(folder: Path) -> Path:
    folder.mkdir(parents=True)
    file = folder / "libnvidia-ml.so.1"
    file.touch()
    return file


def test_a_driver_is_there_when_the_kernel_says_so_and_not_when_files_are(
    root: HostRoot, terminal: str
) -> None:
    library(root.run / "nvidia/driver/usr/lib64")
    (root.dev / "nvidiactl").symlink_to(terminal)
    files = NvidiaFiles(root, driver_root="")
    assert not files.present
    assert not files.facts().present
    loaded(root, terminal)
    assert files.present


def test_a_load_of_the_driver_has_the_name_that_former_daemons_kept_of_it(
    root: HostRoot, terminal: str
) -> None:
    loaded(root, terminal)
    text = "NVRM version: 580.126.09\nGCC version: 12.2\n"
    (root.proc / "driver/nvidia/version").write_text(text)
    module = root.sys / "module/nvidia"
    module.mkdir(parents=True)
    load = NvidiaFiles(root, driver_root="").facts().load
    assert load == f"{text} load {module.stat().st_ino}"


def test_nodes_that_only_the_operators_root_has_are_found_there(
    root: HostRoot, terminal: str
) -> None:
    """CRIU's lesson: a plugin that looked only in /dev found no GPU on such a node."""
    loaded(root, terminal)
    operator = root.run / "nvidia/driver/dev"
    operator.mkdir(parents=True)
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0"):
        (operator / name).symlink_to(terminal)
    files = NvidiaFiles(root, driver_root="")
    chosen = device_root(files.facts()).root
    assert chosen is not None
    assert (chosen.folder, chosen.host) == (operator, "/run/nvidia/driver/dev")
    assert files.rdev(chosen, 0) == Path(terminal).stat().st_rdev
    assert files.rdev(chosen, 1) is None
    assert files.control(chosen) == (
        "/run/nvidia/driver/dev/nvidiactl",
        "/run/nvidia/driver/dev/nvidia-uvm",
    )


def test_a_plain_file_called_nvidiactl_is_no_node(root: HostRoot, terminal: str) -> None:
    loaded(root, terminal)
    (root.dev / "nvidiactl").touch()
    assert device_root(NvidiaFiles(root, driver_root="").facts()).root is None


def test_a_configured_root_comes_first_for_nodes_and_library(
    root: HostRoot, terminal: str, tmp_path: Path
) -> None:
    loaded(root, terminal)
    mine = tmp_path / "mine"
    own = library(mine / "usr/lib/x86_64-linux-gnu")
    operators = library(root.run / "nvidia/driver/usr/lib64")
    (mine / "dev").mkdir()
    for folder in (mine / "dev", root.dev):
        (folder / "nvidiactl").symlink_to(terminal)
    look = NvidiaFiles(root, driver_root=str(mine)).facts()
    assert list(look.libraries) == [own, operators]
    chosen = device_root(look).root
    assert chosen is not None
    assert chosen.host == f"{mine}/dev"


def test_a_driver_without_a_library_below_any_root_leaves_it_to_the_loader(
    root: HostRoot, terminal: str
) -> None:
    loaded(root, terminal)
    assert list(NvidiaFiles(root, driver_root="").facts().libraries) == []


def test_a_gpus_node_of_another_major_is_none_of_the_drivers(root: HostRoot, terminal: str) -> None:
    loaded(root, terminal)
    (root.dev / "nvidiactl").symlink_to(terminal)
    (root.dev / "nvidia0").symlink_to("/dev/null")
    files = NvidiaFiles(root, driver_root="")
    chosen = device_root(files.facts()).root
    assert chosen is not None
    assert files.rdev(chosen, 0) is None


def test_control_nodes_of_another_major_are_none_of_the_drivers(
    root: HostRoot, terminal: str
) -> None:
    loaded(root, terminal)
    major = os.major(Path(terminal).stat().st_rdev)
    (root.proc / "devices").write_text(
        f"Character devices:\n{major} nvidia\n{major} nvidia-modeset\n511 nvidia-uvm\n\n"
    )
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"):
        (root.dev / name).symlink_to(terminal)
    files = NvidiaFiles(root, driver_root="")
    chosen = device_root(files.facts()).root
    assert chosen is not None
    assert files.control(chosen) == ("/dev/nvidiactl", "/dev/nvidia-modeset")


def test_the_drivers_root_is_called_as_the_host_does(
    root: HostRoot, terminal: str, tmp_path: Path
) -> None:
    loaded(root, terminal)
    mounted = tmp_path / "driver-root"
    (mounted / "dev").mkdir(parents=True)
    (mounted / "dev/nvidiactl").symlink_to(terminal)
    files = NvidiaFiles(root, driver_root=str(mounted), driver_root_on_host="/run/nvidia/driver")
    chosen = device_root(files.facts()).root
    assert chosen is not None
    assert (chosen.folder, chosen.host) == (mounted / "dev", "/run/nvidia/driver/dev")


@pytest.mark.parametrize(
    ("configured", "on_host", "called"),
    [
        ("", "/run/nvidia/driver", "/run/nvidia/driver"),
        ("", "", ""),
        ("other", "/opt", "/opt"),
    ],
)
def test_the_drivers_root_is_where_nvidias_chart_mounts_it_unless_it_is_configured(
    root: HostRoot, terminal: str, configured: str, on_host: str, called: str
) -> None:
    loaded(root, terminal)
    tmp_path = root.proc.parent
    for name in ("driver-root", "other"):
        (tmp_path / name / "dev").mkdir(parents=True)
        (tmp_path / name / "dev/nvidiactl").symlink_to(terminal)
    found = tmp_path / (configured or "driver-root")
    files = NvidiaFiles(
        root,
        driver_root=str(found) if configured else "",
        driver_root_on_host=on_host,
        mounted=tmp_path / "driver-root",
    )
    chosen = device_root(files.facts()).root
    assert chosen is not None
    assert (chosen.folder, chosen.host) == (found / "dev", f"{called}/dev")
    assert (files.driver_root, files.driver_root_on_host) == (str(found), called or "/")


_MOUNTS = """
import sys
from pathlib import Path
from holdfast.host.nvidia.driver import NvidiaFiles
from holdfast.host.root import HostRoot
from holdfast.model.nvidia.roots import device_root

root = HostRoot.under(Path(sys.argv[1]))
# What the kernel says of this process's own mounts, among what the test says of the driver.
(root.proc / "self").mkdir()
(root.proc / "self/mountinfo").write_text(Path("/proc/self/mountinfo").read_text())
chosen = device_root(NvidiaFiles(root, driver_root="").facts())
print(chosen.root.host if chosen.root else chosen.reason)
"""


@root_with("unshare", to="mount something for oneself")
@pytest.mark.parametrize(
    ("mount", "told"),
    [
        pytest.param("mount --bind $dev $operator", "/dev", id="one folder by two names"),
        pytest.param(
            "mount -t tmpfs none $operator; ln -s $node $operator/nvidiactl; rm $dev/nvidiactl",
            "/run/nvidia/driver/dev",
            id="a folder of its own",
        ),
        pytest.param(
            "mount -t tmpfs none $dev; ln -s $node $dev/nvidiactl;"
            "mount --bind $other $operator; ln -s $node $operator/nvidiactl",
            "/run/nvidia/driver/dev",
            id="a container has its own /dev",
        ),
        pytest.param(
            "mount -t tmpfs -o nodev none $dev; ln -s $node $dev/nvidiactl;"
            "rmdir $operator; mkdir $operator",
            "nodev",
            id="no node can be opened",
        ),
    ],
)
def test_overlapping_roots_are_told_apart_by_real_mounts(
    root: HostRoot, terminal: str, tmp_path: Path, mount: str, told: str
) -> None:
    loaded(root, terminal)
    operator, other = root.run / "nvidia/driver/dev", tmp_path / "other"
    operator.mkdir(parents=True)
    other.mkdir()
    (root.dev / "nvidiactl").symlink_to(terminal)
    run = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", f'{mount}; exec "$python" -c "$code" "$tree"'],
        env={
            **os.environ,
            "dev": str(root.dev),
            "operator": str(operator),
            "other": str(other),
            "node": terminal,
            "python": sys.executable,
            "code": _MOUNTS,
            "tree": str(tmp_path),
        },
        check=True,
        capture_output=True,
        text=True,
    )
    assert told in run.stdout


def test_links_of_a_driver_container_are_followed_below_its_own_root(
    root: HostRoot, terminal: str
) -> None:
    loaded(root, terminal)
    operator = root.run / "nvidia/driver"
    real = library(operator / "opt/driver").rename(operator / "opt/driver/libnvidia-ml.so.550.1")
    (operator / "usr/lib64").mkdir(parents=True)
    (operator / "usr/lib64/libnvidia-ml.so.1").symlink_to("/opt/driver/libnvidia-ml.so.550.1")
    (operator / "lib64").symlink_to("lib64")
    assert list(NvidiaFiles(root, driver_root="").facts().libraries) == [real]


@pytest.mark.parametrize(("text", "node"), [("1\n", 1), ("-1\n", None), ("oops", None)])
def test_the_numa_node_is_sysfs_word(root: HostRoot, text: str, node: int | None) -> None:
    function = root.sys / "bus/pci/devices/0000:65:00.0"
    function.mkdir()
    (function / "numa_node").write_text(text)
    files = NvidiaFiles(root, driver_root="")
    assert files.numa_node("0000:65:00.0") == node
    assert files.numa_node("0000:66:00.0") is None


def test_nodes_of_a_driver_root_that_is_mounted_elsewhere_are_called_what_the_host_calls_them(
    root: HostRoot, terminal: str, tmp_path: Path
) -> None:
    """Kubelet and runtimes know nothing of the paths in our own container."""
    loaded(root, terminal)
    mine = tmp_path / "driver-root/dev"
    mine.mkdir(parents=True)
    (mine / "nvidiactl").symlink_to(terminal)
    for on_host, called in (("/", "/dev"), ("/opt/driver", "/opt/driver/dev"), ("", str(mine))):
        look = NvidiaFiles(root, driver_root=str(mine.parent), driver_root_on_host=on_host).facts()
        chosen = device_root(look).root
        assert chosen is not None
        assert (chosen.folder, chosen.host) == (mine, called)
