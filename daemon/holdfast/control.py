"""The unix socket by which the command line asks the running daemon: one line of JSON each way."""

import asyncio
import inspect
import json
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import structlog

from holdfast.errors import HoldfastError

log = structlog.get_logger(__name__)

SOCKET = "control.sock"
_MOST_BYTES = 1 << 16

Handler = Callable[[Mapping[str, Any]], Awaitable[Any] | Any]
"""Answers one question; what it returns must be JSON."""


class ControlServer:
    """Listens in the state folder, for root alone; the answer's shape is in app.reports."""

    def __init__(self, folder: Path, handlers: Mapping[str, Handler]) -> None:
        """Answer the questions that are keys of *handlers*."""
        self._path = folder / SOCKET
        self._handlers = handlers
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen, in place of a socket that a former daemon left; the caller holds the folder."""
        self._path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(self._serve, self._path)
        except OSError as error:
            message = f"cannot listen on {self._path}: {error.strerror or error}"
            raise HoldfastError(message) from error
        finally:
            os.umask(before)

    async def close(self) -> None:
        """Stop listening and remove the socket."""
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answer = await self._answer(await reader.readline())
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        except (ConnectionError, ValueError) as error:
            log.debug("control connection lost", reason=str(error))
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            question = json.loads(line)
            handler = self._handlers[question["ask"]]
        except (ValueError, KeyError, TypeError):
            known = ", ".join(sorted(self._handlers))
            return {"error": f"cannot answer: not one of the questions {known}"}
        try:
            answer = handler(question)
            return {"answer": await answer if inspect.isawaitable(answer) else answer}
        except HoldfastError as error:
            return {"error": str(error)}


def ask(folder: Path, question: str, *, patience: float = 10.0, **details: Any) -> Any:  # noqa: ANN401 - JSON
    """Return the running daemon's answer; raise HoldfastError with its refusal.

    Raises ConnectionError or FileNotFoundError when no daemon listens. *patience* is in seconds.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(patience)
        connection.connect(str(folder / SOCKET))
        connection.sendall(json.dumps({"ask": question, **details}).encode() + b"\n")
        received = bytearray()
        while not received.endswith(b"\n") and (part := connection.recv(_MOST_BYTES)):
            received += part
    try:
        answer = json.loads(received)
    except ValueError as error:
        message = "cannot understand the daemon: it closed the connection"
        raise HoldfastError(message) from error
    if "error" in answer:
        raise HoldfastError(answer["error"])
    return answer["answer"]
