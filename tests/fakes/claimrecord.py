"""Kubelet's record of claims, dra_manager_state, as kubelet writes it."""

import binascii
import json
from collections.abc import Collection, Iterable
from pathlib import Path

from holdfast.model.ids import ClaimRef, PodUid
from holdfast.model.kubelet import ClaimEntry, RecordedDevice


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
    listed = [
        {
            "ClaimUID": each.claim.uid,
            "ClaimName": each.claim.name,
            "Namespace": each.claim.namespace,
            "PodUIDs": {pod: {} for pod in sorted(each.pods)},
            "DriverState": {
                driver: {
                    "Devices": [
                        {
                            "PoolName": it.pool,
                            "DeviceName": it.name,
                            "ShareID": it.share_id or None,
                        }
                        for it in devices
                    ]
                }
                for driver, devices in each.devices.items()
            },
        }
        for each in entries
    ]
    data = json.dumps(
        {
            "kind": "DRACheckpoint",
            "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1",
            "ClaimInfoStateList": listed,
        }
    )
    file.write_text(json.dumps({"Data": data, "Checksum": binascii.crc32(data.encode())}))
