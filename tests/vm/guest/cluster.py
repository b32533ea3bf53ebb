"""The guest's cluster: an API server, and a scheduler that allocates what a case tells it to."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simulated.cluster.certificates import certificates
from simulated.cluster.objects import CLAIMS, NODES, SLICES, add, allocate, devices_of, wanting
from simulated.cluster.rules import Rules
from simulated.cluster.server import ApiServer, write_service_account
from simulated.cluster.store import Place, Store
from vm.guest.pci import Function
from vm.modes import DRIVER, NODE, SERVICE_ACCOUNT

_TOKEN = "token"


class Cluster:
    """Serves from when it is made, for as long as the guest runs."""

    def __init__(self, folder: Path) -> None:
        """Keep certificates in *folder*."""
        self.store = Store(Rules())
        add(self.store, NODES, NODE)
        files = certificates(folder / "pki")
        server = ApiServer(self.store, files, token=_TOKEN, node=NODE)
        self.environment: Mapping[str, str] = server.environment
        write_service_account(Path(SERVICE_ACCOUNT), files, _TOKEN)

    def allocate(self, name: str, chips: Sequence[Function], *, pod: str) -> None:
        """Allocate *chips* to a new claim *name*, which is reserved for *pod*."""
        made = add(self.store, CLAIMS, name, spec=wanting("chips", "chips"))
        results = [
            {"request": "chips", "driver": DRIVER, "pool": NODE, "device": label(each)}
            for each in chips
        ]
        allocate(self.store, made, results, [{"name": name, "uid": pod}])

    def forget(self, name: str) -> None:
        """Delete a claim, as happens with the pod that it was made for."""
        self.store.delete(Place(kind=CLAIMS, namespace="default", name=name))

    def advertised(self) -> dict[str, dict[str, Any]]:
        """Return the devices that the scheduler knows, by name."""
        return devices_of(self.store.every(SLICES))


def label(function: Function) -> str:
    """Return the name of a chip in ResourceSlices."""
    return f"tpu-{function.address.replace(':', '-').replace('.', '-')}"
