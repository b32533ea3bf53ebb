"""A TCP port for a server that a test starts."""

import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _TRIES = 10_000, 100


def free_port() -> int:
    """Return a port that nobody listens on.

    It is below those that the kernel gives to connections of other programs, where there are any:
    such a one may be in use again before the server is started.
    """
    first = int(_RANGE.read_text().split()[0])
    for _ in range(_TRIES):
        port = random.randrange(_LOWEST, max(first, 2 * _LOWEST))
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("there is no free port")
