"""Checks what Events and the node's condition need; nothing of it is loaded with events off."""

from collections.abc import Iterator

from holdfast.doctor.finding import Check, Finding
from holdfast.doctor.node import Node

_ENABLED = Check("events", "enabled")


def events_findings(node: Node) -> Iterator[Finding]:
    """Yield whether the API server lets the daemon write Events and its node's condition."""
    if not node.settings.events.enabled:
        yield _ENABLED.ok("no Events are written, and no condition of the node")
        return
    yield _ENABLED.ok("Events and the node's condition are written")
    if node.live:
        from holdfast.doctor.events.server import server_findings  # noqa: PLC0415 - TLS, else unused

        yield from server_findings(node)
