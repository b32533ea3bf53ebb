"""One HTTPS connection to the API server: where it is, our token, and calls that block."""

import contextlib
import http.client
import platform
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote, urlencode

from msgspec import Struct, field

import holdfast
from holdfast.errors import ApiServerError, LaneStuckError
from holdfast.runtime.clock import Clock

_MOST_TOKEN = 64 * 1024
"""Bytes."""
MOST_BYTES = 8 << 20
"""Bytes of an answer; the API server itself stores no object of more than 1.5 MiB."""

MERGE_PATCH = "application/strategic-merge-patch+json"
"""The type of a body that is merged into an object, lists by the keys of their items."""

_IDLE = 20.0
"""Seconds after which an unused connection is not trusted: whatever is between may have cut it."""
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
"""A peer that is gone without a word is noticed after a minute."""


class _Socket(ssl.SSLSocket):
    """Closes itself if reset before TLS began; before Python 3.13, `ssl` leaves it open."""

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Read as the base does, which looks so for a connection that is gone."""
        try:
            return super().recv(buflen, flags)
        except ConnectionError:
            self.close()
            raise


class Access(Struct, frozen=True, kw_only=True):
    """The address of the API server and the files of the service account; see `check`."""

    host: str
    port: int
    ca: Path
    token: Path

    def __str__(self) -> str:
        """Return ``host:port``."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def check(self) -> None:
        """Raise ApiServerError outside of a pod, or in one without a service account's token."""
        if not self.host or not self.port:
            raise ApiServerError(
                "cannot find the API server: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT "
                "do not name it; run holdfast in a pod"
            )
        if not self.token.is_file():
            raise ApiServerError(
                f"cannot find a service account's token: there is no {self.token}; set "
                "automountServiceAccountToken to true in holdfast's pod"
            )

    def bearer(self) -> str:
        """Return the token as its file has it now: kubelet renews it long before it expires."""
        try:
            with self.token.open("rb") as file:
                value = file.read(_MOST_TOKEN).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ApiServerError(f"cannot read the token from {self.token}: {error}") from error
        if not value or not value.isprintable():
            raise ApiServerError(f"cannot use the token in {self.token}: it is empty or no token")
        return value

    def trust(self) -> ssl.SSLContext:
        """Return what accepts servers of the cluster's own CA, and no others."""
        try:
            trusted = ssl.create_default_context(cafile=self.ca)
        except OSError as error:  # ssl.SSLError is one
            raise ApiServerError(
                f"cannot read the cluster's CA from {self.ca}: {error.strerror or error}"
            ) from error
        # From Python 3.13 on it is set: CAs of old EKS clusters and of MicroK8s lack extensions.
        trusted.verify_flags &= ~ssl.VERIFY_X509_STRICT
        trusted.sslsocket_class = _Socket
        return trusted


def in_cluster(variables: Mapping[str, str], folder: Path) -> Access:
    """Return how a pod with the environment *variables* reaches its API server.

    *folder* has the files of its service account. What comes of it is checked at each connection:
    a token may come late.
    """
    port = variables.get("KUBERNETES_SERVICE_PORT", "")
    return Access(
        host=variables.get("KUBERNETES_SERVICE_HOST", ""),
        port=int(port) if port.isascii() and port.isdigit() else 0,
        ca=folder / "ca.crt",
        token=folder / "token",
    )


def node_name(named: str, variables: Mapping[str, str]) -> str:
    """Return the name of this node in the cluster: *named*, or else what the pod or host says."""
    return named or variables.get("NODE_NAME") or platform.node()


_METADATA_ALONE = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
"""What to accept of a Node: its status is long, and nobody here reads it."""


class ApiRequest(Struct, frozen=True, kw_only=True):
    """One call: `path` in parts that are not escaped yet, a query, and JSON as a body.

    `about` is what people call the thing, such as ``ResourceClaim default/one``. `content` is the
    type of the body: a PATCH says by it which kind of patch it is.
    """

    about: str
    method: str = "GET"
    path: tuple[str, ...]
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    content: str = "application/json"
    accept: str = "application/json"

    @property
    def target(self) -> str:
        """Return path and query as they are sent."""
        path = "/" + "/".join(quote(part, safe="") for part in self.path)
        return f"{path}?{urlencode(self.query)}" if self.query else path


def node_metadata(node: str) -> ApiRequest:
    """Return the call that reads the metadata of *node*."""
    return ApiRequest(
        about=f"Node {node}", path=("api", "v1", "nodes", node), accept=_METADATA_ALONE
    )


class ApiResponse(Struct, frozen=True, kw_only=True):
    """What came back; `retry_after` is in seconds, None where the server names none."""

    status: int
    body: bytes
    retry_after: float | None = None


