"""What cannot be looked at is not said to be absent, whatever Python's own Path.exists says.

Here its name is too long: no file system can tell whether it is there, not even to root.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import HostError, LedgerUnusableError, SettingsError
from holdfast.host.cgroup.cgroups import Cgroups
from holdfast.host.files.kernelfile import is_file, is_folder, seen
from holdfast.ledger.disk import FILE
from holdfast.ledger.store import Store
from holdfast.model.ids import PodUid
from holdfast.settings.named import chosen_document
from holdfast.settings.sections import NamedSettings
from simulated.proctree import ProcTree

_TOO_LONG = "x" * 300


def test_absent_is_what_the_kernel_says_is_absent(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert [seen(tmp_path / each) for each in ("none", "no\0path", "no\ud800path")] == [None] * 3
    assert [is_folder(tmp_path / each) for each in (".", "file", "none")] == [True, False, False]
    assert [is_file(tmp_path / each) for each in (".", "file", "none")] == [False, True, False]
    for look in (seen, is_folder, is_file):
        with pytest.raises(HostError, match=r"cannot look at .*: File name too long"):
            look(tmp_path / _TOO_LONG)


def _told(ask: Callable[[], object]) -> str:
    try:
        return f"an answer: {ask()}"
    except HostError as error:
        return str(error)


def test_a_pods_cgroup_that_cannot_be_seen_is_not_gone(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path)
    (tree.root.cgroup / "cgroup.controllers").write_text("")
    (tree.root.cgroup / "kubepods").mkdir()
    tree.myself()
    cgroups = Cgroups(tree.root)
    assert "cannot look at" in _told(lambda: cgroups.pod(PodUid(_TOO_LONG)))
    assert "cannot look at" in _told(lambda: cgroups.inode(f"/{_TOO_LONG}"))


def test_a_ledger_that_cannot_be_seen_is_not_begun_anew(tmp_path: Path) -> None:
    (tmp_path / FILE).symlink_to(_TOO_LONG)
    with pytest.raises(LedgerUnusableError, match="File name too long"):
        Store(tmp_path)
    assert (tmp_path / FILE).is_symlink()


def test_a_document_that_cannot_be_seen_is_not_left_out(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    (tmp_path / "b").symlink_to(_TOO_LONG)
    with pytest.raises(SettingsError, match="cannot read the documents"):
        chosen_document(NamedSettings(folder=str(tmp_path)), "a")
