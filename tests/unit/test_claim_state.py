"""Kubelet's record of claims is read whole or not at all, whatever is in the file."""

import binascii
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.errors import KubeletError
from holdfast.kubelet.checkpoint import CheckpointState
from holdfast.kubelet.claimstate import parse, read
from holdfast.model.ids import ClaimRef, ClaimUid, PodUid
from holdfast.model.kubelet import ClaimEntry, RecordedDevice


def claim(**changes: object) -> dict[str, object]:
    return {
        "ClaimUID": "u1",
        "ClaimName": "pod-a-chips-x7k2p",
        "Namespace": "default",
        "PodUIDs": {"p1": {}, "p2": {}},
        "DriverState": {
            "holdfast.dev": {
                "Devices": [
                    {
                        "PoolName": "node-a",
                        "DeviceName": "tpu-0",
                        "ShareID": None,
                        "RequestNames": ["chips"],
                        "CDIDeviceIDs": ["holdfast.dev/claim=u1-tpu-0"],
                    }
                ]
            },
            "other.example": {"Devices": None},
        },
        **changes,
    }


def content(
    *claims: object,
    key: str = "ClaimInfoStateList",
    kind: str = "DRACheckpoint",
    version: str = "checkpoint.dra.kubelet.k8s.io/v1",
) -> bytes:
    return checked(json.dumps({"kind": kind, "apiVersion": version, key: list(claims)}))


def checked(data: str) -> bytes:
    return json.dumps({"Data": data, "Checksum": binascii.crc32(data.encode())}).encode()


@pytest.mark.parametrize("key", ["ClaimInfoStateList", "Entries"])
def test_a_claim_is_read_with_its_pods_and_its_devices_by_driver(key: str) -> None:
    assert parse(content(claim(), key=key)) == (
        ClaimEntry(
            claim=ClaimRef(namespace="default", uid=ClaimUid("u1"), name="pod-a-chips-x7k2p"),
            pods=frozenset({PodUid("p1"), PodUid("p2")}),
            devices={
                "holdfast.dev": (
                    RecordedDevice(
                        "node-a",
                        "tpu-0",
                        requests=("chips",),
                        cdi_ids=("holdfast.dev/claim=u1-tpu-0",),
                    ),
                ),
                "other.example": (),
            },
        ),
    )


def test_a_claim_was_given_each_device_once_in_the_order_of_the_answer() -> None:
    """Kubelet may have an answer twice (k/k#140471), and our last entry is for all requests."""
    second, first = (
        RecordedDevice("node-a", label, requests=("r",), cdi_ids=(label,)) for label in "ba"
    )
    rest = replace(first, requests=("all.requests",), cdi_ids=("all",))
    strays = (replace(first, pool="node-b"), replace(second, share_id="s", name="c"))
    answer = (second, first, rest)
    entry = ClaimEntry(
        claim=ClaimRef(namespace="default", uid=ClaimUid("u1"), name="c"),
        pods=frozenset(),
        devices={"ours": (*answer, *strays, *answer), "other": (rest,)},
    )
    assert entry.given("ours", "node-a") == (second, first, strays[1])


def test_a_claim_that_was_never_prepared_has_pods_and_no_devices() -> None:
    (entry,) = parse(content(claim(DriverState=None)))
    assert entry.pods == {"p1", "p2"}
    assert entry.devices == {}


@pytest.mark.parametrize("pods", [None, {}])
def test_a_claim_without_pods_is_still_a_claim(pods: object) -> None:
    (entry,) = parse(content(claim(PodUIDs=pods)))
    assert entry.pods == frozenset()


@pytest.mark.parametrize("claims", ["null", "[]"])
def test_no_claims_are_written_in_two_ways(claims: str) -> None:
    data = (
        '{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v1",'
        f'"ClaimInfoStateList":{claims}}}'
    )
    assert parse(checked(data)) == ()


def test_what_is_new_in_a_later_kubelet_is_passed_over() -> None:
    assert len(parse(content(claim(Later={"a": [1]})))) == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "it is empty"),
        (b" \n", "it is empty"),
        (b"\x00" * 40, "it is not whole JSON"),
        (content(claim())[:-20], "it is not whole JSON"),
        (b"[]", "it is of no known version"),
        (b"{}", "it is of no known version"),
        (b'{"Data": 7, "Checksum": 1}', "it is of no known version"),
        (content(claim()).replace(b"u1", b"u2", 1), "its checksum is wrong"),
        (json.dumps({"Data": "{}", "Checksum": -1}).encode(), "its checksum is wrong"),
        (checked("{"), "it is not whole JSON"),
        (checked("[" * 100_000), "it is "),
        (checked("{}"), "it is of no known version"),
        (content(claim(), key="Claims"), "it is of no known version"),
        (content(claim(), kind="Checkpoint"), "it is of no known version"),
        (content(claim(), version="checkpoint.dra.kubelet.k8s.io/v2"), "it is of no known version"),
        (content(claim(), claim(ClaimUID=7)), "it is of no known version"),
        (content(claim(PodUIDs=["p1"])), "it is of no known version"),
        (content(claim(ClaimUID="")), "a claim without a uid"),
        (content(claim(ClaimName="")), "a claim without a uid"),
        (content(claim(Namespace="")), "a claim without a uid"),
        (content({"ClaimUID": "u1"}), "it is of no known version"),
        (b'{"Data": "\\ud800", "Checksum": 0}', "it is not whole JSON"),
    ],
)
def test_one_part_that_is_not_understood_makes_the_whole_unreadable(
    text: bytes, reason: str
) -> None:
    with pytest.raises(KubeletError, match=reason):
        parse(text)


def test_a_file_is_read_with_which_file_it_was(tmp_path: Path) -> None:
    path = tmp_path / "dra_manager_state"
    path.write_bytes(content(claim()))

    found = read(path)

    assert (found.state, found.problem) == (CheckpointState.READ, "")
    assert [str(entry.claim) for entry in found.contents] == ["default/pod-a-chips-x7k2p (u1)"]


def test_a_file_that_is_not_there_is_told_apart_from_one_that_cannot_be_read(
    tmp_path: Path,
) -> None:
    missing = read(tmp_path / "dra_manager_state")
    unreadable = read(tmp_path)

    assert missing.state is CheckpointState.MISSING
    assert "there is no such file" in missing.problem
    assert unreadable.state is CheckpointState.UNREADABLE
    assert "mounted" in unreadable.problem


def test_a_damaged_file_is_told_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "dra_manager_state"
    path.write_bytes(content(claim())[:-9])

    found = read(path)

    assert (found.state, found.contents) == (CheckpointState.UNREADABLE, ())
    assert "drain the node, move the file away and restart kubelet" in found.problem


def test_a_file_without_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "dra_manager_state"
    with path.open("wb") as file:
        file.truncate(1 << 40)

    assert "larger than 16 MiB" in read(path).problem