class Wire:
    """A connection that is opened when needed and kept. For one thread at a time, but `abort`."""

    def __init__(self, access: Access, clock: Clock) -> None:
        """Connect to the server of *access* at the first call."""
        self._access = access
        self._clock = clock
        self._connection: http.client.HTTPSConnection | None = None
        self._socket: socket.socket | None = None
        self._used = 0.0
        self._aborted = False

    def exchange(self, request: ApiRequest, timeout: float) -> ApiResponse:
        """Send *request* and return the answer, whatever its status.

        *timeout* is for each wait on the network, in seconds; `abort` limits the whole. Raise
        ApiServerError when there is no whole answer.
        """
        self._aborted = False
        with self._told():
            if self._clock.monotonic() - self._used > _IDLE:
                self.close()
            reused = self._connected
            try:
                answer = whole(self._send(request, timeout))
            except (ConnectionError, ssl.SSLEOFError):
                # A server may close an idle connection at any time: then it has not read the call.
                if not reused or request.method != "GET" or self._aborted:
                    raise
                self.close()
                answer = whole(self._send(request, timeout))
            self._used = self._clock.monotonic()
            return answer

    def exchange_within(self, request: ApiRequest, seconds: float) -> ApiResponse:
        """Do as `exchange` for one who has no lane: the whole takes at most *seconds*."""
        ends = threading.Timer(seconds, self.abort)
        ends.daemon = True
        ends.start()
        try:
            return self.exchange(request, seconds)
        except ApiServerError as error:
            if not self._aborted:
                raise
            raise unanswered(self._access, TimeoutError()) from error
        finally:
            ends.cancel()

    def stream(self, request: ApiRequest, timeout: float) -> http.client.HTTPResponse | ApiResponse:
        """Send *request* and return its answer to read from, or the whole answer that refused it.

        The connection is new, and serves nothing else until `close`. Otherwise as `exchange`.
        """
        with self._told():
            self.close()
            response = self._send(request, timeout)
            return response if response.status < HTTPStatus.MULTIPLE_CHOICES else whole(response)

    def patience(self, timeout: float) -> None:
        """Let each wait for the rest of a streamed answer take *timeout* seconds."""
        if self._socket is not None:
            self._socket.settimeout(timeout)

    def abort(self) -> None:
        """Make whatever call is under way fail at once; from any thread."""
        self._aborted = True
        if (connected := self._socket) is not None:
            with contextlib.suppress(OSError):
                # Past TLS, whose own state belongs to the thread that is in the call.
                socket.socket.shutdown(connected, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        former, self._connection, self._socket = self._connection, None, None
        if former is not None:
            former.close()

    @property
    def _connected(self) -> bool:
        # http.client drops the socket by itself when the server says that it is going to.
        return self._connection is not None and self._connection.sock is not None

    def _send(self, request: ApiRequest, timeout: float) -> http.client.HTTPResponse:
        if self._connection is None or not self._connected:
            self._connection = self._connect(timeout)
        self.patience(timeout)
        headers = {
            "Accept": request.accept,
            "Authorization": f"Bearer {self._access.bearer()}",
            "User-Agent": f"holdfast/{holdfast.__version__}",
        }
        if request.body is not None:
            headers["Content-Type"] = request.content
        self._connection.request(request.method, request.target, body=request.body, headers=headers)
        return self._connection.getresponse()

    def _connect(self, timeout: float) -> http.client.HTTPSConnection:
        access = self._access
        access.check()
        # The CA is read for each connection, so that one that was renewed is known.
        connection = http.client.HTTPSConnection(
            access.host, access.port, timeout=timeout, context=access.trust()
        )
        connection.connect()
        self._socket = connection.sock
        if self._aborted:  # meanwhile, when there was no socket yet to shut
            connection.close()
            raise ConnectionAbortedError("the call was given up")
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            self._socket.setsockopt(socket.IPPROTO_TCP, option, value)
        return connection

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Close the connection at any failure, and say what failed."""
        try:
            yield
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise unanswered(self._access, error) from error
        except BaseException:
            self.close()
            raise


def whole(response: http.client.HTTPResponse) -> ApiResponse:
    """Read *response* to its end; raise ValueError when that is longer than an object can be."""
    body = response.read(MOST_BYTES + 1)
    if len(body) > MOST_BYTES:
        raise ValueError(f"its answer is longer than {MOST_BYTES} bytes")
    if response.length:  # what was said to come, and did not
        raise http.client.IncompleteRead(body, response.length)
    after = response.headers.get("Retry-After", "")
    return ApiResponse(
        status=response.status,
        body=body,
        retry_after=float(after) if after.isascii() and after.isdigit() else None,
    )


def unanswered(access: Access, error: Exception) -> ApiServerError:
    """Return what to raise where *error* is all that came from the server of *access*."""
    return ApiServerError(f"cannot ask the API server at {access}: {reason(error)}")


def reason(error: Exception) -> str:
    """Return what *error* of a connection says, to complete a text with."""
    if isinstance(error, TimeoutError | LaneStuckError):
        return "it does not answer in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, http.client.IncompleteRead):
        return "the answer was cut off"
    return str(error) or type(error).__name__
