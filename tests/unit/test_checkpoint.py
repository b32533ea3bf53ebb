import base64
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from holdfast._pb.deviceplugin.v1beta1 import api_pb2
from holdfast.discovery.source import Sources
from holdfast.errors import KubeletError
from holdfast.host.files.wholefile import FileId
from holdfast.kubelet.checkpoint import (
    CheckpointState,
    Contents,
    FileLook,
    Promises,
    parse,
    read,
)
from holdfast.model.nvidia.grant import told_by_index


def _parse(text: bytes) -> Contents:
    return parse(text, Sources())


def _read(path: Path) -> FileLook[Contents]:
    return read(path, Sources())


def entry(ids: object, *, answer: object = None, **more: object) -> dict[str, object]:
    return {
        "PodUID": "uid-1",
        "ContainerName": "main",
        "ResourceName": "google.com/tpu",
        "DeviceIDs": ids,
        "AllocResp": answer,
        **more,
    }


def content(*entries: object) -> bytes:
    data = {"PodDeviceEntries": list(entries), "RegisteredDevices": {"google.com/tpu": ["a", "b"]}}
    return json.dumps({"Data": data, "Checksum": 3695880397}).encode()


def answer(*host_paths: str) -> str:
    response = api_pb2.ContainerAllocateResponse(
        devices=[
            api_pb2.DeviceSpec(host_path=path, container_path=path, permissions="rw")
            for path in host_paths
        ]
    )
    return base64.b64encode(response.SerializeToString()).decode()


@pytest.mark.parametrize(
    ("ids", "devices"),
    [
        pytest.param({"-1": ["a", "b"]}, {"a", "b"}, id="no topology"),
        pytest.param({"0": ["a", "b"], "1": ["b"]}, {"a", "b"}, id="a device with two NUMA nodes"),
        pytest.param(["a", "b"], {"a", "b"}, id="the plain list of before 1.20"),
        pytest.param({"0": None}, set(), id="null list"),
        pytest.param({}, set(), id="no groups"),
        pytest.param([], set(), id="empty list"),
        pytest.param(None, set(), id="null"),
    ],
)
def test_device_ids_are_read_in_every_form_kubelet_has_written(
    ids: object, devices: set[str]
) -> None:
    (found,) = _parse(content(entry(ids))).entries
    assert found.devices == devices
    assert (found.pod, found.container, found.resource) == ("uid-1", "main", "google.com/tpu")


def test_the_promised_host_paths_come_from_kubelets_copy_of_our_answer() -> None:
    stored = answer("/dev/vfio/3", "/dev/vfio/vfio", "/dev/vfio/3")
    (found,) = _parse(content(entry(["a"], answer=stored))).entries
    assert found.promised == ("/dev/vfio/3", "/dev/vfio/vfio")


def test_the_promised_names_come_from_the_answers_own_field_and_from_its_annotations() -> None:
    response = api_pb2.ContainerAllocateResponse(
        cdi_devices=[api_pb2.CDIDevice(name="a.com/x=0")],
        annotations={"cdi.k8s.io/nvidia-device-plugin_1": "a.com/x=0,a.com/y=all", "note": "text"},
    )
    stored = base64.b64encode(response.SerializeToString()).decode()
    (found,) = _parse(content(entry(["a"], answer=stored))).entries
    assert found.promised_names == ("a.com/x=0", "a.com/y=all")


ROOT = "/var/run/nvidia-container-devices"


class _ByIndex(Promises):
    def promised(self, variables: Mapping[str, str], mounts: Sequence[str]) -> tuple[str, ...]:
        return told_by_index(variables, mounts)


@pytest.mark.parametrize(
    ("visible", "mounted", "promised"),
    [
        ("0,3:1", (), ("0", "3:1")),
        ("GPU-a,MIG-b", (), ()),
        ("void", (), ()),
        (ROOT, (f"{ROOT}/2", f"{ROOT}/imex/0", "/etc/5"), ("2",)),
        ("1", (f"{ROOT}/1", f"{ROOT}/GPU-a"), ("1",)),
    ],
)
def test_the_promised_ids_are_those_by_which_nvidias_runtime_is_told_of_gpus(
    visible: str, mounted: tuple[str, ...], promised: tuple[str, ...]
) -> None:
    response = api_pb2.ContainerAllocateResponse(
        envs={"NVIDIA_VISIBLE_DEVICES": visible},
        mounts=[api_pb2.Mount(container_path=path, host_path="/dev/null") for path in mounted],
    )
    stored = base64.b64encode(response.SerializeToString()).decode()
    (found,) = parse(content(entry(["a"], answer=stored)), _ByIndex()).entries
    assert found.promised_ids == promised


