"""What goes over the wire of an API server: paths, the events of watches, and Statuses."""

from collections.abc import Iterator

from simulated.cluster.store import Change, Kind, Object, Place, RefusedError, Selector


def seen_through(selector: Selector, change: Change) -> Iterator[tuple[str, Object]]:
    """Yield what a watch with *selector* shows of *change*: what stops matching is deleted."""
    was, matches = selector.matches(change.before), selector.matches(change.now)
    if matches and not change.deleted:
        yield ("MODIFIED" if was else "ADDED"), change.now
    elif was:
        yield "DELETED", change.now


def bookmark(place: Place, version: int) -> Object:
    return {
        "kind": "ResourceSlice",
        "apiVersion": place.kind.group_version,
        "metadata": {"resourceVersion": str(version), "creationTimestamp": None},
        "spec": {"driver": "", "pool": {"name": "", "generation": 0, "resourceSliceCount": 0}},
    }


def status(error: RefusedError) -> Object:
    status: Object = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": error.message,
        "reason": error.reason,
        "code": error.code,
    }
    if error.after is not None:
        status["details"] = {"retryAfterSeconds": error.after}
    if error.name:
        status["details"] = {"name": error.name}
    return status


def place_of(path: str) -> tuple[Place, str]:
    parts = path.strip("/").split("/")
    if parts[:2] == ["api", "v1"]:
        group_version, rest = "v1", parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group_version, rest = "/".join(parts[1:3]), parts[3:]
    else:
        raise RefusedError(404, "NotFound", "the server could not find the requested resource")
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    name, subresource = (*rest[1:], "", "")[:2]
    kind = Kind(group_version=group_version, plural=rest[0])
    return Place(kind=kind, namespace=namespace, name=name), subresource
