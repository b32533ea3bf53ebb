"""The HTTP server beside hostile clients: slow ones, large ones, many, and those that never read."""

import contextlib
import os
import resource
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from holdfast.runtime.watched import Watched
from holdfast.telemetry.httpserver import (
    MOST_CLIENTS,
    MOST_FIELDS,
    MOST_HEAD,
    Client,
    HttpServer,
    Request,
    Response,
    displaced,
)
from holdfast.telemetry.probes import ProbeServer
from holdfast.telemetry.readyz import Board
from waiting import wait_until

_KUBELET = "127.0.0.2"
"""All of 127/8 is this machine: an address that the others do not have."""
_LIMIT = 20.0
_PROBE = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


def _hello(request: Request) -> Response:
    if request.target == "/bug":
        raise KeyError("oops")
    return Response(body=f"{request.target} {request.fields.get('accept', '')}\n".encode())


@contextlib.contextmanager
def _serving(
    answer: Callable[[Request], Response] = _hello, seconds: float = _LIMIT
) -> Iterator[HttpServer]:
    server = HttpServer("127.0.0.1", 0, answer, seconds=seconds)
    try:
        yield server
    finally:
        server.close()


def _connected(port: int, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), _LIMIT, source_address=(source, 0))


def _everything(connection: socket.socket) -> bytes:
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def _asked(port: int, request: bytes = _PROBE, source: str = "127.0.0.1") -> tuple[int, bytes]:
    """Return the status and the body of the answer; 0 where there is none."""
    with _connected(port, source) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(request)
        head, _, body = _everything(connection).partition(b"\r\n\r\n")
    return (int(head.split()[1]) if head else 0), body


def _is_open(connection: socket.socket) -> bool:
    ready, _, _ = select.select([connection], [], [], 0)
    return not ready


@contextlib.contextmanager
def _dripping(port: int, count: int) -> Iterator[None]:
    """Keep *count* clients at it that never finish a request, and come again when they are left."""
    over = threading.Event()

    def drip() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError), _connected(port) as connection:
                connection.sendall(b"GET /livez HTTP/1.1\r\nX: ")
                while not over.wait(0.2):
                    connection.sendall(b"a")

    threads = [threading.Thread(target=drip) for _ in range(count)]
    for each in threads:
        each.start()
    try:
        yield
    finally:
        over.set()
        for each in threads:
            each.join()


# What is served.


def test_head_is_answered_as_get_without_the_body() -> None:
    with _serving() as server, _connected(server.port) as connection:
        connection.sendall(_PROBE.replace(b"GET", b"HEAD"))
        head, _, body = _everything(connection).partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Length: 8\r\n" in head
    assert body == b""


def test_a_request_that_comes_byte_by_byte_is_answered() -> None:
    with _serving() as server, _connected(server.port) as connection:
        for byte in b"GET /x HTTP/1.0\nACCEPT:  text/plain \n\n":
            connection.sendall(bytes([byte]))
        assert _everything(connection).endswith(b"\r\n\r\n/x text/plain\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_other_methods_are_told_which_there_are_even_with_a_body_on_its_way(method: str) -> None:
    request = f"{method} /livez HTTP/1.1\r\nContent-Length: 40000\r\n\r\n".encode() + b"x" * 40000
    with _serving() as server, _connected(server.port) as connection:
        connection.sendall(request)
        answer = _everything(connection)

    assert answer.startswith(b"HTTP/1.1 405 Method Not Allowed\r\n")
    assert b"\r\nAllow: GET, HEAD\r\n" in answer


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"\x00\xff\xfe\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET /livez\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET  /livez HTTP/1.1\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET /livez HTTP/1.1\r\nno colon\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET /livez HTTP/1.1\r\n" + b"A: b\r\n" * MOST_FIELDS + b"\r\n", HTTPStatus.OK),
        (
            b"GET /livez HTTP/1.1\r\n" + b"A: b\r\n" * (MOST_FIELDS + 1) + b"\r\n",
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
        ),
        (
            b"GET /livez HTTP/1.1\r\nA: " + b"b" * MOST_HEAD + b"\r\n\r\n",
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
        ),
        (
            b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\n\r\n",
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
        ),
        (b"GET /bug HTTP/1.1\r\n\r\n", HTTPStatus.INTERNAL_SERVER_ERROR),
    ],
)
def test_what_cannot_be_answered_is_told_so_and_the_next_one_is_answered(
    request_: bytes, status: HTTPStatus
) -> None:
    with _serving() as server:
        assert _asked(server.port, request_)[0] == status
        assert _asked(server.port)[0] == HTTPStatus.OK


