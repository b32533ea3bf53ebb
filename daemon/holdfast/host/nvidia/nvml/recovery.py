"""The recovery action that the driver itself asks for before a GPU is used again."""

from collections.abc import Mapping

import pynvml

from holdfast.host.nvidia.nvml.answers import Handle

_ACTIONS: Mapping[int, str] = {
    pynvml.NVML_GPU_RECOVERY_ACTION_NONE: "",
    pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: "reset the GPU",
    pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: "reboot the node",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: "drain peer-to-peer",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: "drain and reset the GPU",
    pynvml.NVML_GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN: "recover the IMEX domain",
    pynvml.NVML_GPU_RECOVERY_ACTION_BUS_RESET: "reset its bus",
    pynvml.NVML_GPU_RECOVERY_ACTION_SYSTEM_REBOOT: "reboot the system",
}
_WHOLE_NUMBERS = frozenset(
    {
        pynvml.NVML_VALUE_TYPE_UNSIGNED_INT,
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG,
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG,
    }
)


def recovery_of(handle: Handle) -> str | None:
    """Return the recovery action; None if this driver has no such field, or an unknown value.

    Raise NVMLError if the GPU does not answer.
    """
    (field,) = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    if field.nvmlReturn != pynvml.NVML_SUCCESS or field.valueType not in _WHOLE_NUMBERS:
        return None
    return _ACTIONS.get(int(field.value.uiVal))
