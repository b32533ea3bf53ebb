"""What the story of Dynamic Resource Allocation is told with: a stage with a control plane."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast._pb.deviceplugin.v1beta1 import api_pb2 as api
from simulated.cluster.candidates import candidates
from simulated.cluster.certificates import certificates
from simulated.cluster.rules import Rules
from simulated.cluster.scheduler import (
    CLAIMS,
    CLASSES,
    PODS,
    RESOURCE,
    SLICES,
    TEMPLATES,
    Scheduler,
)
from simulated.cluster.server import ApiServer, write_service_account
from simulated.cluster.store import Kind, Object, Place, RefusedError, Selector, Store
from simulated.demo import Demo, StoryError
from simulated.dramanager import DraManager
from simulated.node import SimulatedNode
from simulated.pods import Container, Pod, PodSpec, Workload

TPU = "google.com/tpu"
DRIVER = "holdfast.dev"
NODE = "node-1"
_TOKEN = "token-of-the-pod"
_NAMESPACE = "default"
_CLASS = "tpu.holdfast.dev"
_CHIP = 'device.driver == "holdfast.dev" && device.attributes["holdfast.dev"].type == "tpu"'
_NODES = Kind(group_version="v1", plural="nodes")


class DraDemo(Demo):
    """A stage whose chips are given to claims, with `server`, its `store` and a `scheduler`."""

    def __init__(self, folder: Path, node: SimulatedNode, server: ApiServer, account: Path) -> None:
        """Build everything below *folder*; *account* has what the daemon knows *server* by."""
        self.server = server
        self.store = server.store
        self.scheduler = Scheduler(self.store)
        root = folder / "kubelet"
        (root / "plugins").mkdir(parents=True)
        cdi = folder / "cdi"
        cdi.mkdir()
        super().__init__(
            folder,
            node,
            resource=TPU,
            cdi=cdi,
            dra=DraManager(root, objects=self._claim, wipe=self._wipe),
            changes={
                "tpu": {"api": "dra"},
                "cdi": {"specDir": str(cdi)},
                "dra": {
                    "nodeName": NODE,
                    "kubeletRoot": str(root),
                    "serviceAccount": str(account),
                    "unprepareWait": "6s",
                },
            },
            environment={
                "KUBERNETES_SERVICE_HOST": "127.0.0.1",
                "KUBERNETES_SERVICE_PORT": str(server.port),
            },
        )
        self.cdi = cdi

    @property
    def dra(self) -> DraManager:
        """Return kubelet's DRA manager."""
        if self.kubelet.dra is None:
            raise AssertionError("this kubelet has no DRA")
        return self.kubelet.dra

    def slices(self) -> list[Object]:
        """Return the ResourceSlices of the cluster."""
        return self.store.find(Place(kind=SLICES), Selector())[0]

    def devices(self) -> dict[str, Mapping[str, Any]]:
        """Return all that the scheduler can give to claims, by name."""
        return {each.device["name"]: each.device for each in candidates(self.slices())}

    def chips(self) -> dict[str, Mapping[str, Any]]:
        """Return the single chips among the devices."""
        of_class = {"string": "tpu"}
        devices = self.devices().items()
        return {name: each for name, each in devices if each["attributes"]["type"] == of_class}

    def tainted(self) -> dict[str, str]:
        """Return the chips that are given to no new claim, with the value of their taint."""
        return {
            name: each["taints"][0]["value"]
            for name, each in self.chips().items()
            if each.get("taints")
        }

    async def submit(self, name: str, workload: Workload) -> tuple[Pod, str]:
        """Submit a pod with a claim of one chip; return it with the chip that it is given."""
        claim = {"name": "chip", "resourceClaimTemplateName": "one-chip"}
        made = self.store.create(
            Place(kind=PODS, namespace=_NAMESPACE),
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name},
                "spec": {
                    "resourceClaims": [claim],
                    "containers": [{"name": "main", "resources": {"claims": [{"name": "chip"}]}}],
                },
            },
        )
        if self.scheduler.step() != [name]:
            raise StoryError(f"the scheduler found no chip for {name}")
        spec = PodSpec(
            name=name,
            uid=made["metadata"]["uid"],
            claims={"chip": f"{name}-chip"},
            containers=(Container(claims=(("chip", ""),), workload=workload),),
        )
        stored = await self._claim(_NAMESPACE, spec.claims["chip"]) or {}
        (result,) = stored["status"]["allocation"]["devices"]["results"]
        return await self.kubelet.submit(spec), str(result["device"])

    def forget(self, pod: Pod) -> None:
        """Take a pod and its claim out of the API: its chip may be given to others at once."""
        self.scheduler.delete(_NAMESPACE, pod.spec.name)

    def chip_of(self, pod: Pod) -> tuple[str, Path]:
        """Return the chip that a pod was given, and where its program opens it."""
        (info,) = self.dra.cache.of_pod(pod.uid)
        (devices,) = info.drivers.values()
        names = [api.CDIDevice(name=name) for name in info.cdi("")]
        (path,) = self.runtime.paths(api.ContainerAllocateResponse(cdi_devices=names))
        return str(devices[0]["DeviceName"]), self.node.node(path)

    def health(self, chip: str) -> str:
        """Return what the status of a pod with *chip* says of its health."""
        told = self.dra.plugins.health.get(DRIVER, {}).get((NODE, chip))
        return "" if told is None else str(told.message)

    async def _claim(self, namespace: str, name: str) -> Object | None:
        """Return a claim as kubelet reads it, None where there is none."""
        try:
            return self.store.get(Place(kind=CLAIMS, namespace=namespace, name=name))
        except RefusedError:
            return None

    async def _wipe(self, driver: str | None) -> None:
        """Delete the node's slices, of one driver or of all, as kubelet does."""
        wanted = f"spec.nodeName={NODE}" + (f",spec.driver={driver}" if driver else "")
        self.store.delete_collection(Place(kind=SLICES), Selector.of(wanted, SLICES.plural))


def _objects() -> Iterator[tuple[Place, Object]]:
    """Yield what the cluster's administrator has made."""
    yield (
        Place(kind=_NODES),
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}},
    )
    yield (
        Place(kind=CLASSES),
        {
            "apiVersion": RESOURCE,
            "kind": "DeviceClass",
            "metadata": {"name": _CLASS},
            "spec": {"selectors": [{"cel": {"expression": _CHIP}}]},
        },
    )
    exactly = {"deviceClassName": _CLASS, "allocationMode": "ExactCount", "count": 1}
    yield (
        Place(kind=TEMPLATES, namespace=_NAMESPACE),
        {
            "apiVersion": RESOURCE,
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "one-chip"},
            "spec": {"spec": {"devices": {"requests": [{"name": "chip", "exactly": exactly}]}}},
        },
    )


@contextmanager
def dra_demo(folder: Path, *, chips: int) -> Iterator[DraDemo]:
    """Yield a stage on a node with *chips* chips in a cluster that is there until the block ends.

    Raise HostError where there is no openssl.
    """
    files = certificates(folder / "pki")
    server = ApiServer(Store(Rules(36)), files, token=_TOKEN, node=NODE)
    for place, made in _objects():
        server.store.create(place, made)
    try:
        account = write_service_account(folder / "serviceaccount", files, _TOKEN)
        yield DraDemo(folder, SimulatedNode(folder / "node", chips=chips), server, account)
    finally:
        server.close()
