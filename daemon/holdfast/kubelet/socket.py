"""gRPC on unix sockets: how kubelet's and our own are dialled, and how ours are served."""

import asyncio
import contextlib
import itertools
import os
import socket
from collections.abc import Callable
from glob import escape
from pathlib import Path
from urllib.parse import quote

from grpc import aio

from holdfast.errors import HostError, KubeletError
from holdfast.host.files.wholefile import FileId
from holdfast.names import LONGEST_SOCKET_PATH
from holdfast.runtime.watched import seen_through

LARGEST_MESSAGE = 16 << 20
"""The most that is read of one message, in bytes.

Many times what kubelet sends about a full node: a longer message must not exhaust our memory.
"""

_OPTIONS: tuple[tuple[str, str | int], ...] = (
    # Connections to one path share their back-off otherwise: a kubelet that is just back would
    # be left alone for as long as the one before it did not answer.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", LARGEST_MESSAGE),
)
_SERIAL = itertools.count()


def dial(socket: Path) -> aio.Channel:
    """Return a new channel to the unix socket at *socket* (absolute), shared with nobody."""
    return aio.insecure_channel(_address(socket), options=_OPTIONS)


def _address(socket: Path) -> str:
    """Return the URI of *socket* (absolute) for gRPC, to which %41 is an A and ? ends a path.

    With two slashes before the path gRPC takes it as two bytes longer.
    """
    return f"unix:{quote(str(socket))}"


def what_went_wrong(error: aio.AioRpcError) -> str:
    """Return the other side's words, with the status code that they came under."""
    return f"{error.details() or 'no reason given'} ({error.code().name})"


class SocketServer:
    """A gRPC server on one socket; a new one for each start."""

    def __init__(self, path: Path, *, hidden: str, what: str, advice: str) -> None:
        """Serve *what* at *path*; *advice* says what is wrong when that cannot be.

        Names that begin with *hidden*, a dot first, are used by nobody else in the folder.
        """
        self.path = path
        self.file: FileId | None = None
        """Which socket is ours, while it is served."""
        self._hidden = hidden
        self._what = what
        self._advice = advice
        self._server: aio.Server | None = None

    async def start(self, add: Callable[[aio.Server], object]) -> None:
        """Serve what *add* adds, in place of whatever lies at our path.

        Raises KubeletError when that cannot be.
        """
        # gRPC unlinks the path it has bound when it stops, whoever's socket lies there by then.
        # So it binds a name that nobody else uses, and the rename puts it in place at once.
        hidden = self.path.with_name(f"{self._hidden}{os.getpid()}-{next(_SERIAL)}")
        self._check_length(hidden)
        server = aio.server()
        add(server)
        try:
            self._sweep()
            server.add_insecure_port(_address(hidden))
            await seen_through(server.start())
            hidden.chmod(0o600)
            hidden.rename(self.path)
            self.file = FileId.from_stat(self.path.lstat())
        except (OSError, RuntimeError) as error:
            await server.stop(None)
            raise KubeletError(
                f"cannot serve {self._what} at {self.path}: {_why(hidden, error)}; {self._advice}"
            ) from error
        except asyncio.CancelledError:
            await server.stop(None)
            raise
        self._server = server

    @property
    def in_place(self) -> bool:
        """Whether our socket lies at its path; raise HostError if that cannot be told."""
        return self.file is not None and FileId.of(self.path) == self.file

    async def stop(self, grace: float = 0.001) -> None:
        """Give calls in flight *grace* seconds, stop, and remove our socket.

        A socket that another has put at our path stays. Call it again where it is cancelled: the
        destructor of a server that never stopped waits without end.
        """
        if self._server is None:
            return
        # By itself gRPC's stop forgets now and then that it was cancelled.
        await seen_through(self._server.stop(grace))
        with contextlib.suppress(OSError, HostError):
            if self.in_place:
                self.path.unlink()
        self._server = self.file = None

    def _check_length(self, hidden: Path) -> None:
        longest = max(self.path, hidden, key=lambda path: len(os.fsencode(path)))
        if len(os.fsencode(longest)) > LONGEST_SOCKET_PATH:
            raise KubeletError(
                f"cannot serve {self._what}: the path {longest} is longer than the "
                f"{LONGEST_SOCKET_PATH} bytes of a unix socket; choose a shorter folder or name"
            )

    def _sweep(self) -> None:
        for left_by_a_crash in self.path.parent.glob(f"{escape(self._hidden)}*"):
            left_by_a_crash.unlink(missing_ok=True)


def _why(path: Path, error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    # gRPC says only that it could not bind; the kernel says why.
    try:
        with socket.socket(socket.AF_UNIX) as attempt:
            attempt.bind(os.fsencode(path))
        path.unlink(missing_ok=True)
    except OSError as reason:
        return reason.strerror or str(reason)
    return str(error)
