"""An API server over HTTPS: authentication, watches, and every kind of bad behaviour on demand."""

import base64
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from msgspec import Struct

from simulated.cluster.certificates import Certificates
from simulated.cluster.messages import bookmark, place_of, seen_through, status
from simulated.cluster.store import Object, Place, RefusedError, Selector, Store

_OPEN_END = 3600.0
_STEP = 0.2
_SHUT_DOWN = 0.02
"""Seconds between looks whether to stop."""
_DENIED = (
    "ValidatingAdmissionPolicy '{0}' with binding '{0}' denied request: this user may only modify "
    "{1} that belong to the node the pod is running on"
)


class Rudeness(Struct, frozen=True, kw_only=True):
    """What is done to the next `times` requests whose method and path match.

    `code` answers with that Status (and `after` as Retry-After). `stall` waits for that many
    seconds before anything is sent, `trickle` sends one byte each 50 ms. `cut` closes the
    connection after so many bytes of the answer; `garbage` is sent as a body instead of it.
    """

    method: str = ""
    path: str = ""
    times: int = 1
    code: int = 0
    after: int | None = None
    stall: float = 0.0
    trickle: bool = False
    cut: int | None = None
    garbage: bytes | None = None


class ApiServer:
    """Serves a store on a free port of 127.0.0.1, until closed."""

    def __init__(self, store: Store, files: Certificates, *, token: str, node: str) -> None:
        """Let *token* in as the pod of *node*; further tokens are in `tokens`."""
        self.store = store
        self.tokens: dict[str, str] = {token: node}
        """The node of each valid token's pod; empty: one that may do everything."""
        self.forbidden: set[tuple[str, str]] = set()
        """Verb and resource of what RBAC does not allow."""
        self.gone_as_event = True
        """Whether a watch from too old a version is refused within the stream, or by its status."""
        self.requests: list[str] = []
        """``GET /path?query`` of each request, in order."""
        self.whole: list[str] = []
        """What was sent with more than its metadata, as in `requests`."""
        self.greets = threading.Event()
        """Whether a client that connects is answered; until then it waits in its TLS handshake."""
        self.greets.set()
        self.knocks = 0
        """How many connections have been made."""
        self._rude: list[list[Any]] = []
        self._lock = threading.Lock()
        self.closing = threading.Event()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.certificate, files.key)
        self._http = _Http(("127.0.0.1", 0), self, context)
        self.port = self._http.server_port
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(_SHUT_DOWN,), daemon=True
        )
        self._thread.start()

    @property
    def environment(self) -> dict[str, str]:
        """Return what kubelet sets for a pod, by which it reaches the server."""
        return {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self.port),
        }

    def be_rude(self, rudeness: Rudeness) -> None:
        """Behave like that from the next request on that it concerns."""
        with self._lock:
            self._rude.append([rudeness, rudeness.times])

    def be_polite(self) -> None:
        """Forget every kind of rudeness."""
        with self._lock:
            self._rude.clear()

    def rudeness(self, method: str, path: str) -> Rudeness | None:
        """Return how to treat this request."""
        with self._lock:
            for each in self._rude:
                rude, left = each
                if left > 0 and rude.method in {"", method} and rude.path in path:
                    each[1] -= 1
                    return cast("Rudeness", rude)
        return None

    def close(self) -> None:
        """Stop, and cut every connection."""
        self.closing.set()
        self.greets.set()
        self.store.end_watches()
        self._http.shutdown()
        self._http.server_close()
        self._http.cut_all()
        self._thread.join()

    def cut_all(self) -> None:
        """Cut every connection, as a load balancer does that restarts."""
        self._http.cut_all()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, place: tuple[str, int], server: ApiServer, context: ssl.SSLContext) -> None:
        self.api = server
        self._context = context
        self._open: set[socket.socket] = set()
        super().__init__(place, _Handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        request.settimeout(30)
        self.api.knocks += 1
        self.api.greets.wait()
        try:
            wrapped = self._context.wrap_socket(request, server_side=True)
        except OSError:  # a client that does not trust us, or hung up
            return
        self._open.add(wrapped)
        try:
            super().finish_request(cast("Any", wrapped), client_address)
        except OSError:
            pass
        finally:
            self._open.discard(wrapped)
            wrapped.close()

    def cut_all(self) -> None:
        for each in list(self._open):
            with _hang_ups():
                socket.socket.shutdown(each, socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # as the real one: else each body waits 40 ms for an ACK
    server: _Http

    def do_GET(self) -> None:
        self._serve(self._get)

    def do_POST(self) -> None:
        self._serve(self._post)

    def do_PUT(self) -> None:
        self._serve(self._put)

    def do_PATCH(self) -> None:
        self._serve(self._patch)

    def do_DELETE(self) -> None:
        self._serve(self._delete)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base
        pass

    def _serve(self, act: Callable[[Place, str], Object | None]) -> None:
        api = self.server.api
        length = int(self.headers.get("Content-Length") or 0)
        self._sent: Object = json.loads(self.rfile.read(length)) if length else {}
        api.requests.append(f"{self.command} {self.path}")
        parts = urlsplit(self.path)
        self._query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self._rude = api.rudeness(self.command, self.path)
        try:
            self._suffer(self._rude)
            self._node = self._authenticated()
            if parts.path == "/version":
                self._answer(200, {"major": "1", "gitVersion": f"v1.{api.store.rules.minor}.0"})
                return
            place, subresource = place_of(parts.path)
            answer = act(place, subresource)
        except RefusedError as error:
            self._answer(error.code, status(error), after=error.after)
        else:
            if answer is not None:
                self._answer(201 if self.command == "POST" else 200, answer)

    def _suffer(self, rude: Rudeness | None) -> None:
        if rude is not None and rude.stall:
            self.server.api.closing.wait(rude.stall)
        if rude is not None and rude.code:
            raise RefusedError(rude.code, "Rude", "as the test wanted it", after=rude.after)

    def _authenticated(self) -> str:
        kind, _, token = (self.headers.get("Authorization") or "").partition(" ")
        node = self.server.api.tokens.get(token)
        if kind != "Bearer" or node is None:
            raise RefusedError(401, "Unauthorized", "Unauthorized")
        return node

    def _allow(self, verb: str, place: Place, subresource: str = "") -> None:
        resource = f"{place.kind.plural}/{subresource}" if subresource else place.kind.plural
        if (verb, resource) in self.server.api.forbidden:
            raise RefusedError(
                403,
                "Forbidden",
                f'{place.kind.qualified} is forbidden: User "system:serviceaccount:kube-system:'
                f'holdfast" cannot {verb} resource "{resource}" in API group '
                f'"{place.kind.group_version.rpartition("/")[0]}" at the cluster scope',
            )

    def _admit(self, place: Place, found: Object) -> None:
        """Let the pod of a node write of that node alone, as the chart's policies do."""
        plural = place.kind.plural
        kinds = {
            "resourceslices": ("ResourceSlices", found.get("spec", {}).get("nodeName")),
            "events": ("Events", found.get("source", {}).get("host")),
            "nodes": ("Nodes", place.name),
        }
        kind, node = kinds.get(plural, (plural, self._node))
        if self._node and node != self._node:
            denied = _DENIED.format(f"{plural}-policy-holdfast", kind)
            text = f'{place.kind.qualified} "{place.name}" is forbidden: {denied}'
            raise RefusedError(422, "Invalid", text)

    def _get(self, place: Place, subresource: str) -> Object | None:
        store = self.server.api.store
        if place.name:
            self._allow("get", place, subresource)
            return self._as_asked(store.get(place))
        selector = Selector.of(self._query.get("fieldSelector", ""), place.kind.plural)
        if self._query.get("watch") in {"1", "true"}:
            self._allow("watch", place)
            self._watch(place, selector)
            return None
        self._allow("list", place)
        return self._page(place, selector)

    def _as_asked(self, found: Object) -> Object:
        """Return *found*, or its metadata alone where the client wants no more."""
        if ";as=PartialObjectMetadata;" in self.headers.get("Accept", ""):
            kind = {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata"}
            return {**kind, "metadata": found["metadata"]}
        self.server.api.whole.append(f"{self.command} {self.path}")
        return found

    def _page(self, place: Place, selector: Selector) -> Object:
        store = self.server.api.store
        found, version = store.find(place, selector)
        start = 0
        if self._query.get("continue"):
            start, version = json.loads(base64.b64decode(self._query["continue"]))
            if version < store.compacted:
                text = "The provided continue parameter is too old"
                raise RefusedError(410, "Expired", text)
        most = int(self._query.get("limit") or len(found) or 1)
        metadata: Object = {"resourceVersion": str(version)}
        if start + most < len(found):
            token = json.dumps([start + most, version]).encode()
            metadata["continue"] = base64.b64encode(token).decode()
        kind = found[0]["kind"] if found else "Object"
        return {
            "kind": f"{kind}List",
            "apiVersion": place.kind.group_version,
            "metadata": metadata,
            # The items of a list name neither their kind nor their version.
            "items": [
                {key: value for key, value in each.items() if key not in {"kind", "apiVersion"}}
                for each in found[start : start + most]
            ],
        }

    def _post(self, place: Place, subresource: str) -> Object:
        if place.kind.plural == "selfsubjectaccessreviews":
            return self._reviewed()
        self._allow("create", place, subresource)
        self._admit(place, self._sent)
        dry_run = self._query.get("dryRun") == "All"
        return self.server.api.store.create(place, self._sent, dry_run=dry_run)

    def _reviewed(self) -> Object:
        asked = self._sent["spec"]["resourceAttributes"]
        resource = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
        forbidden = (asked["verb"], resource) in self.server.api.forbidden
        return {**self._sent, "metadata": {}, "status": {"allowed": not forbidden}}

    def _put(self, place: Place, subresource: str) -> Object:
        self._allow("update", place, subresource)
        self._admit(place, self._sent)
        return self.server.api.store.update(place, self._sent, subresource=subresource)

    def _patch(self, place: Place, subresource: str) -> Object:
        if self.headers.get("Content-Type") != "application/strategic-merge-patch+json":
            text = "the body of the request was in an unknown format"
            raise RefusedError(415, "UnsupportedMediaType", text)
        self._allow("patch", place, subresource)
        self._admit(place, self._sent)
        return self.server.api.store.patch(place, self._sent, subresource=subresource)

    def _delete(self, place: Place, subresource: str) -> Object:
        store = self.server.api.store
        if not place.name:
            self._allow("deletecollection", place)
            selector = Selector.of(self._query.get("fieldSelector", ""), place.kind.plural)
            store.delete_collection(place, selector)
            return {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        self._allow("delete", place, subresource)
        self._admit(place, store.get(place))
        grace = self._sent.get("gracePeriodSeconds")
        return store.delete(place, self._sent.get("preconditions"), grace=grace)

    def _watch(self, place: Place, selector: Selector) -> None:
        api = self.server.api
        version = int(self._query.get("resourceVersion") or 0)
        if not version:
            raise RefusedError(400, "BadRequest", "this server watches from a version alone")
        try:
            api.store.since(version)
        except RefusedError as error:
            if not api.gone_as_event or error.code != 410:
                raise
            self._begin_stream()
            self._event("ERROR", status(error))
            self._chunk(b"")
            return
        ended = self.server.api.store.ended  # from here on, for the client takes it for open
        self._begin_stream()
        with _hang_ups():
            for kind, each in self._events(place, selector, version, ended):
                self._event(kind, each if kind == "ERROR" else self._as_asked(each))
            self._chunk(b"")

    def _events(
        self, place: Place, selector: Selector, version: int, ended: int
    ) -> Iterator[tuple[str, Object]]:
        store = self.server.api.store
        bookmarks = store.bookmarks
        left = float(self._query.get("timeoutSeconds") or _OPEN_END)
        while left > 0 and ended == store.ended:
            try:
                changes = store.since(version)
            except RefusedError as error:
                yield "ERROR", status(error)
                return
            for change in changes:
                version = change.version
                if change.place.kind == place.kind:
                    yield from seen_through(selector, change)
            if bookmarks != store.bookmarks:
                bookmarks = store.bookmarks
                if self._query.get("allowWatchBookmarks") == "true":
                    yield "BOOKMARK", bookmark(place, store.version)
            with store.changed:
                seen = version, bookmarks, ended
                if seen == (store.version, store.bookmarks, store.ended):
                    store.changed.wait(_STEP)
                    left -= _STEP

    def _begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _event(self, kind: str, content: Object) -> None:
        self._chunk(json.dumps({"type": kind, "object": content}).encode() + b"\n")

    def _chunk(self, content: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))
        self.wfile.flush()

    def _answer(self, code: int, content: Object, *, after: int | None = None) -> None:
        body = json.dumps(content).encode()
        rude = self._rude
        if rude is not None and rude.garbage is not None:
            body = rude.garbage
        with _hang_ups():
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            if after is not None:
                self.send_header("Retry-After", str(after))
            self.end_headers()
            if rude is not None and rude.trickle:
                for place in range(len(body)):
                    self.wfile.write(body[place : place + 1])
                    if self.server.api.closing.wait(0.05):
                        return
            elif rude is not None and rude.cut is not None:
                self.wfile.write(body[: rude.cut])
                self.close_connection = True
                socket.socket.shutdown(self.connection, socket.SHUT_RDWR)
            else:
                self.wfile.write(body)


@contextmanager
def _hang_ups() -> Iterator[None]:
    """Bear a client that went away."""
    try:
        yield
    except OSError:
        return


def write_service_account(folder: Path, files: Certificates, token: str) -> Path:
    """Write what a pod finds of its service account to *folder*, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ca.crt").write_bytes(files.authority.read_bytes())
    (folder / "token").write_text(token)
    (folder / "namespace").write_text("kube-system")
    return folder
