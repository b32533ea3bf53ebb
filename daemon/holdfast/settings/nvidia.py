"""The environment of NVIDIA's device plugin: what means the same here keeps its name."""

from collections.abc import Mapping

VARIABLES: Mapping[str, str] = {
    "NVIDIA_DRIVER_ROOT": "gpu.driverRootOnHost",
    "CONTAINER_DRIVER_ROOT": "gpu.driverRoot",
    "DRIVER_ROOT_CTR_PATH": "gpu.driverRoot",
    "NVIDIA_DEV_ROOT": "gpu.devRoot",
    "DEVICE_LIST_STRATEGY": "gpu.deviceListStrategy",
    "DEVICE_ID_STRATEGY": "gpu.deviceIdStrategy",
    "PASS_DEVICE_SPECS": "gpu.passDeviceSpecs",
    "GDRCOPY_ENABLED": "gpu.gdrcopyEnabled",
    "GDS_ENABLED": "gpu.gdsEnabled",
    "MOFED_ENABLED": "gpu.mofedEnabled",
    "CDI_ANNOTATION_PREFIX": "gpu.cdiAnnotationPrefix",
    "NVIDIA_CTK_PATH": "gpu.cdiHookPath",
    "NVIDIA_CDI_HOOK_PATH": "gpu.cdiHookPath",
    "CDI_DISABLE_HOOKS": "gpu.cdiDisableHooks",
    "IMEX_CHANNEL_IDS": "gpu.imexChannelIds",
    "IMEX_REQUIRED": "gpu.imexRequired",
    "MIG_STRATEGY": "gpu.migStrategy",
    "SHARED_DEVICES_ALLOCATION_POLICY": "gpu.sharedDevicesAllocationPolicy",
    "DP_DISABLE_HEALTHCHECKS": "gpu.disableHealthChecks",
    "DP_ENABLE_HEALTHCHECKS": "gpu.enableHealthChecks",
}
"""The key that each stands for. A HOLDFAST_ variable of that key wins over it."""
