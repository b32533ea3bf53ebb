"""What GPUs are, for the scheduler: it never changes, so each is asked once."""

from collections.abc import Iterable, Mapping

import pynvml

from holdfast.host.nvidia.nvml.answers import answered
from holdfast.model.nvidia.gpu import GpuTraits

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


def traits(uuids: Iterable[str]) -> Mapping[str, GpuTraits]:
    """Return what the GPUs *uuids* are; what one does not tell is empty."""
    version = answered(pynvml.nvmlSystemGetCudaDriverVersion_v2) or 0
    cuda = f"{version // 1000}.{version % 1000 // 10}" if version else ""
    return {uuid: _traits(uuid, cuda) for uuid in uuids}


def _traits(uuid: str, cuda: str) -> GpuTraits:
    handle = answered(pynvml.nvmlDeviceGetHandleByUUID, uuid)
    if handle is None:
        return GpuTraits(cuda_driver=cuda)
    brand = answered(pynvml.nvmlDeviceGetBrand, handle)
    architecture = answered(pynvml.nvmlDeviceGetArchitecture, handle)
    capability = answered(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    mode = answered(pynvml.nvmlDeviceGetMigMode, handle)
    return GpuTraits(
        brand=_BRANDS.get(brand, "") if brand is not None else "",
        architecture=_ARCHITECTURES.get(architecture, "") if architecture is not None else "",
        capability="" if capability is None else f"{capability[0]}.{capability[1]}",
        cuda_driver=cuda,
        mig_capable=mode is not None,
        virtual=answered(pynvml.nvmlDeviceGetVirtualizationMode, handle)
        == pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU,
    )
