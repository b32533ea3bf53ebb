"""When NVML has to be let go, so that NVIDIA's driver can be unloaded, and when to begin anew.

Whoever has NVML open keeps the kernel's module in use, and then neither the driver can be replaced
nor MIG mode be changed.
"""

from msgspec import Struct

from holdfast.model.nvidia.roots import DriverFacts

PATIENCE = 300.0
"""For how many seconds a driver whose container has stopped may take to be unloaded. One that is
still there then is kept by others, and its GPUs can be used as before."""


class Leave(Struct, frozen=True, kw_only=True):
    """That NVML is let go, and why; `load` is the load of the driver that is to be unloaded.

    `until` is in monotonic seconds; None: until the driver is another, or somebody says so.
    """

    reason: str
    load: str
    until: float | None = None


def leave(
    before: Leave | None, driver: DriverFacts, *, was_ready: bool | None, now: float
) -> Leave | None:
    """Return whether NVML has to be let go; *was_ready* is what `driver.ready` was before.

    GPU Operator's driver container takes back that it is ready just before it unloads the driver.
    That it never said so says nothing: the driver may be the host's own.
    """
    if not driver.present:
        return None
    if before is not None and before.until is None and before.load == driver.load:
        return before
    if was_ready and driver.ready is False:
        return Leave(
            reason="GPU Operator's driver container is stopping: holdfast closes NVML, so that the "
            "driver can be unloaded",
            load=driver.load,
            until=now + PATIENCE,
        )
    if before is None or before.load != driver.load:
        return None
    return None if driver.ready or now >= (before.until or now) else before
