"""Writes Events, which `kubectl describe` shows with the pod or the node that they are about.

They are Events of core/v1, as kubelet's own: every kubectl and every collector reads those, and
they take one right, to create. https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/
"""

from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.apiserver.client import ApiServer
from holdfast.apiserver.wire import Request
from holdfast.model.book.book import PodRecord
from holdfast.model.events.notices import Notice
from holdfast.model.text import printable

_DEADLINE = 5.0
_MOST_MESSAGE = 980
"""Characters; with the note of what was cut it stays below the 1024 that the server allows."""
_MOST_NAME = 200
"""Characters; the server adds some to make the name unique."""
_COMPONENT = "holdfast"


class NodeEvents:
    """The Events that this node writes."""

    def __init__(self, server: ApiServer, *, node: str) -> None:
        """Write by *server*, in the name of *node*."""
        self._server = server
        self._node = node

    async def write(self, notice: Notice, *, at: float) -> None:
        """Write *notice*, which was so *at* (seconds since the epoch).

        Raise ApiServerError when that fails; within 5 s.
        """
        about = self._node_reference() if notice.pod is None else _pod_reference(notice.pod)
        when = rfc3339(at)
        # As client-go does for objects without a namespace.
        namespace = about.get("namespace", "default")
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{about['name'][:_MOST_NAME]}.", "namespace": namespace},
            "involvedObject": about,
            "reason": notice.reason.value,
            "message": printable(notice.text, _MOST_MESSAGE),
            "type": "Warning" if notice.is_warning else "Normal",
            "source": {"component": _COMPONENT, "host": self._node},
            "reportingComponent": _COMPONENT,
            "reportingInstance": self._node,
            "firstTimestamp": when,
            "lastTimestamp": when,
            "count": 1,
        }
        request = Request(
            about=f"an Event of {about['kind']} {about['name']}",
            method="POST",
            path=("api", "v1", "namespaces", namespace, "events"),
            body=msgspec.json.encode(event),
        )
        await self._server.ask(request, msgspec.Raw, deadline=_DEADLINE)

    def _node_reference(self) -> dict[str, Any]:
        # Kubelet, too, has the name for a uid here, and `kubectl describe node` looks for both.
        return {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": self._node}


def _pod_reference(pod: PodRecord) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": pod.name,
        "namespace": pod.namespace,
        "uid": pod.uid,
    }


def rfc3339(at: float) -> str:
    """Return *at*, in seconds since the epoch, as Kubernetes writes times."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
