"""One NVML library: which GPUs there are, how they are linked and used, and their events."""

import ctypes
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import pynvml

from holdfast.errors import HostError
from holdfast.host.nvidia.nvml.answers import (
    LIBRARY,
    Handle,
    address,
    answered,
    bus,
    enter,
    error_name,
    hint,
    leave,
    problem,
    recovery_of,
    supported,
    unless_lost,
    users,
)
from holdfast.model.ids import PciAddress
from holdfast.model.nvidia.gpu import (
    DriverState,
    Gpu,
    GpuCondition,
    GpuEvent,
    GpuEventKind,
    GpuLinks,
    GpuProblem,
    GpuProcess,
    GpuReading,
    GpuTraits,
    GpuUse,
    Link,
    MigEngines,
    MigSlice,
)

# As NVIDIA's own DRA driver calls them, so that a claim's selectors fit both.
_BRANDS: Mapping[int, str] = {
    pynvml.NVML_BRAND_QUADRO: "Quadro",
    pynvml.NVML_BRAND_TESLA: "Tesla",
    pynvml.NVML_BRAND_NVS: "NVS",
    pynvml.NVML_BRAND_GRID: "Grid",
    pynvml.NVML_BRAND_GEFORCE: "GeForce",
    pynvml.NVML_BRAND_TITAN: "Titan",
    pynvml.NVML_BRAND_NVIDIA_VAPPS: "NvidiaVApps",
    pynvml.NVML_BRAND_NVIDIA_VPC: "NvidiaVPC",
    pynvml.NVML_BRAND_NVIDIA_VCS: "NvidiaVCS",
    pynvml.NVML_BRAND_NVIDIA_VWS: "NvidiaVWS",
    pynvml.NVML_BRAND_NVIDIA_CLOUD_GAMING: "NvidiaCloudGaming",
    pynvml.NVML_BRAND_QUADRO_RTX: "QuadroRTX",
    pynvml.NVML_BRAND_NVIDIA_RTX: "NvidiaRTX",
    pynvml.NVML_BRAND_NVIDIA: "Nvidia",
    pynvml.NVML_BRAND_GEFORCE_RTX: "GeForceRTX",
    pynvml.NVML_BRAND_TITAN_RTX: "TitanRTX",
}
_ARCHITECTURES: Mapping[int, str] = {
    pynvml.NVML_DEVICE_ARCH_KEPLER: "Kepler",
    pynvml.NVML_DEVICE_ARCH_MAXWELL: "Maxwell",
    pynvml.NVML_DEVICE_ARCH_PASCAL: "Pascal",
    pynvml.NVML_DEVICE_ARCH_VOLTA: "Volta",
    pynvml.NVML_DEVICE_ARCH_TURING: "Turing",
    pynvml.NVML_DEVICE_ARCH_AMPERE: "Ampere",
    pynvml.NVML_DEVICE_ARCH_ADA: "Ada Lovelace",
    pynvml.NVML_DEVICE_ARCH_HOPPER: "Hopper",
    pynvml.NVML_DEVICE_ARCH_BLACKWELL: "Blackwell",
}
_ADDRESSING: Mapping[int, str] = {
    pynvml.NVML_DEVICE_ADDRESSING_MODE_NONE: "None",
    pynvml.NVML_DEVICE_ADDRESSING_MODE_HMM: "HMM",
    pynvml.NVML_DEVICE_ADDRESSING_MODE_ATS: "ATS",
}
_LINKS: Mapping[int, Link] = {
    pynvml.NVML_TOPOLOGY_INTERNAL: Link.SAME_BOARD,
    pynvml.NVML_TOPOLOGY_SINGLE: Link.SINGLE_SWITCH,
    pynvml.NVML_TOPOLOGY_MULTIPLE: Link.MULTI_SWITCH,
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: Link.HOST_BRIDGE,
    pynvml.NVML_TOPOLOGY_NODE: Link.SAME_CPU,
    pynvml.NVML_TOPOLOGY_SYSTEM: Link.CROSS_CPU,
}
T = TypeVar("T")

_DISPLAYS = frozenset({"DGX Display", "NVIDIA DGX Display"})
"""Cards for the monitor of a DGX; no program computes on them."""
_OPTIONAL = frozenset({"memory", "MIG mode"})
"""What a GPU can do without. One that does not tell anything else, as on Tegra, cannot be used."""
_EVENTS: Mapping[int, GpuEventKind] = {
    pynvml.nvmlEventTypeXidCriticalError: GpuEventKind.XID,
    pynvml.nvmlEventTypeDoubleBitEccError: GpuEventKind.DOUBLE_BIT_ECC,
    pynvml.nvmlEventTypeSingleBitEccError: GpuEventKind.SINGLE_BIT_ECC,
}
_NO_SLICE = 0xFFFFFFFF
"""The GPU instance in an event that is about the whole GPU."""


