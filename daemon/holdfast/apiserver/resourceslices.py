"""Reads ResourceClaims, and reads, writes and watches a driver's ResourceSlices of one node."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.apiserver.client import ApiServer, ApiServers, decoded
from holdfast.apiserver.watch import watch
from holdfast.apiserver.wire import ApiRequest, node_metadata
from holdfast.model.dra.claims import AllocatedClaim, ClaimResult, OpaqueConfig
from holdfast.model.dra.resourceslice import OwnerReference, ResourceSlice, SliceMetadata, SliceSpec
from holdfast.model.ids import ClaimRef, ClaimUid, PodUid

_GROUP_VERSION = "resource.k8s.io/v1"
SLICES = ("apis", "resource.k8s.io", "v1", "resourceslices")
"""The path of all slices."""
_DEADLINE = 10.0
_PAGE = "100"
_CLAIM_DEADLINE = 5.0
"""Seconds; kubelet gives a whole Prepare 45."""


class SliceEvent(Struct, frozen=True, kw_only=True):
    """A slice that is there, or no more; None: only time has passed. `version` to go on from."""

    version: str
    stored: ResourceSlice | None = None
    deleted: bool = False


class _ListMetadata(Struct, frozen=True, kw_only=True, rename="camel"):
    resource_version: str
    token: str | None = msgspec.field(default=None, name="continue")


class _List(Struct, frozen=True, kw_only=True):
    """A page of slices, or a bookmark, which has only the metadata."""

    metadata: _ListMetadata
    items: tuple[ResourceSlice, ...] | None = None


class NodeSlices:
    """The slices of one driver on one node. Every method raises ApiServerError when it fails."""

    def __init__(self, server: ApiServer, *, driver: str, node: str) -> None:
        """Ask *server* about the slices of *driver* for *node*."""
        self._server = server
        self.driver = driver
        self.node = node
        self._all = ApiRequest(
            about=f"ResourceSlices of node {node}",
            path=SLICES,
            query={"fieldSelector": f"spec.driver={driver},spec.nodeName={node}"},
        )

    async def read_all(self) -> tuple[dict[str, ResourceSlice], str]:
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

    async def follow(self, version: str, *, begun: Callable[[], None]) -> AsyncIterator[SliceEvent]:
        """Yield what happens after *version*, until the server ends the watch.

        *begun* is called once the server has taken the watch. Raise TooOldError when *version* is
        too old: list again.
        """
        async for event in watch(self._server, self._all, version, begun=begun):
            if event.type == "BOOKMARK":
                bookmark = decoded(bytes(event.object), _List)
                yield SliceEvent(version=bookmark.metadata.resource_version)
            else:
                found = decoded(bytes(event.object), ResourceSlice)
                yield SliceEvent(
                    version=found.metadata.resource_version,
                    stored=found,
                    deleted=event.type == "DELETED",
                )

    async def node_uid(self) -> str:
        """Return the uid of the Node, which owns the slices."""
        request = node_metadata(self.node)
        return (await self._server.ask(request, _Object, deadline=_DEADLINE)).metadata.uid

    async def create(self, name: str, spec: SliceSpec, *, owner: str) -> ResourceSlice:
        """Make a slice that goes with the Node of uid *owner*; return it as it is stored."""
        reference = OwnerReference(
            api_version="v1", kind="Node", name=self.node, uid=owner, controller=True
        )
        metadata = SliceMetadata(name=name, owner_references=(reference,))
        return await self._write("POST", SLICES, metadata, spec)

    async def update(self, stored: ResourceSlice, spec: SliceSpec) -> ResourceSlice:
        """Give *stored* another spec unless it has changed since; return it as it is stored."""
        metadata = stored.metadata
        return await self._write("PUT", (*SLICES, metadata.name), metadata, spec)

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
        request = ApiRequest(
            about=f"ResourceSlice {metadata.name}",
            method="DELETE",
            path=(*SLICES, metadata.name),
            body=msgspec.json.encode(options),
        )
        await self._server.ask(request, msgspec.Raw, deadline=_DEADLINE)

    async def _write(
        self, method: str, path: tuple[str, ...], metadata: SliceMetadata, spec: SliceSpec
    ) -> ResourceSlice:
        request = slice_written(method, path, metadata, spec)
        return await self._server.ask(request, ResourceSlice, deadline=_DEADLINE)


def slice_written(
    method: str, path: tuple[str, ...], metadata: SliceMetadata, spec: SliceSpec
) -> ApiRequest:
    """Return the call that writes a slice, and that is answered with it as it is stored."""
    made = ResourceSlice(
        api_version=_GROUP_VERSION, kind="ResourceSlice", metadata=metadata, spec=spec
    )
    return ApiRequest(
        about=f"ResourceSlice {metadata.name}",
        method=method,
        path=path,
        body=msgspec.json.encode(made),
    )


class _Json(Struct, frozen=True, kw_only=True, rename="camel"):
    """Read from Kubernetes' JSON; other fields are left out."""


