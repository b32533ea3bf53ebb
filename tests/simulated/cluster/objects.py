"""The kinds of objects that a cluster has for claims, and how people write them."""

from collections.abc import Collection, Iterable
from typing import Any

from simulated.cluster.store import Kind, Object, Place, Store

RESOURCE = "resource.k8s.io/v1"
CLAIMS = Kind(group_version=RESOURCE, plural="resourceclaims")
CLASSES = Kind(group_version=RESOURCE, plural="deviceclasses")
SLICES = Kind(group_version=RESOURCE, plural="resourceslices")
TEMPLATES = Kind(group_version=RESOURCE, plural="resourceclaimtemplates")
EVENTS = Kind(group_version="v1", plural="events")
NODES = Kind(group_version="v1", plural="nodes")
PODS = Kind(group_version="v1", plural="pods")

_CALLED = {
    CLAIMS: "ResourceClaim",
    CLASSES: "DeviceClass",
    NODES: "Node",
    PODS: "Pod",
    SLICES: "ResourceSlice",
    TEMPLATES: "ResourceClaimTemplate",
}
_WITHOUT_NAMESPACE = {CLASSES, NODES, SLICES}


def add(
    store: Store, kind: Kind, name: str, *, namespace: str = "default", **content: Any
) -> Object:
    """Create an object of *kind* as `kubectl create` does, in *namespace* where it has one."""
    body = {
        "apiVersion": kind.group_version,
        "kind": _CALLED[kind],
        "metadata": {"name": name},
        **content,
    }
    place = Place(kind=kind, namespace="" if kind in _WITHOUT_NAMESPACE else namespace)
    return store.create(place, body)


def add_class(store: Store, name: str, driver: str, chosen: str, **more: str) -> None:
    """Create the class of *driver*'s devices of which the expression *chosen* is true."""
    expression = f'device.driver == "{driver}" && {chosen}'
    add(store, CLASSES, name, spec={"selectors": [{"cel": {"expression": expression}}], **more})


def wanting(class_name: str, *requests: str, **wanted: Any) -> Object:
    """Return what a claim specifies whose *requests* are each for what is *wanted* of a class."""
    exactly = {"deviceClassName": class_name, **wanted}
    return {"devices": {"requests": [{"name": each, "exactly": exactly} for each in requests]}}


def using(*claims: Object, **container: Any) -> Object:
    """Return what a pod specifies that has *claims*, with one container that is also so."""
    main = {"name": "main", "image": "i", **container}
    return {"containers": [main], "resourceClaims": list(claims)}


def allocate(
    store: Store, claim: Object, results: Collection[Object], pods: Iterable[Object]
) -> None:
    """Give *results* to *claim* and reserve it for *pods*, as the scheduler does."""
    metadata = claim["metadata"]
    status = {
        "allocation": {"devices": {"results": list(results)}},
        "reservedFor": [{"resource": "pods", **each} for each in pods],
    }
    place = Place(kind=CLAIMS, namespace=metadata["namespace"], name=metadata["name"])
    store.update(place, {**claim, "status": status}, subresource="status")


def devices_of(slices: Iterable[Object]) -> dict[str, Object]:
    """Return the devices of *slices* by their names."""
    return {device["name"]: device for each in slices for device in each["spec"].get("devices", ())}
