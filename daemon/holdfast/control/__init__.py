"""The unix socket by which the command line asks the running daemon: one line of JSON each way.

It imports next to nothing, so that the command line starts fast.
"""

import json
import socket
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.names import CONTROL_SOCKET

MOST_BYTES = 1 << 16


def ask(folder: Path, question: str, *, patience: float = 10.0, **details: Any) -> Any:  # noqa: ANN401 - JSON
    """Return the running daemon's answer; raise HoldfastError with its refusal.

    Raises ConnectionError or FileNotFoundError when no daemon listens or it ends meanwhile, and
    TimeoutError when it says nothing for *patience* seconds, or too many wait for it already.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(patience)
        try:
            connection.connect(str(folder / CONTROL_SOCKET))
        except BlockingIOError as error:
            raise TimeoutError from error
        connection.sendall(json.dumps({"ask": question, **details}).encode() + b"\n")
        received = bytearray()
        while not received.endswith(b"\n") and (part := connection.recv(MOST_BYTES)):
            received += part
    if not received.endswith(b"\n"):
        raise ConnectionAbortedError("it closed the connection")
    answer = json.loads(received)
    if "error" in answer:
        raise HoldfastError(answer["error"])
    return answer["answer"]
