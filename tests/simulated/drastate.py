"""What kubelet knows of claims, and the file that it writes of it: dra_manager_state."""

import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STATE = "dra_manager_state"
_KIND, _VERSION = "DRACheckpoint", "checkpoint.dra.kubelet.k8s.io/v1"


@dataclass(slots=True, kw_only=True)
class ClaimInfo:
    """One claim: who uses it and what its drivers answered; `prepared` is in memory alone."""

    namespace: str
    name: str
    uid: str
    pods: set[str] = field(default_factory=set)
    drivers: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """The devices by driver, as kubelet writes them."""
    prepared: bool = False

    def cdi(self, request: str) -> list[str]:
        """Return the CDI names of *request*, of all requests when it is empty."""
        return [
            name
            for devices in self.drivers.values()
            for device in devices
            if not request or not device["RequestNames"] or request in device["RequestNames"]
            for name in device["CDIDeviceIDs"] or ()
        ]


class UnreadableStateError(Exception):
    """Kubelet does not start; the text is its own."""


class ClaimCache:
    """The claims by namespace and name; every change is written at once."""

    def __init__(self, path: Path) -> None:
        """Keep the file at *path*."""
        self.path = path
        self.claims: dict[tuple[str, str], ClaimInfo] = {}

    def read(self) -> None:
        """Read the file, as at a start: nothing in it says whether a claim is prepared."""
        self.claims = {}
        if not self.path.exists():
            self.write()
            return
        try:
            file = json.loads(self.path.read_text())
            _check(file)
            for each in json.loads(file["Data"])["ClaimInfoStateList"] or ():
                info = _read(each)
                self.claims[info.namespace, info.name] = info
        except (KeyError, TypeError, ValueError) as error:
            raise UnreadableStateError(
                "could not initialize checkpoint manager, please drain node and remove DRA state "
                f"file, err: {error}"
            ) from error

    def write(self) -> None:
        """Write the file anew."""
        claims = [_written(info) for info in self.claims.values()]
        data = json.dumps({"kind": _KIND, "apiVersion": _VERSION, "ClaimInfoStateList": claims})
        temporary = self.path.with_name(f".{STATE}.tmp")
        temporary.write_text(json.dumps({"Data": data, "Checksum": binascii.crc32(data.encode())}))
        temporary.chmod(0o600)
        temporary.replace(self.path)

    def of_pod(self, pod: str) -> list[ClaimInfo]:
        """Return the claims that *pod* uses, by its UID."""
        return [info for info in self.claims.values() if pod in info.pods]


def _check(file: Mapping[str, Any]) -> None:
    if binascii.crc32(file["Data"].encode()) != file["Checksum"]:
        raise ValueError("checkpoint is corrupted")


def _written(info: ClaimInfo) -> dict[str, Any]:
    return {
        "ClaimUID": info.uid,
        "ClaimName": info.name,
        "Namespace": info.namespace,
        "PodUIDs": {pod: {} for pod in sorted(info.pods)},
        "DriverState": {
            driver: {"Devices": devices or None} for driver, devices in info.drivers.items()
        },
    }


def _read(state: Mapping[str, Any]) -> ClaimInfo:
    return ClaimInfo(
        namespace=state["Namespace"],
        name=state["ClaimName"],
        uid=state["ClaimUID"],
        pods=set(state["PodUIDs"] or ()),
        drivers={
            driver: list(each["Devices"] or ()) for driver, each in state["DriverState"].items()
        },
    )
