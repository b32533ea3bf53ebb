"""A simulated cluster of one node: an API server, and the service account by which it is reached."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from bench.rig import Place
from holdfast.apiserver.wire import Access, in_cluster
from simulated.cluster.certificates import certificates
from simulated.cluster.objects import NODES, SLICES, add
from simulated.cluster.rules import Rules
from simulated.cluster.server import ApiServer, write_service_account
from simulated.cluster.store import Object, Store

DRIVER, NODE = "holdfast.dev", "node-1"
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
        return self.store.every(SLICES)


@contextlib.contextmanager
def cluster(place: Place) -> Iterator[Cluster]:
    """Serve a cluster until the block ends."""
    account = place.state / "serviceaccount"
    store = Store(Rules())
    add(store, NODES, NODE)
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
