"""Names that commands, pods and files of others have, on their way to terminals, logs and kubelet."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from prometheus_client.parser import text_string_to_metric_families

from fakes.commands import holdfast
from fakes.control import control_server
from fakes.http import served
from fakes.kubelet_side import TPU, registered_side
from fakes.stage import CHIPS, stage
from holdfast._pb.deviceplugin.v1beta1 import api_pb2 as dp
from holdfast.control.server import Handler
from holdfast.errors import GateRefusedError, HoldfastError
from holdfast.telemetry.readyz import as_text, check_line
from ports import free_port
from simulated.demo import Demo

_HOSTILE = (
    "\x1b[2J\x1b]0;title\x07\n\rFAILED forged\u202egnp\u2066\x9b\u2028\x00\udcff" + "x" * 9000
)
_SHORT = "\x1b[2J\nok pwned"


def _one_line(text: str) -> None:
    """Check that *text* has nothing but ordinary characters, and that it came through."""
    assert text.isprintable(), ascii(text[:200])
    text.encode()
    assert "FAILED forged" in text
    assert len(text) < 10_000


def _lines(text: str) -> list[str]:
    """Return the lines of what was printed, each of which must print."""
    for line in text.split("\n"):
        assert line.isprintable(), ascii(line[:200])
    return text.removesuffix("\n").split("\n")


# The command line: a daemon in whose answers every text is hostile.

_CHECK = {"name": _HOSTILE, "passes": False, "reason": _HOSTILE}
_MARK = {"device": _HOSTILE, "since": 0, "uid": 0, "pid": 1, "reason": _HOSTILE}
_SEEN = {
    "device": _HOSTILE,
    "state": _HOSTILE,
    "pod": _HOSTILE,
    "reason": _HOSTILE,
    "kernel": _HOSTILE,
    "holders": [_HOSTILE],
    "others": [_HOSTILE],
    "claim": _HOSTILE,
    "refusal": "",
    "forced": False,
    "fence": 1,
    "patience": 1.0,
}
_STATUS = {
    "version": _HOSTILE,
    "pid": 1,
    "checks": [_CHECK],
    "noDevices": True,
    "resources": [
        {"name": _HOSTILE, "devices": 1, "healthy": 1, "offered": 1, "locked": 0, "waiting": 0}
    ],
    "drift": [
        {"kind": _HOSTILE, "subject": _HOSTILE, "one": _HOSTILE, "other": "b", "advice": _HOSTILE}
    ],
    "byHand": [_MARK],
    "rules": [{"device": _HOSTILE, "reason": _HOSTILE}, {"device": None, "reason": _HOSTILE}],
    "claims": [
        {
            "claim": _HOSTILE,
            "phase": _HOSTILE,
            "pods": [_HOSTILE],
            "adminDevices": [_HOSTILE],
            "waits": _HOSTILE,
        }
    ],
}
_ROW = {"resource": _HOSTILE, "id": _HOSTILE, "model": _HOSTILE, "reasons": [_HOSTILE, _HOSTILE]}
_LOCK = {"device": _HOSTILE, "state": _HOSTILE, "pod": _HOSTILE, "reason": _HOSTILE}
_HOLDER = {"device": _HOSTILE, "pid": 1, "command": _HOSTILE, "access": [_HOSTILE]}
_MOVE = {"at": 0, "device": _HOSTILE, "from": "free", "to": "held", "evidence": _HOSTILE}


def _refuse(_: Mapping[str, Any]) -> object:
    raise HoldfastError(f"cannot drain: {_HOSTILE}")


_ANSWERS: dict[str, Handler] = {
    "status": lambda _: _STATUS,
    "devices": lambda _: [_ROW],
    "locks": lambda _: [_LOCK],
    "holders": lambda _: [_HOLDER],
    "history": lambda _: [_MOVE],
    "quarantine": lambda _: {"text": _HOSTILE},
    "drain": _refuse,
    "releasable": lambda _: _SEEN,
    "release": lambda _: {"text": _HOSTILE, "follow": False},
}


@pytest.fixture
async def folder(short_path: Path) -> AsyncIterator[Path]:
    server = control_server(short_path, _ANSWERS)
    await server.start()
    yield short_path
    await server.close()


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (["status"], 11),
        (["devices"], 2),
        (["locks"], 2),
        (["holders"], 2),
        (["history"], 2),
        (["quarantine", "x", "--reason", "y"], 1),
        (["release", "x", "--yes"], 5),
    ],
)
async def test_a_command_prints_as_many_lines_as_it_has_whatever_the_names_are(
    folder: Path, arguments: list[str], lines: int
) -> None:
    done = await holdfast(*arguments, state=folder)

    assert len(_lines(done.stdout)) == lines
    assert r"\x1b[2J" in done.stdout
    assert not done.stderr


@pytest.mark.parametrize("command", ["status", "devices", "locks", "holders", "history"])
async def test_json_has_the_names_as_they_are_and_nothing_raw(folder: Path, command: str) -> None:
    done = await holdfast(command, "--output", "json", state=folder)

    _lines(done.stdout)
    assert json.dumps(_HOSTILE) in json.dumps(json.loads(done.stdout))


async def test_an_error_that_names_somebody_is_one_line(folder: Path) -> None:
    done = await holdfast("drain", state=folder)

    assert done.returncode == 1
    (line,) = _lines(done.stderr)
    _one_line(line)


async def test_the_doctors_page_has_its_own_lines_alone(short_path: Path) -> None:
    (short_path / "etc/containerd").mkdir(parents=True)
    hostile = "a\x1b[2J\u202eb\nFAIL  forged"
    # A file of the node's can have any name, and say anything.
    (short_path / "etc/containerd/config.toml").write_text(f"imports = [{json.dumps(hostile)}]\n")
    (short_path / "etc/containerd" / hostile).write_text("x = [")
    done = await holdfast("doctor", "--root", short_path)

    lines = _lines(done.stdout)
    assert any(r"a\x1b[2J\u202eb\nFAIL  forged" in line for line in lines)
    assert not any(line.startswith("FAIL") for line in lines)


def test_a_line_of_the_demo_begins_with_its_time_and_fits_100_columns(
    short_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = Demo.__new__(Demo)
    stage._began = 0.0
    stage.say(_HOSTILE)
    stage.add(_HOSTILE)

    lines = _lines(capsys.readouterr().out)
    assert [line for line in lines if not line.startswith(10 * " ")] == lines[:1]
    assert [line for line in lines if line.startswith(10 * " " + "\\")] == lines[len(lines) // 2 :][
        :1
    ]
    assert max(map(len, lines)) <= 100


# What kubelet is told; it logs it, and writes it into events and a pod's status.


@pytest.mark.parametrize("error", [GateRefusedError, ValueError])
async def test_kubelet_is_given_one_line(short_path: Path, error: type[Exception]) -> None:
    async with registered_side(short_path) as (kubelet, side):
        side.deciding.fail = error(f"cannot start: pid 7 ({_HOSTILE}) holds it")
        with pytest.raises(aio.AioRpcError) as told:
            await kubelet.devices.plugin(TPU).PreStartContainer(
                dp.PreStartContainerRequest(devices_ids=["a"])
            )

    assert told.value.code() in {
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INTERNAL,
    }
    _one_line(told.value.details() or "")


# Logs.

_LOG = """
import logging, sys, threading
import structlog
from holdfast.telemetry.logs import set_up_logs
set_up_logs("info", sys.argv[1])
hostile = sys.stdin.buffer.read().decode(errors="surrogateescape")
log = structlog.get_logger("a")
log.warning("signal sent", command=hostile, names=[hostile], **{"key": hostile})
log.warning(hostile)
logging.getLogger("grpc").error("lost %s", hostile)
try:
    raise ValueError(hostile)
