"""What `make demo ARGS=--keep` leaves to be looked at is there, and a person can end it."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from simulated.demo import Demo
from simulated.node import SimulatedNode
from simulated.pods import Phase
from simulated.stage import running
from simulated.story import leave_one_waiting

_TPU = "google.com/tpu"


def _answer(stage: Demo, *words: str) -> str:
    """Return what a command answers that finds the daemon as the demo says: by its environment."""
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *words],
        env={**os.environ, "HOLDFAST_STATE_DIR": str(stage.state)},
        capture_output=True,
        text=True,
        check=False,
    ).stdout


async def test_the_kept_demo_has_a_holder_a_waiting_pod_and_a_way_out(short_path: Path) -> None:
    stage = Demo(short_path, SimulatedNode(short_path / "node", chips=4), resource=_TPU)
    stage.limit = 60.0
    async with running(stage):
        stage.start()
        await stage.until(lambda: stage.offered() == 4, "four chips to be offered")
        chip = await leave_one_waiting(stage)
        (waiting,) = (pod for pod in stage.kubelet.active() if pod.spec.name == "pod-d")

        held = await asyncio.to_thread(_answer, stage, "holders")
        why = await asyncio.to_thread(_answer, stage, "why", chip)
        told, before = waiting.waiting, waiting.phase
        await asyncio.to_thread(_answer, stage, "release", chip, "--yes")
        await stage.until_running(waiting)

    assert [row.split()[0] for row in held.splitlines()[1:]] == [chip]
    assert "default/pod-c" in why
    assert "default/pod-d" in why
    assert "holdfast ends it" not in told, "a person does"
    assert before is Phase.PENDING


async def test_grpc_logs_less_on_the_demos_terminal_and_as_ever_in_the_daemon(
    repository: Path, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    makefile = (repository / "Makefile").read_text("utf-8")
    (setting,) = re.findall(r"^demo: .*\n\t@(\w+=\w+) ", makefile, re.MULTILINE)
    monkeypatch.setenv(*setting.split("="))
    stage = Demo(short_path, SimulatedNode(short_path / "node", chips=1), resource=_TPU)
    async with running(stage):
        stage.start()
        environ = Path(f"/proc/{stage.process.pid}/environ")
        # For a moment after the start of a program the kernel shows none.
        await stage.until(lambda: b"\0PATH=" in b"\0" + environ.read_bytes(), "its variables")
        variables = environ.read_bytes().split(b"\0")

    assert setting == "GRPC_VERBOSITY=ERROR"
    assert setting.encode() not in variables
