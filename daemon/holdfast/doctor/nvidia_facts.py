"""What a node shows of NVIDIA's driver: its version, its library, its nodes and its daemons."""

import re

from holdfast.errors import HostError
from holdfast.host.kernelfile import read_text
from holdfast.host.root import HostRoot

_VERSION = re.compile(r"Kernel Module\s+(?:for \S+\s+)?([0-9]+(?:\.[0-9]+)+)")


def loaded_version(host: HostRoot) -> str:
    """Return the version of the driver that the kernel has loaded; "" without one."""
    try:
        said = read_text(host.proc / "driver/nvidia/version") or ""
        match = _VERSION.search(said)
        return match[1] if match else read_text(host.sys / "module/nvidia/version") or ""
    except HostError:
        return ""
