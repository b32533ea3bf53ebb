"""`kubectl holdfast history --plot`: the history of all nodes as one picture."""

import asyncio
import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from fakes.kubectl import DEAD_NODE, Cluster

_ROOT = Path(__file__).parents[2]
_PLUGIN = _ROOT / "deploy/kubectl-holdfast"
_HOSTILE = "team/</title><script>\x1b[2J"


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path / "cluster")


async def _history(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(_PLUGIN), os.environ.get("PYTHONPATH"))))
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "kubectl_holdfast", "history", *words, "--timeout", "120"],
        env={**cluster.environment, "PYTHONPATH": path, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        text=True,
        check=False,
    )


def _held(device: str, pod: str, *, ago: float) -> dict[str, Any]:
    row = {"at": time.time() - ago, "device": f"google.com/tpu/{device}", "from": "free"}
    evidence = "kubelet counts the pod"
    return {**row, "to": "held", "pod": "uid", "podName": pod, "claim": None, "evidence": evidence}


def _shown(drawn: str) -> dict[str, str]:
    """Return what is told in each line of the picture."""
    lines = ET.fromstring(drawn).iterfind("{*}g")
    return {line[0].text or "": "".join(line.itertext()) for line in lines}


async def test_the_picture_has_all_nodes_and_who_had_a_device_before_the_period(
    tmp_path: Path, cluster: Cluster
) -> None:
    week = 7 * 86400
    cluster.answers("node-1", json.dumps([_held("05.0", "team/all-week", ago=2 * week)]))
    cluster.answers("node-3", json.dumps([_held("06.0", _HOSTILE, ago=3600)]))
    cluster.fails("node-2", DEAD_NODE)
    cluster.fails("node-4", "holdfast: cannot find device 05.0: this node has 06.0")
    picture = tmp_path / "week.svg"
    done = await _history(cluster, "--since", "168h", "--plot", str(picture))

    assert (done.returncode, done.stdout) == (2, f"wrote {picture}\n")
    assert done.stderr.splitlines() == [
        f"cannot ask node-2: {DEAD_NODE}",
        "4 nodes: 1 no answer, 2 well, 1 not found",
    ]
    lines = _shown(picture.read_text("utf-8"))
    assert list(lines) == ["node-1", "05.0", f"node-2: {DEAD_NODE}", "node-3", "06.0"]
    assert "team/all-week held" in lines["05.0"]
    assert r"</title><script>\x1b[2J held" in lines["06.0"]
    words = {tuple(each[each.index("--") + 1 :]) for each in cluster.calls if "--" in each}
    assert words == {("holdfast", "history", "--limit", "2000", "--output", "json")}


async def test_the_picture_can_be_the_output_of_one_device(cluster: Cluster) -> None:
    cluster.answers("node-1", json.dumps([_held("05.0", "team/\u00e9t\u00e9", ago=60)]))
    done = await _history(cluster, "05.0", "--limit", "7", "--plot", "-")

    assert (done.returncode, done.stderr) == (0, "1 node: 1 well\n")
    assert "team/\u00e9t\u00e9 held" in _shown(done.stdout)["05.0"]
    assert cluster.calls[-1][-6:] == ["history", "--limit", "7", "05.0", "--output", "json"]


async def test_a_file_that_cannot_be_written_is_named_and_a_picture_has_one_form(
    tmp_path: Path, cluster: Cluster
) -> None:
    cluster.answers("node-1", "[]")
    (tmp_path / "link").symlink_to("elsewhere")
    for name, reason in (
        ("gone/week.svg", "No such file or directory"),
        ("link", "it is there and is not a regular file"),
        ("cluster", "it is there and is not a regular file"),
    ):
        done = await _history(cluster, "--plot", str(tmp_path / name))
        assert done.returncode == 2
        told = f"kubectl holdfast: cannot write {tmp_path / name}: {reason}; name a file in "
        assert done.stderr.startswith(told)
    assert {each.name for each in tmp_path.iterdir()} == {"cluster", "link"}

    for words in (["-o", "json"], ["--since", "soon"], ["--since", "1h soon"]):
        done = await _history(cluster, "--plot", "-", *words)
        assert (done.returncode, done.stdout) == (3, "")


_WRITES = """
import sys
from pathlib import Path
from kubectl_holdfast.picturefile import save

sys.exit(save(Path(sys.argv[1]), "x" * 100_000))
"""


def test_a_picture_that_is_not_whole_is_not_left_behind(tmp_path: Path) -> None:
    picture = tmp_path / "week.svg"
    picture.write_text("former")
    small = ("sh", "-c", 'ulimit -f 4; exec "$@"', "sh")  # files of 2 or 4 KiB at the most
    done = subprocess.run(
        [*small, sys.executable, "-c", _WRITES, str(picture)],
        env={**os.environ, "PYTHONPATH": str(_PLUGIN)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert f"cannot write {picture}: File too large; " in done.stderr
    assert picture.read_text() == "former"
    assert list(tmp_path.iterdir()) == [picture]


@pytest.mark.parametrize("file", ["cli/plot.py", "cli/picturefile.py", "model/text.py"])
def test_the_plugin_draws_with_the_daemons_own_code(file: str) -> None:
    theirs = _ROOT / "daemon/holdfast" / file
    ours = _PLUGIN / "kubectl_holdfast" / theirs.name

    assert ours.is_symlink()
    assert ours.resolve() == theirs.resolve()