class _ObjectMetadata(_Json, frozen=True, kw_only=True):
    name: str
    namespace: str = ""
    uid: str


class _Object(_Json, frozen=True, kw_only=True):
    metadata: _ObjectMetadata


class _Opaque(_Json, frozen=True, kw_only=True):
    driver: str
    parameters: Any = None


class _Config(_Json, frozen=True, kw_only=True):
    opaque: _Opaque | None = None


class _Devices(_Json, frozen=True, kw_only=True):
    results: tuple[ClaimResult, ...] | None = None
    config: tuple[_Config, ...] | None = None


class _Allocation(_Json, frozen=True, kw_only=True):
    devices: _Devices = field(default_factory=_Devices)


class _Consumer(_Json, frozen=True, kw_only=True):
    resource: str = ""
    name: str = ""
    uid: str = ""


class _ClaimStatus(_Json, frozen=True, kw_only=True):
    allocation: _Allocation | None = None
    reserved_for: tuple[_Consumer, ...] | None = None


class _ClaimObject(_Object, frozen=True, kw_only=True):
    status: _ClaimStatus | None = None


class ClaimsOnServer(Struct, frozen=True):
    """Reads claims from the API server, by one connection or by a few."""

    server: ApiServer | ApiServers

    async def claim(self, namespace: str, name: str) -> AllocatedClaim:
        """Return the claim of that name, with any uid.

        Raise ObjectGoneError where there is none, ApiServerError where that cannot be found out;
        within 5 s.
        """
        request = ApiRequest(
            about=f"ResourceClaim {namespace}/{name}",
            path=(
                *("apis", "resource.k8s.io", "v1"),
                *("namespaces", namespace, "resourceclaims", name),
            ),
        )
        return _understood(await self.server.ask(request, _ClaimObject, deadline=_CLAIM_DEADLINE))


def _understood(claim: _ClaimObject) -> AllocatedClaim:
    metadata, status = claim.metadata, claim.status or _ClaimStatus()
    devices = status.allocation.devices if status.allocation is not None else None
    return AllocatedClaim(
        ref=ClaimRef(metadata.namespace, ClaimUid(metadata.uid), metadata.name),
        results=None if devices is None else devices.results or (),
        configs=tuple(
            OpaqueConfig(driver=each.opaque.driver, kind=_kind(each.opaque.parameters))
            for each in (devices.config or () if devices is not None else ())
            if each.opaque is not None
        ),
        reserved_for={
            PodUid(each.uid): each.name
            for each in status.reserved_for or ()
            if each.resource == "pods"
        },
        grouped=any(each.resource != "pods" for each in status.reserved_for or ()),
    )


def _kind(parameters: object) -> str:
    kind = parameters.get("kind") if isinstance(parameters, dict) else None
    return kind if isinstance(kind, str) else ""
