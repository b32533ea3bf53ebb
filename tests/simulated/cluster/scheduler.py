"""Allocates devices to claims as kube-scheduler does, and hands them on as soon as a pod is gone.

It goes by the API server's objects alone: a device is free for it when no claim has it, whatever
runs on the node. https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from uuid import uuid4

from simulated.cluster.candidates import Candidate, candidates, selects, taints, untolerated
from simulated.cluster.room import Room, consumed_by
from simulated.cluster.store import Kind, Object, Place, RefusedError, Selector, Store

RESOURCE = "resource.k8s.io/v1"
SLICES = Kind(group_version=RESOURCE, plural="resourceslices")
CLAIMS = Kind(group_version=RESOURCE, plural="resourceclaims")
TEMPLATES = Kind(group_version=RESOURCE, plural="resourceclaimtemplates")
CLASSES = Kind(group_version=RESOURCE, plural="deviceclasses")
PODS = Kind(group_version="v1", plural="pods")

_EXTENDED = "resource.kubernetes.io/extended-resource-claim"


class Scheduler:
    """Works on the store directly; every step is one pass over everything."""

    def __init__(self, store: Store) -> None:
        """Schedule the pods of *store*."""
        self._store = store

    def step(self) -> list[str]:
        """Schedule what can be; return the names of the pods that got a node now."""
        waiting = [each for each in self._every(PODS) if not each["spec"].get("nodeName")]
        return [pod["metadata"]["name"] for pod in waiting if self._schedule(pod)]

    def delete(self, namespace: str, name: str) -> None:
        """Take a pod out of the API at once, as `kubectl delete --force` does at the end.

        Claims that were made for it go with it; others it no longer keeps reserved.
        """
        pod = self._store.delete(Place(kind=PODS, namespace=namespace, name=name))
        uid = pod["metadata"]["uid"]
        for claim in self._every(CLAIMS):
            owners = {each["uid"] for each in claim["metadata"].get("ownerReferences", ())}
            if uid in owners:
                self._store.delete(_place(CLAIMS, claim))
                continue
            status = claim.get("status") or {}
            kept = [each for each in status.get("reservedFor", ()) if each["uid"] != uid]
            if len(kept) < len(status.get("reservedFor", ())):
                claim["status"] = {**status, "reservedFor": kept}
                if not kept:
                    claim["status"].pop("allocation", None)
                self._store.update(_place(CLAIMS, claim), claim, subresource="status")

    def evict(self) -> list[str]:
        """Delete the pods whose devices have a NoExecute taint that they do not tolerate."""
        ill = {each.id: taints(each, frozenset({"NoExecute"})) for each in self._candidates()}
        gone = []
        for claim in self._every(CLAIMS):
            results = _results(claim)
            if any(
                untolerated(ill.get(_id(each), ()), each.get("tolerations", ())) for each in results
            ):
                for pod in claim["status"].get("reservedFor", ()):
                    self.delete(claim["metadata"]["namespace"], pod["name"])
                    gone.append(pod["name"])
        return gone

    def _schedule(self, pod: Object) -> bool:
        claims = [*self._claims_of(pod), *self._extended(pod)]
        for node in sorted({each.node for each in self._candidates()}):
            chosen = self._choose(claims, node)
            if chosen is not None:
                self._bind(pod, node, zip(claims, chosen, strict=True))
                return True
        return False

    def _claims_of(self, pod: Object) -> Iterator[Object]:
        metadata = pod["metadata"]
        for each in pod["spec"].get("resourceClaims", ()):
            name = each.get("resourceClaimName") or f"{metadata['name']}-{each['name']}"
            place = Place(kind=CLAIMS, namespace=metadata["namespace"], name=name)
            try:
                yield self._store.get(place)
            except RefusedError:
                if not each.get("resourceClaimTemplateName"):
                    continue
                template = self._store.get(
                    Place(
                        kind=TEMPLATES,
                        namespace=metadata["namespace"],
                        name=each["resourceClaimTemplateName"],
                    )
                )
                yield self._make_claim(pod, name, template["spec"]["spec"])

    def _extended(self, pod: Object) -> Iterator[Object]:
        """Make one claim for the extended resources that device classes stand for."""
        classes = {
            each["spec"]["extendedResourceName"]: each["metadata"]["name"]
            for each in self._every(CLASSES)
            if each["spec"].get("extendedResourceName")
        }
        requests = []
        mappings = []
        for position, container in enumerate(pod["spec"].get("containers", ())):
            limits = container.get("resources", {}).get("limits", {})
            wanted = [(name, int(count)) for name, count in limits.items() if name in classes]
            for number, (name, count) in enumerate(wanted):
                request = f"container-{position}-request-{number}"
                requests.append(
                    {
                        "name": request,
                        "exactly": {
                            "deviceClassName": classes[name],
                            "allocationMode": "ExactCount",
                            "count": count,
                        },
                    }
                )
                mappings.append(
                    {
                        "containerName": container["name"],
                        "resourceName": name,
                        "requestName": request,
                    }
                )
        if not requests:
            return
        name = f"{pod['metadata']['name']}-extended-resources"
        place = Place(kind=CLAIMS, namespace=pod["metadata"]["namespace"], name=name)
        try:
            yield self._store.get(place)
        except RefusedError:
            made = self._make_claim(
                pod, name, {"devices": {"requests": requests}}, {_EXTENDED: "true"}
            )
            at = _place(PODS, pod)
            latest = self._store.get(at)
            latest["status"] = {
                **(latest.get("status") or {}),
                "extendedResourceClaimStatus": {
                    "resourceClaimName": name,
                    "requestMappings": mappings,
                },
            }
            self._store.update(at, latest, subresource="status")
            yield made

    def _make_claim(
        self,
        pod: Object,
        name: str,
        spec: Object,
        annotations: Mapping[str, str] | None = None,
    ) -> Object:
        metadata = pod["metadata"]
        owner = {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": True,
        }
        made = {
            "apiVersion": RESOURCE,
            "kind": "ResourceClaim",
            "metadata": {
                "name": name,
                "ownerReferences": [owner],
                **({"annotations": dict(annotations)} if annotations else {}),
            },
            "spec": spec,
        }
        return self._store.create(Place(kind=CLAIMS, namespace=metadata["namespace"]), made)

    def _choose(self, claims: Sequence[Object], node: str) -> list[list[Object]] | None:
        """Return the results for each claim on *node*, or None where they do not fit there."""
        had = (each for claim in self._every(CLAIMS) for each in _results(claim))
        room = Room(self._every(SLICES), had)
        chosen: list[list[Object]] = []
        for claim in claims:
            if results := _results(claim):
                if _node_of(claim) != node:
                    return None
                chosen.append(results)
                continue
            results = []
            for request in claim["spec"]["devices"]["requests"]:
                fit = self._fit(request, node, room)
                if fit is None:
                    return None
                found, room = fit
                results += found
            chosen.append(results)
        return chosen

    def _fit(self, request: Object, node: str, room: Room) -> tuple[list[Object], Room] | None:
        """Take devices for one request, of the first of its alternatives that can be had.

        Return them, and what is left. One request never takes a device twice, shared or not, and
        one for all takes all or nothing.
        """
        alternatives = (
            [(request["name"], request["exactly"])]
            if "exactly" in request
            else [(f"{request['name']}/{each['name']}", each) for each in request["firstAvailable"]]
        )
        for name, wanted in alternatives:
            rest = room.copy()
            selected = list(self._fitting(wanted, node))
            everything = wanted.get("allocationMode") == "All"
            count = len(selected) if everything else wanted.get("count", 1)
            found: list[Candidate] = []
            for each in selected:
                if len(found) < count and rest.fits(each, wanted):
                    found.append(each)
                    rest.take(each, wanted)
            if len(found) == count and count:
                return [_result(name, each, wanted) for each in found], rest
        return None

    def _fitting(self, wanted: Object, node: str) -> Iterator[Candidate]:
        place = Place(kind=CLASSES, name=wanted["deviceClassName"])
        selectors = [
            *self._store.get(place)["spec"].get("selectors", ()),
            *wanted.get("selectors", ()),
        ]
        for each in self._candidates():
            if each.node == node and all(
                selects(selector["cel"]["expression"], each) for selector in selectors
            ):
                yield each

    def _bind(self, pod: Object, node: str, chosen: Iterable[tuple[Object, list[Object]]]) -> None:
        metadata = pod["metadata"]
        for claim, results in chosen:
            place = _place(CLAIMS, claim)
            latest = self._store.get(place)
            status = latest.get("status") or {}
            user = {"resource": "pods", "name": metadata["name"], "uid": metadata["uid"]}
            latest["status"] = {
                **status,
                "allocation": {
                    "devices": {"results": results},
                    "nodeSelector": _node_selector(node),
                },
                "reservedFor": [*status.get("reservedFor", ()), user],
            }
            self._store.update(place, latest, subresource="status")
        at = _place(PODS, pod)
        latest = self._store.get(at)
        latest["spec"]["nodeName"] = node
        self._store.update(at, latest)

    def _candidates(self) -> list[Candidate]:
        return candidates(self._every(SLICES))

    def _every(self, kind: Kind) -> list[Object]:
        return self._store.find(Place(kind=kind), Selector())[0]


def _result(name: str, each: Candidate, wanted: Object) -> Object:
    driver, pool, device = each.id
    result: Object = {"request": name, "driver": driver, "pool": pool, "device": device}
    if wanted.get("adminAccess"):
        result["adminAccess"] = True
    elif each.is_shared:
        amounts = consumed_by(each, wanted) or {}
        result["shareID"] = str(uuid4())
        result["consumedCapacity"] = {name: str(amount) for name, amount in amounts.items()}
    if wanted.get("tolerations"):
        result["tolerations"] = wanted["tolerations"]
    return result


def _results(claim: Object) -> list[Object]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    found: list[Object] = allocation.get("devices", {}).get("results", [])
    return found


def _id(result: Object) -> tuple[str, str, str]:
    return result["driver"], result["pool"], result["device"]


def _node_selector(node: str) -> Object:
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {"nodeSelectorTerms": [{"matchFields": [field]}]}


def _node_of(claim: Object) -> str:
    terms = claim["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"]
    return str(terms[0]["matchFields"][0]["values"][0])


def _place(kind: Kind, found: Object) -> Place:
    metadata = found["metadata"]
    return Place(kind=kind, namespace=metadata.get("namespace", ""), name=metadata["name"])
