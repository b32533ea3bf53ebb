"""The controller of ResourceClaims: makes those of templates, and ends the use that pods made."""

from collections.abc import Mapping
from typing import Any

from simulated.cluster.objects import CLAIMS, PODS, RESOURCE, TEMPLATES
from simulated.cluster.store import Kind, Object, Place, Store

FINALIZER = "resource.kubernetes.io/delete-protection"
"""Keeps an allocated claim in the API server, also when it is deleted."""

_OF_POD = "resource.kubernetes.io/pod-claim-name"
_OVER = frozenset({"Succeeded", "Failed"})


class ClaimController:
    """Works on the store directly; every step is one pass over everything."""

    def __init__(self, store: Store) -> None:
        """Follow the pods of *store*."""
        self._store = store
        self._known: set[str] = set()

    def step(self, *left: Object) -> None:
        """Make the claims that pods wait for, and take back those that pods are done with.

        *left* are pods that have just left the API server. Tests reserve claims for pods that were
        never in it; those are left alone.
        """
        pods = {each["metadata"]["uid"]: each for each in self._store.every(PODS)}
        self._known |= {*pods, *(each["metadata"]["uid"] for each in left)}
        users = {uid: pod for uid, pod in pods.items() if not is_over(pod)}
        for pod in users.values():
            self._make(pod)
        over = self._known - users.keys()
        for claim in self._store.every(CLAIMS):
            self._take_back(claim, over)

    def _make(self, pod: Object) -> None:
        metadata, status = pod["metadata"], pod.get("status") or {}
        made = list(status.get("resourceClaimStatuses", ()))
        known = claim_names(pod)
        for each in pod["spec"].get("resourceClaims", ()):
            if each["name"] in known or "deletionTimestamp" in metadata:
                continue
            at = Place(
                kind=TEMPLATES,
                namespace=metadata["namespace"],
                name=each["resourceClaimTemplateName"],
            )
            claim = make_claim(
                self._store,
                pod,
                each["name"],
                self._store.get(at)["spec"]["spec"],
                {_OF_POD: each["name"]},
            )
            name = claim["metadata"]["name"]
            made.append({"name": each["name"], "resourceClaimName": name})
        if made != status.get("resourceClaimStatuses", []):
            pod["status"] = {**status, "resourceClaimStatuses": made}
            self._store.update(place_of(PODS, pod), pod, subresource="status")

    def _take_back(self, claim: Object, over: set[str]) -> None:
        place, status = place_of(CLAIMS, claim), claim.get("status") or {}
        users = status.get("reservedFor", [])
        kept = [each for each in users if each["uid"] not in over]
        if len(kept) < len(users):
            if kept:
                claim["status"] = {**status, "reservedFor": kept}
            else:
                ended = {"reservedFor", "allocation"}
                claim["status"] = {key: status[key] for key in status.keys() - ended}
            claim = self._store.update(place, claim, subresource="status")
        finalizers = claim["metadata"].get("finalizers", [])
        if FINALIZER in finalizers and "allocation" not in claim["status"]:
            claim["metadata"]["finalizers"] = [each for each in finalizers if each != FINALIZER]
            claim = self._store.update(place, claim)
        owners = {each["uid"] for each in claim["metadata"].get("ownerReferences", ())}
        if owners & over and not kept:
            self._store.delete(place)


def make_claim(
    store: Store, pod: Object, request: str, spec: Object, annotations: Mapping[str, str]
) -> Object:
    """Make a claim that is *pod*'s own; *request* is what its name has after the pod's."""
    metadata = pod["metadata"]
    owner: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    made = {
        "apiVersion": RESOURCE,
        "kind": "ResourceClaim",
        "metadata": {
            "generateName": f"{metadata['name']}-{request}-",
            "ownerReferences": [owner],
            "annotations": dict(annotations),
        },
        "spec": spec,
    }
    return store.create(Place(kind=CLAIMS, namespace=metadata["namespace"]), made)


def claim_names(pod: Object) -> dict[str, str]:
    """Return the names of the claims that *pod* has already, by its own names for them."""
    statuses = (pod.get("status") or {}).get("resourceClaimStatuses", ())
    found = {each["name"]: each["resourceClaimName"] for each in statuses}
    for each in pod["spec"].get("resourceClaims", ()):
        if "resourceClaimName" in each:
            found[each["name"]] = each["resourceClaimName"]
    return found


def is_over(pod: Object) -> bool:
    """Tell whether *pod* uses no claim any more."""
    return (pod.get("status") or {}).get("phase") in _OVER


def place_of(kind: Kind, found: Object) -> Place:
    """Return where *found* is."""
    metadata = found["metadata"]
    return Place(kind=kind, namespace=metadata.get("namespace", ""), name=metadata["name"])
