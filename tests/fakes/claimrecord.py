"""Kubelet's record of claims, dra_manager_state, as the simulated kubelet writes it."""

from collections.abc import Collection, Iterable
from pathlib import Path

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
