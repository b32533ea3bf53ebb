"""The folder of CDI specs, on real folders: whole files, only ours, and clear when it cannot be."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from fakes.books import WHOLE, X, device_of, entry, seen
from fakes.smalldisk import mounted
from holdfast.allocation.specwriter import CdiSpecs, SpecWriter
from holdfast.errors import HostError
from holdfast.host.files.specfolder import SpecFolder
from holdfast.model.devices import DeviceNode, Inventory
from holdfast.model.gate.cdi import cdi_name
from holdfast.model.ids import DeviceId, DeviceName
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched

NAME = "google.com_tpu.json"
FILE = f"holdfast_{NAME}"


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder that not even root can write to, with one file of ours in it."""
    with mounted(tmp_path / "ro") as folder:
        (folder / FILE).write_text("old")
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        yield folder


def test_a_file_is_written_for_everybody_to_read_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        changed = SpecFolder(tmp_path, prefix="holdfast").hold({NAME: "{}"})
    finally:
        os.umask(before)

    assert changed == (FILE,)
    assert (tmp_path / FILE).read_text() == "{}"
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o644
    assert [each.name for each in tmp_path.iterdir()] == [FILE]


def test_a_file_is_replaced_whole_and_never_written_in_place(tmp_path: Path) -> None:
    folder = SpecFolder(tmp_path, prefix="holdfast")
    folder.hold({NAME: "old"})
    with (tmp_path / FILE).open() as reader:
        folder.hold({NAME: "new"})
        assert reader.read() == "old"
    assert (tmp_path / FILE).read_text() == "new"


def test_a_file_that_says_so_already_is_left_alone(tmp_path: Path) -> None:
    folder = SpecFolder(tmp_path, prefix="holdfast")
    folder.hold({NAME: "{}"})
    before = (tmp_path / FILE).stat()

    assert folder.hold({NAME: "{}"}) == ()
    assert (tmp_path / FILE).stat().st_ino == before.st_ino
    assert (tmp_path / FILE).stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize("damage", ["gone", "changed"])
def test_a_file_that_somebody_removed_or_changed_is_written_anew(
    tmp_path: Path, damage: str
) -> None:
    folder = SpecFolder(tmp_path, prefix="holdfast")
    folder.hold({NAME: "{}"})
    if damage == "gone":
        (tmp_path / FILE).unlink()
    else:
        (tmp_path / FILE).write_text("?")

    assert folder.hold({NAME: "{}"}) == (FILE,)
    assert (tmp_path / FILE).read_text() == "{}"


def test_only_our_own_files_are_removed(tmp_path: Path) -> None:
    theirs = ["nvidia.yaml", "google.com_tpu.json", "holdfastx_a.json", "holdfast.json"]
    for name in theirs:
        (tmp_path / name).write_text("theirs")
    folder = SpecFolder(tmp_path, prefix="holdfast")
    folder.hold({NAME: "{}", "example.com-nvme.json": "{}"})
    (tmp_path / f"{FILE}.tmp").write_text("what a crash left")

    assert folder.hold({NAME: "{}"}) == ("holdfast_example.com-nvme.json", f"{FILE}.tmp")
    assert {each.name for each in tmp_path.iterdir()} == {*theirs, FILE}
    folder.hold({})
    assert {each.name for each in tmp_path.iterdir()} == set(theirs)


def _spec(kind: str = "google.com/tpu", **nodes: str) -> str:
    devices = [
        {"name": name, "containerEdits": {"deviceNodes": [{"path": path}]}}
        for name, path in nodes.items()
    ]
    return json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": devices})


def test_our_file_of_a_former_prefix_is_removed_once_it_is_there_under_the_new_one(
    tmp_path: Path,
) -> None:
    """Also where a device came or went since; what explains a name in another way is another's."""
    SpecFolder(tmp_path, prefix="former").hold({NAME: _spec(a="/dev/vfio/1", b="/dev/vfio/2")})
    others = {
        f"another_{NAME}": _spec(a="/dev/vfio/9"),
        f"kind_{NAME}": _spec("example.com/tpu", a="/dev/vfio/1"),
        f"names_{NAME}": _spec(x="/dev/vfio/1"),
        f"list_{NAME}": "[]",
        f"text_{NAME}": "no spec",
        f"deep_{NAME}": "[" * 100_000,
    }
    for name, text in others.items():
        (tmp_path / name).write_text(text)
    (tmp_path / f"folder_{NAME}").mkdir()

    ours = _spec(a="/dev/vfio/1", c="/dev/vfio/3")
    assert SpecFolder(tmp_path, prefix="holdfast").hold({NAME: ours}) == (FILE, f"former_{NAME}")
    left = {each.name for each in tmp_path.iterdir()}
    assert left == {*others, FILE, f"folder_{NAME}"}


