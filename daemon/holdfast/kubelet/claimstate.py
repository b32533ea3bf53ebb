"""Reads kubelet's record of claims: which pods use which claim, as kubelet wrote it.

The file is dra_manager_state in kubelet's root folder; kubelet writes it, and nobody else.
"""

import binascii
from pathlib import Path

import msgspec
from msgspec import Struct

from holdfast.errors import KubeletError
from holdfast.kubelet.checkpoint import FileLook, check_size, decoded, look_at
from holdfast.model.ids import ClaimRef, ClaimUid, PodUid
from holdfast.model.kubelet import ClaimEntry, RecordedDevice

_KIND = "DRACheckpoint"
_VERSION = "checkpoint.dra.kubelet.k8s.io/v1"


class _Device(Struct, frozen=True):
    pool: str = msgspec.field(name="PoolName")
    name: str = msgspec.field(name="DeviceName")
    # Since Kubernetes 1.34; null for a device that is not shared.
    share_id: str | None = msgspec.field(name="ShareID", default=None)
    requests: tuple[str, ...] | None = msgspec.field(name="RequestNames", default=None)
    cdi_ids: tuple[str, ...] | None = msgspec.field(name="CDIDeviceIDs", default=None)


class _Driver(Struct, frozen=True):
    # Go writes an empty list as null.
    devices: list[_Device] | None = msgspec.field(name="Devices", default=None)


class _ClaimInfo(Struct, frozen=True):
    uid: str = msgspec.field(name="ClaimUID")
    name: str = msgspec.field(name="ClaimName")
    namespace: str = msgspec.field(name="Namespace")
    pods: dict[str, object] | None = msgspec.field(name="PodUIDs")
    drivers: dict[str, _Driver] | None = msgspec.field(name="DriverState", default=None)


class _ClaimStateData(Struct, frozen=True):
    kind: str
    version: str = msgspec.field(name="apiVersion")
    # Kubernetes 1.32 called it Entries.
    claims: list[_ClaimInfo] | msgspec.UnsetType | None = msgspec.field(
        name="ClaimInfoStateList", default=msgspec.UNSET
    )
    entries: list[_ClaimInfo] | msgspec.UnsetType | None = msgspec.field(
        name="Entries", default=msgspec.UNSET
    )


class _ClaimStateFile(Struct, frozen=True):
    data: str = msgspec.field(name="Data")
    checksum: int = msgspec.field(name="Checksum")


def parse(content: bytes) -> tuple[ClaimEntry, ...]:
    """Return the claims in *content*; raise KubeletError when any part of it is not understood.

    All or nothing: a claim that is missing because its line was not understood would look like one
    that kubelet let go of.
    """
    check_size(content)
    file = decoded(content, _ClaimStateFile)
    # Kubelet counts the text's bytes (CRC-32, IEEE), and ends when they differ.
    if binascii.crc32(file.data.encode()) != file.checksum:
        raise KubeletError("its checksum is wrong, so it was damaged or cut")
    data = decoded(file.data, _ClaimStateData)
    claims = data.entries if data.claims is msgspec.UNSET else data.claims
    if (data.kind, data.version) != (_KIND, _VERSION) or claims is msgspec.UNSET:
        raise KubeletError(f"it is of no known version ({data.kind} {data.version})")
    return tuple(_entry(each) for each in claims or ())


def read(path: Path) -> FileLook[tuple[ClaimEntry, ...]]:
    """Look at the record at *path*. Whatever is wrong with it is told, never raised.

    MISSING is no problem where no pod has ever had a claim: kubelets make the file at their first
    start with DRA.
    """
    return look_at(
        path,
        parse,
        (),
        what="kubelet's record of claims",
        folder="root",
        garbage="kubelet does not start with it: drain the node, move the file away and restart "
        "kubelet",
    )


def _entry(claim: _ClaimInfo) -> ClaimEntry:
    if not claim.uid or not claim.name or not claim.namespace:
        raise KubeletError("it is of no known version (a claim without a uid, name or namespace)")
    return ClaimEntry(
        claim=ClaimRef(namespace=claim.namespace, uid=ClaimUid(claim.uid), name=claim.name),
        pods=frozenset(PodUid(pod) for pod in claim.pods or ()),
        devices={
            driver: tuple(
                RecordedDevice(
                    it.pool, it.name, it.share_id or "", it.requests or (), it.cdi_ids or ()
                )
                for it in state.devices or ()
            )
            for driver, state in (claim.drivers or {}).items()
        },
    )
