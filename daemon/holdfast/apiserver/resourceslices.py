"""Reads, writes and watches the ResourceSlices that a driver has for one node."""

from collections.abc import AsyncIterator

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.apiserver.access import Access
from holdfast.apiserver.client import ApiServer, decoded
from holdfast.apiserver.watch import watch
from holdfast.apiserver.wire import Request
from holdfast.model.dra.resourceslice import (
    OwnerReference,
    ResourceSlice,
    SliceMetadata,
    SliceSpec,
)

_GROUP_VERSION = "resource.k8s.io/v1"
_PATH = ("apis", "resource.k8s.io", "v1", "resourceslices")
_DEADLINE = 10.0
_PAGE = "100"


class SliceEvent(Struct, frozen=True, kw_only=True):
    """A slice that is there, or no more; None: only time has passed. `version` to go on from."""

    version: str
    slice: ResourceSlice | None = None
    deleted: bool = False


class _Versioned(Struct, frozen=True, kw_only=True, rename="camel"):
    resource_version: str
    token: str | None = msgspec.field(default=None, name="continue")


class _List(Struct, frozen=True, kw_only=True):
    metadata: _Versioned
    items: tuple[ResourceSlice, ...] | None = None


class _Named(Struct, frozen=True, kw_only=True):
    uid: str


class _Node(Struct, frozen=True, kw_only=True):
    metadata: _Named


class _Bookmark(Struct, frozen=True, kw_only=True):
    metadata: _Versioned


class NodeSlices:
    """The slices of one driver on one node. Every method raises ApiServerError when it fails."""

    def __init__(self, server: ApiServer, access: Access, *, driver: str, node: str) -> None:
        """Ask *server* about the slices of *driver* for *node*, and watch by *access*."""
        self._server = server
        self._access = access
        self._node = node
        self._all = Request(
            about=f"ResourceSlices of node {node}",
            path=_PATH,
            query={"fieldSelector": f"spec.driver={driver},spec.nodeName={node}"},
        )

    async def list(self) -> tuple[dict[str, ResourceSlice], str]:
        """Return all slices by name, and the version to watch from."""
        found: dict[str, ResourceSlice] = {}
        token = ""
        while True:
            query = {**self._all.query, "limit": _PAGE} | ({"continue": token} if token else {})
            page = await self._server.ask(
                replace(self._all, query=query), _List, deadline=_DEADLINE
            )
            found |= {each.metadata.name: each for each in page.items or ()}
            token = page.metadata.token or ""
            if not token:
                return found, page.metadata.resource_version

    async def follow(self, version: str) -> AsyncIterator[SliceEvent]:
        """Yield what happens after *version*, until the server ends the watch.

        Raise TooOldError when *version* is too old: list again.
        """
        observe = self._server.observe
        async for event in watch(self._access, self._all, version, observe=observe):
            if event.type == "BOOKMARK":
                bookmark = decoded(bytes(event.object), _Bookmark)
                yield SliceEvent(version=bookmark.metadata.resource_version)
            else:
                found = decoded(bytes(event.object), ResourceSlice)
                yield SliceEvent(
                    version=found.metadata.resource_version,
                    slice=found,
                    deleted=event.type == "DELETED",
                )

    async def node_uid(self) -> str:
        """Return the uid of the Node, which owns the slices."""
        request = Request(about=f"Node {self._node}", path=("api", "v1", "nodes", self._node))
        return (await self._server.ask(request, _Node, deadline=_DEADLINE)).metadata.uid

    async def create(self, name: str, spec: SliceSpec, *, owner: str) -> ResourceSlice:
        """Make a slice that goes with the Node of uid *owner*; return it as it is stored."""
        reference = OwnerReference(
            api_version="v1", kind="Node", name=self._node, uid=owner, controller=True
        )
        made = _slice(SliceMetadata(name=name, owner_references=(reference,)), spec)
        return await self._write("POST", made, _PATH)

    async def update(self, stored: ResourceSlice, spec: SliceSpec) -> ResourceSlice:
        """Give *stored* another spec unless it has changed since; return it as it is stored."""
        return await self._write(
            "PUT", _slice(stored.metadata, spec), (*_PATH, stored.metadata.name)
        )

    async def delete(self, stored: ResourceSlice) -> None:
        """Remove *stored* unless it has changed since; raise ObjectGoneError if it is gone."""
        metadata = stored.metadata
        options = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "preconditions": {
                "uid": metadata.uid,
                "resourceVersion": metadata.resource_version,
            },
        }
        request = Request(
            about=f"ResourceSlice {metadata.name}",
            method="DELETE",
            path=(*_PATH, metadata.name),
            body=msgspec.json.encode(options),
        )
        await self._server.ask(request, msgspec.Raw, deadline=_DEADLINE)

    async def _write(
        self, method: str, made: ResourceSlice, path: tuple[str, ...]
    ) -> ResourceSlice:
        request = Request(
            about=f"ResourceSlice {made.metadata.name}",
            method=method,
            path=path,
            body=msgspec.json.encode(made),
        )
        return await self._server.ask(request, ResourceSlice, deadline=_DEADLINE)


def _slice(metadata: SliceMetadata, spec: SliceSpec) -> ResourceSlice:
    return ResourceSlice(
        api_version=_GROUP_VERSION, kind="ResourceSlice", metadata=metadata, spec=spec
    )
