"""Kubelet's record of claims, dra_manager_state, as kubelet writes it."""

import binascii
import json
from collections.abc import Collection
from pathlib import Path

from holdfast.model.ids import ClaimRef


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
    devices = [{"PoolName": pool, "DeviceName": each} for each in (device, *others)]
    entry = {
        "ClaimUID": claim.uid,
        "ClaimName": claim.name,
        "Namespace": claim.namespace,
        "PodUIDs": {each: {} for each in pods},
        "DriverState": {driver: {"Devices": devices}},
    }
    data = json.dumps(
        {
            "kind": "DRACheckpoint",
            "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1",
            "ClaimInfoStateList": [entry] if pods else [],
        }
    )
    file.write_text(json.dumps({"Data": data, "Checksum": binascii.crc32(data.encode())}))
