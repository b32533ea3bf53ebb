"""Reads and follows the labels of this node."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import closing

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.apiserver.client import ApiServer, decoded, understood
from holdfast.apiserver.watch import watch
from holdfast.apiserver.wire import Access, Wire, node_metadata
from holdfast.runtime.clock import Clock

_DEADLINE = 10.0

Labels = Mapping[str, str]


class _NodeMetadata(Struct, frozen=True, kw_only=True, rename="camel"):
    resource_version: str
    labels: Labels = field(default_factory=dict)


class _NodeWithLabels(Struct, frozen=True, kw_only=True):
    metadata: _NodeMetadata


class NodeOnServer:
    """The labels of one node. Both methods raise ApiServerError when they fail."""

    def __init__(self, server: ApiServer, *, node: str) -> None:
        """Ask *server* about *node*."""
        self._server = server
        self._one = node_metadata(node)
        self._watched = replace(
            self._one, path=self._one.path[:-1], query={"fieldSelector": f"metadata.name={node}"}
        )

    async def read(self) -> tuple[Labels, str]:
        """Return the node's labels, and the version to follow them from."""
        metadata = (await self._server.ask(self._one, _NodeWithLabels, deadline=_DEADLINE)).metadata
        return metadata.labels, metadata.resource_version

    async def follow(self, version: str, *, begun: Callable[[], None]) -> AsyncIterator[Labels]:
        """Yield the labels at each change of the node after *version*, until the watch ends.

        *begun* is called once the server has taken the watch.
        """
        async for event in watch(self._server, self._watched, version, begun=begun):
            if event.type in {"ADDED", "MODIFIED"}:
                yield decoded(bytes(event.object), _NodeWithLabels).metadata.labels


def labels_now(access: Access, node: str, clock: Clock, *, timeout: float) -> Labels:
    """Return the labels of *node*, without an event loop; raise ApiServerError after *timeout*."""
    request = node_metadata(node)
    with closing(Wire(access, clock)) as wire:
        answer = wire.exchange_within(request, timeout)
    return understood(request, answer, _NodeWithLabels).metadata.labels
