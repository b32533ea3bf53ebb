"""Arbitrary bytes at the HTTP port and at the control socket: the next proper question is answered."""

import asyncio
import contextlib
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from fakes.control import control_server
from holdfast.control import MOST_BYTES, ask
from holdfast.names import CONTROL_SOCKET
from holdfast.runtime.watched import Watched
from holdfast.telemetry.probes import ProbeServer
from holdfast.telemetry.readyz import Board

_PATIENCE = 20.0

_REQUEST = st.sampled_from(
    [
        b"GET ",
        b"HEAD ",
        b"POST ",
        b"/livez",
        b"/readyz?output=json",
        b"/metrics",
        b"?",
        b"http://[",
        b" HTTP/1.1",
        b" HTTP/9.9",
        b"\r\n",
        b"\n",
        b"\r\n\r\n",
        b": ",
        b"Accept: application/json",
        b"Content-Length: 99999999999",
        b"Transfer-Encoding: chunked",
        b"x" * 9000,
    ]
)
_QUESTION = st.sampled_from(
    [
        b'{"ask": "status"',
        b'{"ask": ["status"]}',
        b'{"ask": {}, "device": 1}',
        b", ",
        b'"caller": {"uid": 0}',
        b"}",
        b"[" * 5000,
        b"null",
        b"\n",
        b'"\\ud800"',
        b"9" * 5000,
        b"x" * (MOST_BYTES + 1),
    ]
)


def _messages(words: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[bytes]]:
    """Return what one client sends, in parts: words of the protocol, and anything at all."""
    return st.lists(words | st.binary(max_size=200), max_size=8)


def _throw(connection: socket.socket, parts: list[bytes], *, reads: bool) -> None:
    """Send *parts*, and either read what is answered or leave at once."""
    with contextlib.suppress(ConnectionError):
        for part in parts:
            connection.sendall(part)
        if reads:
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with contextlib.closing(
        ProbeServer("127.0.0.1", 0, board=Board(), registry=CollectorRegistry(), stall=Watched(1e9))
    ) as server:
        yield server.port


@settings(deadline=None, max_examples=200)
@given(_messages(_REQUEST), st.booleans())
def test_whatever_comes_over_http_the_next_probe_is_answered(
    port: int, parts: list[bytes], reads: bool
) -> None:
    with socket.create_connection(("127.0.0.1", port), _PATIENCE) as client:
        _throw(client, parts, reads=reads)
        # Before the client is gone, too.
        with socket.create_connection(("127.0.0.1", port), _PATIENCE) as probe:
            probe.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = b"".join(iter(lambda: probe.recv(1 << 16), b""))

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nok\n")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """The folder of a control socket, whose loop is on a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    with tempfile.TemporaryDirectory(prefix="hf-", dir="/tmp") as name:
        server = control_server(Path(name), {"status": dict})
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(_PATIENCE)
        try:
            yield Path(name)
        finally:
            asyncio.run_coroutine_threadsafe(server.close(), loop).result(_PATIENCE)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


@settings(deadline=None, max_examples=200)
@given(_messages(_QUESTION), st.booleans())
def test_whatever_comes_at_the_control_socket_the_next_question_is_answered(
    folder: Path, parts: list[bytes], reads: bool
) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(_PATIENCE)
        client.connect(str(folder / CONTROL_SOCKET))
        _throw(client, parts, reads=reads)
        assert ask(folder, "status", patience=_PATIENCE, device="tpu/1")["device"] == "tpu/1"
