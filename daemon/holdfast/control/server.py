"""Answers the command line's questions about the running daemon."""

import asyncio
import contextlib
import inspect
import json
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import structlog

from holdfast.control import MOST_BYTES
from holdfast.errors import HoldfastError
from holdfast.names import CONTROL_SOCKET

log = structlog.get_logger(__name__)

PATIENCE = 10.0
"""Seconds that a client may take to ask."""

_ROOT = 0
_CREDENTIALS = struct.Struct("iII")

Handler = Callable[[Mapping[str, Any]], Awaitable[Any] | Any]
"""Answers one question; what it returns must be JSON.

It is given the question's details, and under ``caller`` the pid and uid that the kernel names.
"""


class ControlServer:
    """Listens in the state folder, for root alone; the answer's shape is in app.answers.reports."""

    def __init__(self, folder: Path, handlers: Mapping[str, Handler], *, patience: float) -> None:
        """Answer the questions that are keys of *handlers*.

        A client may take *patience* seconds to ask.
        """
        self._path = folder / CONTROL_SOCKET
        self._handlers = handlers
        self._patience = patience
        self._server: asyncio.Server | None = None
        self._conversations: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen, in place of a socket that a former daemon left; the caller holds the folder."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._path.unlink(missing_ok=True)
            listener.bind(str(self._path))
            # Nobody can connect before it listens, so it is never open to others for a moment.
            self._path.chmod(0o600)
            self._server = await asyncio.start_unix_server(
                self._converse, sock=listener, limit=MOST_BYTES
            )
        except OSError as error:
            listener.close()
            raise HoldfastError(
                f"cannot listen on {self._path}: {error.strerror or error}"
            ) from error

    async def close(self) -> None:
        """Stop listening, leave whoever still asks, and remove the socket."""
        if self._server is None:
            return
        self._server.close()
        for conversation in self._conversations:
            conversation.cancel()
        await asyncio.gather(*self._conversations, return_exceptions=True)
        self._path.unlink(missing_ok=True)

    def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._conversations.add(task)
        task.add_done_callback(self._conversations.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            caller = _caller(writer.get_extra_info("socket"))
            async with asyncio.timeout(self._patience):
                line = await reader.readline()
            answer = await self._answer(line, caller)
            writer.write(answer + b"\n")
            await writer.drain()
        except (OSError, ValueError) as error:  # it left, was silent, or asked without an end
            log.debug("control connection lost", reason=str(error) or type(error).__name__)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, line: bytes, caller: Mapping[str, int]) -> bytes:
        if caller["uid"] not in {_ROOT, os.geteuid()}:
            log.warning("control request refused", **caller)
            return _error(f"cannot answer uid {caller['uid']}: the daemon answers only root")
        try:
            question = json.loads(line)
            name = question["ask"]
            handler = self._handlers[name]
        except (ValueError, KeyError, TypeError, RecursionError):
            known = ", ".join(sorted(self._handlers))
            return _error(f"cannot answer: not one of the questions {known}")
        details = {**question, "caller": caller}
        try:
            answer = handler(details)
            if inspect.isawaitable(answer):
                answer = await answer
            return json.dumps({"answer": answer}).encode()
        except HoldfastError as error:
            return _error(str(error))
        except Exception as error:
            # A question must not end the daemon; the log has what is needed to fix it.
            log.exception("control request failed", question=name)
            reason = f"{type(error).__name__}: {error}"
            return _error(f"cannot answer {name}: {reason}; this is a bug, see the daemon's log")


def _caller(connection: socket.socket) -> Mapping[str, int]:
    """Return the pid and uid of the other side, as the kernel names them."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _gid = _CREDENTIALS.unpack(raw)
    return {"pid": pid, "uid": uid}


def _error(text: str) -> bytes:
    return json.dumps({"error": text}).encode()
