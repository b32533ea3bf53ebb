"""Asks the daemon's HTTP server as fast as it can from three processes, and never listens: connections.py NAME NUMBER.

Run as a script, which imports nothing of holdfast. The number is the port. It says "set" when it is set.
"""

import os
import socket
import struct
import sys
import time

_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


def main() -> None:
    """Connect, ask, and hang up, until somebody ends us."""
    port = int(sys.argv[2])
    _ = os.fork() and os.fork()
    if _:
        print("set", flush=True)
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as made:
                made.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
                made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
        except OSError:
            time.sleep(0.001)


if __name__ == "__main__":
    main()
