"""What a virtual GPU tells of its hypervisor is read, and nothing odd there does harm."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.vgpu import config_space
from holdfast.model.nvidia.labels import VgpuHost, vgpu_host

DRIVER = b"\0\x16" + b"460.16".ljust(10, b"\0") + b"r460_00".ljust(10, b"\0")
NO_LIST = bytes((0x09, 0, 0x40, *b"VF", 0, 0x10)).ljust(256, b"\0")
"""It has capabilities, and the first is nowhere."""
TOLD = VgpuHost(version="460.16", branch="r460_00")


@pytest.mark.parametrize(
    ("space", "told"),
    [
        (config_space(record=DRIVER), TOLD),
        (config_space(record=b"\x01\x03\xff" + DRIVER), TOLD),
        (config_space(record=b""), VgpuHost()),
        (config_space(record=b"\x01"), VgpuHost()),
        (config_space(record=b"\x01\x00"), VgpuHost()),
        (config_space(record=b"\x01\x01"), VgpuHost()),
        (config_space(record=b"\x01\xff"), VgpuHost()),
        (config_space(record=b"\x00"), VgpuHost()),
        (config_space(record=b"\x00\x02"), VgpuHost()),
        (config_space(record=b"\x00\x16460.16"), VgpuHost(version="460.16")),
        (config_space(record=DRIVER, signature=b"VX"), None),
        (config_space(record=DRIVER, listed=False), None),
        (config_space(record=DRIVER)[:64], None),
        (config_space(record=DRIVER)[:0x34], None),
        (NO_LIST, None),
        (b"", None),
    ],
)
def test_the_driver_of_the_hypervisor_is_told_by_a_vgpu(
    space: bytes, told: VgpuHost | None
) -> None:
    assert vgpu_host(space) == told


def test_a_list_that_leads_to_itself_ends() -> None:
    space = bytearray(config_space(record=DRIVER, signature=b"XX"))
    space[0xD1] = 0x68
    assert vgpu_host(bytes(space)) is None


@given(st.binary(max_size=300), st.integers(min_value=0, max_value=255))
def test_no_bytes_do_harm(space: bytes, first: int) -> None:
    made = bytearray(space)
    if len(made) > 0x34:
        made[0x06], made[0x34] = 0x10, first
    vgpu_host(bytes(made))
