"""What NVML's answers and errors mean: an answer, no such thing, or a problem with a name."""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pynvml

from holdfast.model.ids import PciAddress
from holdfast.model.nvidia.gpu import GpuProblem

T = TypeVar("T")
Handle = Any
"""What pynvml calls a device; it means something to the library alone."""

LOST = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})
"""The errors that are about the GPU itself, not about one question."""

_ADDRESS = re.compile(r"(?P<domain>[0-9a-f]{4,8}):(?P<rest>[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")

# What a library or a GPU does not have is an answer; what it fails to say is a problem.
_NONE_OF_IT = frozenset({pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND})
_CODES: Mapping[int, str] = {
    value: name for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")
}


def supported(ask: Callable[..., T], *about: Any) -> T | None:  # noqa: ANN401 - as pynvml
    """Return the answer; None when this GPU or library has no such thing."""
    try:
        return ask(*about)
    except pynvml.NVMLError as error:
        if error.value in _NONE_OF_IT:
            return None
        raise


def answered(ask: Callable[..., T], *about: Any) -> T | None:  # noqa: ANN401 - as pynvml
    """Return the answer, None when there is none for whatever reason."""
    try:
        return ask(*about)
    except (pynvml.NVMLError, UnicodeDecodeError, ValueError):
        return None


def unless_lost(ask: Callable[..., T], *about: Any) -> T | None:  # noqa: ANN401 - as pynvml
    """Return the answer, None when there is none; raise NVMLError where the GPU itself is lost.

    For one question among others about a GPU: that it fails says nothing about the GPU.
    """
    try:
        return ask(*about)
    except pynvml.NVMLError as error:
        if error.value in LOST:
            raise
        return None


def problem(asked: str, error: Exception) -> GpuProblem:
    """Return what *error* means for the question *asked*."""
    lost = isinstance(error, pynvml.NVMLError) and error.value in LOST
    return GpuProblem(asked=asked, error=error_name(error), lost=lost)


def error_name(error: Exception) -> str:
    """Return NVML's own name of an error."""
    if isinstance(error, pynvml.NVMLError):
        return _CODES.get(error.value, f"error {error.value}")
    if isinstance(error, UnicodeDecodeError):
        return "an answer that is no text"
    return "an answer that makes no sense"


def hint(error: Any) -> str:  # noqa: ANN401 - pynvml makes its classes at run time
    """Return what to do about an error at the start, to complete a text with."""
    hints = {
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "; is the driver being loaded or replaced?",
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
            "; the kernel's driver is of another version than the library: reload the driver or "
            "reboot the node; if gpu.driverRoot is not set, also restart holdfast"
        ),
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "; set gpu.driverRoot to where the driver is",
        pynvml.NVML_ERROR_NO_PERMISSION: "; the nodes /dev/nvidia* cannot be opened",
    }
    return hints.get(error.value, "")


def bus(handle: Handle) -> PciAddress:
    """Return the GPU's PCI address."""
    return address(pynvml.nvmlDeviceGetPciInfo_v3(handle))


def address(info: Any) -> PciAddress:  # noqa: ANN401 - a structure of pynvml
    """Return a PCI address as sysfs writes it: NVML gives the domain eight digits.

    Raise ValueError for what is none: it becomes the name of a folder that is read.
    """
    text = info.busId.decode() if isinstance(info.busId, bytes) else str(info.busId)
    found = _ADDRESS.fullmatch(text.lower())
    if found is None:
        raise ValueError(f"{text!r} is no PCI address")
    return PciAddress(f"{int(found['domain'], 16):04x}:{found['rest']}")
