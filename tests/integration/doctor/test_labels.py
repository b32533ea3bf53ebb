"""The doctor on node labels: real folders of a copied node, and of this one."""

from pathlib import Path
from typing import Any

import pytest

from fakes.doctortrees import bad
from holdfast.doctor.finding import Finding, Level, Node
from holdfast.doctor.labels import labels_findings
from holdfast.settings import convert
from simulated.proctree import ProcTree

FOLDER = "/etc/kubernetes/node-feature-discovery/features.d"


def examine(root: Path, **labels: Any) -> list[Finding]:
    settings = convert({"labels": {"enabled": True, **labels}})
    return list(labels_findings(Node(settings=settings, root=root)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / FOLDER.lstrip("/")
    made.mkdir(parents=True)
    return made


def test_a_node_whose_labels_are_not_wanted_is_not_looked_at(tmp_path: Path) -> None:
    (only,) = examine(tmp_path, enabled=False)
    assert (only.level, only.check) == (Level.OK, "wanted")


def test_a_folder_that_node_feature_discovery_never_made_is_told(tmp_path: Path) -> None:
    assert bad(examine(tmp_path)) == {"folder": Level.FAIL}


def test_the_labels_of_a_node_are_counted(tmp_path: Path, folder: Path) -> None:
    (folder / "holdfast").write_text("# +expiry-time=2030-01-01T00:00:00Z\na/b=c\na/d=\n")
    found = examine(tmp_path)
    assert bad(found) == {}
    assert any(each.reason.endswith("has 2 labels") for each in found)


def test_a_second_program_that_writes_the_same_labels_is_named(
    tmp_path: Path, folder: Path
) -> None:
    (folder / "holdfast").write_text("nvidia.com/gpu.count=8\nholdfast.dev/tpu.count=4\n")
    (folder / "gfd").write_text("nvidia.com/gpu.count=8\n")
    (folder / ".half").write_text("nvidia.com/gpu.count=8\n")
    (folder / "others").write_text("example.com/a=b\n")
    found = [each for each in examine(tmp_path) if each.level is not Level.OK]
    assert [(each.check, each.level) for each in found] == [("rivals", Level.WARN)]
    assert "features.d/gfd has labels that holdfast writes too" in found[0].reason


def test_gkes_keys_are_not_for_a_node_of_gke(tmp_path: Path, folder: Path) -> None:
    assert bad(examine(tmp_path, gkeKeys=True)) == {}
    (tmp_path / "home/kubernetes/bin").mkdir(parents=True)
    assert bad(examine(tmp_path)) == {}
    assert bad(examine(tmp_path, gkeKeys=True)) == {"gke-keys": Level.FAIL}


@pytest.mark.parametrize("runs", [True, False])
def test_a_file_that_nobody_reads_is_told(tmp_path: Path, runs: bool) -> None:
    """On the live node: its /proc is that of the settings."""
    tree = ProcTree(tmp_path / "node")
    tree.process(42, comm="nfd-worker" if runs else "nfd-master")
    (tmp_path / "features.d").mkdir()
    settings = convert(
        {
            "host": {"proc": str(tree.root.proc)},
            "labels": {"enabled": True, "folder": str(tmp_path / "features.d")},
        }
    )
    found = bad(list(labels_findings(Node(settings=settings))))
    assert found == ({} if runs else {"reader": Level.WARN})
