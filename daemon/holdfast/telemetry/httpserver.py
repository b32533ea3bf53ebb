"""A small HTTP server on one thread, whose memory and time are bounded for any client.

Each connection carries one request. Its cost is limited before it is read: the number of
connections, the bytes of a request's head, the kernel's buffers, and the lifetime of a connection.
A slow client cannot use up what others need, and a client with many connections displaces its own.
"""

import contextlib
import os
import re
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus

import structlog
from msgspec import Struct, field

log = structlog.get_logger(__name__)

MOST_CLIENTS = 32
"""Connections at once; one more closes another, see `displaced`."""
SECONDS = 5.0
"""Lifetime of a connection, in seconds."""
MOST_HEAD = 8192
"""Bytes of the request line and the header fields."""
MOST_FIELDS = 32
"""Header fields. Kubelet and Prometheus send up to eight, a browser behind a proxy about twenty."""

_BACKLOG = 128
"""Connections that wait in the kernel to be accepted."""
_KERNEL_IN, _KERNEL_OUT = 8192, 32768
"""The kernel's buffers of one connection in bytes; they count as memory of this process."""
_PART = 4096
_MOST_IGNORED = 1 << 16
"""Bytes read and dropped after the answer, so that it arrives although the client sent more."""
_PAUSE = 0.1
"""Pause after a connection that could not be accepted, in seconds."""

_END = re.compile(rb"\r?\n\r?\n")
_LINE = re.compile(r"([A-Z]+) (\S+) HTTP/1\.[0-9]")
_TEXT = "text/plain; charset=utf-8"


class Request(Struct, frozen=True, kw_only=True):
    """The head of a request; the names of its fields are in lower case."""

    target: str
    fields: Mapping[str, str] = field(default_factory=dict)


