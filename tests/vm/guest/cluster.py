"""The guest's cluster: an API server, and a scheduler that allocates what a case tells it to."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simulated.cluster.certificates import certificates
from simulated.cluster.rules import Rules
from simulated.cluster.server import ApiServer, write_service_account
from simulated.cluster.store import Kind, Place, Selector, Store
from vm.guest.pci import Function
from vm.modes import DRIVER, NODE, SERVICE_ACCOUNT

CLAIMS = Kind(group_version="resource.k8s.io/v1", plural="resourceclaims")
SLICES = Kind(group_version="resource.k8s.io/v1", plural="resourceslices")
_NODES = Kind(group_version="v1", plural="nodes")
_TOKEN = "token"


class Cluster:
    """Serves from when it is made, for as long as the guest runs."""

    def __init__(self, folder: Path) -> None:
        """Keep certificates in *folder*."""
        self.store = Store(Rules())
        made = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
        self.store.create(Place(kind=_NODES), made)
        files = certificates(folder / "pki")
        self._server = ApiServer(self.store, files, token=_TOKEN, node=NODE)
        write_service_account(Path(SERVICE_ACCOUNT), files, _TOKEN)

    @property
    def environment(self) -> Mapping[str, str]:
        """Return what kubelet sets for a pod."""
        return {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self._server.port),
        }

    def allocate(self, name: str, chips: Sequence[Function], *, pod: str) -> None:
        """Allocate *chips* to a new claim *name*, which is reserved for *pod*."""
        place = Place(kind=CLAIMS, namespace="default")
        made = self.store.create(
            place,
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"devices": {"requests": [{"name": "chips", "exactly": {}}]}},
            },
        )
        results = [
            {"request": "chips", "driver": DRIVER, "pool": NODE, "device": label(each)}
            for each in chips
        ]
        made["status"] = {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": name, "uid": pod}],
        }
        at = Place(kind=CLAIMS, namespace="default", name=name)
        self.store.update(at, made, subresource="status")

    def forget(self, name: str) -> None:
        """Delete a claim, as happens with the pod that it was made for."""
        self.store.delete(Place(kind=CLAIMS, namespace="default", name=name))

    def advertised(self) -> dict[str, dict[str, Any]]:
        """Return the devices that the scheduler knows, by name."""
        slices, _ = self.store.find(Place(kind=SLICES), Selector())
        return {device["name"]: device for each in slices for device in each["spec"]["devices"]}


def label(function: Function) -> str:
    """Return the name of a chip in ResourceSlices."""
    return f"tpu-{function.address.replace(':', '-').replace('.', '-')}"
