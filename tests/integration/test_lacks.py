"""What a daemon says that it may not do, from the files of a process."""

from pathlib import Path

import pytest

from holdfast.app.lacks import lacks
from holdfast.host.root import HostRoot
from holdfast.settings import convert

_ALL = (1 << 41) - 1


def _root(path: Path, *, without: int | None = None, whole: bool = True) -> HostRoot:
    """Make a host whose only process is ours, root without one capability."""
    root = HostRoot.under(path)
    home = root.proc / "self"
    (home / "ns").mkdir(parents=True)
    mask = _ALL if without is None else _ALL & ~(1 << without)
    (home / "status").write_text(f"Name:\tholdfast\nUid:\t0\t0\t0\t0\nCapEff:\t{mask:016x}\n")
    (home / "mountinfo").write_text(f"1 0 0:1 / {root.cgroup} rw - cgroup2 cgroup rw\n")
    (home / "ns/pid").symlink_to("pid:[4026531836]")
    (home / "ns/user").symlink_to("user:[4026531837]")
    (home / "root").symlink_to("/")
    root.cgroup.mkdir(parents=True)
    (root.cgroup / "cgroup.controllers").touch()
    if not whole:
        (root.cgroup / "cgroup.type").touch()
    return root


def test_who_may_do_everything_lacks_nothing(tmp_path: Path) -> None:
    assert lacks(convert({}), _root(tmp_path)) == ()


@pytest.mark.parametrize(
    ("capability", "name"), [(2, "DAC_READ_SEARCH"), (5, "KILL"), (19, "SYS_PTRACE")]
)
def test_each_capability_less_is_named_with_what_is_lost(
    tmp_path: Path, capability: int, name: str
) -> None:
    (told,) = lacks(convert({}), _root(tmp_path, without=capability))
    assert told.startswith(f"without {name} ")
    assert f"add {name}" in told


def test_what_the_settings_do_not_ask_for_is_not_missed(tmp_path: Path) -> None:
    root = _root(tmp_path, without=5)
    assert lacks(convert({"reclaim": {"mode": "observe"}}), root) == ()


def test_the_container_s_own_part_of_the_cgroup_tree_is_not_the_node_s(tmp_path: Path) -> None:
    (told,) = lacks(convert({}), _root(tmp_path, whole=False))
    assert "volumes.cgroup" in told


def test_what_cannot_be_told_is_not_said_to_be_missing(tmp_path: Path) -> None:
    assert lacks(convert({}), HostRoot.under(tmp_path)) == ()
