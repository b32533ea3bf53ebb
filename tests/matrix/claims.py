"""The cluster of a simulated node: an API server, a scheduler, and kubelet's DRA manager."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fakes.controlplane import EVENTS, NODE, ControlPlane
from matrix import oracle
from matrix.space import Choice
from simulated.cluster.claims import claim_names
from simulated.cluster.scheduler import CLASSES, PODS, SLICES, TEMPLATES, Scheduler
from simulated.cluster.store import Kind, Place, Selector
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
        for each in self._every(CLASSES):
            self.store.delete(Place(kind=CLASSES, name=each["metadata"]["name"]))
        for each in self._every(TEMPLATES):
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
        text = f'device.driver == "{driver}" && {chosen}'
        spec = {"selectors": [{"cel": {"expression": text}}], **more}
        self._add(CLASSES, "DeviceClass", _called(name), spec=spec)
        exactly = {"deviceClassName": _called(name)}
        devices = {"devices": {"requests": [{"name": _CLAIM, "exactly": exactly}]}}
        self._add(TEMPLATES, "ResourceClaimTemplate", _called(name), spec={"spec": devices})

    def devices(self) -> dict[str, Mapping[str, Any]]:
        """Return what the slices have, by name."""
        every = (each["spec"].get("devices", ()) for each in self._every(SLICES))
        return {device["name"]: device for some in every for device in some}

    def wants(self, name: str, what: str, count: int) -> None:
        """Add a pod with *count* of a resource, as pods have them without claims."""
        limits = {"limits": {what: str(count)}}
        self._add(PODS, "Pod", name, spec={"containers": [_container(resources=limits)]})

    def claims(self, name: str, what: str) -> None:
        """Add a pod with a claim of one device of a resource, or of a shape."""
        claim = {"name": _CLAIM, "resourceClaimTemplateName": _called(what)}
        spec = {"containers": [_container()], "resourceClaims": [claim]}
        self._add(PODS, "Pod", name, spec=spec)

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
        """Return the devices of the claims that kubelet has prepared for *pod*."""
        infos = self.dra.cache.of_pod(pod.uid)
        drivers = (devices for info in infos for devices in info.drivers.values())
        return [str(device["DeviceName"]) for devices in drivers for device in devices]

    def delete(self, name: str) -> None:
        """Delete a pod of which kubelet knows nothing, or that it is about to end."""
        if self.knows(name):
            self.store.delete(_pod(name))

    def knows(self, name: str) -> bool:
        """Tell whether the API server has a pod."""
        return any(each["metadata"]["name"] == name for each in self._every(PODS))

    def told(self, pod: Pod) -> list[str]:
        """Return the reasons of the Events about *pod*."""
        about = (each for each in self._every(EVENTS) if each["involvedObject"]["uid"] == pod.uid)
        return [str(each["reason"]) for each in about]

    def _add(self, kind: Kind, what: str, name: str, **body: Any) -> None:
        version = "v1" if kind == PODS else "resource.k8s.io/v1"
        content = {"apiVersion": version, "kind": what, "metadata": {"name": name}, **body}
        space = "" if kind == CLASSES else _SPACE
        self.store.create(Place(kind=kind, namespace=space), content)

    def _every(self, kind: Kind) -> list[dict[str, Any]]:
        return self.store.find(Place(kind=kind), Selector())[0]


def _called(name: str) -> str:
    return name.replace("/", ".").replace("+", ".").lower()


def _container(**more: Any) -> dict[str, Any]:
    return {"name": "main", "image": "i", **more}


def _pod(name: str) -> Place:
    return Place(kind=PODS, namespace=_SPACE, name=name)
