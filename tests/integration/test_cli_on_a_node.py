"""The command line beside the real daemon on a simulated node: running, down, and wedged."""

import asyncio
import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from fakes.commands import holdfast
from fakes.stage import CHIPS, TPU, Stage, stage
from holdfast.cli.commands import COMMANDS
from holdfast.names import CONTROL_SOCKET
from ports import free_port
from waiting import until

A, B, C, D = CHIPS
_RUN = [sys.executable, "-m", "holdfast", "run", "--log-level", "warning", "--config"]


async def _json(node: Stage, *arguments: str) -> Any:
    done = await node.command(*arguments, "--output", "json")
    return json.loads(done.stdout)


@pytest.mark.parametrize("command", [["--help"], ["config"], ["config", "-o", "json"]])
def test_what_cannot_be_written_is_told_in_one_line(command: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", *command],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    told = "holdfast: cannot write the answer: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, told)


async def test_each_command_shows_what_the_daemon_knows(short_path: Path) -> None:
    async with stage(short_path) as node:
        pod = node.kubelet.count(TPU, A).uid
        await node.allocate(A)
        assert await node.pre_start(A) == ""

        devices = {row["id"]: row for row in await _json(node, "devices")}
        assert devices.keys() == set(CHIPS)
        assert devices[A] | {"lock": "held", "pod": pod, "health": "Healthy"} == devices[A]
        assert (devices[B]["lock"], devices[B]["pod"]) == ("free", None)

        (lock,) = await _json(node, "locks")
        assert (lock["device"], lock["state"], lock["pod"]) == (f"{TPU}/{A}", "held", pod)

        status = await _json(node, "status")
        (resource,) = status["resources"]
        assert resource | {"name": TPU, "devices": 4, "healthy": 4, "locked": 1} == resource
        assert {check["name"] for check in status["checks"]} >= {f"registered {TPU}", "ledger"}

        story = await _json(node, "history", A)
        assert (story[0]["from"], story[0]["to"]) == ("free", "held")
        assert story == await _json(node, "history", f"{TPU}/{A}"), "an id alone is enough"
        assert await _json(node, "history", B) == []
        assert len(await _json(node, "history", A, "--limit", "1")) == 1
        assert await _json(node, "holders") == []


_PAGE = (Path(__file__).parents[2] / "docs" / "commands.md").read_text("utf-8")


def _keys(command: str) -> set[str]:
    """Return the keys that the page has for *command*."""
    _, _, rest = _PAGE.partition(f"\n`holdfast {command}` is ")
    rows = rest.partition("\n| key | value |")[2].partition("\n\n")[0]
    return {
        key
        for row in rows.splitlines()
        if row.startswith("| `")
        for key in re.findall(r"`(\w+)`", row.split("|")[1])
    }


_SHOWING = [each for each in COMMANDS if "output" in {option.name for option in each.params}]
_WITHOUT_A_TABLE = {"config", "debug", "doctor", "reload"}
"""Their keys the page tells in a sentence, or not at all."""
_ONLY_RUNNING = {"debug", "holders", "reload"}


async def test_every_command_that_shows_something_has_the_same_in_each_form(
    short_path: Path,
) -> None:
    async with stage(short_path) as node:
        pod = node.kubelet.count(TPU, A)
        await node.allocate(A)
        assert await node.pre_start(A) == ""
        await node.until_named(pod)  # else one of two answers may have its name

        async def shown(command: click.Command, form: str) -> str:
            asked = [A for each in command.params if each.required]
            done = await node.command(str(command.name), *asked, "-o", form)
            assert "Traceback" not in done.stderr, done.stderr
            return done.stdout

        assert len(_SHOWING) >= 10
        for down in (False, True):
            if down:
                await node.stop()
            for command in _SHOWING:
                if down and command.name in _ONLY_RUNNING:
                    continue
                forms = [shown(command, form) for form in ("json", "yaml", "wide")]
                as_json, as_yaml, wide = await asyncio.gather(*forms)
                answer = json.loads(as_json)
                rows = answer if isinstance(answer, list) else [answer]
                if isinstance(answer, list):
                    assert yaml.safe_load(as_yaml) == answer
                    assert rows or command.name == "holders"
                else:  # it may have ages
                    assert yaml.safe_load(as_yaml).keys() == answer.keys(), command.name
                headings = wide.splitlines()[0].lower().split()
                if isinstance(answer, list):
                    keys = [key for row in rows[:1] for key in row if not key.startswith("claim")]
                    assert headings == [*map(str.lower, keys)] or not rows
                    assert headings[0] in {"at", "device", "resource"}, "also of no row"
                for row in rows:
                    if command.name not in _WITHOUT_A_TABLE:
                        assert row.keys() == _keys(str(command.name)), (command.name, down)