def _traits(uuid: str, cuda: str) -> GpuTraits:
    handle = answered(pynvml.nvmlDeviceGetHandleByUUID, uuid)
    if handle is None:
        return GpuTraits(cuda_driver=cuda)
    brand = answered(pynvml.nvmlDeviceGetBrand, handle)
    architecture = answered(pynvml.nvmlDeviceGetArchitecture, handle)
    capability = answered(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    addressing = answered(pynvml.nvmlDeviceGetAddressingMode, handle)
    mode = answered(pynvml.nvmlDeviceGetMigMode, handle)
    return GpuTraits(
        brand=_BRANDS.get(brand, "") if brand is not None else "",
        architecture=_ARCHITECTURES.get(architecture, "") if architecture is not None else "",
        capability="" if capability is None else f"{capability[0]}.{capability[1]}",
        cuda_driver=cuda,
        addressing=_ADDRESSING.get(addressing, "") if addressing is not None else "",
        mig_capable=mode is not None,
        virtual=answered(pynvml.nvmlDeviceGetVirtualizationMode, handle)
        == pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU,
    )


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
    states = (
        (link, unless_lost(pynvml.nvmlDeviceGetNvLinkState, handle, link))
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS)
    )
    return {link: bool(up) for link, up in states if up is not None}  # None: it has no such link


