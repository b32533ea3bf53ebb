"""Asks the API server what the doctor wants to know; nothing is stored there."""

from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.apiserver.access import Access
from holdfast.apiserver.client import decoded, refusal
from holdfast.apiserver.wire import MERGE_PATCH, Request, Wire
from holdfast.model.dra.resourceslice import (
    CounterSet,
    Quantity,
    ResourceSlice,
    SliceContent,
    SliceDevice,
    SliceMetadata,
    SlicePool,
    SliceSpec,
    Taint,
)
from holdfast.model.dra.slices import Kept, kept_of, slice_name
from holdfast.model.dra.taints import HELD, NO_SCHEDULE

T = TypeVar("T")

_PATIENCE = 5.0
"""Seconds of each wait on the network."""
_GROUP = "resource.k8s.io"
_SLICES = ("apis", _GROUP, "v1", "resourceslices")
_PLACE = 0xFFFFF
"""The number of the slice that is tried; no node has so many."""


class Right(Struct, frozen=True, kw_only=True):
    """What the daemon may ask of the API server."""

    verb: str
    resource: str
    group: str = _GROUP
    subresource: str = ""

    def __str__(self) -> str:
        """Return it as ``kubectl auth can-i`` takes it."""
        name = f"{self.resource}.{self.group}" if self.group else self.resource
        part = f" --subresource={self.subresource}" if self.subresource else ""
        return f"{self.verb} {name}{part}"


RIGHTS = (
    Right(verb="get", resource="resourceclaims"),
    *(
        Right(verb=verb, resource="resourceslices")
        for verb in ("list", "watch", "create", "update", "delete")
    ),
    Right(verb="get", resource="nodes", group=""),
)
"""All that claims need; the chart's role has the same with `dra.enabled`."""

EVENT_RIGHTS = (
    Right(verb="create", resource="events", group=""),
    Right(verb="patch", resource="nodes", group="", subresource="status"),
)
"""All that `events.enabled` needs; the chart's role has the same with it."""


class _Version(Struct, frozen=True, kw_only=True, rename="camel"):
    git_version: str = ""


class NodeFacts(Struct, frozen=True, kw_only=True):
    """What the Node object says: kubelet's version, and what device plugins advertise."""

    kubelet: str
    allocatable: Mapping[str, str]


class _Verdict(Struct, frozen=True, kw_only=True):
    allowed: bool = False


class _Review(Struct, frozen=True, kw_only=True):
    status: _Verdict = field(default_factory=_Verdict)


class _NodeInfo(Struct, frozen=True, kw_only=True, rename="camel"):
    kubelet_version: str = ""


class _NodeStatus(Struct, frozen=True, kw_only=True, rename="camel"):
    node_info: _NodeInfo = field(default_factory=_NodeInfo)
    allocatable: Mapping[str, str] = field(default_factory=dict)


class _Node(Struct, frozen=True, kw_only=True):
    status: _NodeStatus = field(default_factory=_NodeStatus)


class _Slices(Struct, frozen=True, kw_only=True):
    items: tuple[ResourceSlice, ...] | None = None


class Cluster:
    """The API server as the token of the service account may see it.

    Every method blocks, and raises ApiServerError when it cannot be asked, ApiRefusedError when it
    refuses.
    """

    def __init__(self, access: Access) -> None:
        """Ask the server of *access*."""
        self._wire = Wire(access)

    def close(self) -> None:
        """Close the connection."""
        self._wire.close()

    def version(self) -> str:
        """Return the server's version, such as ``v1.36.2``."""
        return self._ask(Request(about="the version", path=("version",)), _Version).git_version

    def lacking(self, rights: Iterable[Right]) -> tuple[Right, ...]:
        """Return which of *rights* the token does not have, by the server's own word."""
        return tuple(each for each in rights if not self._allowed(each))

    def node(self, name: str) -> NodeFacts:
        """Return what the Node *name* says."""
        found = self._ask(Request(about=f"Node {name}", path=("api", "v1", "nodes", name)), _Node)
        return NodeFacts(
            kubelet=found.status.node_info.kubelet_version, allocatable=found.status.allocatable
        )

    def touch_status(self, name: str) -> None:
        """Ask for a patch of the status of Node *name* that changes nothing."""
        request = Request(
            about=f"the status of Node {name}",
            method="PATCH",
            path=("api", "v1", "nodes", name, "status"),
            query={"dryRun": "All"},
            content=MERGE_PATCH,
            body=b"{}",
        )
        self._ask(request, msgspec.Raw)

    def slices(self, node: str) -> Sequence[ResourceSlice]:
        """Return the slices of all drivers for *node*."""
        query = {"fieldSelector": f"spec.nodeName={node}"}
        request = Request(about=f"ResourceSlices of node {node}", path=_SLICES, query=query)
        return self._ask(request, _Slices).items or ()

    def keeps(self, driver: str, node: str) -> Kept:
        """Return what the server keeps of a slice that is new."""
        taint = Taint(key=f"{driver}/{HELD}", value="doctor", effect=NO_SCHEDULE)
        device = SliceDevice(name="doctor", taints=(taint,), allow_multiple_allocations=True)
        counters = CounterSet(name="doctor", counters={"doctor": Quantity(value="1")})
        devices = SliceContent(devices=(device,))
        counted = SliceContent(shared_counters=(counters,))
        return replace(
            kept_of(devices, self._tried(devices, driver, node)),
            counters=kept_of(counted, self._tried(counted, driver, node)).counters,
        )

    def _tried(self, content: SliceContent, driver: str, node: str) -> SliceContent:
        """Return what would be stored of a slice with *content*."""
        name = slice_name(driver, node, _PLACE)
        made = ResourceSlice(
            api_version=f"{_GROUP}/v1",
            kind="ResourceSlice",
            metadata=SliceMetadata(name=name),
            spec=SliceSpec(
                driver=driver,
                node_name=node,
                pool=SlicePool(name=node, generation=1, resource_slice_count=1),
                devices=content.devices,
                shared_counters=content.shared_counters,
            ),
        )
        request = Request(
            about=f"ResourceSlice {name}, as a dry run",
            method="POST",
            path=_SLICES,
            query={"dryRun": "All"},
            body=msgspec.json.encode(made),
        )
        return self._ask(request, ResourceSlice).spec.content

    def _allowed(self, right: Right) -> bool:
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": msgspec.to_builtins(right)},
        }
        request = Request(
            about=f"a review of the right to {right}",
            method="POST",
            path=("apis", "authorization.k8s.io", "v1", "selfsubjectaccessreviews"),
            body=msgspec.json.encode(review),
        )
        return self._ask(request, _Review).status.allowed

    def _ask(self, request: Request, kind: type[T]) -> T:
        answer = self._wire.exchange(request, _PATIENCE)
        if answer.status >= HTTPStatus.MULTIPLE_CHOICES:
            raise refusal(request, answer)
        return decoded(answer.body, kind)
