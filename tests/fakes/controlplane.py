"""An API server whose objects are held against the published schemas, and a service account for it."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jsonschema import ValidationError

from fakes.apischemas import check
from holdfast.apiserver.wire import Access, in_cluster
from simulated.cluster.certificates import certificates
from simulated.cluster.objects import NODES, SLICES, add
from simulated.cluster.rules import InvalidError, Rules
from simulated.cluster.server import ApiServer, write_service_account
from simulated.cluster.store import Store

NODE = "node-1"
TOKEN = "first"


class ControlPlane:
    """The store, its server, and the files by which a pod of the node reaches it."""

    def __init__(
        self, folder: Path, minor: int, gates: Iterable[str] | None, *, validates: bool
    ) -> None:
        files = certificates(folder / "pki")
        self.minor = minor
        rules = Rules(minor, gates)
        self.store = Store(rules, validate=self._validate) if validates else Store(rules)
        self.server = ApiServer(self.store, files, token=TOKEN, node=NODE)
        self.account = write_service_account(folder / "serviceaccount", files, TOKEN)
        add(self.store, NODES, NODE)

    @property
    def access(self) -> Access:
        return in_cluster(self.server.environment, self.account)

    def renew_token(self, token: str, *, written: bool = True) -> None:
        """Let the former token expire; the file has the new one if it is *written*."""
        self.server.tokens = {token: NODE}
        if written:
            (self.account / "token").write_text(token)

    def slices(self) -> dict[str, Any]:
        """Return the slices of all drivers by name."""
        return {each["metadata"]["name"]: each for each in self.store.every(SLICES)}

    def _validate(self, made: dict[str, Any]) -> None:
        try:
            check(made, self.minor)
        except ValidationError as error:
            raise InvalidError(str(error)) from error


def slice_object(name: str, *, count: int = 1, **spec: Any) -> dict[str, Any]:
    """Return a slice of the node's pool, of *count* slices, as somebody else may write it."""
    pool = {"name": NODE, "generation": 1, "resourceSliceCount": count}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {"driver": "holdfast.dev", "nodeName": NODE, "pool": pool, **spec},
    }


@contextmanager
def control_plane(
    folder: Path,
    *,
    minor: int = 36,
    gates: Iterable[str] | None = None,
    validates: bool = True,
) -> Iterator[ControlPlane]:
    """Serve a cluster of one node until the block ends; *validates*: by the schemas, which costs time."""
    plane = ControlPlane(folder, minor, gates, validates=validates)
    try:
        yield plane
    finally:
        plane.server.close()