async def test_people_get_tables_and_status_ends_with_1_when_a_check_fails(
    short_path: Path,
) -> None:
    async with stage(short_path) as node:
        await node.allocate(A)
        shown = await node.command("devices")
        assert shown.returncode == 0
        assert shown.stdout.splitlines()[0].split()[:4] == ["DEVICE", "MODEL", "HEALTH", "OFFERED"]
        assert A in shown.stdout

        status = await node.command("status")
        passes = "FAILED" not in status.stdout
        assert (status.returncode == 0) is passes
        assert f"registered {TPU}, " in status.stdout
        heading = status.stdout.splitlines()[0]
        assert heading.startswith("holdfast ")
        assert ("ready" if passes else "NOT READY") in heading
        assert len(status.stdout.splitlines()) < 24, "it fits one screen"
        every = await node.command("status", "--all")
        assert re.search(rf"^ok     registered {TPU} \(for \d+ s\)$", every.stdout, re.MULTILINE)


async def test_why_tells_what_keeps_a_device_by_its_id_or_its_pod(
    short_path: Path,
) -> None:
    async with stage(short_path) as node:
        pod = node.kubelet.count(TPU, A).uid
        await node.allocate(A)
        assert await node.pre_start(A) == ""
        for name in (A, f"{TPU}/{A}", pod):
            told = await node.command("why", name)
            assert told.returncode == 0, told.stderr
            assert f"{TPU}/{A}: " in told.stdout
            assert max(map(len, told.stdout.splitlines())) <= 100
        several = await node.command("why", A[:9])
        assert "cannot tell what" in several.stderr
        unknown = await node.command("why", "nobody")
        assert (unknown.returncode, unknown.stdout) == (1, "")
        assert "cannot find nobody: " in unknown.stderr
        await node.stop()
        down = await node.command("why", A)
        assert down.returncode == 0
        assert "unknown: only the running daemon sees" in down.stdout
        assert len(down.stderr.splitlines()) == 1, "that it is down is said once"
        free = await node.command("why", B)
        assert (free.returncode, free.stdout) == (1, "")
        assert "no device with a lock is called that" in free.stderr
        assert "rule:" not in down.stdout, (
            "that the daemon is down is no rule that keeps the device"
        )


async def test_why_tells_what_the_ledger_has_where_the_daemon_ends_between_two_questions(
    short_path: Path,
) -> None:
    async with stage(short_path) as node:
        await node.allocate(A)
        locks = await _json(node, "locks")
        await node.stop()

        async def answer(asked: asyncio.StreamReader, told: asyncio.StreamWriter) -> None:
            if json.loads(await asked.readline())["ask"] == "locks":
                told.write(json.dumps({"answer": locks}).encode() + b"\n")
            told.close()

        async with await asyncio.start_unix_server(answer, node.state / CONTROL_SOCKET):
            done = await node.command("why", A)
    assert done.returncode == 0, done.stderr
    assert f"{TPU}/{A}: " in done.stdout
    assert "unknown: only the running daemon sees" in done.stdout


async def test_the_history_of_a_device_that_left_the_node_is_told_by_its_id_alone(
    short_path: Path,
) -> None:
    async with stage(short_path) as node:
        pod = node.kubelet.count(TPU, A).uid
        await node.allocate(A)
        assert await node.pre_start(A) == ""
        del node.kubelet.pods[pod]
        await node.until_free()
        story = await _json(node, "history", A)
        node.node.tree.unplug(A)
        await node.until(lambda: A not in node.healthy(), "the chip to have left")
        async with asyncio.timeout(30):
            while any(row["id"] == A for row in await _json(node, "devices")):
                await asyncio.sleep(0.05)

        assert story[-1]["to"] == "free"
        assert await _json(node, "history", A) == story
        assert await _json(node, "history", f"{TPU}/{A}") == story
        for down in (False, True):
            if down:
                await node.stop()
            unknown = await node.command("history", "0000:ff:1f.7")
            assert unknown.returncode == 1
            assert "cannot find device 0000:ff:1f.7: this node has" in unknown.stderr


