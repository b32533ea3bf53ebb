"""A simulated cluster of one node: an API server, and the service account by which it is reached."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from bench.rig import Place
from holdfast.apiserver.wire import Access, in_cluster
from simulated.cluster.certificates import certificates
from simulated.cluster.rules import Rules
from simulated.cluster.server import ApiServer, write_service_account
from simulated.cluster.store import Kind, Object, Selector, Store
from simulated.cluster.store import Place as At

DRIVER, NODE = "holdfast.dev", "node-1"
SLICES = Kind(group_version="resource.k8s.io/v1", plural="resourceslices")
CLAIMS = Kind(group_version="resource.k8s.io/v1", plural="resourceclaims")
_TOKEN = "token"


class Cluster(Struct, frozen=True, kw_only=True):
    """The objects, and how a pod reaches their server: `environment` is what its kubelet sets."""

    store: Store
    account: Path
    environment: dict[str, str]

    @property
    def access(self) -> Access:
        """Return what the client of a pod on the node needs."""
        return in_cluster(self.environment, self.account)

    def slices(self) -> list[Object]:
        """Return all ResourceSlices."""
        return self.store.find(At(kind=SLICES), Selector())[0]


@contextlib.contextmanager
def cluster(place: Place) -> Iterator[Cluster]:
    """Serve a cluster until the block ends."""
    account = place.state / "serviceaccount"
    store = Store(Rules())
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
    store.create(At(kind=Kind(group_version="v1", plural="nodes")), node)
    files = certificates(place.state / "pki")
    server = ApiServer(store, files, token=_TOKEN, node=NODE)
    write_service_account(account, files, _TOKEN)
    environment = {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(server.port),
    }
    try:
        yield Cluster(store=store, account=account, environment=environment)
    finally:
        server.close()
        shutil.rmtree(account)