class Response(Struct, frozen=True, kw_only=True):
    """An answer; `kind` is the media type of its body."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    kind: str = _TEXT


class Client(Struct, eq=False):
    """One connection, closed at `until` (monotonic seconds): what was received, what is unsent."""

    connection: socket.socket
    source: str
    until: float
    head: bytearray = field(default_factory=bytearray)
    unsent: list[memoryview] = field(default_factory=list)
    answered: bool = False
    ignored: int = 0


def displaced(clients: Iterable[Client]) -> Client:
    """Return which connection to close for a new one: the oldest of the busiest address.

    *clients* are in order of arrival. Many connections from one address displace each other; they
    cannot displace kubelet's, which has another address.
    """
    clients = tuple(clients)
    counts = Counter(client.source for client in clients)
    most = max(counts.values())
    return next(client for client in clients if counts[client.source] == most)


class HttpServer:
    """Answers GET and HEAD on `port` until closed."""

    def __init__(
        self,
        address: str,
        port: int,
        answer: Callable[[Request], Response],
        *,
        seconds: float,
    ) -> None:
        """Listen on *address* and *port*; raises OSError when that fails.

        An empty *address* means all addresses of the host, IPv4 and IPv6. Port 0 means any free
        port. *answer* is called on the server's thread. A connection is closed after *seconds*.
        """
        self._answer = answer
        self._seconds = seconds
        self._listener = _listen(address, port)
        self.port = int(self._listener.getsockname()[1])
        self._clients: dict[Client, None] = {}
        self._selector = selectors.DefaultSelector()
        self._wake = os.eventfd(0)
        self._stop = threading.Event()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="probes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, and close every connection; safe to call twice."""
        if self._stop.is_set():
            return
        self._stop.set()
        os.eventfd_write(self._wake, 1)
        self._thread.join(self._seconds)
        if not self._thread.is_alive():
            os.close(self._wake)

    def _serve(self) -> None:
        while not self._stop.is_set():
            try:
                self._turn()
            except Exception:
                # If this thread ended, kubelet would restart the daemon.
                log.exception("HTTP server failed")
                self._stop.wait(_PAUSE)
        for client in tuple(self._clients):
            self._leave(client)
        self._selector.close()
        self._listener.close()

    def _turn(self) -> None:
        """Wait for events, and handle them."""
        ready = [key.data for key, _ in self._selector.select(self._patience())]
        for client in filter(None, ready):
            self._go_on(client)
        if None in ready:
            self._take()
        now = time.monotonic()
        for client in [each for each in self._clients if each.until <= now]:
            self._leave(client)

    def _patience(self) -> float | None:
        """Return the seconds until the next connection expires; None: there is no connection."""
        if not self._clients:
            return None
        return max(0.0, min(each.until for each in self._clients) - time.monotonic())

    def _take(self) -> None:
        for _ in range(MOST_CLIENTS):  # no more, so that accepted connections get their turn
            try:
                connection, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # out of file descriptors or memory: it stays in the queue
                log.debug("cannot accept an HTTP connection", reason=error.strerror)
                if self._clients:
                    self._leave(displaced(self._clients))
                self._stop.wait(_PAUSE)
                return
            if len(self._clients) >= MOST_CLIENTS:
                self._leave(displaced(self._clients))
            connection.setblocking(False)
            client = Client(connection, str(address[0]), until=time.monotonic() + self._seconds)
            self._selector.register(connection, selectors.EVENT_READ, client)
            self._clients[client] = None
            # A request that has arrived already is answered before the connection can be displaced.
            self._go_on(client)

    def _go_on(self, client: Client) -> None:
        """Do what is possible for *client* without waiting."""
        try:
            if client.answered:
                self._ignore(client)
            elif client.unsent:
                self._send(client)
            else:
                self._receive(client)
        except BlockingIOError:
            pass
        except OSError:  # the client disconnected
            self._leave(client)
        except Exception:
            self._leave(client)
            raise

    def _receive(self, client: Client) -> None:
        part = client.connection.recv(_PART)
        if not part:
            self._leave(client)
            return
        client.head += part
        end = _END.search(client.head)
        if end is None and len(client.head) <= MOST_HEAD:
            return
        head = bytes(client.head[: end.start()]) if end else None
        client.head.clear()
        client.unsent = [memoryview(each) for each in self._answer_to(head)]
        self._send(client)

    def _answer_to(self, head: bytes | None) -> tuple[bytes, ...]:
        """Return the parts of the answer to *head*; None: the head exceeds the limit."""
        if head is None or len(head) > MOST_HEAD or head.count(b"\n") > MOST_FIELDS:
            return _encoded(_told(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))
        line, *fields = head.decode("latin-1").replace("\r\n", "\n").split("\n")
        match = _LINE.fullmatch(line)
        if match is None or not all(":" in each for each in fields):
            return _encoded(_told(HTTPStatus.BAD_REQUEST))
        method, target = match.groups()
        if method not in {"GET", "HEAD"}:
            return _encoded(_told(HTTPStatus.METHOD_NOT_ALLOWED), more="Allow: GET, HEAD\r\n")
        pairs = (each.partition(":") for each in fields)
        named = {name.strip().lower(): value.strip() for name, _, value in pairs}
        try:
            response = self._answer(Request(target=target, fields=named))
        except Exception:
            log.exception("HTTP request failed", target=target)
            response = _told(HTTPStatus.INTERNAL_SERVER_ERROR)
        return _encoded(response, body=method == "GET")

    def _send(self, client: Client) -> None:
        while client.unsent:
            try:
                sent = client.connection.send(client.unsent[0])
            except BlockingIOError:
                self._selector.modify(client.connection, selectors.EVENT_WRITE, client)
                return
            client.unsent[0] = client.unsent[0][sent:]
            if not client.unsent[0]:
                del client.unsent[0]
        # Closed with unread bytes, the kernel resets the connection, and the answer is lost.
        client.answered = True
        client.connection.shutdown(socket.SHUT_WR)
        self._selector.modify(client.connection, selectors.EVENT_READ, client)
        self._ignore(client)

    def _ignore(self, client: Client) -> None:
        """Read what comes after the answer, up to the limit."""
        while part := client.connection.recv(_PART):
            client.ignored += len(part)
            if client.ignored > _MOST_IGNORED:
                break
        self._leave(client)

    def _leave(self, client: Client) -> None:
        if client in self._clients:
            del self._clients[client]
            self._selector.unregister(client.connection)
            with contextlib.suppress(OSError):
                client.connection.close()


def _listen(address: str, port: int) -> socket.socket:
    both = not address and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit these buffers. Without them the kernel's buffers grow.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _KERNEL_IN)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL_OUT)
        if both:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((address, port))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _told(status: HTTPStatus) -> Response:
    return Response(status=status, body=f"{status.phrase}\n".encode())


def _encoded(response: Response, *, more: str = "", body: bool = True) -> tuple[bytes, ...]:
    """Return the parts of *response* in sending order; the body is not copied."""
    head = (
        f"HTTP/1.1 {response.status.value} {response.status.phrase}\r\n"
        f"Server: holdfast\r\nContent-Type: {response.kind}\r\n"
        f"Content-Length: {len(response.body)}\r\nConnection: close\r\n{more}\r\n"
    ).encode("latin-1")
    return (head, response.body) if body and response.body else (head,)
