"""Names of devices in ResourceSlices are DNS labels, and tell devices apart."""

import re

import pytest

from holdfast.model.dra.resourceslice import label
from holdfast.model.ids import DeviceId, DeviceName, ResourceName

_UUID = "8a7c11d2-0f6e-4c5b-9a52-3d9c1f1f7c01"


@pytest.mark.parametrize(
    ("resource", "id_", "name"),
    [
        ("google.com/tpu", "0000:00:05.0", "tpu-0000-00-05-0"),
        ("nvidia.com/gpu", f"GPU-{_UUID}", f"gpu-{_UUID}"),
        ("nvidia.com/mig-1g.5gb", f"MIG-{_UUID}", f"mig-1g-5gb-mig-{_UUID}"),
        ("example.com/FPGA", "0000:3b:00.1", "fpga-0000-3b-00-1"),
    ],
)
def test_a_name_is_made_of_the_kind_and_the_silicon(resource: str, id_: str, name: str) -> None:
    assert label(DeviceName(ResourceName(resource), DeviceId(id_))) == name


def test_names_too_long_for_a_label_are_cut_and_still_differ() -> None:
    resource = ResourceName("example.com/" + "very-long-kind." * 4)
    names = {label(DeviceName(resource, DeviceId(f"0000:00:{n:02x}.0"))) for n in range(32)}

    assert len(names) == 32
    assert all(re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", each) for each in names)