class Nvml:
    """One NVML library. Not for two threads at once, except for `wait_event`."""

    def __init__(self, library: Path | None = None) -> None:
        """Use the library at *library*, or the one that the system finds by name."""
        self._library = library
        self._known: dict[str, str] = {}
        self._events: Any = None
        self._begun = 0
        self._named: dict[int, str] = {}
        self._peers: dict[str, dict[int, PciAddress | None]] = {}

    @property
    def in_use(self) -> bool:
        """Tell whether this process has a library open, which `open` then reuses."""
        return users() > 0

    def open(self) -> None:
        """Load and start the library. Raise HostError while it, or the driver, is not there.

        After a driver upgrade the old library answers with a version mismatch. The new file is
        loaded as soon as no user in this process has the old one open.
        """
        try:
            enter(self._library)
        except OSError as error:
            raise HostError(
                f"cannot load {self._library}: {error}; is it for this architecture?"
            ) from error
        except pynvml.NVMLError as error:
            raise _not_started(error) from error
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            leave()
            raise _not_started(error) from error
        self._begun += 1

    def close(self) -> None:
        """Close the library, once for each `open`; other users in this process keep it open."""
        self.unsubscribe()
        begun, self._begun = self._begun, 0
        for _ in range(begun):
            answered(pynvml.nvmlShutdown)
            leave()

    def read(self) -> GpuReading:
        """Enumerate the GPUs in NVML's order, including GPUs with errors."""
        try:
            version = str(pynvml.nvmlSystemGetDriverVersion())
            count = int(pynvml.nvmlDeviceGetCount())
        except (pynvml.NVMLError, UnicodeDecodeError) as error:
            return GpuReading(
                state=DriverState.NOT_READY, reason=f"NVML does not answer: {error_name(error)}"
            )
        gpus = [self._gpu(index) for index in range(count)]
        return GpuReading(
            state=DriverState.READY,
            driver_version=version,
            library=str(self._library or LIBRARY),
            gpus=tuple(each for each in gpus if each.name not in _DISPLAYS),
        )

    def use(self, uuid: str) -> GpuUse:
        """Return who uses the GPU or MIG slice *uuid*; what NVML fails to say is a problem.

        A GPU in MIG mode must be asked slice by slice: its own lists are not complete.

        `memory_used` is the more of before and after the lists: with what a process gives back
        meanwhile, that beside the listed processes would look less than it is.
        """
        kinds = {"compute": "Compute", "graphics": "Graphics", "mps": "MPSCompute"}
        found: list[GpuProcess] = []
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            in_use = [_memory_used(handle)]
            for kind, name in kinds.items():
                found += [
                    GpuProcess(pid=int(each.pid), kind=kind, memory=each.usedGpuMemory)
                    for each in _listed(name, handle)
                ]
            in_use.append(_memory_used(handle))
            works = unless_lost(lambda: int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu))
        except pynvml.NVMLError as error:
            return GpuUse(problem=f"NVML cannot tell who uses {uuid}: {error_name(error)}")
        memory = max((each for each in in_use if each is not None), default=None)
        return GpuUse(processes=tuple(found), memory_used=memory, utilization=works)

    def condition(self, uuid: str) -> GpuCondition:
        """Return the GPU's condition; `lost` if the GPU itself does not answer.

        It answers if it has a handle and a UUID, and no query says that it is lost. Any other
        failed query is only one answer less.
        """
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            pynvml.nvmlDeviceGetUUID(handle)
            rows = unless_lost(pynvml.nvmlDeviceGetRemappedRows, handle)
            retired = unless_lost(pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)
            heat = unless_lost(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU)
            most = unless_lost(
                pynvml.nvmlDeviceGetTemperatureThreshold,
                handle,
                pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN,
            )
            links = nvlinks_of(handle)
            recovery = unless_lost(recovery_of, handle)
        except pynvml.NVMLError as error:
            return GpuCondition(lost=error_name(error))
        return GpuCondition(
            remap_pending=None if rows is None else bool(rows[2]),
            remap_failed=None if rows is None else bool(rows[3]),
            retired_pending=None if retired is None else bool(retired),
            links_down=tuple(link for link, up in links.items() if not up),
            peers=self._peers_of(handle, uuid, links),
            temperature=heat,
            shutdown_temperature=most,
            recovery=recovery,
        )

    def _peers_of(
        self, handle: Handle, uuid: str, links: Mapping[int, bool]
    ) -> Mapping[int, PciAddress]:
        """Return the GPU at the end of each link; each active link is queried once."""
        known = self._peers.setdefault(uuid, {})
        for link, up in links.items():
            if up and link not in known:
                known[link] = answered(peer_of, handle, link)
        return {link: peer for link, peer in known.items() if peer is not None}

    def links(self, uuids: Iterable[str]) -> GpuLinks:
        """Return how the GPUs *uuids* are connected; a GPU that does not answer has no links."""
        asked = ((uuid, answered(pynvml.nvmlDeviceGetHandleByUUID, uuid)) for uuid in sorted(uuids))
        handles = {uuid: handle for uuid, handle in asked if handle is not None}
        buses = {answered(bus, handle): uuid for uuid, handle in handles.items()}
        buses.pop(None, None)
        pci: dict[tuple[str, str], Link] = {}
        for (one, near), (other, far) in combinations(handles.items(), 2):
            level = answered(pynvml.nvmlDeviceGetTopologyCommonAncestor, near, far)
            pci[one, other] = Link.UNKNOWN if level is None else _LINKS.get(level, Link.UNKNOWN)
        nvlinks: Counter[tuple[str, str]] = Counter()
        switched: set[str] = set()
        for uuid, handle in handles.items():
            for link, up in (answered(nvlinks_of, handle) or {}).items():
                if not up:
                    continue
                kind = answered(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
                if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                    switched.add(uuid)
                    continue
                end = answered(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
                peer = None if end is None else buses.get(answered(address, end))
                if peer is not None and uuid < peer:  # each link has two ends
                    nvlinks[uuid, peer] += 1
        return GpuLinks(pci=pci, nvlinks=nvlinks, switched=frozenset(switched))

    def traits(self, uuids: Iterable[str]) -> Mapping[str, GpuTraits]:
        """Return what the GPUs *uuids* are; what one does not tell is empty."""
        version = answered(pynvml.nvmlSystemGetCudaDriverVersion_v2) or 0
        cuda = f"{version // 1000}.{version % 1000 // 10}" if version else ""
        return {uuid: _traits(uuid, cuda) for uuid in uuids}

    def subscribe(self, uuids: Iterable[str]) -> Mapping[str, str]:
        """Subscribe to the GPUs' events; return why some GPUs have none, by UUID.

        Earlier events are not delivered. Raise HostError if there can be no events at all.
        """
        self.unsubscribe()
        try:
            self._events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as error:
            raise HostError(f"cannot wait for GPUs' events: {error_name(error)}") from error
        unheard: dict[str, str] = {}
        wanted = sum(_EVENTS)
        for uuid in uuids:
            try:
                handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
                known = int(pynvml.nvmlDeviceGetSupportedEventTypes(handle)) & wanted
                pynvml.nvmlDeviceRegisterEvents(handle, known, self._events)
                self._named[_address(handle)] = uuid
            except pynvml.NVMLError as error:
                unheard[uuid] = f"its events cannot be received: {error_name(error)}"
        return unheard

    def unsubscribe(self) -> None:
        """End the subscription."""
        events, self._events = self._events, None
        self._named.clear()
        if events is not None:
            answered(pynvml.nvmlEventSetFree, events)

    def wait_event(self, timeout: float) -> GpuEvent | None:
        """Return the next event; None if there was none for *timeout* seconds.

        It blocks the whole time, so it needs its own thread. Raise HostError if NVML fails to
        wait: then no GPU's events are known.
        """
        if self._events is None:
            raise HostError("cannot wait for GPUs' events: there is no subscription")
        try:
            data = pynvml.nvmlEventSetWait_v2(self._events, int(timeout * 1000))
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_TIMEOUT:
                return None
            raise HostError(f"cannot wait for GPUs' events: {error_name(error)}") from error
        kind = _EVENTS.get(int(data.eventType))
        if kind is None:
            return None
        whole = data.gpuInstanceId == _NO_SLICE
        return GpuEvent(
            kind=kind,
            # A GPU that fell off the bus has no UUID any more, but its handle is the same.
            uuid=answered(lambda: str(pynvml.nvmlDeviceGetUUID(data.device)))
            or self._named.get(_address(data.device), ""),
            xid=int(data.eventData) if kind is GpuEventKind.XID else 0,
            gi=None if whole else int(data.gpuInstanceId),
            ci=None if whole else int(data.computeInstanceId),
        )

    def _gpu(self, index: int) -> Gpu:
        problems: list[GpuProblem] = []

        def told(asked: str, ask: Callable[[], T]) -> T | None:
            try:
                return supported(ask) if asked in _OPTIONAL else ask()
            except (pynvml.NVMLError, ValueError) as error:
                problems.append(problem(asked, error))
                return None

        handle = told("handle", lambda: pynvml.nvmlDeviceGetHandleByIndex(index))
        if handle is None:
            return Gpu(index=index, uuid=self._known.get(str(index), ""), problems=tuple(problems))
        pci = told("PCI address", lambda: bus(handle))
        place = pci or str(index)
        uuid = told("UUID", lambda: str(pynvml.nvmlDeviceGetUUID(handle)))
        if uuid:
            self._known[place] = self._known[str(index)] = uuid
        memory = told("memory", lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).total))
        mode = told("MIG mode", lambda: bool(pynvml.nvmlDeviceGetMigMode(handle)[0]))
        slices = told("MIG devices", lambda: _slices(handle)) if mode else ()
        return Gpu(
            index=index,
            uuid=uuid or self._known.get(place, ""),
            minor=told("minor number", lambda: int(pynvml.nvmlDeviceGetMinorNumber(handle))),
            pci=pci,
            name=told("name", lambda: str(pynvml.nvmlDeviceGetName(handle))) or "",
            memory=memory,
            mig=bool(mode),
            slices=slices or (),
            clique=answered(clique_of, handle) or "",
            problems=tuple(problems),
        )


