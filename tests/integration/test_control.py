"""The control socket: real clients, and what rude ones cannot do."""

import asyncio
import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fakes.control import control_server
from holdfast.control import ask
from holdfast.control.server import Handler
from holdfast.errors import HoldfastError
from holdfast.names import CONTROL_SOCKET


async def _slow(_: Mapping[str, Any]) -> str:
    await asyncio.sleep(0)
    return "slow"


def _refuse(_: Mapping[str, Any]) -> object:
    raise HoldfastError("cannot look: the lane is stuck")


def _break(_: Mapping[str, Any]) -> object:
    raise KeyError("oops")


_HANDLERS: dict[str, Handler] = {
    "echo": dict,
    "slow": _slow,
    "refuse": _refuse,
    "break": _break,
    "unsendable": lambda _: object(),
    "large": lambda _: ["x" * 1000] * 1000,
}


@pytest.fixture
async def folder(short_path: Path) -> AsyncIterator[Path]:
    server = control_server(short_path, _HANDLERS)
    await server.start()
    yield short_path
    await server.close()


async def _ask(folder: Path, question: str, **details: Any) -> Any:
    return await asyncio.to_thread(ask, folder, question, **details)


async def _raw(folder: Path, *lines: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(folder / CONTROL_SOCKET)
    writer.writelines(lines)
    answer = b""
    with contextlib.suppress(ConnectionError):  # left with unread bytes, the kernel resets
        writer.write_eof()
        answer = await reader.read()
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return answer


async def test_a_question_is_answered_with_its_details_and_who_the_kernel_says_asks(
    folder: Path,
) -> None:
    answer = await _ask(folder, "echo", device="tpu/1", limit=5, caller={"uid": 12345, "pid": 1})

    assert answer["device"] == "tpu/1"
    assert answer["limit"] == 5
    assert answer["caller"] == {"pid": os.getpid(), "uid": os.getuid()}, "nobody names himself"


async def test_a_handler_may_take_its_time_and_say_much(folder: Path) -> None:
    assert await _ask(folder, "slow") == "slow"
    assert len(await _ask(folder, "large")) == 1000


async def test_the_daemons_refusal_reaches_the_one_who_asked(folder: Path) -> None:
    with pytest.raises(HoldfastError, match="cannot look: the lane is stuck"):
        await _ask(folder, "refuse")


@pytest.mark.parametrize("question", ["break", "unsendable"])
async def test_a_bug_in_an_answer_is_told_and_harms_nobody_else(
    folder: Path, question: str
) -> None:
    with pytest.raises(HoldfastError, match=rf"cannot answer {question}: .* this is a bug"):
        await _ask(folder, question)

    assert await _ask(folder, "slow") == "slow"


async def test_the_socket_is_for_its_owner_alone(folder: Path) -> None:
    mode = (folder / CONTROL_SOCKET).stat().st_mode

    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to ask as somebody else")
async def test_another_user_is_refused_even_where_the_files_would_let_him_in(folder: Path) -> None:
    folder.chmod(0o755)
    (folder / CONTROL_SOCKET).chmod(0o666)
    code = (
        "import os, socket, sys\n"
        "os.setgroups([]); os.setresgid(*[65534] * 3); os.setresuid(*[65534] * 3)\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        "s.connect(sys.argv[1])\n"
        's.sendall(b\'{"ask": "slow"}\\n\')\n'
        "print(s.makefile().read())\n"
    )

    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", code, str(folder / CONTROL_SOCKET)],
        capture_output=True,
        text=True,
        check=True,
    )

    assert json.loads(done.stdout) == {
        "error": "cannot answer uid 65534: the daemon answers only root"
    }


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"",
        b"{}\n",
        b"[]\n",
        b"null\n",
        b'{"ask": "shutdown"}\n',
        b'{"ask": []}\n',
        b'{"ask": {}}\n',
        b"\xff\xfe\n",
        b"[" * 5000 + b"\n",
        b'"ask"\n',
    ],
)
async def test_what_is_no_question_is_told_which_there_are(folder: Path, line: bytes) -> None:
    answer = json.loads(await _raw(folder, line))

    assert answer["error"].startswith("cannot answer: not one of the questions break, echo")


async def test_a_question_without_an_end_is_left_unanswered(folder: Path) -> None:
    assert await _raw(folder, b"x" * (1 << 18)) == b""
    assert await _ask(folder, "slow") == "slow"


async def test_a_client_that_leaves_before_its_answer_harms_nobody(folder: Path) -> None:
    for _ in range(5):
        with socket.socket(socket.AF_UNIX) as rude:
            rude.connect(str(folder / CONTROL_SOCKET))
            rude.sendall(b'{"ask": "large"}\n')

    assert await _ask(folder, "slow") == "slow"


async def test_without_a_daemon_the_one_who_asks_is_told_so_at_once(short_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ask(short_path, "slow")

    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(short_path / CONTROL_SOCKET))
    with pytest.raises(ConnectionError):
        ask(short_path, "slow")


async def test_a_daemon_that_says_nothing_is_not_waited_for_forever(short_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(short_path / CONTROL_SOCKET))
        mute.listen()
        with pytest.raises(TimeoutError):
            ask(short_path, "slow", patience=0.05)


async def test_a_daemon_that_ends_in_the_middle_of_its_answer_is_down(short_path: Path) -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b'{"answer": ')
        writer.close()

    async with await asyncio.start_unix_server(half, short_path / CONTROL_SOCKET):
        with pytest.raises(ConnectionError, match="it closed the connection"):
            await _ask(short_path, "slow")


async def test_a_new_daemon_takes_the_place_of_a_socket_that_a_crash_left(short_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(short_path / CONTROL_SOCKET))
    server = control_server(short_path, _HANDLERS)

    await server.start()

    assert await _ask(short_path, "slow") == "slow"
    await server.close()
    assert not (short_path / CONTROL_SOCKET).exists()


async def test_closing_leaves_silent_clients_and_slow_answers_behind(short_path: Path) -> None:
    asked = asyncio.Event()

    async def never(_: Mapping[str, Any]) -> None:
        asked.set()
        await asyncio.Event().wait()

    server = control_server(short_path, {"never": never})
    await server.start()
    silent_reader, silent = await asyncio.open_unix_connection(short_path / CONTROL_SOCKET)
    waiting_reader, waiting = await asyncio.open_unix_connection(short_path / CONTROL_SOCKET)
    waiting.write(b'{"ask": "never"}\n')
    await asked.wait()

    async with asyncio.timeout(60):
        await server.close()

        assert await silent_reader.read() == b""
        assert await waiting_reader.read() == b""
    for writer in (silent, waiting):
        writer.close()


async def test_a_client_that_asks_nothing_is_left_after_a_while(short_path: Path) -> None:
    server = control_server(short_path, _HANDLERS, patience=0.05)
    await server.start()
    reader, writer = await asyncio.open_unix_connection(short_path / CONTROL_SOCKET)

    async with asyncio.timeout(60):
        assert await reader.read() == b""
    writer.close()
    await server.close()


async def test_a_folder_that_cannot_be_used_is_an_error_with_its_path(short_path: Path) -> None:
    for bad in (short_path / "none", short_path / ("x" * 120)):
        with pytest.raises(HoldfastError, match=f"cannot listen on {bad}"):
            await control_server(bad, _HANDLERS).start()
