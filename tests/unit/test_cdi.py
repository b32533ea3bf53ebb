"""The CDI spec files: names a runtime takes, versions it can read, and the nodes of today."""

import json
import os

import pytest

from fakes.books import device_of, name
from holdfast.model.devices import Device, DeviceKind, DeviceNode, Inventory
from holdfast.model.gate.cdi import (
    PublishedSpecs,
    can_be_named,
    cdi_name,
    explained,
    is_kind,
    spec_files,
)
from holdfast.model.ids import ResourceName

TPU = ResourceName("google.com/tpu")

GOLDEN = """\
{
  "cdiVersion": "0.5.0",
  "kind": "google.com/tpu",
  "devices": [
    {
      "name": "0000:00:05.0",
      "containerEdits": {
        "deviceNodes": [
          {
            "path": "/dev/vfio/10",
            "type": "c",
            "major": 511,
            "minor": 0,
            "fileMode": 438,
            "permissions": "rw"
          },
          {
            "path": "/dev/vfio/vfio",
            "fileMode": 438,
            "permissions": "rw"
          }
        ]
      }
    },
    {
      "name": "0000:00:0a",
      "containerEdits": {
        "deviceNodes": [
          {
            "path": "/dev/vfio/12",
            "type": "c",
            "major": 511,
            "minor": 2,
            "fileMode": 438,
            "permissions": "rw"
          },
          {
            "path": "/dev/vfio/13",
            "type": "c",
            "major": 511,
            "minor": 3,
            "fileMode": 438,
            "permissions": "rw"
          },
          {
            "path": "/dev/vfio/vfio",
            "fileMode": 438,
            "permissions": "rw"
          }
        ]
      }
    }
  ]
}
"""


def _device(
    id_: str,
    *nodes: tuple[str, int],
    resource: ResourceName = TPU,
    kind: DeviceKind = DeviceKind.VFIO,
) -> Device:
    return device_of(
        name(id_, resource),
        kind=kind,
        nodes=tuple(DeviceNode(path=path, rdev=rdev) for path, rdev in nodes),
    )


def _inventory(*devices: Device) -> Inventory:
    resources = dict.fromkeys(device.name.resource for device in devices)
    return Inventory(resources=tuple(resources), devices=devices)


_CHIP = _device("0000:00:05.0", ("/dev/vfio/10", os.makedev(511, 0)))
_TWIN = _device(
    "0000:00:0a", ("/dev/vfio/12", os.makedev(511, 2)), ("/dev/vfio/13", os.makedev(511, 3))
)


def test_a_spec_is_written_to_the_byte_whatever_the_order_of_the_devices() -> None:
    for inventory in (_inventory(_CHIP, _TWIN), _inventory(_TWIN, _CHIP)):
        assert spec_files(inventory) == {"google.com_tpu.json": GOLDEN}


def test_each_resource_has_a_file_and_one_without_devices_has_none() -> None:
    pool = ResourceName("example.com/nvme")
    nvme = _device("0000:01:00.0", ("/dev/vfio/20", 1), resource=pool)
    inventory = Inventory(resources=(TPU, pool), devices=(nvme,))

    assert list(spec_files(inventory)) == ["example.com_nvme.json"]


def test_no_two_resources_have_the_same_file() -> None:
    names = [ResourceName(each) for each in ("a.com/b-c", "a.com-b/c", "a.com/b_c", "a.com-b-c/d")]
    nodes = [_device("0000:01:00.0", ("/dev/vfio/20", 1), resource=each) for each in names]
    inventory = Inventory(resources=tuple(names), devices=tuple(nodes))
    assert len(spec_files(inventory)) == len(names)


def test_a_kind_with_dots_claims_the_version_that_allows_them() -> None:
    name = ResourceName("example.com/nvme.fast")
    files = spec_files(_inventory(_device("0", ("/dev/vfio/1", 1), resource=name)))

    assert json.loads(files["example.com_nvme.fast.json"])["cdiVersion"] == "0.6.0"