@pytest.mark.parametrize("target", ["http://[::1", "//[x", "/livez?%ff&output=%00"])
def test_no_target_is_too_odd_for_the_probes(target: str) -> None:
    with contextlib.closing(
        ProbeServer("127.0.0.1", 0, board=Board(), registry=CollectorRegistry(), stall=Watched(600))
    ) as server:
        status, _ = _asked(server.port, f"GET {target} HTTP/1.1\r\n\r\n".encode())
        assert status in {200, 400, 404}
        assert _asked(server.port)[0] == HTTPStatus.OK


# Time.


def test_a_client_that_never_finishes_its_request_is_left_at_the_deadline_though_it_drips() -> None:
    with _serving(seconds=0.5) as server:
        began = time.monotonic()  # the deadline begins when the server accepts
        with _connected(server.port) as connection:
            connection.sendall(b"GET /livez HTTP/1.1\r\nX: ")

            def left() -> bool:
                with contextlib.suppress(ConnectionError):
                    connection.sendall(b"a")
                return not _is_open(connection)

            wait_until(left, what="the server to leave it")
        assert time.monotonic() - began >= 0.5


def test_a_client_that_never_reads_its_answer_is_left_at_the_deadline() -> None:
    large = Response(body=b"x" * (8 << 20))
    with _serving(lambda _: large, seconds=0.5) as server, _connected(server.port) as connection:
        connection.sendall(_PROBE)
        wait_until(lambda: server._clients, what="the client to be taken")
        wait_until(lambda: not server._clients, what="the client to be left")
        assert len(_everything(connection)) < len(large.body)


def test_a_client_that_stays_after_its_answer_is_left_at_the_deadline() -> None:
    with _serving(seconds=0.5) as server, _connected(server.port) as connection:
        connection.sendall(_PROBE)
        assert _everything(connection).endswith(b"\r\n\r\n/livez \n")
        wait_until(lambda: not server._clients, what="the client to be left")


def test_a_client_that_never_stops_sending_is_left_long_before_the_deadline() -> None:
    with _serving() as server, _connected(server.port) as connection:
        connection.sendall(_PROBE)
        with pytest.raises(ConnectionError):
            connection.sendall(b"x" * 100_000_000)
        assert _asked(server.port)[0] == HTTPStatus.OK


def test_one_connection_is_one_request() -> None:
    asked = []

    def answer(request: Request) -> Response:
        asked.append(request.target)
        return Response(body=b"once\n")

    with _serving(answer) as server, _connected(server.port) as connection:
        connection.sendall(_PROBE)
        assert _everything(connection).endswith(b"\r\n\r\nonce\n")
        connection.sendall(_PROBE.replace(b"livez", b"again"))
        connection.shutdown(socket.SHUT_WR)
        wait_until(lambda: not server._clients, what="the client to be left")

    assert asked == ["/livez"]


def test_a_server_without_clients_sleeps() -> None:
    with _serving(seconds=0.2) as server:
        assert _asked(server.port)[0] == HTTPStatus.OK
        wait_until(lambda: not server._clients, what="the client to be left")
        assert server._patience() is None


# Many.


def _client(source: str) -> Client:
    return Client(socket.socket(), source, until=0.0)


@pytest.mark.parametrize(
    ("sources", "which"),
    [
        ("a", 0),
        ("aaa", 0),
        ("abab", 0),
        ("kaaa", 1),
        ("akaa", 0),
        ("kabbb", 2),
        ("kab", 0),
    ],
)
def test_the_oldest_of_the_busiest_address_gives_way(sources: str, which: int) -> None:
    clients = [_client(source) for source in sources]
    try:
        assert displaced(clients) is clients[which]
    finally:
        for each in clients:
            each.connection.close()


