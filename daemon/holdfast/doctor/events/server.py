"""Asks the API server whether it would take what `events.enabled` writes; nothing is stored."""

import os
from collections.abc import Iterator

from holdfast.apiserver.access import node_name
from holdfast.apiserver.client import ApiObjectGoneError, ApiRefusedError
from holdfast.doctor.apiserver import cluster_findings
from holdfast.doctor.dra.cluster import EVENT_RIGHTS, Cluster
from holdfast.doctor.finding import Check, Finding
from holdfast.doctor.node import Node

_SERVER = Check("events", "api-server")
_RBAC = Check("events", "rbac")
_NODE = Check("events", "node")


def server_findings(node: Node) -> Iterator[Finding]:
    """Yield what the API server says, as the token of the service account may ask it."""

    def find(cluster: Cluster) -> Iterator[Finding]:
        lacking = cluster.lacking(EVENT_RIGHTS)
        yield _rights(tuple(map(str, lacking)))
        if not lacking:
            yield _own_node(cluster, node_name(node.settings.dra.node_name, os.environ))

    return cluster_findings(
        node,
        _SERVER,
        find,
        unchecked="rights",
        without="no Event is written: set config.events.enabled: true",
        until="no Event is written",
    )


def _rights(lacking: tuple[str, ...]) -> Finding:
    if lacking:
        return _RBAC.fail(
            f"the service account may not {', '.join(lacking)}",
            remedy="set config.events.enabled: true in the chart's values, or give it these "
            "rights: deploy/README.md has the reason of each",
        )
    return _RBAC.ok("the service account may write Events and the status of nodes")


def _own_node(cluster: Cluster, name: str) -> Finding:
    try:
        cluster.touch_status(name)
    except ApiObjectGoneError:
        return _NODE.fail(
            f"the cluster has no Node {name}: Events and the condition are of another node",
            remedy="set dra.nodeName, or the variable NODE_NAME, to the name that "
            "`kubectl get nodes` shows",
        )
    except ApiRefusedError as error:
        return _NODE.fail(
            str(error),
            remedy="see that the ValidatingAdmissionPolicy of the chart is that of this daemon: "
            "its ServiceAccount and its node",
        )
    return _NODE.ok(f"the condition of Node {name} can be written")
