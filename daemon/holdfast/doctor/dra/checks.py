"""Checks Dynamic Resource Allocation: kubelet's folders, our sockets, and the API server."""

from collections.abc import Iterator

from holdfast.doctor.dra.folders import folder_findings
from holdfast.doctor.finding import Check, Finding
from holdfast.doctor.node import Node

_API = Check("dra", "api")


def dra_findings(node: Node) -> Iterator[Finding]:
    """Yield what was found of what claims need; nothing more where no hardware is served by DRA."""
    if not node.settings.has_dra():
        yield _API.ok("no hardware is served by DRA")
        return
    yield _API.ok(f"the driver {node.settings.dra.driver_name} serves claims")
    yield from folder_findings(node)
    if node.live:
        from holdfast.doctor.dra.server import server_findings  # noqa: PLC0415 - TLS, else unused

        yield from server_findings(node)