def _not_started(error: Any) -> HostError:  # noqa: ANN401 - as pynvml
    return HostError(f"cannot start NVML: {error_name(error)}{hint(error)}")


def _slices(handle: Handle) -> tuple[MigSlice, ...]:
    found: list[MigSlice] = []
    for index in range(int(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle))):
        try:
            mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except pynvml.NVMLError as error:
            if error.value in {pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT}:
                continue  # there is no slice at this index
            raise
        has = pynvml.nvmlDeviceGetAttributes_v2(mig)
        found.append(
            MigSlice(
                uuid=str(pynvml.nvmlDeviceGetUUID(mig)),
                gi=int(pynvml.nvmlDeviceGetGpuInstanceId(mig)),
                ci=int(pynvml.nvmlDeviceGetComputeInstanceId(mig)),
                # "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
                profile=str(pynvml.nvmlDeviceGetName(mig)).rpartition("MIG ")[2],
                slices=(int(has.gpuInstanceSliceCount), int(has.computeInstanceSliceCount)),
                memory=int(has.memorySizeMB) << 20,
                engines=_engines(has),
                index=index,
            )
        )
    return tuple(found)


def _engines(has: Any) -> MigEngines:  # noqa: ANN401 - a structure of pynvml
    return MigEngines(
        multiprocessors=int(has.multiprocessorCount),
        copy=int(has.sharedCopyEngineCount),
        decoder=int(has.sharedDecoderCount),
        encoder=int(has.sharedEncoderCount),
        jpeg=int(has.sharedJpegCount),
        ofa=int(has.sharedOfaCount),
    )


def _address(handle: Handle) -> int:
    """Return what identifies a GPU's handle; it stays the same while NVML is open."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _listed(kind: str, handle: Handle) -> list[Any]:
    """Return one of NVML's lists of processes.

    Drivers before R510, and some of R535 (from 535.98 on), have only the former version of it.
    """
    asks = (f"nvmlDeviceGet{kind}RunningProcesses_{version}" for version in ("v3", "v2"))
    lists = (supported(getattr(pynvml, ask), handle) for ask in asks)
    return next((each for each in lists if each is not None), [])


def _memory_used(handle: Handle) -> int | None:
    return supported(lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).used))