def test_a_chip_behind_its_own_driver_has_no_vfio_container() -> None:
    accel = _device("0000:00:04.0", ("/dev/accel0", os.makedev(120, 0)), kind=DeviceKind.ACCEL)
    (spec,) = spec_files(_inventory(accel)).values()

    (device,) = json.loads(spec)["devices"]
    assert [node["path"] for node in device["containerEdits"]["deviceNodes"]] == ["/dev/accel0"]


@pytest.mark.parametrize(("major", "minor"), [(10, 196), (511, 255), (4095, 1048575), (136, 300)])
def test_device_numbers_are_split_as_the_kernel_joins_them(major: int, minor: int) -> None:
    device = _device("0", ("/dev/vfio/1", os.makedev(major, minor)))
    (spec,) = spec_files(_inventory(device)).values()

    node = json.loads(spec)["devices"][0]["containerEdits"]["deviceNodes"][0]
    assert (node["major"], node["minor"]) == (major, minor)


@pytest.mark.parametrize(
    ("resource", "legal"),
    [
        ("google.com/tpu", True),
        ("example.com/v5e.pod-slice_2", True),
        ("x/y", True),
        ("3com.com/nic", False),
        ("example.com/4chips", False),
        ("example.com/chip-", False),
        ("chip", False),
        ("a/b/c", False),
    ],
)
def test_a_kind_has_two_parts_that_begin_with_a_letter(resource: str, legal: bool) -> None:
    assert is_kind(ResourceName(resource)) is legal


@pytest.mark.parametrize(
    ("device", "named"),
    [
        (_CHIP, True),
        (_device("0", ("/dev/vfio/0", 1)), True),
        (_device("GPU-5a::1", ("/dev/vfio/0", 1)), True),
        (_device("0000:00:05.0"), False),
        (_device("a=b", ("/dev/vfio/0", 1)), False),
        (_device("a,b", ("/dev/vfio/0", 1)), False),
        (_device(".a", ("/dev/vfio/0", 1)), False),
    ],
)
def test_only_what_has_a_legal_name_and_a_node_is_in_a_spec(device: Device, named: bool) -> None:
    assert can_be_named(device) is named
    assert bool(spec_files(_inventory(device))) is named
    assert bool(explained(_inventory(device), {}).nodes) is named


def test_a_name_is_the_kind_and_the_id() -> None:
    assert cdi_name(_CHIP.name) == "google.com/tpu=0000:00:05.0"


@pytest.mark.parametrize(
    ("on_disk", "covered"),
    [
        (_CHIP, True),
        (_device("0000:00:05.0", ("/dev/vfio/11", os.makedev(511, 0))), False),
        (_device("0000:00:05.0", ("/dev/vfio/10", os.makedev(511, 1))), False),
        (_TWIN, False),
    ],
)
def test_a_device_is_covered_by_a_spec_with_exactly_its_nodes_of_today(
    on_disk: Device, covered: bool
) -> None:
    assert explained(_inventory(on_disk), {}).covers(_CHIP) is covered


def test_a_device_without_a_node_is_never_covered() -> None:
    assert not PublishedSpecs().covers(_device("0000:00:05.0"))


def test_a_name_that_another_file_explains_too_is_covered_by_none() -> None:
    found = explained(_inventory(_CHIP, _TWIN), {cdi_name(_CHIP.name): "/var/run/cdi/other.json"})

    assert (found.covers(_CHIP), found.covers(_TWIN)) == (False, True)
    assert "/var/run/cdi/other.json describes it as well" in found.problem


def test_names_of_others_that_are_not_ours_are_no_problem() -> None:
    found = explained(_inventory(_CHIP), {"google.com/tpu=0": "/var/run/cdi/other.json"})

    assert (found.covers(_CHIP), found.problem) == (True, "")
