"""Where NVIDIA's driver is: the kernel says that it is there, mounts only where its files are."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CONTROL_MAJOR = 195
"""The major number of nvidiactl and of each GPU's node, where /proc/devices does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RootFacts:
    """One folder in which device nodes may be: `control` is the major number of its nvidiactl.

    `control` is None where there is no such character device. `folder` is as this process sees it,
    `host` the same as the host, and so a container runtime, calls it.
    """

    folder: Path
    host: str
    control: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFacts:
    """What the node shows of the driver; `present`: the kernel has /proc/driver/nvidia.

    `libraries` are the files called libnvidia-ml.so.1 that were found, the most trusted first; the
    loader may know one more by name. `major` is from /proc/devices, None where it does not say.
    `load` tells the driver, and this load of it, from any other.
    """

    present: bool
    libraries: Sequence[Path] = ()
    roots: Sequence[RootFacts] = ()
    major: int | None = None
    load: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRoot:
    """The folder whose nodes are the driver's; `reason` says why there is none."""

    root: RootFacts | None
    reason: str = ""


def device_root(facts: DriverFacts) -> DeviceRoot:
    """Return the first root whose nvidiactl is the driver's.

    A folder that merely exists proves nothing: GPU Operator keeps the nodes below the driver's
    root and leaves /dev without them, and an old /dev may have nodes of a former driver.
    """
    if not facts.present:
        return DeviceRoot(root=None, reason="the kernel has no NVIDIA driver")
    wanted = CONTROL_MAJOR if facts.major is None else facts.major
    for root in facts.roots:
        if root.control == wanted:
            return DeviceRoot(root=root)
    seen = ", ".join(
        f"{root.host} has none"
        if root.control is None
        else f"that of {root.host} has major {root.control}"
        for root in facts.roots
    )
    return DeviceRoot(
        root=None,
        reason=(
            f"no folder has nvidiactl as a device of major {wanted} ({seen}); set gpu.devRoot to "
            "where the driver keeps its nodes"
        ),
    )
