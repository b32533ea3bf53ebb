"""Reads and writes one condition of the own Node."""

from typing import Any

import msgspec
from msgspec import Struct, field

from holdfast.apiserver.client import ApiServer
from holdfast.apiserver.events import rfc3339
from holdfast.apiserver.wire import MERGE_PATCH, Request
from holdfast.model.events.condition import CONDITION, Condition, Stored

_DEADLINE = 5.0
_STATUS = {True: "True", False: "False"}


class _Json(Struct, frozen=True, kw_only=True, rename="camel"):
    """Read from Kubernetes' JSON; other fields are left out."""


class _Condition(_Json, frozen=True, kw_only=True):
    type: str
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class _Status(_Json, frozen=True, kw_only=True):
    conditions: tuple[_Condition, ...] | None = None


class _Node(_Json, frozen=True, kw_only=True):
    status: _Status = field(default_factory=_Status)


class NodeCondition:
    """The condition of one Node. Every method raises ApiServerError when it fails, within 5 s."""

    def __init__(self, server: ApiServer, *, node: str) -> None:
        """Ask *server* about *node*."""
        self._server = server
        self._node = node

    async def read(self) -> Stored:
        """Return the condition as the server has it.

        A patch that changes nothing shows the Node, so no right to read nodes is needed.
        """
        return await self._patched({})

    async def write(self, condition: Condition, *, since: str, at: float) -> Stored:
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

    async def _patched(self, patch: dict[str, Any]) -> Stored:
        request = Request(
            about=f"the condition {CONDITION} of Node {self._node}",
            method="PATCH",
            path=("api", "v1", "nodes", self._node, "status"),
            content=MERGE_PATCH,
            body=msgspec.json.encode(patch),
        )
        node = await self._server.ask(request, _Node, deadline=_DEADLINE)
        found = (each for each in node.status.conditions or () if each.type == CONDITION)
        return _stored(next(found, None))


def _stored(found: _Condition | None) -> Stored:
    if found is None or found.status not in _STATUS.values():
        return Stored()
    return Stored(
        condition=Condition(
            status=found.status == _STATUS[True], reason=found.reason, message=found.message
        ),
        since=found.last_transition_time or "",
    )
