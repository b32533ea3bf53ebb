"""Writes Events, which `kubectl describe` shows, and one condition of the own Node."""

from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct, field

from holdfast.apiserver.client import ApiServer
from holdfast.apiserver.wire import MERGE_PATCH, ApiRequest
from holdfast.model.events import CONDITION, Condition, Notice, StoredCondition
from holdfast.model.text import printable

_DEADLINE = 5.0
_MOST_MESSAGE = 980
"""Characters; with the note of what was cut it stays below the 1024 that the server allows."""
_COMPONENT = "holdfast"
_STATUS = {True: "True", False: "False"}


def rfc3339(at: float) -> str:
    """Return *at*, in seconds since the epoch, as Kubernetes writes times."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class _Condition(Struct, frozen=True, kw_only=True, rename="camel"):
    type: str
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class _NodeConditions(Struct, frozen=True, kw_only=True):
    conditions: tuple[_Condition, ...] | None = None


class _NodeWithConditions(Struct, frozen=True, kw_only=True):
    status: _NodeConditions = field(default_factory=_NodeConditions)


class ClusterNotices(Struct, frozen=True):
    """What `server` is told in the name of `node`, this one: Events, and the node's condition.

    Every method raises ApiServerError when it fails, within 5 s.
    """

    server: ApiServer
    node: str

    async def write_event(self, notice: Notice, *, at: float) -> None:
        """Write *notice*, which was so *at* (seconds since the epoch)."""
        # Kubelet, too, has the name for a uid here, and `kubectl describe node` looks for both.
        about = {"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": self.node}
        if (pod := notice.pod) is not None:
            about = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid}
            about["namespace"] = pod.namespace
        when = rfc3339(at)
        # As client-go does for objects without a namespace.
        namespace = about.get("namespace", "default")
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{about['name']}.", "namespace": namespace},
            "involvedObject": about,
            "reason": notice.reason.value,
            "message": printable(notice.text, _MOST_MESSAGE),
            "type": "Warning" if notice.is_warning else "Normal",
            "source": {"component": _COMPONENT, "host": self.node},
            "reportingComponent": _COMPONENT,
            "reportingInstance": self.node,
            "firstTimestamp": when,
            "lastTimestamp": when,
            "count": 1,
        }
        request = ApiRequest(
            about=f"an Event of {about['kind']} {about['name']}",
            method="POST",
            path=("api", "v1", "namespaces", namespace, "events"),
            body=msgspec.json.encode(event),
        )
        await self.server.ask(request, msgspec.Raw, deadline=_DEADLINE)

    async def read_condition(self) -> StoredCondition:
        """Return the condition as the server has it.

        A patch that changes nothing shows the Node, so no right to read nodes is needed.
        """
        return await self._patched({})

    async def write_condition(
        self, condition: Condition, *, since: str, at: float
    ) -> StoredCondition:
        """Write *condition* at *at* (seconds since the epoch); return it as it is stored then.

        *since* is when its status became what it is, in the server's words; empty: at *at*.
        """
        now = rfc3339(at)
        written = {
            "type": CONDITION,
            "status": _STATUS[condition.status],
            "reason": condition.reason,
            "message": condition.message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": since or now,
        }
        # A strategic merge takes conditions by their type, and leaves all others alone.
        return await self._patched({"status": {"conditions": [written]}})

    async def _patched(self, patch: dict[str, Any]) -> StoredCondition:
        request = status_patched(self.node, patch)
        node = await self.server.ask(request, _NodeWithConditions, deadline=_DEADLINE)
        found = (each for each in node.status.conditions or () if each.type == CONDITION)
        return _stored(next(found, None))


def status_patched(node: str, patch: dict[str, Any]) -> ApiRequest:
    """Return the call that merges *patch* into the status of *node*, which has the condition."""
    return ApiRequest(
        about=f"the condition {CONDITION} of Node {node}",
        method="PATCH",
        path=("api", "v1", "nodes", node, "status"),
        content=MERGE_PATCH,
        body=msgspec.json.encode(patch),
    )


def _stored(found: _Condition | None) -> StoredCondition:
    if found is None or found.status not in _STATUS.values():
        return StoredCondition()
    return StoredCondition(
        condition=Condition(
            status=found.status == _STATUS[True], reason=found.reason, message=found.message
        ),
        since=found.last_transition_time or "",
    )