def test_of_many_connections_only_so_many_stay_open_and_the_newest_do() -> None:
    with _serving() as server, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(_connected(server.port)) for _ in range(MOST_CLIENTS + 20)]
        wait_until(
            lambda: [each for each in clients if _is_open(each)] == clients[20:],
            what="the oldest connections to be closed",
        )
        # One is closed before the next is counted.
        wait_until(lambda: len(server._clients) == MOST_CLIENTS, what="as many as may be")


def test_another_address_keeps_its_connection_beside_any_number_from_one() -> None:
    with _serving() as server, contextlib.ExitStack() as stack:
        kubelet = stack.enter_context(_connected(server.port, _KUBELET))
        kubelet.sendall(_PROBE[:10])
        clients = [stack.enter_context(_connected(server.port)) for _ in range(10 * MOST_CLIENTS)]
        wait_until(lambda: not _is_open(clients[0]), what="the others to displace each other")
        kubelet.sendall(_PROBE[10:])

        assert _everything(kubelet).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("source", [_KUBELET, "127.0.0.1"])
def test_with_a_thousand_open_connections_each_probe_is_answered(source: str) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2000:
        pytest.skip("this machine allows too few open files")
    with _serving() as server, contextlib.ExitStack() as stack:
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 2000), hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        for _ in range(1000):
            stack.enter_context(_connected(server.port))
        assert [_asked(server.port, source=source)[0] for _ in range(20)] == [200] * 20
        assert len(server._clients) <= MOST_CLIENTS


def test_with_one_open_connection_from_each_of_many_addresses_each_probe_is_answered() -> None:
    with _serving() as server, contextlib.ExitStack() as stack:
        for number in range(200):
            stack.enter_context(_connected(server.port, f"127.0.1.{number + 1}"))
        assert [_asked(server.port, source=_KUBELET)[0] for _ in range(20)] == [200] * 20


def test_a_request_that_came_with_its_connection_is_answered_before_others_displace_it() -> None:
    """On a node's own network kubelet may share its address with others."""
    go_on = threading.Event()

    def answer(request: Request) -> Response:
        if request.target == "/wait":
            go_on.wait(_LIMIT)
        return _hello(request)

    with _serving(answer) as server, contextlib.ExitStack() as stack:
        for number in range(MOST_CLIENTS - 2):
            stack.enter_context(_connected(server.port, f"127.0.1.{number + 1}"))
        wait_until(lambda: len(server._clients) == MOST_CLIENTS - 2, what="all to be taken")
        stack.enter_context(_connected(server.port, "127.0.2.1")).sendall(
            b"GET /wait HTTP/1.1\r\n\r\n"
        )
        wait_until(lambda: len(server._clients) == MOST_CLIENTS - 1, what="the server to wait")
        probe = stack.enter_context(_connected(server.port))
        probe.sendall(_PROBE)
        for _ in range(MOST_CLIENTS - 1):
            stack.enter_context(_connected(server.port))
        go_on.set()

        assert _everything(probe).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("source", [_KUBELET, "127.0.0.1"])
def test_beside_clients_that_drip_each_probe_is_answered(source: str) -> None:
    with _serving() as server, _dripping(server.port, 2 * MOST_CLIENTS):
        wait_until(lambda: len(server._clients) == MOST_CLIENTS, what="the server to be full")
        assert [_asked(server.port, source=source)[0] for _ in range(20)] == [200] * 20


def test_beside_clients_that_ask_without_end_each_probe_is_answered() -> None:
    over = threading.Event()

    def flood(port: int) -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                _asked(port)

    with _serving() as server:
        threads = [threading.Thread(target=flood, args=(server.port,)) for _ in range(8)]
        for each in threads:
            each.start()
        try:
            asked = [_asked(server.port, source=_KUBELET)[0] for _ in range(20)]
        finally:
            over.set()
            for each in threads:
                each.join()

    assert asked == [200] * 20


