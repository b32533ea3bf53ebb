"""How the GPUs of a node reach each other, and those of other nodes: PCI, NVLinks, NVSwitches."""

import ctypes
from collections.abc import Iterable, Mapping
from itertools import combinations
from uuid import UUID

import pynvml

from holdfast.host.nvidia.nvml.answers import LOST, Handle, address, answered, bus
from holdfast.model.ids import PciAddress
from holdfast.model.nvidia.gpu import GpuLinks, Link

_LINKS: Mapping[int, Link] = {
    pynvml.NVML_TOPOLOGY_INTERNAL: Link.SAME_BOARD,
    pynvml.NVML_TOPOLOGY_SINGLE: Link.SINGLE_SWITCH,
    pynvml.NVML_TOPOLOGY_MULTIPLE: Link.MULTI_SWITCH,
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: Link.HOST_BRIDGE,
    pynvml.NVML_TOPOLOGY_NODE: Link.SAME_CPU,
    pynvml.NVML_TOPOLOGY_SYSTEM: Link.CROSS_CPU,
}


def links(uuids: Iterable[str]) -> GpuLinks:
    """Return how the GPUs *uuids* are connected; a GPU that does not answer has no links."""
    handles: dict[str, Handle] = {}
    for uuid in sorted(uuids):
        handle = answered(pynvml.nvmlDeviceGetHandleByUUID, uuid)
        if handle is not None:
            handles[uuid] = handle
    buses = {answered(bus, handle): uuid for uuid, handle in handles.items()}
    pci: dict[tuple[str, str], Link] = {}
    for one, other in combinations(handles, 2):
        level = answered(pynvml.nvmlDeviceGetTopologyCommonAncestor, handles[one], handles[other])
        pci[one, other] = Link.UNKNOWN if level is None else _LINKS.get(level, Link.UNKNOWN)
    nvlinks: dict[tuple[str, str], int] = {}
    switched: set[str] = set()
    for uuid, handle in handles.items():
        for link, up in (answered(nvlinks_of, handle) or {}).items():
            if not up:
                continue
            kind = answered(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
            if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                switched.add(uuid)
                continue
            far = answered(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
            peer = None if far is None else buses.get(answered(address, far))
            if peer is not None and uuid < peer:  # each link has two ends
                nvlinks[uuid, peer] = nvlinks.get((uuid, peer), 0) + 1
    return GpuLinks(pci=pci, nvlinks=nvlinks, switched=frozenset(switched))


def peer_of(handle: Handle, link: int) -> PciAddress | None:
    """Return the address of the GPU at the other end of an active link; None if it is no GPU.

    Raise NVMLError if this driver does not tell.
    """
    kind = pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)
    if kind != pynvml.NVML_NVLINK_DEVICE_TYPE_GPU:
        return None
    return address(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link))


def clique_of(handle: Handle) -> str:
    """Return the clique of GPUs that the GPU is in, beyond its node; empty if it is in none.

    Raise NVMLError if it does not tell, as one without such a fabric.
    """
    info = pynvml.c_nvmlGpuFabricInfoV_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    cluster = bytes(info.clusterUuid)
    # The state is one byte in the library, and four here.
    state = info.state & 0xFF
    up = state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED and info.status == pynvml.NVML_SUCCESS
    return f"{UUID(bytes=cluster)}.{info.cliqueId}" if up and any(cluster) else ""


def nvlinks_of(handle: Handle) -> dict[int, bool]:
    """Return the GPU's NVLinks, and whether each is active."""
    found: dict[int, bool] = {}
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            found[link] = bool(pynvml.nvmlDeviceGetNvLinkState(handle, link))
        except pynvml.NVMLError as error:
            if error.value in LOST:
                raise
            continue  # it has no such link
    return found
