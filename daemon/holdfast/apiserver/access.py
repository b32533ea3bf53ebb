"""Where the API server is, and by which token it knows us: what a pod finds of its service account.

https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/
"""

import platform
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

from holdfast.errors import ApiServerError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where kubelet mounts the files of a pod's service account."""

_READ_AGAIN = 60.0
"""Seconds after which the token is read again; kubelet renews the file long before it expires."""
_MOST_TOKEN = 64 * 1024
"""Bytes."""


class Access(Struct, frozen=True, kw_only=True):
    """The address of the API server and the files of the service account; see `check`."""

    host: str
    port: int
    ca: Path
    token: Path

    def __str__(self) -> str:
        """Return ``host:port``."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def check(self) -> None:
        """Raise ApiServerError outside of a pod, or in one without a service account's token."""
        if not self.host or not self.port:
            raise ApiServerError(
                "cannot find the API server: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT "
                "do not name it; run holdfast in a pod"
            )
        if not self.token.is_file():
            raise ApiServerError(
                f"cannot find a service account's token: there is no {self.token}; set "
                "automountServiceAccountToken to true in holdfast's pod"
            )

    def trust(self) -> ssl.SSLContext:
        """Return what accepts servers of the cluster's own CA, and no others."""
        try:
            return ssl.create_default_context(cafile=self.ca)
        except OSError as error:  # ssl.SSLError is one
            raise ApiServerError(
                f"cannot read the cluster's CA from {self.ca}: {error.strerror or error}"
            ) from error


def in_cluster(variables: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> Access:
    """Return how a pod with the environment *variables* reaches its API server.

    It is checked at each connection: a token may come late.
    """
    port = variables.get("KUBERNETES_SERVICE_PORT", "")
    return Access(
        host=variables.get("KUBERNETES_SERVICE_HOST", ""),
        port=int(port) if port.isascii() and port.isdigit() else 0,
        ca=folder / "ca.crt",
        token=folder / "token",
    )


def node_name(named: str, variables: Mapping[str, str]) -> str:
    """Return the name of this node in the cluster: *named*, or else what the pod or host says."""
    return named or variables.get("NODE_NAME") or platform.node()


class Token:
    """The bearer token as its file has it; it is read again each minute, and when asked to be."""

    def __init__(self, file: Path, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Read *file* at the first use."""
        self._file = file
        self._monotonic = monotonic
        self._value = ""
        self._read_at = 0.0

    def value(self) -> str:
        """Return the token; raise ApiServerError if the file has none."""
        if not self._value or self._monotonic() - self._read_at >= _READ_AGAIN:
            self.read()
        return self._value

    def read(self) -> bool:
        """Read the file now; return whether the token is another one than before."""
        try:
            with self._file.open("rb") as file:
                value = file.read(_MOST_TOKEN).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ApiServerError(f"cannot read the token from {self._file}: {error}") from error
        if not value or not value.isprintable():
            raise ApiServerError(f"cannot use the token in {self._file}: it is empty or no token")
        before, self._value = self._value, value
        self._read_at = self._monotonic()
        return value != before
