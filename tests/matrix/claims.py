"""The cluster of a simulated node: an API server, a scheduler, and kubelet's DRA manager."""

from pathlib import Path

from fakes.controlplane import NODE, ControlPlane
from matrix import oracle
from matrix.space import Choice
from simulated.cluster.claims import claim_names
from simulated.cluster.objects import (
    CLAIMS,
    CLASSES,
    EVENTS,
    PODS,
    SLICES,
    TEMPLATES,
    add,
    add_class,
    devices_of,
    using,
    wanting,
)
from simulated.cluster.scheduler import Scheduler
from simulated.cluster.store import Object, Place
from simulated.dramanager import DraManager
from simulated.pods import Container, Pod, PodSpec, Workload

_SPACE = "default"
_CLAIM = "device"


class Cluster:
    """What pods with claims need of a cluster; `dra` is kubelet's."""

    def __init__(self, plane: ControlPlane, root: Path) -> None:
        """Let kubelet's root folder be *root*."""
        self.plane, self.store, self.root = plane, plane.store, root
        for name in ("plugins", "plugins_registry"):
            (root / name).mkdir(parents=True)
        self.scheduler = Scheduler(self.store)
        self.dra = DraManager.on_cluster(root, self.store, NODE)

    def settings(self) -> dict[str, str]:
        """Return where the daemon finds all that."""
        account = str(self.plane.account)
        return {"nodeName": NODE, "kubeletRoot": str(self.root), "serviceAccount": account}

    def adopt(self, choice: Choice) -> None:
        """Have the classes of docs/dra.md for what *choice* serves by claims."""
        driver = choice["dra.driverName"]
        for each in self.store.every(CLASSES):
            self.store.delete(Place(kind=CLASSES, name=each["metadata"]["name"]))
        for each in self.store.every(TEMPLATES):
            name = each["metadata"]["name"]
            self.store.delete(Place(kind=TEMPLATES, namespace=_SPACE, name=name))
        told = f'device.attributes["{driver}"]'
        for resource in oracle.published(choice):
            name = oracle.attribute(resource)
            chosen = f'has({told}.resource) && {told}.resource == "{name}"'
            self._add_class(resource, driver, chosen, extendedResourceName=resource)
        for shape in oracle.shapes(choice):
            self._add_class(shape, driver, f'has({told}.shape) && {told}.shape == "{shape}"')

    def _add_class(self, name: str, driver: str, chosen: str, **more: str) -> None:
        add_class(self.store, _called(name), driver, chosen, **more)
        add(self.store, TEMPLATES, _called(name), spec={"spec": wanting(_called(name), _CLAIM)})

    def devices(self) -> dict[str, Object]:
        """Return what the slices have, by name."""
        return devices_of(self.store.every(SLICES))

    def wipe(self) -> None:
        """Delete all slices: kubelet leaves those of a driver that it had not met yet."""
        for each in self.store.every(SLICES):
            self.store.delete(Place(kind=SLICES, name=each["metadata"]["name"]))

    def wants(self, name: str, what: str, count: int) -> None:
        """Add a pod with *count* of a resource, as pods have them without claims."""
        limits = {"limits": {what: str(count)}}
        add(self.store, PODS, name, spec=using(resources=limits))

    def claims(self, name: str, what: str, shared: str = "", *, admin: bool = False) -> None:
        """Add a pod with a claim of one device of a resource, or of a shape.

        It is the pod's own, or the *shared* one of that name, or its own with adminAccess.
        """
        claim = {"name": _CLAIM, "resourceClaimTemplateName": _called(what)}
        if admin:
            shared = name
        if shared:
            claim = {"name": _CLAIM, "resourceClaimName": shared}
        if shared and not any(
            each["metadata"]["name"] == shared for each in self.store.every(CLAIMS)
        ):
            wanted = {"adminAccess": True} if admin else {}
            add(self.store, CLAIMS, shared, spec=wanting(_called(what), _CLAIM, **wanted))
        add(self.store, PODS, name, spec=using(claim))

    def placed(self, name: str, work: Workload) -> PodSpec | None:
        """Return the pod for kubelet, None while the scheduler has no place for it."""
        if name not in self.scheduler.step():
            return None
        made = self.store.get(_pod(name))
        claims = claim_names(made)
        extended: frozenset[str] = frozenset()
        if told := made["status"].get("extendedResourceClaimStatus"):
            claims["extended"] = told["resourceClaimName"]
            extended = frozenset(each["resourceName"] for each in told["requestMappings"])
        used = tuple((each, "") for each in claims)
        container = Container(claims=used, extended=extended, workload=work)
        uid = made["metadata"]["uid"]
        return PodSpec(name=name, uid=uid, claims=claims, containers=(container,))

    def has(self, pod: Pod) -> list[str]:
        """Return the devices of the claims that kubelet has for *pod*, prepared or to be."""
        infos = self.dra.cache.of_pod(pod.uid)
        drivers = (devices for info in infos for devices in info.drivers.values())
        if prepared := [str(device["DeviceName"]) for devices in drivers for device in devices]:
            return prepared
        claims = [each for each in self.store.every(CLAIMS) if _is_for(each, pod.uid)]
        results = (each["status"]["allocation"]["devices"]["results"] for each in claims)
        return [str(each["device"]) for devices in results for each in devices]

    def delete(self, name: str) -> None:
        """Delete a pod of which kubelet knows nothing, or that it is about to end."""
        if self.knows(name):
            self.store.delete(_pod(name))

    def knows(self, name: str) -> bool:
        """Tell whether the API server has a pod."""
        return any(each["metadata"]["name"] == name for each in self.store.every(PODS))

    def told(self, pod: Pod) -> list[str]:
        """Return the reasons of the Events about *pod*."""
        about = (
            each for each in self.store.every(EVENTS) if each["involvedObject"]["uid"] == pod.uid
        )
        return [str(each["reason"]) for each in about]


def _is_for(claim: Object, uid: str) -> bool:
    return uid in {each["uid"] for each in claim.get("status", {}).get("reservedFor", ())}


def _called(name: str) -> str:
    return name.replace("/", ".").replace("+", ".").lower()


def _pod(name: str) -> Place:
    return Place(kind=PODS, namespace=_SPACE, name=name)
