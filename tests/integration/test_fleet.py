"""kubectl holdfast beside real daemons on simulated nodes, behind a kubectl of the tests."""

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fakes.kubectl import DEAD_NODE, FORBIDDEN, NO_CONTAINER, Cluster
from fakes.stage import CHIPS, TPU, stage
from kubectl_holdfast.kubectl import DaemonSelection, Kubectl
from waiting import until

A, B, C, D = CHIPS
_PLUGIN = Path(__file__).parents[2] / "deploy/kubectl-holdfast"
_COMMAND = [sys.executable, "-m", "kubectl_holdfast"]


def _environment(cluster: Cluster) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(_PLUGIN), os.environ.get("PYTHONPATH"))))
    return {**cluster.environment, "PYTHONPATH": path, "COLUMNS": "100", "LINES": "40"}


async def _ask(
    cluster: Cluster, *words: str, timeout: str = "120"
) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run,
        [*_COMMAND, *words, "--timeout", timeout],
        env=_environment(cluster),
        capture_output=True,
        text=True,
        check=False,
    )


async def _nodes(cluster: Cluster, *words: str) -> dict[str, dict[str, Any]]:
    done = await _ask(cluster, *words, "-o", "json")
    return {each["node"]: each for each in json.loads(done.stdout)["nodes"]}


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path / "cluster")


async def test_every_node_is_shown_and_what_is_wrong_comes_first(
    short_path: Path, cluster: Cluster
) -> None:
    for name in ("a", "b"):
        (short_path / name).mkdir()
    async with (
        stage(short_path / "a", own_process=True) as first,
        stage(short_path / "b", own_process=True, chips=2) as second,
    ):
        pod = first.kubelet.count(TPU, A).uid
        await first.allocate(A)
        assert await first.pre_start(A) == ""
        for node, name in ((second, "node-1"), (first, "node-2")):
            await until((node.state / "control.sock").exists, what="the control socket")
            cluster.runs(name, node.config, pool="train")
        calm = await _ask(cluster, "locks")
        assert calm.stdout.splitlines()[0].split()[:4] == ["NODE", "DEVICE", "STATE", "AGE"]
        assert calm.stdout.splitlines()[1].split()[:3] == ["node-2", A, "held"]
        assert (calm.returncode, calm.stderr) == (0, "2 nodes: 2 well\n")

        cluster.fails("node-3", DEAD_NODE, pool="infer")
        cluster.fails("node-4", NO_CONTAINER)
        cluster.waits("node-5", "CrashLoopBackOff")
        answers = await _nodes(cluster, "locks")
        assert list(answers) == ["node-3", "node-4", "node-5", "node-1", "node-2"]
        assert {name: each["reason"] for name, each in answers.items()} == {
            "node-1": None,
            "node-2": None,
            "node-3": DEAD_NODE,
            "node-4": NO_CONTAINER,
            "node-5": "its pod holdfast-node-5 is Running: CrashLoopBackOff: "
            "back-off 5m0s restarting",
        }
        assert answers["node-1"]["answer"] == []
        (lock,) = answers["node-2"]["answer"]
        assert (lock["device"], lock["pod"]) == (f"{TPU}/{A}", pod)

        told = await _ask(cluster, "status")
        assert told.returncode == 2
        assert f"cannot ask node-3: {DEAD_NODE}\n" in told.stderr
        assert told.stderr.splitlines()[-1].startswith("5 nodes: 3 no answer")
        assert [line.split()[0] for line in told.stdout.splitlines()[1:4]] == [
            "node-3",
            "node-4",
            "node-5",
        ]
        assert max(map(len, told.stdout.splitlines())) <= 100
        for name in ("status", "holders", "history", "doctor", "top"):
            found = await _nodes(cluster, name, "--selector", "pool=train")
            assert found.keys() == {"node-1", "node-2"}
            assert {each["state"] for each in found.values()} <= {"well", "notable", "wrong"}, name
        devices = (await _nodes(cluster, "top", "--node", "node-2"))["node-2"]["answer"]
        assert {row["id"]: row["lock"] for row in devices} == dict.fromkeys(CHIPS, "free") | {
            A: "held"
        }
        await _history_of_one_device(cluster)
        await _drain_of_one_node(cluster)


