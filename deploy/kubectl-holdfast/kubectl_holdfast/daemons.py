"""Which pod of a cluster is the daemon of which node, and whether it can be asked."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

CONTAINER = "holdfast"
"""The daemon's container, as the chart calls it."""

_RUNNING = "running"


class FleetError(Exception):
    """Why nothing can be asked, for a person to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """The daemon of a node; `problem` says why it cannot be asked, empty where it can."""

    node: str
    namespace: str = ""
    pod: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a daemon answered, as JSON.

    Instead of it there is a `problem`, why there is no answer, or `unknown`: the node does not have
    what was asked about. `note` says that the answer is not the running daemon's.
    """

    daemon: Daemon
    content: Any = None
    problem: str = ""
    unknown: str = ""
    note: str = ""


def find_daemons(pods: Iterable[Mapping[str, Any]], nodes: Iterable[str] | None) -> list[Daemon]:
    """Return the daemon of each of *nodes*, None for every node that has one, by name.

    *pods* are as the API server has them. Raises FleetError where they are of several namespaces:
    anybody may label a pod like a daemon's, and it could answer in the place of one.
    """
    found = [
        each for each in pods if _container(each.get("spec", {}).get("containers")) is not None
    ]
    namespaces = sorted({each["metadata"]["namespace"] for each in found})
    if len(namespaces) > 1:
        raise FleetError(
            f"cannot tell which pods are holdfast's: there are some in {', '.join(namespaces)}; "
            "name the namespace (-n)"
        )
    best = {
        node: _daemon(node, min(those, key=_order))
        for node, those in groupby(sorted(found, key=_node), key=_node)
        if node
    }
    wanted = sorted(best) if nodes is None else list(dict.fromkeys(nodes))
    missing = "no pod of holdfast is on it"
    return [best.get(node) or Daemon(node=node, problem=missing) for node in wanted]


def _daemon(node: str, pod: Mapping[str, Any]) -> Daemon:
    about = pod["metadata"]
    return Daemon(node=node, namespace=about["namespace"], pod=about["name"], problem=_why_not(pod))


def _node(pod: Mapping[str, Any]) -> str:
    """Return the pod's node, or the one that it is meant for; empty where neither is known."""
    spec = pod["spec"]
    affinity = spec.get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    # The DaemonSet's controller writes the node's name into each term.
    meant = (
        value
        for term in required.get("nodeSelectorTerms", ())
        for field in term.get("matchFields", ())
        if field.get("key") == "metadata.name"
        for value in field.get("values", ())
    )
    return str(spec.get("nodeName") or next(meant, ""))


def _order(pod: Mapping[str, Any]) -> tuple[bool, bool, str]:
    """Put first what can be asked, and of several the one that stays."""
    about = pod["metadata"]
    return bool(_why_not(pod)), "deletionTimestamp" in about, about["name"]


def _why_not(pod: Mapping[str, Any]) -> str:
    """Return why no command can run in the daemon's container; empty where one can."""
    status = pod.get("status", {})
    container = _container(status.get("containerStatuses")) or {}
    state: Mapping[str, Any] = container.get("state", {})
    if _RUNNING in state:
        return ""
    told = state.get("waiting") or state.get("terminated") or _unscheduled(status)
    reason = ": ".join(str(told[key]) for key in ("reason", "message") if told.get(key))
    phase = status.get("phase", "Unknown")
    return f"its pod {pod['metadata']['name']} is {phase}" + (f": {reason}" if reason else "")


def _unscheduled(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the condition that says why no node runs the pod, or why the pod failed."""
    conditions = status.get("conditions", ())
    waiting = (each for each in conditions if each.get("type") == "PodScheduled")
    found = next((each for each in waiting if each.get("status") == "False"), status)
    return found if isinstance(found, Mapping) else {}


def _container(containers: Iterable[Mapping[str, Any]] | None) -> Mapping[str, Any] | None:
    return next((each for each in containers or () if each.get("name") == CONTAINER), None)