except ValueError:
    log.exception("call failed", command=hostile)

def fail():
    raise ValueError(hostile)

thread = threading.Thread(target=fail)
thread.start()
thread.join()
fail()
"""


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_name_begins_a_line_of_the_log(form: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LOG, form],
        input=_HOSTILE.encode(errors="surrogateescape"),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
    lines = _lines(done.stderr.decode())

    ours = [line for line in lines if line.startswith(("{", "20"))]
    assert len(ours) == 6
    # The others are of the traceback, set in.
    assert all(line.startswith("    ") for line in lines if line not in ours)
    assert any("FAILED forged" in line for line in ours)


# Probes.


def test_a_check_is_one_line() -> None:
    _one_line(check_line(_CHECK))
    assert len(_lines(as_text([_CHECK, _CHECK]))) == 2


_EVIL = f"""
import ctypes, os, sys, time
libc = ctypes.CDLL(None)
libc.prctl(15, {_SHORT.encode() + bytes([0xFF])!r}, 0, 0, 0)
fd = os.open(sys.argv[1], os.O_RDWR | os.O_NOCTTY)
print("ready", flush=True)
time.sleep(1e6)
"""


async def test_a_process_with_a_hostile_name_is_named_on_the_node_alone(short_path: Path) -> None:
    """One that holds a device which nobody was granted, and another that cannot be inspected."""
    chip = CHIPS[3]
    port = free_port()
    async with stage(short_path, http={"port": port}) as node:
        pod = node.kubelet.count(TPU, CHIPS[0]).uid
        await node.allocate(CHIPS[0])
        assert await node.pre_start(CHIPS[0]) == ""
        holder, hidden = [
            await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                _EVIL,
                path,
                stdout=asyncio.subprocess.PIPE,
            )
            for path in (str(node.node.node("/dev/vfio/13")), os.devnull)
        ]
        try:
            for each in (holder, hidden):
                assert each.stdout is not None
                assert await each.stdout.readline() == b"ready\n"
                node.node.add_process(each.pid, "/system.slice/evil\n.scope")

            async def until(text: str, *arguments: str) -> str:
                async with asyncio.timeout(60):
                    while text not in (done := await node.command(*arguments)).stdout:
                        await asyncio.sleep(0.1)
                return done.stdout

            shown = [
                await until("foreign", "locks"),
                await until("foreign", "devices"),
                await until("foreign", "history", chip),
            ]
            refused = await node.pre_start(chip)
            fds = node.node.root.proc / str(hidden.pid) / "fd"
            fds.unlink()
            fds.symlink_to("fd")  # opened, it fails
            shown.append(await until(str(holder.pid), "holders"))
            shown.append(await until(f"pid {hidden.pid}", "status"))
            answers = [
                (await asyncio.to_thread(served, port, path))[1]
                for path in ("/livez", "/readyz", "/readyz?output=json", "/metrics")
            ]
        finally:
            for each in (holder, hidden):
                each.kill()
                await each.wait()

    for text in shown:
        _lines(text)
    assert refused.isprintable()
    assert any(r"\x1b[2J\nok" in text for text in shown)
    assert "FAILED process visibility" in answers[1]
    for text in answers:
        for name in (f"pid {holder.pid}", f"pid {hidden.pid}", "pwned", "evil", pod):
            assert name not in text
    for family in text_string_to_metric_families(answers[3]):
        for sample in family.samples:
            assert not {"pod", "namespace", "pid", "command", "uid"} & sample.labels.keys()
