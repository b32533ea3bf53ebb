"""The environment of NVIDIA's device plugin: what means the same here keeps its name."""

from collections.abc import Mapping

VARIABLES: Mapping[str, str] = {
    "NVIDIA_DRIVER_ROOT": "gpu.driverRoot",
    "NVIDIA_DEV_ROOT": "gpu.devRoot",
    "DEVICE_LIST_STRATEGY": "gpu.deviceListStrategy",
    "DEVICE_ID_STRATEGY": "gpu.deviceIdStrategy",
    "PASS_DEVICE_SPECS": "gpu.passDeviceSpecs",
    "GDRCOPY_ENABLED": "gpu.gdrcopyEnabled",
    "GDS_ENABLED": "gpu.gdsEnabled",
    "MOFED_ENABLED": "gpu.mofedEnabled",
    "MIG_STRATEGY": "gpu.migStrategy",
    "DP_DISABLE_HEALTHCHECKS": "gpu.disableHealthChecks",
    "DP_ENABLE_HEALTHCHECKS": "gpu.enableHealthChecks",
}
"""The key that each stands for. A HOLDFAST_ variable of that key wins over it."""
