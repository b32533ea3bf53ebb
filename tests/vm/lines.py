"""JSON values, one a line, over a byte stream: how the host and the guest talk."""

import json
import os
import select
import threading
import time
from dataclasses import dataclass, field
from typing import Any


class SilenceError(Exception):
    """The other side said nothing in time, or has gone."""


class NoWordError(SilenceError):
    """The other side said nothing in time; it is there all the same."""


@dataclass(slots=True)
class JsonLines:
    """Both directions of one stream, whose file descriptor the caller opened and closes.

    Several threads may send; one receives.
    """

    fd: int
    _pending: bytearray = field(default_factory=bytearray)
    _sending: threading.Lock = field(default_factory=threading.Lock)

    def send(self, value: object) -> None:
        """Write *value* as one line; SilenceError if nobody is there to take it."""
        rest = json.dumps(value).encode() + b"\n"
        try:
            with self._sending:
                while rest:
                    rest = rest[os.write(self.fd, rest) :]
        except ConnectionError as error:
            raise SilenceError("the other side has gone") from error

    def receive(self, *, limit: float) -> Any:
        """Return the next value; SilenceError after *limit* seconds or at the end of the stream."""
        deadline = time.monotonic() + limit
        while b"\n" not in self._pending:
            ready, _, _ = select.select([self.fd], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise NoWordError(f"no word for {limit:.0f} s")
            try:
                piece = os.read(self.fd, 65536)
            except ConnectionError as error:
                raise SilenceError("the other side has gone") from error
            if not piece:
                raise SilenceError("the other side has gone")
            self._pending += piece
        line, _, rest = self._pending.partition(b"\n")
        self._pending = bytearray(rest)
        return json.loads(line)
