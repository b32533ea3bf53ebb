"""Claims as kubelet has them: its record, dra_manager_state, and what the API server answers it."""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from holdfast.model.dra.claims import AllocatedClaim
from holdfast.model.ids import ClaimRef, PodUid
from holdfast.model.kubelet import ClaimEntry, RecordedDevice
from simulated.drastate import ClaimCache, ClaimInfo


def write_record(
    file: Path,
    claim: ClaimRef,
    pods: Collection[str],
    *,
    device: str,
    driver: str,
    pool: str,
    others: Collection[str] = (),
) -> None:
    """Let the record have *claim* for *pods*; without any it has none.

    *others* are further devices of the claim.
    """
    entry = ClaimEntry(
        claim=claim,
        pods=frozenset(map(PodUid, pods)),
        devices={driver: tuple(RecordedDevice(pool, each) for each in (device, *others))},
    )
    write_entries(file, [entry] if pods else [])


def write_entries(file: Path, entries: Iterable[ClaimEntry]) -> None:
    """Let the record have *entries* and nothing else."""
    cache = ClaimCache(file)
    for each in entries:
        drivers = {
            driver: [
                {
                    "PoolName": it.pool,
                    "DeviceName": it.name,
                    "ShareID": it.share_id or None,
                    "RequestNames": list(it.requests) or None,
                    "CDIDeviceIDs": list(it.cdi_ids) or None,
                }
                for it in devices
            ]
            for driver, devices in each.devices.items()
        }
        info = ClaimInfo(
            namespace=each.claim.namespace,
            name=each.claim.name,
            uid=each.claim.uid,
            pods=set(each.pods),
            drivers=drivers,
        )
        cache.claims[info.namespace, info.uid] = info  # a later claim may have the same name
    cache.write()


def claim_object(claim: AllocatedClaim) -> dict[str, Any]:
    """Return what the API server has of *claim*, as far as kubelet reads it."""
    status: dict[str, Any] = {"reservedFor": [{"uid": each} for each in claim.reserved_for]}
    if claim.results is not None:
        results = [{"driver": each.driver} for each in claim.results]
        status["allocation"] = {"devices": {"results": results}}
    ref = claim.ref
    metadata = {"namespace": ref.namespace, "name": ref.name, "uid": ref.uid}
    return {"metadata": metadata, "status": status}
