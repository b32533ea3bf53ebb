"""Which library pynvml calls, and what its answers and errors mean."""

import ctypes
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from holdfast.host.files.kernelfile import file_identity
from holdfast.model.ids import PciAddress
from holdfast.model.nvidia.gpu import GpuProblem

LIBRARY = "libnvidia-ml.so.1"
T = TypeVar("T")
Handle = Any
"""pynvml's handle of a device; only the library understands it."""

LOST = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})
"""The errors of the GPU itself, not of one query."""

_ADDRESS = re.compile(r"(?P<domain>[0-9a-f]{4,8}):(?P<rest>[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")

# Not supported is an answer; a failed query is a problem.
_NONE_OF_IT = frozenset({pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND})
_CODES: Mapping[int, str] = {
    value: name for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")
}

_RECOVERY_ACTIONS: Mapping[int, str] = {
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


class LoadedLibrary(ctypes.CDLL):
    """A loaded library, and how many users in this process have it open."""

    def __init__(self, path: Path | None, *, number: int) -> None:
        """Load *path* as the *number*th library of this process; raise OSError if that fails."""
        self.file = _identity(path)
        self.number = number
        self.users = 0
        super().__init__(LIBRARY if path is None else _unheard_of(path, number))


def enter(path: Path | None) -> None:
    """Make pynvml call the library at *path* (None: as the loader finds it), until `leave`.

    While other users have a library open, all get that one: handles of one library mean nothing
    to another. Raise OSError if it cannot be loaded, NVMLError if none is found by name.
    """
    with pynvml.libLoadLock:
        now = pynvml.nvmlLib
        if not isinstance(now, LoadedLibrary) or (not now.users and now.file != _identity(path)):
            now = _load(path, number=now.number + 1 if isinstance(now, LoadedLibrary) else 0)
            pynvml.nvmlLib = now
            # This cache has the addresses of functions in the previous library.
            pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 - it has no other way
        now.users += 1


def leave() -> None:
    """Undo one `enter`. The library stays mapped, because it may still have threads."""
    with pynvml.libLoadLock:
        pynvml.nvmlLib.users -= 1


def users() -> int:
    """Return how many users in this process have a library open."""
    now = pynvml.nvmlLib
    return now.users if isinstance(now, LoadedLibrary) else 0


def _load(path: Path | None, *, number: int) -> LoadedLibrary:
    try:
        return LoadedLibrary(path, number=number)
    except OSError:
        if path is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND) from None
        raise


def _unheard_of(path: Path, number: int) -> str:
    """Return *path* spelled in a way that the loader does not know yet.

    For a path that it knows, the loader returns the library that it loaded from there, whatever
    is there now. Only for an unknown path does it look at the file.
    """
    return f"{path.parent}{'/.' * number}/{path.name}"


def _identity(path: Path | None) -> tuple[int, int] | None:
    """Return what tells one file from another; no new file gets that of a mapped one."""
    return None if path is None else file_identity(path)


def supported(ask: Callable[..., T], *about: Any) -> T | None:  # noqa: ANN401 - as pynvml
    """Return the answer; None if this GPU or library does not support the query."""
    try:
        return ask(*about)
    except pynvml.NVMLError as error:
        if error.value in _NONE_OF_IT:
            return None
        raise


def answered(ask: Callable[..., T], *about: Any) -> T | None:  # noqa: ANN401 - as pynvml
    """Return the answer; None if there is none, for whatever reason."""
    try:
        return ask(*about)
    except (pynvml.NVMLError, UnicodeDecodeError, ValueError):
        return None


def unless_lost(ask: Callable[..., T], *about: Any) -> T | None:  # noqa: ANN401 - as pynvml
    """Return the answer, None if there is none; raise NVMLError if the GPU itself is lost.

    For one query among others about a GPU: its failure says nothing about the GPU.
    """
    try:
        return ask(*about)
    except pynvml.NVMLError as error:
        if error.value in LOST:
            raise
        return None


def problem(asked: str, error: Exception) -> GpuProblem:
    """Return what *error* means for the query *asked*."""
    lost = isinstance(error, pynvml.NVMLError) and error.value in LOST
    return GpuProblem(asked=asked, error=error_name(error), lost=lost)


def error_name(error: Exception) -> str:
    """Return NVML's own name of an error."""
    if isinstance(error, pynvml.NVMLError):
        return _CODES.get(error.value, f"error {error.value}")
    if isinstance(error, UnicodeDecodeError):
        return "an answer that is not text"
    return "an answer that makes no sense"


def hint(error: Any) -> str:  # noqa: ANN401 - pynvml makes its classes at run time
    """Return what to do about an error of the start, as the end of a text."""
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
    """Return a PCI address as sysfs writes it; NVML gives the domain eight digits.

    Raise ValueError for any other text, because the result becomes part of a path.
    """
    text = info.busId.decode() if isinstance(info.busId, bytes) else str(info.busId)
    found = _ADDRESS.fullmatch(text.lower())
    if found is None:
        raise ValueError(f"{text!r} is not a PCI address")
    return PciAddress(f"{int(found['domain'], 16):04x}:{found['rest']}")


def recovery_of(handle: Handle) -> str | None:
    """Return the recovery action; None if this driver has no such field, or an unknown value.

    Raise NVMLError if the GPU does not answer.
    """
    (field,) = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    if field.nvmlReturn != pynvml.NVML_SUCCESS or field.valueType not in _WHOLE_NUMBERS:
        return None
    return _RECOVERY_ACTIONS.get(int(field.value.uiVal))