def test_metrics_are_not_made_anew_for_each_who_asks() -> None:
    class Counting(Collector):
        made = 0

        def collect(self) -> Iterator[Metric]:
            Counting.made += 1
            return iter(())

    registry = CollectorRegistry()
    registry.register(Counting())
    before = Counting.made
    with contextlib.closing(
        ProbeServer("127.0.0.1", 0, board=Board(), registry=registry, stall=Watched(600))
    ) as server:
        began = time.monotonic()
        for _ in range(50):
            assert _asked(server.port, b"GET /metrics HTTP/1.1\r\n\r\n")[0] == HTTPStatus.OK
        took = time.monotonic() - began

    assert 1 <= Counting.made - before <= 1 + took / 0.2


# Memory and files.

_SERVER = """
import contextlib, resource, sys, time
from prometheus_client import CollectorRegistry, Gauge
from holdfast.runtime.watched import Watched
from holdfast.telemetry.readyz import Board
from holdfast.telemetry.probes import ProbeServer
registry = CollectorRegistry()
gauge = Gauge("holdfast_example", "An example.", ["device"], registry=registry)
for number in range(1500):
    gauge.labels(f"GPU-{number:08}-0000-0000-0000-000000000000").set(number)
server = ProbeServer("127.0.0.1", 0, board=Board(), registry=registry, stall=Watched(1e9))
with contextlib.closing(server):
    if len(sys.argv) > 1:
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2)
    print(server.port, flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def _process(*arguments: str) -> Iterator[tuple[int, int]]:
    """Run a server of its own; yield its pid and its port."""
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.pid, int(process.stdout.readline())
        finally:
            process.stdin.close()


def _resident(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / (1 << 20)


def _endless_head(connection: socket.socket) -> None:
    connection.sendall(b"GET /livez HTTP/1.1\r\n")
    for _ in range(99):
        connection.sendall(b"X: " + b"a" * 65000 + b"\r\n")


def _nearly_full_head(connection: socket.socket) -> None:
    connection.sendall(b"GET /livez HTTP/1.1\r\nX: " + b"a" * (MOST_HEAD - 100))


def _answer_unread(connection: socket.socket) -> None:
    connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n" * 100)


def _nothing(_: socket.socket) -> None:
    pass


@pytest.mark.parametrize("attack", [_endless_head, _nearly_full_head, _answer_unread, _nothing])
def test_hundreds_of_clients_cost_less_than_8_mib(
    attack: Callable[[socket.socket], None],
) -> None:
    with _process() as (pid, port), contextlib.ExitStack() as stack:
        assert len(_asked(port, b"GET /metrics HTTP/1.1\r\n\r\n")[1]) > 100_000
        before = _resident(pid)
        most = before
        for _ in range(400):
            connection = stack.enter_context(_connected(port))
            connection.settimeout(1.0)
            with contextlib.suppress(OSError):
                attack(connection)
            most = max(most, _resident(pid))

        assert most - before < 8
        assert _asked(port, source=_KUBELET) == (200, b"ok\n")


def test_the_kernel_keeps_little_for_each_connection() -> None:
    """Its buffers count as the daemon's memory in its cgroup."""
    with _serving() as server, contextlib.ExitStack() as stack:
        for _ in range(MOST_CLIENTS):
            stack.enter_context(_connected(server.port))
        wait_until(lambda: len(server._clients) == MOST_CLIENTS, what="all to be taken")
        sizes = [
            client.connection.getsockopt(socket.SOL_SOCKET, kind)
            for client in server._clients
            for kind in (socket.SO_RCVBUF, socket.SO_SNDBUF)
        ]

    assert sum(sizes) < 4 << 20


def test_a_process_that_is_out_of_files_answers_all_the_same() -> None:
    with _process("16") as (_, port), contextlib.ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(_connected(port))
        assert [_asked(port, source=_KUBELET)[0] for _ in range(3)] == [200] * 3


def test_closing_leaves_every_client_at_once() -> None:
    with _serving() as server, _connected(server.port) as connection:
        wait_until(lambda: server._clients, what="the client to be taken")
        server.close()
        assert _everything(connection) == b""
        with pytest.raises(ConnectionRefusedError):
            _connected(server.port)
