"""Reads ResourceClaims for Prepare."""

from typing import Any

from msgspec import Struct, field

from holdfast.apiserver.client import ApiServer
from holdfast.apiserver.connections import ApiServers
from holdfast.apiserver.wire import Request
from holdfast.model.dra.claims import AllocatedClaim, ClaimResult, OpaqueConfig
from holdfast.model.ids import ClaimRef, ClaimUid, PodUid

_DEADLINE = 5.0
"""Seconds; kubelet gives a whole Prepare 45."""


class _Json(Struct, frozen=True, kw_only=True, rename="camel"):
    """Read from Kubernetes' JSON; other fields are left out."""


class _Metadata(_Json, frozen=True, kw_only=True):
    name: str
    namespace: str = ""
    uid: str
    deletion_timestamp: str | None = None


class _Result(_Json, frozen=True, kw_only=True):
    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    share_id: str | None = field(default=None, name="shareID")


class _Opaque(_Json, frozen=True, kw_only=True):
    driver: str
    parameters: Any = None


class _Config(_Json, frozen=True, kw_only=True):
    opaque: _Opaque | None = None


class _Devices(_Json, frozen=True, kw_only=True):
    results: tuple[_Result, ...] | None = None
    config: tuple[_Config, ...] | None = None


class _Allocation(_Json, frozen=True, kw_only=True):
    devices: _Devices = field(default_factory=_Devices)


class _Consumer(_Json, frozen=True, kw_only=True):
    resource: str = ""
    name: str = ""
    uid: str = ""


class _Status(_Json, frozen=True, kw_only=True):
    allocation: _Allocation | None = None
    reserved_for: tuple[_Consumer, ...] | None = None


class _Claim(_Json, frozen=True, kw_only=True):
    metadata: _Metadata
    status: _Status | None = None


class ClaimsOnServer:
    """Reads claims from the API server."""

    def __init__(self, server: ApiServer | ApiServers) -> None:
        """Ask *server*, by one connection or by a few."""
        self._server = server

    async def claim(self, namespace: str, name: str) -> AllocatedClaim:
        """Return the claim of that name, with any uid.

        Raise ObjectGoneError where there is none, ApiServerError where that cannot be found out;
        within 5 s.
        """
        request = Request(
            about=f"ResourceClaim {namespace}/{name}",
            path=(
                *("apis", "resource.k8s.io", "v1"),
                *("namespaces", namespace, "resourceclaims", name),
            ),
        )
        return _understood(await self._server.ask(request, _Claim, deadline=_DEADLINE))


def _understood(claim: _Claim) -> AllocatedClaim:
    metadata, status = claim.metadata, claim.status or _Status()
    devices = status.allocation.devices if status.allocation is not None else None
    return AllocatedClaim(
        ref=ClaimRef(metadata.namespace, ClaimUid(metadata.uid), metadata.name),
        results=None if devices is None else tuple(map(_result, devices.results or ())),
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
        deleted=metadata.deletion_timestamp is not None,
    )


def _result(result: _Result) -> ClaimResult:
    return ClaimResult(
        request=result.request,
        driver=result.driver,
        pool=result.pool,
        device=result.device,
        admin_access=bool(result.admin_access),
        share_id=result.share_id or "",
    )


def _kind(parameters: object) -> str:
    kind = parameters.get("kind") if isinstance(parameters, dict) else None
    return kind if isinstance(kind, str) else ""
