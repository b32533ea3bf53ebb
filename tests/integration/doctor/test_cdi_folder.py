"""What can be wrong with the folder of CDI specs, and with the specs in it."""

import json
import os

import pytest

from fakes.nodetree import CHIP, NodeTree
from holdfast.doctor.cdi import handed_over_by_name
from holdfast.settings import convert

_BY_NAME = ("--set", "deviceListStrategy=cdi")


@pytest.fixture
def node_by_name(node: NodeTree) -> NodeTree:
    """A node that hands devices over by name, with /var/run in memory as nodes have it."""
    node.mounts("/ ext4", "/run tmpfs")
    (node.folder / "run/cdi").mkdir(parents=True)
    (node.folder / "var/run").symlink_to("/run")
    return node


def _spec(node: NodeTree, name: str, number: str, *, kind: str = "google.com/tpu") -> None:
    major, _, minor = number.partition(":")
    nodes = [{"path": "/dev/vfio/1", "major": int(major), "minor": int(minor)}]
    device = {"name": CHIP, "containerEdits": {"deviceNodes": [*nodes, {"path": "/dev/vfio/vfio"}]}}
    content = {"cdiVersion": "0.5.0", "kind": kind, "devices": [device]}
    node.write(f"run/cdi/{name}", json.dumps(content))


def _number(node: NodeTree) -> str:
    rdev = node.host.node("/dev/vfio/1").stat().st_rdev
    return f"{os.major(rdev)}:{os.minor(rdev)}"


def test_where_nothing_is_handed_over_by_name_the_folder_may_be_missing(node: NodeTree) -> None:
    told = node.told()

    assert {each["check"] for each in told.findings if each["area"] == "cdi"} == {"strategy"}
    assert told.bad("cdi") == {}


def test_a_folder_in_order_with_a_spec_that_is_true_has_nothing_to_mend(
    node_by_name: NodeTree,
) -> None:
    _spec(node_by_name, "holdfast_google.com_tpu.json", _number(node_by_name))

    told = node_by_name.told(*_BY_NAME)

    assert told.bad("cdi") == {}
    assert "holdfast_google.com_tpu.json" in told.of("cdi", "own-specs")["reason"]


def test_a_missing_folder_fails_because_holdfast_never_makes_it(node: NodeTree) -> None:
    found = node.told(*_BY_NAME).of("cdi", "spec-folder")

    assert (found["level"], "make it on the host" in found["remedy"]) == ("FAIL", True)


def test_a_folder_that_cannot_be_looked_at_is_told_and_ends_the_area(node: NodeTree) -> None:
    told = node.told(*_BY_NAME, "--set", f"cdi.specDir=/{'a' * 300}")

    assert told.bad("cdi") == {"spec-folder": "FAIL"}
    assert "cannot be looked at: File name too long" in told.of("cdi", "spec-folder")["reason"]


@pytest.mark.parametrize(
    ("mount", "level", "words"),
    [
        ("/ overlay", "FAIL", "which the host does not see"),
        ("/run ext4", "WARN", "names lead to device numbers of the boot before"),
    ],
)
def test_a_folder_on_the_wrong_filesystem_is_told(
    mount: str, level: str, words: str, node_by_name: NodeTree
) -> None:
    node_by_name.mounts("/ ext4", mount)

    found = node_by_name.told(*_BY_NAME).of("cdi", "spec-folder")

    assert found["level"] == level
    assert words in found["reason"]


def test_a_folder_that_no_runtime_reads_by_itself_is_warned_of(node_by_name: NodeTree) -> None:
    (node_by_name.folder / "run/specs").mkdir()

    found = node_by_name.told(*_BY_NAME, "--set", "cdi.specDir=/run/specs").of("cdi", "spec-folder")

    assert found["level"] == "WARN"
    assert "cdi_spec_dirs" in found["remedy"]


def test_a_name_that_two_files_explain_fails_with_the_file_to_remove(
    node_by_name: NodeTree,
) -> None:
    _spec(node_by_name, "other.json", "1:3")

    found = node_by_name.told(*_BY_NAME).of("cdi", "specs")

    assert found["level"] == "FAIL"
    assert f"also defines google.com/tpu={CHIP}, which holdfast defines" in found["reason"]
    assert found["remedy"].endswith("other.json, and the program that wrote it")


def test_a_spec_of_ours_that_names_an_old_number_fails(node_by_name: NodeTree) -> None:
    _spec(node_by_name, "holdfast_google.com_tpu.json", "240:7")

    found = node_by_name.told(*_BY_NAME).of("cdi", "own-specs")

    assert found["level"] == "FAIL"
    assert (
        f"gives /dev/vfio/1 of {CHIP} as 240:7, but it is {_number(node_by_name)}"
        in (found["reason"])
    )


def test_a_spec_that_is_wrong_is_told_although_the_next_cannot_be_read(
    node_by_name: NodeTree,
) -> None:
    _spec(node_by_name, "holdfast_google.com_tpu.json", "240:7")
    (node_by_name.folder / "run/cdi/holdfast_z.json").mkdir()

    told = node_by_name.told(*_BY_NAME)

    assert told.of("cdi", "own-specs")["level"] == "FAIL"
    assert "holdfast_z.json: Is a directory" in told.of("cdi", "rights")["reason"]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"devices": [1]}', '{"devices": {}}', "[" * 99999]
)
def test_a_spec_of_ours_that_makes_no_sense_fails(content: str, node_by_name: NodeTree) -> None:
    node_by_name.write("run/cdi/holdfast_google.com_tpu.json", content)

    found = node_by_name.told(*_BY_NAME).of("cdi", "own-specs")

    expected = "OK" if content == '{"devices": {}}' else "FAIL"
    assert found["level"] == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ()),
        ({"deviceListStrategy": "cdi"}, ("TPUs and pools",)),
        ({"deviceListStrategy": "cdi", "tpu": {"enabled": False}}, ()),
    ],
)
def test_what_is_handed_over_by_name_follows_the_settings(
    settings: dict[str, object], expected: tuple[str, ...]
) -> None:
    assert handed_over_by_name(convert(settings)) == expected
