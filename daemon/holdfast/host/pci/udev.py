"""The kernel's device events, as a reason to look. Only this module imports pyudev."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable
from typing import Any

import pyudev
import structlog

from holdfast.errors import HostError

log = structlog.get_logger(__name__)

_RECEIVE_BUFFER = 1 << 20
_BATCH = 256
"""How many events are handled in one turn of the loop, so that a flood does not block it."""

Heard = Callable[[str, str], None]
"""Called with a subsystem and an action; the action ``lost`` stands for what was dropped."""


class Uevents:
    """Listens to the kernel itself, because udevd's events do not reach a container."""

    def __init__(self, heard: Heard) -> None:
        """Tell *heard* of each event on the running loop; raise HostError if that fails."""
        try:
            monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
            with contextlib.suppress(OSError):  # needs CAP_NET_ADMIN; the default size works too
                monitor.set_receive_buffer_size(_RECEIVE_BUFFER)
            monitor.start()
        except (OSError, ImportError) as error:
            raise HostError(f"cannot listen to the kernel's device events: {error}") from error
        self._monitor: Any = monitor
        self._heard = heard
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(monitor.fileno(), self._read)

    def close(self) -> None:
        """Stop listening."""
        if self._monitor is not None:
            self._loop.remove_reader(self._monitor.fileno())
            self._monitor = None

    def _read(self) -> None:
        for _ in range(_BATCH):
            try:
                device = self._monitor.poll(timeout=0)
            except OSError as error:
                if (error.errno or _error_on(self._monitor.fileno())) == errno.ENOBUFS:
                    # The kernel dropped some; the next are good.
                    self._heard("", "lost")
                    continue
                log.warning(
                    "kernel device events lost",
                    reason=str(error),
                    next="periodic scans go on",
                )
                self.close()
                self._heard("", "lost")
                return
            if device is None:
                return
            self._heard(device.subsystem or "", device.action or "")


def _error_on(fd: int) -> int:
    """Return the error of the socket *fd*, which is then over: pyudev does not say which it is."""
    listening = socket.socket(fileno=fd)
    try:
        return listening.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    finally:
        listening.detach()