async def _history_of_one_device(cluster: Cluster) -> None:
    """node-1 has no such chip; node-2 has, and it was given away."""
    found = await _nodes(cluster, "history", D, "--selector", "pool=train")
    assert found["node-1"]["state"] == "not found"
    assert found["node-1"]["reason"].startswith(f"cannot find device {D}: this node has ")
    assert (found["node-2"]["state"], found["node-2"]["answer"]) == ("well", [])
    moves = (await _nodes(cluster, "history", A, "--limit", "1"))["node-2"]["answer"]
    assert len(moves) == 1

    none = await _ask(cluster, "history", "0000:ff:1f.7", "--selector", "pool=train")
    assert none.returncode == 2
    assert "cannot find device 0000:ff:1f.7: no node that was asked has it" in none.stderr


async def _drain_of_one_node(cluster: Cluster) -> None:
    done = await _ask(cluster, "drain", "--node", "node-1", "--reason", "a new fan")
    assert done.returncode == 0, done.stderr
    found = await _nodes(cluster, "status", "--selector", "pool=train")
    marks = {name: each["answer"]["byHand"] for name, each in found.items()}
    assert marks["node-2"] == []
    assert [each["reason"] for each in marks["node-1"]] == ["a new fan"]
    shown = await _ask(cluster, "status", "--node", "node-1")
    assert "draining by hand: a new fan" in shown.stdout

    done = await _ask(cluster, "undrain", "--node", "node-1")
    assert done.returncode == 0
    assert (await _nodes(cluster, "status"))["node-1"]["answer"]["byHand"] == []
    dead = await _ask(cluster, "drain", "--node", "node-5")
    assert dead.returncode == 2
    assert "cannot ask node-5: its pod" in dead.stderr
    failed = await _ask(cluster, "drain", "--node", "node-3")
    assert (failed.returncode, failed.stderr) == (1, f"{DEAD_NODE}\n")


async def test_where_the_daemon_is_down_the_ledger_answers_and_it_counts_as_wrong(
    short_path: Path, cluster: Cluster
) -> None:
    async with stage(short_path, own_process=True) as node:
        await node.allocate(A)
        cluster.runs("node-1", node.config)
        assert (await _ask(cluster, "locks")).returncode == 0
        await node.stop()

        locks = await _ask(cluster, "locks")
        assert locks.returncode == 1
        assert "node-1: cannot reach the daemon in " in locks.stderr
        assert locks.stdout.splitlines()[1].split()[:3] == ["node-1", A, "held"]
        status = await _ask(cluster, "status")
        assert status.returncode == 1
        assert status.stdout.splitlines()[1].split()[:2] == ["node-1", "down"]
        holders = await _ask(cluster, "holders")
        assert holders.returncode == 2
        assert "cannot ask node-1: cannot reach the daemon in " in holders.stderr
        assert "check that it runs" in holders.stderr


@pytest.mark.slow
async def test_a_node_that_hangs_is_named_after_its_time_and_what_asked_it_is_ended(
    tmp_path: Path, cluster: Cluster
) -> None:
    pids = tmp_path / "pids"
    cluster.hangs("node-1", pids)
    cluster.answers("node-2", "[]")
    done = await _ask(cluster, "locks", timeout="3")

    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "cannot ask node-1: no answer within 3 s",
        "2 nodes: 1 no answer, 1 well",
    ]
    await until(lambda: not _alive(pids), what="the processes to end")


