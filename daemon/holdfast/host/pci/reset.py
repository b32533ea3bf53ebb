"""Resets a PCI function, checks that it answers, and binds it to its driver again."""

import errno
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from enum import Enum

from msgspec import Struct

from holdfast.errors import HostError
from holdfast.host.files.kernelfile import is_folder, read_text, seen, text_or_empty
from holdfast.host.pci.sysfs import Sysfs
from holdfast.host.pci.vfio import holding
from holdfast.host.root import HostRoot
from holdfast.model.devices import DeviceNode
from holdfast.model.ids import PciAddress
from holdfast.model.reclaim.reset import FunctionState
from holdfast.model.use.free import OpenOutcome

_NO_OVERRIDE = "(null)"
_VENDOR_BYTES = 2


class WriteOutcome(Enum):
    """The result of a write to sysfs, as metrics show it.

    FORBIDDEN if we may not write here (a read-only /sys), UNSUPPORTED if the function has no reset.
    """

    DONE = "done"
    FORBIDDEN = "forbidden"
    UNSUPPORTED = "skipped"
    FAILED = "failed"


_REFUSALS: Mapping[int | None, WriteOutcome] = {
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), WriteOutcome.FORBIDDEN),
    **dict.fromkeys((errno.ENOENT, errno.ENOTTY), WriteOutcome.UNSUPPORTED),
}


class WriteResult(Struct, frozen=True, kw_only=True):
    """The result of a write, with the kernel's error as text."""

    written: WriteOutcome
    text: str = ""


class FunctionControl:
    """Acts on PCI functions. Any call but `state_of` can hang forever: it belongs on its own lane.

    The kernel resets a function even while a process uses it. So the caller holds its group
    meanwhile (`holding`), and nobody can start to use it.
    """

    def __init__(self, root: HostRoot) -> None:
        """Act on the functions below *root*."""
        self._root = root
        self._sysfs = Sysfs(root)
        self._bus = root.sys / "bus/pci"

    def state_of(self, address: PciAddress) -> FunctionState:
        """Return what the function shows now; reading may wake it."""
        folder = self._bus / "devices" / address
        return FunctionState(
            address=address,
            present=is_folder(folder),
            driver=self._sysfs.driver(address),
            enable=self._sysfs.enable(address),
            vendor=self._vendor(address),
            methods=self._methods(address),
            override=text_or_empty(folder / "driver_override").replace(_NO_OVERRIDE, ""),
        )

    def holding(self, nodes: Sequence[DeviceNode]) -> AbstractContextManager[OpenOutcome]:
        """Hold each group open meanwhile, which only one process can; yield the result."""
        return holding(self._root, nodes)

    def reset(self, address: PciAddress) -> WriteResult:
        """Reset the function by its first method; return when the kernel is done."""
        return _write(f"{self._bus}/devices/{address}/reset", "1")

    def rebind(self, address: PciAddress) -> WriteResult:
        """Bind a function without a driver to vfio-pci."""
        answer = _write(f"{self._bus}/devices/{address}/driver_override", "vfio-pci")
        if answer.written is not WriteOutcome.DONE:
            return answer
        return _write(f"{self._bus}/drivers_probe", address)

    def _vendor(self, address: PciAddress) -> int | None:
        """Read the vendor id from the function itself; the file `vendor` is the kernel's copy."""
        try:
            with (self._bus / "devices" / address / "config").open("rb", buffering=0) as config:
                content = config.read(_VENDOR_BYTES)
        except OSError:
            return None
        return int.from_bytes(content, "little") if len(content) == _VENDOR_BYTES else None

    def _methods(self, address: PciAddress) -> tuple[str, ...] | None:
        """Return the reset methods in the kernel's order; None if the kernel does not list them.

        A function without any method has neither file. Before Linux 5.15 none has the list.
        """
        folder = self._bus / "devices" / address
        try:
            methods = read_text(folder / "reset_method")
        except HostError:
            return None
        if methods is None:
            return None if seen(folder / "reset") else ()
        return tuple(methods.split())


def _write(path: str, text: str) -> WriteResult:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)
    except OSError as error:
        written = _REFUSALS.get(error.errno, WriteOutcome.FAILED)
        return WriteResult(written=written, text=f"cannot write {path}: {error.strerror}")
    return WriteResult(written=WriteOutcome.DONE)
