"""Reads which device nodes let a process use a MIG slice: NVIDIA's capabilities."""

import os
import re
from collections.abc import Mapping

from msgspec import Struct, field

from holdfast.host.files.kernelfile import read_text
from holdfast.host.root import HostRoot
from holdfast.model.devices import DeviceNode

_MINORS = "driver/nvidia-caps/mig-minors"
_LINE = re.compile(r"gpu(\d+)/gi(\d+)(?:/ci(\d+))?/access (\d+)")
_MAJOR = re.compile(r"^\s*(\d+) nvidia-caps$", re.MULTILINE)


class MigCaps(Struct, frozen=True, kw_only=True):
    """The capabilities of all slices the driver could have. `major` None: there are no nodes."""

    major: int | None = None
    minors: Mapping[tuple[int, int, int | None], int] = field(default_factory=dict)
    """By the GPU's minor number, GPU instance, and compute instance (None for the GPU instance)."""

    def nodes(self, gpu: int, gi: int, ci: int) -> tuple[DeviceNode, ...]:
        """Return the nodes of a slice of /dev/nvidia*gpu*: its GPU instance's, then its own.

        Fewer than two come back where the driver does not have them: then the slice cannot be used.
        """
        found = (self.minors.get((gpu, gi, None)), self.minors.get((gpu, gi, ci)))
        if self.major is None:
            return ()
        return tuple(
            DeviceNode(
                path=f"/dev/nvidia-caps/nvidia-cap{minor}", rdev=os.makedev(self.major, minor)
            )
            for minor in found
            if minor is not None
        )


def read_mig_caps(root: HostRoot) -> MigCaps:
    """Return the capabilities below *root*; empty ones without a driver that knows MIG.

    Lines that say something else are passed over. Raise HostError where a file cannot be read.
    """
    major = _MAJOR.search(read_text(root.proc / "devices") or "")
    minors: dict[tuple[int, int, int | None], int] = {}
    for line in (read_text(root.proc / _MINORS) or "").splitlines():
        # "gpu3/gi7/access 30" or "gpu3/gi7/ci0/access 31"; "config 1" and "monitor 2" are no slice.
        match = _LINE.fullmatch(line.strip())
        if match is not None:
            gpu, gi, ci, minor = match.groups()
            minors[int(gpu), int(gi), None if ci is None else int(ci)] = int(minor)
    return MigCaps(major=None if major is None else int(major[1]), minors=minors)
