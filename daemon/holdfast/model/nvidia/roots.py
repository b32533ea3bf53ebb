"""Where NVIDIA's driver is, and when NVML has to be let go so that it can be unloaded."""

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

CONTROL_MAJOR = 195
"""The major number of nvidiactl and of each GPU's node, where /proc/devices does not say."""
PATIENCE = 300.0
"""For how many seconds a driver whose container has stopped may take to be unloaded. One that is
still there then is kept by others, and its GPUs can be used as before."""


class RootFacts(Struct, frozen=True, kw_only=True):
    """One folder in which device nodes may be: `control` is the major number of its nvidiactl.

    `control` is None where there is no such character device. `folder` is as this process sees it,
    `host` the same as the host, and so a container runtime, calls it. `own`: it is called /dev.
    `place` tells one folder from another, whatever its names. What it is mounted on says whether
    nodes cannot be opened there (`nodev`), and whether it is a container's, so that the host has
    another of that name (`private`).
    """

    folder: Path
    host: str
    control: int | None
    own: bool = False
    place: tuple[int, int] | None = None
    nodev: bool = False
    private: bool = False


class DriverFacts(Struct, frozen=True, kw_only=True):
    """What the node shows of the driver; `present`: the kernel has /proc/driver/nvidia.

    `libraries` are the files called libnvidia-ml.so.1 that were found, the most trusted first; the
    loader may know one more by name. `major` is from /proc/devices, None where it does not say.
    `load` tells the driver, and this load of it, from any other. `ready`: GPU Operator's driver
    container says that it is up; None: there is none here that could say so.
    """

    present: bool
    libraries: Sequence[Path] = ()
    roots: Sequence[RootFacts] = ()
    major: int | None = None
    load: str = ""
    ready: bool | None = None


class DeviceRoot(Struct, frozen=True, kw_only=True):
    """The folder whose nodes are the driver's; `reason` says why there is none."""

    root: RootFacts | None
    reason: str = ""


def device_root(facts: DriverFacts) -> DeviceRoot:
    """Return the first root whose nvidiactl is the driver's and can be opened.

    A folder that merely exists proves nothing: GPU Operator keeps the nodes below the driver's
    root and leaves /dev without them, and an old /dev may have nodes of a former driver. Where a
    folder has two names, it is called /dev: the other goes with the driver's container. A /dev
    that is a container's comes last, for the runtime looks up its names on the host.
    """
    if not facts.present:
        return DeviceRoot(root=None, reason="the kernel has no NVIDIA driver")
    wanted = CONTROL_MAJOR if facts.major is None else facts.major
    fit = [root for root in facts.roots if root.control == wanted and not root.nodev]
    if fit:
        first = min(fit, key=lambda root: root.private)
        names = (each for each in fit if each.place is not None and each.place == first.place)
        return DeviceRoot(root=next((each for each in names if each.own), first))
    seen = ", ".join(_unfit(root, wanted) for root in facts.roots)
    return DeviceRoot(
        root=None,
        reason=(
            f"no folder has nvidiactl as a device of major {wanted} ({seen}); set gpu.devRoot to "
            "where the driver keeps its nodes"
        ),
    )


def _unfit(root: RootFacts, wanted: int) -> str:
    if root.control is None:
        return f"{root.host} has none"
    if root.control != wanted:
        return f"that of {root.host} has major {root.control}"
    return f"{root.host} is mounted with nodev, so that nothing in it can be opened"


class NvmlRelease(Struct, frozen=True, kw_only=True):
    """That NVML is let go, and why; `load` is the load of the driver that is to be unloaded.

    `until` is in monotonic seconds; None: until the driver is another, or somebody says so.
    """

    reason: str
    load: str
    until: float | None = None


def leave(
    before: NvmlRelease | None, driver: DriverFacts, *, was_ready: bool | None, now: float
) -> NvmlRelease | None:
    """Return whether NVML has to be let go; *was_ready* is what `driver.ready` was before.

    GPU Operator's driver container takes back that it is ready just before it unloads the driver.
    That it never said so says nothing: the driver may be the host's own.
    """
    if not driver.present:
        return None
    if before is not None and before.until is None and before.load == driver.load:
        return before
    if was_ready and driver.ready is False:
        return NvmlRelease(
            reason="GPU Operator's driver container is stopping: holdfast closes NVML, so that the "
            "driver can be unloaded",
            load=driver.load,
            until=now + PATIENCE,
        )
    if before is None or before.load != driver.load:
        return None
    return None if driver.ready or now >= (before.until or now) else before
