"""Asks every daemon of the release whether it is ready: `python ask.py HOST PORT [SECONDS]`.

HOST is a headless Service, which stands for all of them, ready or not. `helm test` runs it.
"""

import http.client
import socket
import sys
import time
from http import HTTPStatus

_PATIENCE = 10.0


def ask(address: str, port: int) -> str:
    """Return what is wrong with the daemon at *address*; empty when it is ready."""
    connection = http.client.HTTPConnection(address, port, timeout=_PATIENCE)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
    except OSError as error:
        return f"cannot be asked: {error}"
    finally:
        connection.close()
    return "" if answer.status == HTTPStatus.OK else text


def main(host: str, port: int, patience: float) -> int:
    """Ask until all are ready or *patience* seconds are over; print each answer; return 0 or 1."""
    deadline = time.monotonic() + patience
    while True:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except socket.gaierror:
            found = []
        answers = {str(each[4][0]): ask(str(each[4][0]), port) for each in found}
        if (answers and not any(answers.values())) or time.monotonic() > deadline:
            break
        time.sleep(1)
    for address, problem in sorted(answers.items()):
        print(f"{address}: {problem or 'ready'}")
    if not answers:
        print(f"no daemon behind {host}: does any node match the affinity of the DaemonSet?")
    return int(not answers or any(answers.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
