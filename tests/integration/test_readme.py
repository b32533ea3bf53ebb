"""What the README and the page of commands show is what a node really answers: it is typed in here."""

import asyncio
import re
import shlex
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from ports import free_port
from simulated.demo import Demo
from simulated.node import SimulatedNode
from simulated.pods import Container, PodSpec, Workload
from simulated.stage import running

_TPU = "google.com/tpu"
_PAGES = ("README.md", "docs/commands.md")
_SHOWN = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
# What is another on each run, what a table's columns are wide by, and where a long line is broken.
_VARYING = (
    (re.compile(r"\n {3}(?=\S)"), " "),
    (re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "UID"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), "TIME"),
    (re.compile(r"\b\d+\.\d+ s\b"), "SECONDS"),
    (re.compile(r"\b\d+ (?:s|min)\b"), "AGE"),
    (re.compile(r"\bpid \d+"), "pid N"),
    (re.compile(r"\b[1-9]\d{2,}\b"), "N"),
    (re.compile(r" {2,}"), "  "),
)


def _commands(text: str) -> list[tuple[str, str]]:
    """Return each command of the page with the answer printed below it."""
    page = "".join(_SHOWN.findall(text))
    entries = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", page, re.MULTILINE)
    return [(command, answer.strip()) for command, answer in entries]


def _pattern(line: str) -> str:
    """Return what a page's *line* stands for: `...` is anything, alone also many lines."""
    if line == "...":
        return r"[\s\S]*"
    return ".*".join(map(re.escape, line.split("...")))


def _without_what_varies(text: str) -> list[str]:
    for varying, name in _VARYING:
        text = varying.sub(name, text)
    return [line.rstrip() for line in text.strip().splitlines()]


def _agrees(promised: str, answered: str) -> bool:
    expected, seen = _without_what_varies(promised), _without_what_varies(answered)
    return re.fullmatch("\n".join(map(_pattern, expected)), "\n".join(seen)) is not None


def _type(command: str, state: Path, port: int) -> str:
    """Run one line of the page; curl and grep are played, for not every machine has curl."""
    asked, _, pattern = command.partition(" | grep ")
    words = shlex.split(asked)
    if words[0] == "curl":
        answer = _get(words[-1].replace("localhost:8008", f"http://127.0.0.1:{port}"))
    else:
        assert words[0] == "holdfast", command
        answer = subprocess.run(
            [sys.executable, "-m", *words, "--state-dir", str(state)],
            capture_output=True,
            text=True,
            check=False,
        ).stdout
    wanted = pattern and shlex.split(pattern)[0]
    return "\n".join(line for line in answer.splitlines() if not wanted or wanted in line)


def _get(url: str) -> str:
    try:
        with urllib.request.urlopen(url) as answer:
            text: str = answer.read().decode()
    except urllib.error.HTTPError as error:
        text = error.read().decode()
    return text


def _pod(name: str, *, chips: int, runs_for: float, orphan: int = 0) -> PodSpec:
    workload = Workload(runs_for=runs_for, orphan=orphan)
    return PodSpec(name=name, containers=(Container(limits={_TPU: chips}, workload=workload),))


async def test_every_command_of_the_pages_answers_what_the_pages_say(
    repository: Path, short_path: Path
) -> None:
    pages = [_commands((repository / name).read_text()) for name in _PAGES]
    assert all(pages)
    commands = [each for page in pages for each in page]
    port = free_port()
    node = SimulatedNode(short_path / "node", chips=4)
    changes = {
        "withholdAfter": "1h",
        # Nobody is ended, so that the page shows one moment and not a race.
        "reclaim": {"mode": "observe"},
        "http": {"address": "127.0.0.1", "port": port},
    }
    async with running(Demo(short_path, node, resource=_TPU, changes=changes)) as stage:
        stage.start()
        await stage.until(lambda: stage.offered() == 4, "four chips to be offered")

        async def until_named(name: str, *, rows: int) -> None:
            """Return when *rows* of the locks have the pod's name, which kubelet tells a while after the start."""
            locks = f"holdfast locks | grep {name}"

            async def named() -> bool:
                told = await asyncio.to_thread(_type, locks, stage.state, port)
                return len(told.splitlines()) == rows

            await stage.until(named, f"{name} to be known by name")

        first = await stage.kubelet.submit(_pod("train-0", chips=2, runs_for=60.0, orphan=1))
        await stage.until_running(first)
        await until_named("default/train-0", rows=2)
        stage.kubelet.delete(first)
        await stage.until(lambda: first.stopped, "the first pod to be over")
        await stage.until(lambda: len(node.members(first.uid)) == 1, "it to leave one process")
        second = await stage.kubelet.submit(_pod("train-1", chips=4, runs_for=60.0))
        await stage.until(
            lambda: " is still open in " in second.waiting, "the second to be told who has it"
        )
        await until_named("default/train-1", rows=4)
        # Gauges are brought up to date now and then, while what the commands tell is of this moment.
        shown = f'holdfast_devices{{resource="{_TPU}",state="releasing"}} 2.0'
        metrics = f"http://127.0.0.1:{port}/metrics"
        await stage.until(lambda: shown in _get(metrics), "the metrics to have the second pod")

        for command, promised in commands:
            answered = await asyncio.to_thread(_type, command, stage.state, port)
            assert _agrees(promised, answered), f"$ {command}\n{answered}\n\npromised:\n{promised}"
