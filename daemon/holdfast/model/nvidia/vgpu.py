"""What a virtual GPU shows of the hypervisor's driver, in its PCI configuration space.

NVIDIA's vGPU manager puts it there for the guest, in a vendor specific capability, as GPU feature
discovery (v0.20) reads it. The PCI Local Bus Specification 3.0 has the list of capabilities.
"""

from collections.abc import Iterator

from msgspec import Struct

_STATUS, _HAS_LIST = 0x06, 0x10
_FIRST = 0x34
_VENDOR_SPECIFIC = 0x09
_SIGNATURE, _RECORDS = b"VF", 5
"""What is behind the capability's id, the next one's place and its length; then come records."""
_DRIVER, _HEADER, _LENGTH = 0, 2, 10
"""The kind of the record with the host's driver; a kind and a length are before each record's data,
and both of its texts have this length."""


class VgpuHost(Struct, frozen=True, kw_only=True):
    """The driver on the hypervisor, such as ``550.54.16`` of ``r550_40``; empty: not told."""

    version: str = ""
    branch: str = ""


def vgpu_host(config: bytes) -> VgpuHost | None:
    """Return what *config* shows of the hypervisor; None if it is not that of a virtual GPU.

    Only the first 64 bytes can be read without the right to administer the system. They have no
    capabilities.
    """
    for capability in _vendor_specific(config):
        if capability[3:_RECORDS] == _SIGNATURE:
            return _host(capability)
    return None


def _vendor_specific(config: bytes) -> Iterator[bytes]:
    if len(config) <= _FIRST or not config[_STATUS] & _HAS_LIST:
        return
    place, seen = config[_FIRST], set[int]()
    while place and place not in seen and place + 2 < len(config):
        seen.add(place)
        kind, following, length = config[place : place + 3]
        if kind == _VENDOR_SPECIFIC:
            yield config[place : place + length]
        place = following


def _host(capability: bytes) -> VgpuHost:
    place = _RECORDS
    while place + _HEADER <= len(capability):
        kind, length = capability[place : place + _HEADER]
        if kind == _DRIVER:
            data = capability[place + _HEADER : place + length]
            return VgpuHost(version=_text(data[:_LENGTH]), branch=_text(data[_LENGTH:]))
        if length < _HEADER:
            break
        place += length
    return VgpuHost()


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode("ascii", "replace")