@pytest.mark.parametrize(
    "stored", [None, "", "!!! no base64", base64.b64encode(b"\xff\xff").decode()]
)
def test_an_answer_that_cannot_be_read_promises_nothing_and_keeps_the_devices(
    stored: object,
) -> None:
    (found,) = _parse(content(entry(["a"], answer=stored))).entries
    assert found.promised == ()
    assert found.devices == {"a"}


def test_a_checkpoint_without_any_allocation_is_empty_and_not_an_error() -> None:
    assert (
        _parse(b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}').entries
        == ()
    )
    assert _parse(content()).entries == ()


def test_keys_that_a_later_kubelet_adds_are_ignored() -> None:
    assert len(_parse(content(entry(["a"], Later={"x": 1}))).entries) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (content(entry(["a"]))[:-9], "not whole JSON"),
        (b"\x00\x01garbage", "not whole JSON"),
        (b'{"Data":{"PodDeviceEntries":[{"PodUID":"\xff\xfe"}]}}', "it is"),
        (b'{"Data":{"PodDeviceEntries":' + b"[" * 100_000, "it is"),
        (b'{"x":' + b"[" * 100_000, "nested too deep"),
        (b"[]", "no known version"),
        (b'{"Checksum":1}', "no known version"),
        (b'{"Data":{}}', "no known version"),
        (b'{"Data":{"PodDeviceEntries":[{"PodUID":"x"}]}}', "no known version"),
        (content(entry(7)), "no known version"),
        (content(entry([7])), "no known version"),
        (content(entry(["a"], PodUID="")), "no known version"),
    ],
)
def test_what_is_not_understood_is_refused_whole_with_the_reason(text: bytes, words: str) -> None:
    with pytest.raises(KubeletError, match=words):
        _parse(text)


def test_a_missing_file_is_told_as_missing(tmp_path: Path) -> None:
    found = _read(tmp_path / "kubelet_internal_checkpoint")
    assert found.state is CheckpointState.MISSING
    assert "there is no such file" in found.problem
    assert found.file is None


def test_a_file_that_the_system_does_not_give_is_told_as_unreadable(tmp_path: Path) -> None:
    (tmp_path / "kubelet_internal_checkpoint").mkdir()
    found = _read(tmp_path / "kubelet_internal_checkpoint")
    assert found.state is CheckpointState.UNREADABLE
    assert "Is a directory" in found.problem


def test_garbage_is_told_with_the_path_and_is_a_file_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "kubelet_internal_checkpoint"
    path.write_bytes(content(entry(["a"]))[:40])
    found = _read(path)
    assert found.state is CheckpointState.UNREADABLE
    assert str(path) in found.problem
    assert found.contents == Contents()
    assert found.id == FileId.from_stat(path.stat()).checkpoint


def test_a_good_file_is_read_with_its_identity(tmp_path: Path) -> None:
    path = tmp_path / "kubelet_internal_checkpoint"
    path.write_bytes(content(entry(["a"]), entry([], PodUID="uid-2")))
    found = _read(path)
    assert found.state is CheckpointState.READ
    assert [each.pod for each in found.contents.entries] == ["uid-1", "uid-2"]
    assert found.file == FileId.of(path)
    assert str(path.stat().st_mtime_ns) in found.id
    assert found.problem == ""


def test_a_file_put_in_place_of_another_has_another_identity(tmp_path: Path) -> None:
    path, other = tmp_path / "a", tmp_path / "b"
    path.write_text("1")
    before = FileId.of(path)
    other.write_text("1")
    other.rename(path)
    assert FileId.of(path) != before
    path.unlink()
    assert FileId.of(path) is None


def test_two_looks_at_one_checkpoint_tell_the_same_file_and_a_touched_one_another(
    tmp_path: Path,
) -> None:
    path = tmp_path / "checkpoint"
    path.write_text('{"Data": {"PodDeviceEntries": null}}')
    told = set()
    for nanoseconds in range(1_795_249_537_317_529_000, 1_795_249_537_317_529_040):
        os.utime(path, ns=(nanoseconds, nanoseconds))
        file = FileId.of(path)
        assert file is not None
        assert _read(path).id == file.checkpoint
        told.add(file.checkpoint)
    assert len(told) == 40
