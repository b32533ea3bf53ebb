"""Allocates devices to claims as kube-scheduler does, and hands them on as soon as a pod is gone.

It goes by the API server's objects alone: a device is free for it when no claim has it, whatever
runs on the node. https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
"""

from collections.abc import Iterator, Sequence
from uuid import uuid4

from simulated.cluster.candidates import Candidate, candidates, selects, taints, untolerated
from simulated.cluster.claims import (
    FINALIZER,
    ClaimController,
    claim_names,
    is_over,
    make_claim,
    place_of,
)
from simulated.cluster.objects import CLAIMS, CLASSES, PODS, SLICES
from simulated.cluster.room import Room, consumed_by
from simulated.cluster.store import Object, Place, RefusedError, Store, now

_EXTENDED = "resource.kubernetes.io/extended-resource-claim"


class Scheduler:
    """Works on the store directly; every step is one pass over everything.

    `claims` is the controller that works beside it in a real control plane: it takes its step
    before each of the scheduler's, and after each end of a pod.
    """

    def __init__(self, store: Store) -> None:
        """Schedule the pods of *store*."""
        self._store = store
        self.claims = ClaimController(store)

    def step(self) -> list[str]:
        """Schedule what can be; return the names of the pods that got a node now."""
        self.claims.step()
        waiting = [
            each
            for each in self._store.every(PODS)
            if not each["spec"].get("nodeName") and not is_over(each)
        ]
        return [pod["metadata"]["name"] for pod in waiting if self._schedule(pod)]

    def delete(self, namespace: str, name: str) -> None:
        """Take a pod out of the API at once, as `kubectl delete --force` does.

        Claims that were made for it go with it; others it no longer keeps reserved.
        """
        place = Place(kind=PODS, namespace=namespace, name=name)
        self.claims.step(self._store.delete(place, grace=0))

    def evict(self) -> list[str]:
        """Delete the pods whose devices have a NoExecute taint that they do not tolerate."""
        ill = {each.id: taints(each, frozenset({"NoExecute"})) for each in self._candidates()}
        gone = []
        for claim in self._store.every(CLAIMS):
            results = _results(claim)
            if any(
                untolerated(ill.get(_id(each), ()), each.get("tolerations", ())) for each in results
            ):
                for pod in claim["status"].get("reservedFor", ()):
                    self.delete(claim["metadata"]["namespace"], pod["name"])
                    gone.append(pod["name"])
        return gone

    def _schedule(self, pod: Object) -> bool:
        claims, extended = self._claims_of(pod), self._extended(pod)
        if claims is None:
            return False
        wanted = [*claims, *([extended[0]] if extended else [])]
        for node in sorted({each.node for each in self._candidates()}):
            chosen = self._choose(wanted, node)
            if chosen is None:
                continue
            for claim, results in zip(claims, chosen, strict=False):
                self._allocate(claim, pod, node, results)
            if extended:
                self._bring(pod, node, extended, chosen[-1])
            at = place_of(PODS, pod)
            latest = self._store.get(at)
            latest["spec"]["nodeName"] = node
            self._store.update(at, latest)
            return True
        return False

    def _claims_of(self, pod: Object) -> list[Object] | None:
        """Return the claims of *pod*, None while they are not all there."""
        names, namespace = claim_names(pod), pod["metadata"]["namespace"]
        places = [
            Place(kind=CLAIMS, namespace=namespace, name=names[each["name"]])
            for each in pod["spec"].get("resourceClaims", ())
        ]
        try:
            return [self._store.get(place) for place in places]
        except RefusedError:
            return None

    def _extended(self, pod: Object) -> tuple[Object, list[Object]] | None:
        """Return a claim for the extended resources that device classes stand for, None for none.

        Also return which container has what by which request. The claim is not in the API server
        before the pod has a place.
        """
        classes = {
            each["spec"]["extendedResourceName"]: each["metadata"]["name"]
            for each in self._store.every(CLASSES)
            if each["spec"].get("extendedResourceName")
        }
        requests: list[Object] = []
        mappings: list[Object] = []
        for position, container in enumerate(pod["spec"].get("containers", ())):
            limits = container.get("resources", {}).get("limits", {})
            wanted = [(name, int(count)) for name, count in limits.items() if name in classes]
            for number, (name, count) in enumerate(wanted):
                request = f"container-{position}-request-{number}"
                exactly = {
                    "deviceClassName": classes[name],
                    "allocationMode": "ExactCount",
                    "count": count,
                }
                requests.append({"name": request, "exactly": exactly})
                mappings.append(
                    {
                        "containerName": container["name"],
                        "resourceName": name,
                        "requestName": request,
                    }
                )
        return ({"spec": {"devices": {"requests": requests}}}, mappings) if requests else None

    def _choose(self, claims: Sequence[Object], node: str) -> list[list[Object]] | None:
        """Return the results for each claim on *node*, or None where they do not fit there."""
        had = (each for claim in self._store.every(CLAIMS) for each in _results(claim))
        room = Room(self._store.every(SLICES), had)
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

    def _bring(
        self, pod: Object, node: str, extended: tuple[Object, list[Object]], results: list[Object]
    ) -> None:
        """Make the claim for extended resources, which has *results*, and note it in the pod."""
        claim, mappings = extended
        made = make_claim(
            self._store, pod, "extended-resources", claim["spec"], {_EXTENDED: "true"}
        )
        self._allocate(made, pod, node, results)
        at = place_of(PODS, pod)
        latest = self._store.get(at)
        latest["status"]["extendedResourceClaimStatus"] = {
            "resourceClaimName": made["metadata"]["name"],
            "requestMappings": mappings,
        }
        self._store.update(at, latest, subresource="status")

    def _allocate(self, claim: Object, pod: Object, node: str, results: list[Object]) -> None:
        """Write that *claim* has *results* on *node*, and that *pod* may use it."""
        place = place_of(CLAIMS, claim)
        latest = self._store.get(place)
        finalizers = latest["metadata"].setdefault("finalizers", [])
        if FINALIZER not in finalizers:
            finalizers.append(FINALIZER)
            latest = self._store.update(place, latest)
        status, metadata = latest["status"], pod["metadata"]
        user = {"resource": "pods", "name": metadata["name"], "uid": metadata["uid"]}
        allocation = {
            "allocationTimestamp": now(),
            "devices": {"results": results},
            "nodeSelector": _node_selector(node),
        }
        latest["status"] = {
            **status,
            "allocation": status.get("allocation") or allocation,
            "reservedFor": [*status.get("reservedFor", ()), user],
        }
        self._store.update(place, latest, subresource="status")

    def _candidates(self) -> list[Candidate]:
        return candidates(self._store.every(SLICES))


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
