"""Names and identities that every other module speaks in."""

from typing import NewType

from msgspec import Struct

ResourceName = NewType("ResourceName", str)
"""An extended resource, such as ``google.com/tpu``."""

DeviceId = NewType("DeviceId", str)
"""One unit of a resource in ListAndWatch; stable across restarts and reboots."""

HardwareKey = NewType("HardwareKey", str)
"""A piece of silicon that must not be shared: ``pci/0000:00:05.0``, or a GPU's UUID."""

PciAddress = NewType("PciAddress", str)
"""A PCI function, as sysfs spells it: ``0000:00:05.0``."""

PodUid = NewType("PodUid", str)
"""A pod's UID as kubelet writes it; static pods have 32 hex digits without dashes."""

ClaimUid = NewType("ClaimUid", str)
"""A ResourceClaim's UID; one that is made again under the same name has another."""

BootId = NewType("BootId", str)
"""The kernel's random id of this boot (/proc/sys/kernel/random/boot_id)."""


CheckpointId = NewType("CheckpointId", str)
"""Which file kubelet's checkpoint was, and which of its contents."""

NO_CHECKPOINT = CheckpointId("")
"""There was none, or it is not known which."""


class DeviceName(Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """A device as kubelet knows it: its resource and its id within that resource."""

    resource: ResourceName
    id: DeviceId

    def __str__(self) -> str:
        """Return ``resource/id``, the form people type and read."""
        return f"{self.resource}/{self.id}"


class ClaimRef(Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """A ResourceClaim as kubelet names it."""

    namespace: str
    uid: ClaimUid
    name: str

    def __str__(self) -> str:
        """Return ``namespace/name (uid)``."""
        return f"{self.namespace}/{self.name} ({self.uid})"


class ProcessId(Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """A process that cannot be mistaken for a later one with the same pid.

    `start_ticks` is field 22 of /proc/PID/stat, in clock ticks since boot.
    """

    pid: int
    start_ticks: int

    def __str__(self) -> str:
        """Return the bare pid, the form people look for."""
        return str(self.pid)