async def test_when_the_daemon_is_down_the_ledger_answers_in_the_same_shapes(
    short_path: Path,
) -> None:
    async with stage(short_path) as node:
        for each in (A, B, A):
            await node.allocate(each)
        story = await _json(node, "history", A)
        alive = {name: await _json(node, name) for name in ("locks", "history", "devices")}
        status = await _json(node, "status")
        await node.stop()

        # What has to happen before a device is free only the running daemon knows.
        assert all(row["until"] for row in alive["locks"] if row["state"] == "held")
        unknown = [{**row, "until": None} for row in alive["locks"]]
        assert await _json(node, "locks") == unknown
        assert await _json(node, "history") == alive["history"]
        assert 0 < len(story) < len(alive["history"])
        assert await _json(node, "history", A) == story, "an id alone is enough"
        assert await _json(node, "history", f"{TPU}/{A}") == story
        assert await _json(node, "history", A, "--limit", "1") == story[-1:]

        device, other = await _json(node, "devices")
        assert {device["id"], other["id"]} == {A, B}
        (before,) = [row for row in alive["devices"] if row["id"] == A]
        assert device.keys() == before.keys()
        assert (device["lock"], device["health"]) == (before["lock"], "unknown")

        done = await node.command("status", "--output", "json")
        down = json.loads(done.stdout)
        assert done.returncode == 1
        assert down.keys() == status.keys()
        assert down["resources"][0].keys() == status["resources"][0].keys()
        for (resource,) in (status["resources"], down["resources"]):
            assert (resource["locked"], resource["waiting"]) == (2, 1)
        assert "cannot reach the daemon in" in down["checks"][0]["reason"]

        table = await node.command("status")
        assert "FAILED daemon: cannot reach the daemon" in table.stdout

        holders = await node.command("holders")
        assert holders.returncode == 1
        assert "check that it runs" in holders.stderr


@pytest.mark.parametrize("many", [pytest.param(False, marks=pytest.mark.slow), True])
async def test_a_daemon_that_does_not_answer_is_not_taken_for_one_that_is_down(
    short_path: Path, many: bool
) -> None:
    with socket.socket(socket.AF_UNIX) as mute, socket.socket(socket.AF_UNIX) as first:
        mute.bind(str(short_path / CONTROL_SOCKET))
        mute.listen(0 if many else 128)
        if many:  # no other can connect while it waits
            first.connect(mute.getsockname())
        both = asyncio.gather(
            holdfast("locks", state=short_path),
            holdfast("doctor", "--output", "json", state=short_path),
        )
        done, doctor = await asyncio.wait_for(both, 120)

    assert done.returncode == 1
    assert "it runs and does not answer; see its log" in done.stderr
    assert "ledger" not in done.stderr
    findings = {each["check"]: each for each in json.loads(doctor.stdout)["findings"]}
    assert findings["settings"]["level"] == "WARN"
    assert "the daemon runs and does not answer" in findings["settings"]["reason"]


async def test_run_takes_its_flags_and_ends_cleanly_when_asked_to(short_path: Path) -> None:
    async with stage(short_path, start=False) as node:
        root = node.node.root
        port = free_port()
        config = short_path / "config.yaml"
        config.write_text(
            yaml.safe_dump(
                {
                    "host": {
                        name: str(getattr(root, name))
                        for name in ("sys", "proc", "dev", "cgroup", "etc", "run")
                    },
                    "kubelet": {
                        "pluginDir": str(short_path / "dp"),
                        "podResourcesSocket": str(short_path / "pr.sock"),
                    },
                    "http": {"address": "127.0.0.1", "port": 0},
                }
            )
        )
        daemon = subprocess.Popen(
            [*_RUN, str(config), "--http-port", str(port), "--state-dir", "state"],
            cwd=short_path,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            await until((node.state / CONTROL_SOCKET).exists, what="the control socket")
            await until(lambda: node.healthy() == set(CHIPS), what="the chips to be offered")
            with socket.create_connection(("127.0.0.1", port)):
                pass
        finally:
            daemon.terminate()
            _, said = await asyncio.to_thread(daemon.communicate, timeout=20)

        assert daemon.returncode == 0
        assert '"level": "info"' not in said
        assert not (node.state / CONTROL_SOCKET).exists()
        assert not list((short_path / "dp").glob("holdfast*.sock"))


@pytest.mark.parametrize("taken", ["port", "state"])
async def test_run_ends_with_1_and_names_what_another_has_taken(
    short_path: Path, taken: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        async with stage(short_path) as node:
            state = node.state if taken == "state" else short_path / "own"
            done = await holdfast(
                *("run", "--set", "http.address=127.0.0.1"),
                *("--http-port", str(port if taken == "port" else 0)),
                state=state,
            )

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    expected = f"port {port} " if taken == "port" else "another holdfast is running on it"
    assert expected in done.stderr
