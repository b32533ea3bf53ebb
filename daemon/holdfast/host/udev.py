"""The kernel's events about devices (the only importer of pyudev); a reason to look, no more."""

import asyncio
import errno
from collections.abc import Callable
from typing import Any

import pyudev

from holdfast.errors import HostError

Happened = Callable[[str, str, str], None]
"""Called with subsystem, action and devpath; action ``lost`` stands for events that never came."""

_RECEIVE_BUFFER = 1 << 20


class Uevents:
    """Listens to the kernel itself: udevd's events do not reach a container."""

    def __init__(self) -> None:
        """Prepare; nothing is received before `start`."""
        self._monitor: Any = None

    def start(self, happened: Happened) -> None:
        """Call *happened* on the running loop for each event; raises HostError when it cannot."""
        try:
            monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
            monitor.set_receive_buffer_size(_RECEIVE_BUFFER)
            monitor.start()
        except (OSError, ImportError) as error:
            message = f"cannot listen to the kernel's device events: {error}"
            raise HostError(message) from error
        self._monitor = monitor
        asyncio.get_running_loop().add_reader(monitor.fileno(), self._read, happened)

    def close(self) -> None:
        """Stop listening."""
        if self._monitor is not None:
            asyncio.get_running_loop().remove_reader(self._monitor.fileno())
            self._monitor = None

    def _read(self, happened: Happened) -> None:
        while True:
            try:
                device = self._monitor.poll(timeout=0)
            except OSError as error:
                if error.errno == errno.ENOBUFS:
                    happened("", "lost", "")
                    continue
                raise
            if device is None:
                return
            happened(device.subsystem or "", device.action or "", device.device_path)
