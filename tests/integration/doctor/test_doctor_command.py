"""`holdfast doctor` as people run it: what it prints, its exit code, and that it never breaks."""

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.needs import root_with
from fakes.nodetree import CHIP, NodeTree
from holdfast.cli import main
from holdfast.ledger.store import Store


def test_on_a_machine_with_nothing_of_all_this_nothing_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--root", str(tmp_path)]) == 0

    told = capsys.readouterr().out
    assert "  OK  " not in told, "what is well has no line of its own"
    assert "\nok     configuration settings, " in told
    assert f" 0 FAIL; read only files below {tmp_path}\n" in told
    assert "Traceback" not in told
    assert not list(tmp_path.iterdir()), "looking leaves nothing behind"


def test_on_this_very_machine_it_says_something_of_every_area(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["doctor", "--state-dir", str(tmp_path), "--output", "json"])

    report = json.loads(capsys.readouterr().out)
    assert report["root"] == "/"
    areas = {finding["area"] for finding in report["findings"]}
    assert areas >= {"kubelet", "vfio", "cdi", "state", "memory", "privileges", "containerd"}
    told = [finding["reason"] for finding in report["findings"] if finding["area"] == "state"]
    assert f"{tmp_path} is there" in told
    for finding in report["findings"]:
        assert finding.keys() == {"area", "check", "level", "reason", "remedy"}
        assert (finding["level"] == "OK") == (finding["remedy"] == ""), finding
        assert finding["check"] != "doctor", finding
    assert sum(report["counts"].values()) == len(report["findings"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("gate: {wiat: 1s}", "did you mean gate.wait?"),
        ("gate: [", "cannot read "),
        (None, "No such file or directory"),
    ],
)
def test_a_configuration_that_cannot_be_used_fails_and_the_rest_is_checked_all_the_same(
    content: str | None, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    if content is not None:
        file.write_text(content)
    node = tmp_path / "node"
    node.mkdir()

    assert main(["doctor", "--root", str(node), "--config", str(file)]) == 1

    told = capsys.readouterr().out
    assert "  FAIL  settings: " in told
    assert complaint in told
    assert "state folder" in told


def test_the_settings_that_the_rest_goes_by_are_told_first(node: NodeTree) -> None:
    assert node.told().of("configuration", "settings")["level"] == "OK"
    assert node.told("--set", "gate.wait=soon").of("configuration", "settings")["level"] == "FAIL"


def test_a_warning_ends_with_1_only_when_that_is_asked_for(node: NodeTree) -> None:
    node.remove("sys/module/vfio_iommu_type1")

    assert node.told().code == 0
    assert node.told("--strict").code == 1


def test_people_are_shown_each_area_with_its_findings_remedies_and_a_count(
    node: NodeTree, capsys: pytest.CaptureFixture[str]
) -> None:
    node.host.bind(CHIP, "gas\x1bket")

    assert main(["doctor", "--root", str(node.folder)]) == 1

    told = capsys.readouterr().out
    first = next(line for line in told.splitlines() if line.startswith("  "))
    assert first.startswith("  FAIL  "), "failures come before warnings"
    area = told.partition("\nvfio\n")[2].partition("\n\n")[0].splitlines()
    at = next(place for place, line in enumerate(area) if line.startswith("  FAIL  driver: "))
    assert area[at].endswith("it is bound to gas\\x1bket; driver_override is not set")
    assert area[at + 1].startswith(f"        echo {CHIP} > ")
    assert re.search(r"^\d+ OK, \d+ WARN, 1 FAIL; read only files below ", told, re.MULTILINE)


def test_wrong_usage_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--root", str(tmp_path / "nowhere")]) == 2
    assert "nowhere: No such file or directory" in capsys.readouterr().err

    (tmp_path / "file").touch()
    assert main(["doctor", "--root", str(tmp_path / "file")]) == 2
    assert "file is not a folder" in capsys.readouterr().err


@contextlib.contextmanager
def _garbled(path: Path, how: str, aside: Path) -> Iterator[None]:
    """Let something else lie at *path* for a while; what was there waits *aside*."""
    path.rename(aside)
    if how == "garbage":
        path.write_bytes(b"\x00\xff{[\n: \x80" * 9)
    elif how == "folder":
        path.mkdir()
    elif how == "circle":
        path.symlink_to(path.name)
    elif how == "pipe":
        os.mkfifo(path)
    yield
    if how == "folder":
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
    aside.rename(path)


@pytest.mark.parametrize("how", ["missing", "garbage", "folder", "circle", "pipe"])
def test_whatever_any_one_file_of_a_node_is_no_check_breaks(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = NodeTree(tmp_path / "node", capsys)
    tree.checkpoint({"google.com/tpu": [CHIP]})
    (tree.folder / "var/lib/holdfast").mkdir()
    Store(tree.folder / "var/lib/holdfast").close()
    tree.write("etc/cdi/holdfast_x.json", '{"devices": []}')
    tree.write("etc/containerd/config.toml", "version = 2\n")
    tree.write("etc/cdi/other.yaml", "kind: google.com/tpu\ndevices: []\n")
    settings = ("--set", "deviceListStrategy=cdi", "--set", "cdi.specDir=/etc/cdi")
    assert "doctor" not in {each["check"] for each in tree.told(*settings).findings}
    places = sorted(tree.folder.rglob("*"))

    for place in places:
        with _garbled(place, how, tmp_path / "aside"):
            broken = [each for each in tree.told(*settings).findings if each["check"] == "doctor"]
            assert not broken, (place, broken)
    tree.close()


def test_without_the_nodes_sysfs_it_is_said_what_to_mount(node: NodeTree) -> None:
    (node.folder / "sys/bus").rename(node.folder / "sys/none")

    told = node.told()

    assert told.bad("vfio") == {"rights": "WARN"}
    found = told.of("vfio", "rights")
    assert "is not a sysfs: it has no folder bus" in found["reason"]
    assert "with the host's /proc and /sys" in found["remedy"]


_PLACES = {
    "var/lib/kubelet": {"kubelet"},
    "var/lib/kubelet/device-plugins": {"kubelet"},
    "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint": {"kubelet"},
    "var/lib/kubelet/pod-resources": {"kubelet"},
    "var/lib/holdfast": {"state"},
    "var/lib/holdfast/ledger.db": set(),
    "etc": {"cdi"},
    "etc/cdi": {"cdi"},
    "etc/cdi/holdfast_x.json": {"cdi"},
    "etc/containerd/config.toml": {"containerd", "gvisor"},
    "dev/vfio": {"vfio"},
    "proc": {"nvidia"},
    "sys": {"memory", "nvidia", "vfio"},
    "sys/bus/pci/devices": {"nvidia", "vfio"},
    "sys/kernel": {"vfio"},
    "sys/module": {"vfio"},
    "run": set(),
    "": {"kubelet", "cdi", "state", "memory", "nvidia", "vfio"},
}
"""What is closed, and the areas that end there."""


@root_with("setpriv", to="take rights away")
@pytest.mark.parametrize("place", _PLACES)
def test_what_the_doctor_may_not_read_is_no_verdict_on_it(place: str, node: NodeTree) -> None:
    (node.folder / "var/lib/holdfast").mkdir()
    Store(node.folder / "var/lib/holdfast").close()
    (node.folder / "run").mkdir()
    node.write("etc/cdi/holdfast_x.json", '{"devices": []}')
    node.write("etc/containerd/config.toml", "version = 2\n")
    for folder in (node.folder, *node.folder.parents[:3]):
        folder.chmod(0o755)
    closed = node.folder / place
    os.chown(closed, 65534, 65534)
    closed.chmod(0)
    command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", sys.executable, "-m"]
    settings = ("--set", "deviceListStrategy=cdi", "--set", "cdi.specDir=/etc/cdi")

    done = subprocess.run(
        [*command, "holdfast", "doctor", "-o", "json", "--root", str(node.folder), *settings],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stderr == ""
    found = json.loads(done.stdout)["findings"]
    assert "doctor" not in {each["check"] for each in found}, found
    failed = [each for each in found if each["level"] == "FAIL"]
    assert not failed, "what is not known is no failure"
    ended = {each["area"]: each for each in found if each["check"] == "rights"}
    assert ended.keys() == _PLACES[place]
    assert all(each["level"] == "WARN" for each in ended.values())


def test_with_all_the_checks_that_are_ok_are_shown_below_their_areas(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--all", "--root", str(tmp_path)]) == 0

    told = capsys.readouterr().out
    assert "\nconfiguration\n  OK    settings: " in told
    assert "\nok     " not in told