@pytest.mark.parametrize("former", ["holdfast_google.com-tpu.json", f"former_{NAME}"])
def test_a_file_of_a_former_name_is_never_there_beside_the_new_one(
    tmp_path: Path, former: str
) -> None:
    """Containers that start meanwhile would get neither."""
    (tmp_path / former).write_text(_spec(a="/dev/vfio/1"))
    inode = (tmp_path / former).stat().st_ino
    changed = SpecFolder(tmp_path, prefix="holdfast").hold({NAME: _spec(a="/dev/vfio/1")})
    assert changed == (former,)
    assert [each.name for each in tmp_path.iterdir()] == [FILE]
    assert (tmp_path / FILE).stat().st_ino == inode, "it was renamed"


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"there is no such folder; make it on the host"):
        SpecFolder(tmp_path / "cdi", prefix="holdfast").hold({NAME: "{}"})
    assert not (tmp_path / "cdi").exists()


def test_a_file_in_the_place_of_the_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "cdi").write_text("")
    with pytest.raises(HostError, match="there is no such folder"):
        SpecFolder(tmp_path / "cdi", prefix="holdfast").hold({NAME: "{}"})


def test_what_lies_in_the_place_of_our_file_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(HostError, match="cannot read"):
        SpecFolder(tmp_path, prefix="holdfast").hold({NAME: "{}"})
    assert [each.name for each in tmp_path.iterdir()] == [FILE]


def test_a_read_only_folder_is_told_with_what_to_do(read_only: Path) -> None:
    folder = SpecFolder(read_only, prefix="holdfast")

    with pytest.raises(HostError, match=r"Read-only file system; let holdfast write to"):
        folder.hold({NAME: "new"})
    assert (read_only / FILE).read_text() == "old"
    with pytest.raises(HostError, match=r"cannot remove .*; remove it"):
        folder.hold({})
    assert folder.hold({NAME: "old"}) == (), "what is right needs no writing"


_SPEC = '{"kind": "google.com/tpu", "devices": [{"name": "0000:00:05.0"}, {"name": "0"}]}'


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("other.json", _SPEC, True),
        ("other.yaml", "kind: google.com/tpu\ndevices:\n- name: 0000:00:05.0\n- name: '0'", True),
        ("other.json.tmp", _SPEC, False),
        (FILE, _SPEC, False),
        ("other.json", _SPEC.replace("google.com/tpu", "google.com/tpus"), False),
        ("other.json", _SPEC[:-1], False),
        ("other.json", '["google.com/tpu"]', False),
        ("other.json", '{"kind": "google.com/tpu", "devices": [1, null]}', False),
        ("other.json", '{"kind": "google.com/tpu", "devices": {"name": "0"}}', False),
    ],
)
def test_names_that_a_file_of_somebody_else_explains_are_found(
    tmp_path: Path, name: str, content: str, named: bool
) -> None:
    (tmp_path / name).write_text(content)

    found = SpecFolder(tmp_path, prefix="holdfast").rivals(["google.com/tpu"])

    expected = {"google.com/tpu=0000:00:05.0", "google.com/tpu=0"} if named else set()
    assert found == dict.fromkeys(expected, tmp_path / name)


def test_what_is_no_text_and_no_file_is_nobodys_rival(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_bytes(b"google.com/tpu \xff")
    (tmp_path / "folder.json").mkdir()

    assert SpecFolder(tmp_path, prefix="holdfast").rivals(["google.com/tpu"]) == {}


def test_a_folder_that_cannot_even_be_looked_at_is_an_error_with_a_reader(tmp_path: Path) -> None:
    folder = tmp_path / "cdi"
    folder.symlink_to("x" * 300)
    for files in ({}, {NAME: "{}"}):
        with pytest.raises(HostError, match=r"cannot list .*: File name too long"):
            SpecFolder(folder, prefix="holdfast").hold(files)


async def test_names_that_a_pod_was_promised_have_a_spec_with_the_scan_that_finds_their_device(
    tmp_path: Path,
) -> None:
    """New pods are given paths; nothing else is known of that resource before."""
    node = DeviceNode(path="/dev/vfio/7", rdev=99)
    device = device_of(DeviceName(WHOLE, DeviceId("d0")), "pci/a", nodes=(node,))
    promised = replace(entry(X, "d0"), promised_names=(cdi_name(device.name),))
    with closing(Lane("cdi", deadline=60.0)) as lane:
        writer = SpecWriter(tmp_path, "holdfast", "_", lane=lane)
        specs = CdiSpecs(writer=writer, by_name=False, view=Watched(seen(promised)))
        await specs.publish(Inventory())
        assert list(tmp_path.iterdir()) == []
        found = Inventory(resources=(device.name.resource,), devices=(device,))
        await specs.publish(found)
        assert specs.published.covers(device)
        assert [each.name for each in tmp_path.iterdir()] == [FILE]