async def test_an_interrupt_ends_all_that_asks(tmp_path: Path, cluster: Cluster) -> None:
    pids = tmp_path / "pids"
    for number in range(3):
        cluster.hangs(f"node-{number}", pids)
    asking = subprocess.Popen(
        [*_COMMAND, "locks", "--timeout", "120", "--parallel", "2"],
        env=_environment(cluster),
        stderr=subprocess.PIPE,
        text=True,
    )
    await until(lambda: len(_alive(pids)) == 4, what="two nodes to be asked")
    asking.send_signal(signal.SIGINT)
    _, said = await asyncio.to_thread(asking.communicate, timeout=120)

    assert (asking.returncode, said) == (130, "")
    await until(lambda: not _alive(pids), what="the processes to end")


async def test_an_interrupt_waits_for_the_end_of_each_kubectl(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    for number in range(3):
        cluster.hangs(f"node-{number}", pids)
    monkeypatch.setenv("PATH", cluster.environment["PATH"])
    kubectl = Kubectl((), namespaced=False, timeout=120.0)
    daemons = await kubectl.daemons(DaemonSelection())
    asking = asyncio.create_task(
        kubectl.ask(daemons, ["locks"], text=False, parallel=2, told=lambda _: None)
    )
    await until(lambda: len(_alive(pids)) == 4, what="two nodes to be asked")
    groups = {os.getpgid(int(pid)) for pid in _alive(pids)}  # each is led by a kubectl
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking

    assert len(groups) == 2
    # Who has not been waited for is still there: to end takes a process longer than this.
    assert not [pid for pid in groups if Path(f"/proc/{pid}").exists()]


async def test_a_program_that_kubectl_leaves_behind_delays_no_answer(
    tmp_path: Path, cluster: Cluster
) -> None:
    pids = tmp_path / "pids"
    cluster.leaves_helper("node-1", pids, "[]")
    try:
        done = await _ask(cluster, "locks", timeout="30")
        assert (done.returncode, done.stderr) == (0, "1 node: 1 well\n")
        assert _alive(pids), "it may be another's as well"
    finally:
        for pid in _alive(pids):
            os.kill(int(pid), signal.SIGKILL)


async def test_no_more_nodes_are_asked_at_a_time_than_said(cluster: Cluster) -> None:
    for number in range(8):
        cluster.answers(f"node-{number}", "[]")
    done = await _ask(cluster, "locks", "--parallel", "2")

    assert done.stderr == "8 nodes: 8 well\n"
    assert cluster.most_at_a_time <= 2


def _alive(pids: Path) -> list[str]:
    known = pids.read_text().split() if pids.exists() else []
    return [each for each in known if Path("/proc", each).exists()]


async def test_the_flags_of_kubectl_are_passed_on_wherever_they_are(cluster: Cluster) -> None:
    cluster.answers("node-1", "[]")
    ours = ["--context", "lab", "locks", "--kubeconfig=/root/lab", "-n", "holdfast"]
    done = await _ask(cluster, *ours)

    assert done.returncode == 0, done.stderr
    passed = ["--context=lab", "--kubeconfig=/root/lab", "--namespace=holdfast"]
    listed, asked = cluster.calls
    assert listed[:4] == [*passed, "get"]
    assert "--all-namespaces" not in listed
    assert asked == [
        *passed,
        *("exec", "--namespace", "holdfast", "holdfast-node-1", "--container", "holdfast"),
        *("--", "holdfast", "locks", "--output", "json"),
    ]


async def test_what_keeps_a_device_is_told_by_each_node_that_has_it(cluster: Cluster) -> None:
    cluster.answers("node-2", "google.com/tpu/0000:00:05.0 is held\n  by \x1b[2Jdefault/train-0\n")
    cluster.fails("node-1", "holdfast: cannot find pod default/train-0: no such pod is here")
    told = await _ask(cluster, "why", "default/train-0")

    assert told.returncode == 0
    assert told.stdout.splitlines() == [
        "node-2:",
        "google.com/tpu/0000:00:05.0 is held",
        r"  by \x1b[2Jdefault/train-0",
    ]
    assert told.stderr == "2 nodes: 1 well, 1 not found\n"
    asked = [each for each in cluster.calls if "exec" in each]
    assert {tuple(each[-3:]) for each in asked} == {("holdfast", "why", "default/train-0")}
    cluster.fails("node-3", DEAD_NODE)
    assert (await _ask(cluster, "why", "default/train-0")).returncode == 2


async def test_programs_get_what_keeps_a_device_as_json(cluster: Cluster) -> None:
    cluster.answers("node-1", '{"keeps": []}')
    found = await _nodes(cluster, "why", "default/train-0")

    assert found["node-1"]["answer"] == {"keeps": []}
    assert cluster.calls[-1][-4:] == ["why", "default/train-0", "--output", "json"]


async def test_the_last_hour_of_all_nodes_is_asked_for_as_on_one(cluster: Cluster) -> None:
    cluster.answers("node-1", "[]")
    done = await _ask(cluster, "history", "--since", "1h", "--limit", "5")

    assert done.returncode == 0
    words = cluster.calls[-1]
    assert words[words.index("--") + 1 :] == [
        *("holdfast", "history", "--limit", "5", "--since", "1h", "--output", "json")
    ]


async def test_nodes_are_chosen_by_their_labels_and_one_without_a_daemon_is_named(
    cluster: Cluster,
) -> None:
    cluster.answers("node-1", "[]")
    cluster.has_none("node-2", pool="train")
    done = await _ask(cluster, "locks", "-l", "pool=train")
    assert done.returncode == 2
    assert "cannot ask node-2: no pod of holdfast is on it" in done.stderr

    none = await _ask(cluster, "locks", "-l", "pool=other")
    assert none.returncode == 2
    assert "cannot find a node: the selector pool=other selects none" in none.stderr
    other = await _ask(cluster, "locks", "--pods", "app=other")
    assert other.returncode == 2
    assert "cannot find a daemon: no pod of any namespace has the label app=other" in other.stderr


async def test_an_api_server_that_refuses_is_told_by_its_own_words(cluster: Cluster) -> None:
    cluster.answers("node-1", "[]")
    cluster.refuses(FORBIDDEN)
    done = await _ask(cluster, "status")

    assert done.returncode == 2
    told = f"kubectl holdfast: cannot list pods: {FORBIDDEN}"
    assert done.stderr == f"{told}; name the daemons' namespace (-n)\n"
    named = await _ask(cluster, "status", "-n", "holdfast")
    assert named.stderr == f"{told}\n"


@pytest.mark.parametrize(
    ("output", "status", "reason"),
    [
        ("", 0, "its answer cannot be read"),
        ("not JSON", 0, "its answer cannot be read"),
        ("[" * 100_000, 0, "its answer cannot be read"),
        ("", 137, "kubectl ended with status 137 and said nothing"),
        ('{"checks": 3}', 0, "its answer has another form"),
    ],
)
async def test_an_answer_that_is_none_is_named(
    cluster: Cluster, output: str, status: int, reason: str
) -> None:
    cluster.answers("node-1", output, status)
    done = await _ask(cluster, "status")

    assert done.returncode == 2
    assert f"cannot ask node-1: {reason}" in done.stderr


async def test_what_a_process_calls_itself_does_not_control_the_terminal(cluster: Cluster) -> None:
    row = {
        "device": "google.com/tpu/0000:00:05.0",
        "pid": 7,
        "command": "\x1b[2Jpython\n",
        "pod": None,
        "cause": "",
        "access": ["node open"],
    }
    cluster.answers("node-1", json.dumps([row]))
    done = await _ask(cluster, "holders")

    assert r"\x1b[2Jpython\n" in done.stdout
    assert "\x1b" not in done.stdout


@contextmanager
def _terminal(cluster: Cluster, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run a command on a terminal; yield it, and where its output is read."""
    ours, theirs = pty.openpty()
    command = [*_COMMAND, *words, "--timeout", "120"]
    with subprocess.Popen(
        command, env=_environment(cluster), stdin=theirs, stdout=theirs, stderr=theirs
    ) as running:
        os.close(theirs)
        try:
            yield running, ours
        finally:
            running.kill()
            os.close(ours)


def _read(terminal: int) -> str:
    try:
        return os.read(terminal, 1 << 16).decode()
    except OSError:  # whoever wrote has ended
        return ""


def test_on_a_terminal_a_line_says_how_many_have_answered(cluster: Cluster) -> None:
    for number in range(3):
        cluster.answers(f"node-{number}", "[]")
    seen = ""
    with _terminal(cluster, "locks") as (running, terminal):
        while part := _read(terminal):
            seen += part
        assert running.wait() == 0

    assert "\r\x1b[Kfinding the daemons" in seen
    assert "\r\x1b[K3 of 3 nodes have answered\r\x1b[K" in seen
    assert seen.rstrip().endswith("3 nodes: 3 well")


async def test_top_draws_the_devices_again_when_they_change(
    short_path: Path, cluster: Cluster
) -> None:
    async with stage(short_path, own_process=True) as node:
        cluster.runs("node-1", node.config)
        cluster.fails("node-2", DEAD_NODE)
        with _terminal(cluster, "top", "--every", "0.1") as (running, terminal):
            first = await _until_shown(terminal, r"4 devices: 4 free")
            assert "2 nodes: 1 no answer, 1 well" in first
            assert re.search(r"node-2 .*no answer", first)
            await node.allocate(A)
            await _until_shown(terminal, r"4 devices: 3 free, 1 held")
            running.send_signal(signal.SIGINT)
            rest = ""
            while part := await asyncio.to_thread(_read, terminal):
                rest += part
            assert running.wait(60) == 0
            assert "Traceback" not in rest


async def test_top_goes_on_while_the_api_server_does_not_answer(cluster: Cluster) -> None:
    device = {"id": A, "lock": "free", "health": "Healthy", "reasons": []}
    cluster.answers("node-1", json.dumps([device]))
    with _terminal(cluster, "top", "--every", "0.1") as (_, terminal):
        await _until_shown(terminal, r"1 device: 1 free")
        cluster.refuses(FORBIDDEN)
        before = await _until_shown(terminal, r"cannot list pods")
        assert "1 device: 1 free" in before
        asked = len(cluster.calls)
        await until(lambda: len(cluster.calls) > asked + 3, what="more questions")
        cluster.refuses("")
        cluster.answers("node-2", json.dumps([device, {**device, "lock": "held"}]))
        after = await _until_shown(terminal, r"3 devices: 2 free, 1 held")
        assert after.count("\x1b[H") <= 2, "what stays the same is not drawn again"
        assert "cannot list pods" not in after


async def _until_shown(terminal: int, pattern: str) -> str:
    """Return all that is drawn until the end of the picture that has *pattern*."""
    seen = ""
    async with asyncio.timeout(120):
        while not re.search(rf"{pattern}.*\x1b\[J", seen, re.DOTALL):
            seen += await asyncio.to_thread(_read, terminal)
    return seen


def test_the_plugin_is_installed_as_a_command_that_needs_nothing_else(
    tmp_path: Path, cluster: Cluster
) -> None:
    wheels = tmp_path / "wheels"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels, _PLUGIN],
        check=True,
    )
    (wheel,) = wheels.iterdir()
    target = tmp_path / "installed"
    subprocess.run([*pip, "install", "--no-index", "--target", target, wheel], check=True)
    cluster.answers("node-1", "[]")
    for words, told in ((["locks"], "NODE"), (["history", "--plot", "-"], "<svg ")):
        done = subprocess.run(
            [sys.executable, "-S", target / "bin/kubectl-holdfast", *words],
            env={**cluster.environment, "PYTHONPATH": str(target)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

        assert (done.returncode, done.stderr) == (0, "1 node: 1 well\n")
        assert done.stdout.startswith(told)
