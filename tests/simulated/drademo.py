"""What the story of Dynamic Resource Allocation is told with: a stage with a control plane."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from holdfast._pb.deviceplugin.v1beta1 import api_pb2 as api
from simulated.cluster.candidates import candidates
from simulated.cluster.certificates import certificates
from simulated.cluster.claims import claim_names
from simulated.cluster.objects import (
    CLAIMS,
    NODES,
    PODS,
    SLICES,
    TEMPLATES,
    add,
    add_class,
    using,
    wanting,
)
from simulated.cluster.rules import Rules
from simulated.cluster.scheduler import Scheduler
from simulated.cluster.server import ApiServer, write_service_account
from simulated.cluster.store import Object, Place, Store
from simulated.demo import Demo, StoryError
from simulated.dramanager import DraManager
from simulated.node import SimulatedNode
from simulated.pods import Container, Pod, PodSpec, Workload
from simulated.podstatus import PodStatuses

TPU = "google.com/tpu"
DRIVER = "holdfast.dev"
NODE = "node-1"
_TOKEN = "token-of-the-pod"
_NAMESPACE = "default"
_KINDS = ("tpu", "claimed-gpu")


class Cluster(Struct, frozen=True, kw_only=True):
    """A control plane; `account` is the folder with what the daemon knows `server` by."""

    server: ApiServer
    account: Path


class DraDemo(Demo):
    """A stage with devices that are given to claims, with a `store` and a `scheduler`."""

    def __init__(
        self,
        folder: Path,
        node: SimulatedNode,
        cluster: Cluster,
        *,
        resource: str,
        changes: Mapping[str, Any],
        toolkit: Callable[[Mapping[str, str]], Sequence[str]] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Build everything below *folder*, in *cluster*; the rest is as Demo's."""
        self.store = cluster.server.store
        self.scheduler = Scheduler(self.store)
        root = folder / "kubelet"
        (root / "plugins").mkdir(parents=True)
        cdi = folder / "cdi"
        cdi.mkdir()
        super().__init__(
            folder,
            node,
            resource=resource,
            toolkit=toolkit,
            cdi=cdi,
            dra=DraManager.on_cluster(root, self.store, NODE),
            changes={
                **changes,
                "cdi": {"specDir": str(cdi)},
                "dra": {
                    "nodeName": NODE,
                    "kubeletRoot": str(root),
                    "serviceAccount": str(cluster.account),
                    "unprepareWait": "6s",
                },
            },
            environment={**cluster.server.environment, **(environment or {})},
        )
        self.cdi = cdi
        self.kubelet.tell = PodStatuses(self.store, self.scheduler).tell

    @property
    def dra(self) -> DraManager:
        """Return kubelet's DRA manager."""
        if self.kubelet.dra is None:
            raise AssertionError("this kubelet has no DRA")
        return self.kubelet.dra

    def slices(self) -> list[Object]:
        """Return the ResourceSlices of the cluster."""
        return self.store.every(SLICES)

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

    async def submit(self, name: str, workload: Workload, *, kind: str = "tpu") -> tuple[Pod, str]:
        """Submit a pod with a claim of one device of *kind*; return it with what it is given."""
        claim = {"name": "chip", "resourceClaimTemplateName": f"one-{kind}"}
        pod = await self.run(name, workload, resourceClaims=[claim])
        claimed = Place(kind=CLAIMS, namespace=_NAMESPACE, name=pod.spec.claims["chip"])
        stored = self.store.get(claimed)
        (result,) = stored["status"]["allocation"]["devices"]["results"]
        return pod, str(result["device"])

    async def run(
        self,
        name: str,
        workload: Workload,
        *,
        limits: Mapping[str, str] | None = None,
        **wants: Any,
    ) -> Pod:
        """Submit a pod that *wants* so, which must find its place at once.

        It has one container, which uses all of its claims, and has *limits*.
        """
        spec = {**using(resources={"limits": {**(limits or {})}}), **wants}
        add(self.store, PODS, name, namespace=_NAMESPACE, spec=spec)
        if self.scheduler.step() != [name]:
            raise StoryError(f"the scheduler found no chip for {name}")
        made = self.store.get(_pod(name))
        claims = claim_names(made)
        if extended := made["status"].get("extendedResourceClaimStatus"):
            claims["extended"] = extended["resourceClaimName"]
        used = tuple((each, "") for each in claims)
        placed = PodSpec(
            name=name,
            uid=made["metadata"]["uid"],
            claims=claims,
            containers=(Container(claims=used, workload=workload),),
        )
        return await self.kubelet.submit(placed)

    def delete(self, pod: Pod, *, grace: float, force: bool = False) -> None:
        """Delete a pod as `kubectl delete` does, so that kubelet ends it within *grace* seconds.

        *force*: the pod and its claim leave the API at once, and its chip may be given to others.
        """
        if force:
            self.scheduler.delete(_NAMESPACE, pod.spec.name)
        else:
            self.store.delete(_pod(pod.spec.name))
        self.kubelet.delete(pod, grace=grace, force=force)

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


def _pod(name: str) -> Place:
    return Place(kind=PODS, namespace=_NAMESPACE, name=name)


def _administrate(store: Store) -> None:
    """Do what the cluster's administrator has done."""
    add(store, NODES, NODE)
    for kind in _KINDS:
        name = f"{kind}.{DRIVER}"
        add_class(store, name, DRIVER, f'device.attributes["{DRIVER}"].type == "{kind}"')
        wanted = wanting(name, "chip", allocationMode="ExactCount", count=1)
        add(store, TEMPLATES, f"one-{kind}", namespace=_NAMESPACE, spec={"spec": wanted})


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Yield a control plane with the node, which is there until the block ends.

    Raise HostError where there is no openssl.
    """
    files = certificates(folder / "pki")
    server = ApiServer(Store(Rules(36)), files, token=_TOKEN, node=NODE)
    _administrate(server.store)
    try:
        account = write_service_account(folder / "serviceaccount", files, _TOKEN)
        yield Cluster(server=server, account=account)
    finally:
        server.close()


@contextmanager
def dra_demo(folder: Path, *, chips: int) -> Iterator[DraDemo]:
    """Yield a stage on a node with *chips* chips in a cluster that is there until the block ends.

    Raise HostError where there is no openssl.
    """
    with cluster(folder) as made:
        yield DraDemo(
            folder,
            SimulatedNode(folder / "node", chips=chips),
            made,
            resource=TPU,
            changes={"tpu": {"api": "dra"}},
        )
