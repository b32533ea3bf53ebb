"""Writes Events, which `kubectl describe` shows with the pod or the node that they are about."""

from datetime import UTC, datetime
from typing import Literal

import msgspec
from msgspec import Struct

from holdfast.apiserver.client import ApiServer
from holdfast.apiserver.wire import Request
from holdfast.model.text import printable

_DEADLINE = 5.0
_MOST_MESSAGE = 980
"""Characters; with the note of what was cut it stays below the 1024 that the server allows."""
_COMPONENT = "holdfast"


class About(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The object that an event is about; a Node has no namespace."""

    api_version: str = "v1"
    kind: Literal["Pod", "Node"]
    name: str
    namespace: str = ""
    uid: str = ""


async def create_event(
    server: ApiServer,
    about: About,
    *,
    node: str,
    reason: str,
    message: str,
    warning: bool,
    at: float,
) -> None:
    """Write one event from *node*; *reason* is one word, *at* in seconds since the epoch.

    Raise ApiServerError when that fails.
    """
    # As client-go does for objects without a namespace.
    namespace = about.namespace or "default"
    when = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{about.name[:200]}.", "namespace": namespace},
        "involvedObject": about,
        "reason": reason,
        "message": printable(message, _MOST_MESSAGE),
        "type": "Warning" if warning else "Normal",
        "source": {"component": _COMPONENT, "host": node},
        "reportingComponent": _COMPONENT,
        "reportingInstance": node,
        "firstTimestamp": when,
        "lastTimestamp": when,
        "count": 1,
    }
    request = Request(
        about=f"an Event of {about.kind} {about.name}",
        method="POST",
        path=("api", "v1", "namespaces", namespace, "events"),
        body=msgspec.json.encode(event),
    )
    await server.ask(request, msgspec.Raw, deadline=_DEADLINE)
