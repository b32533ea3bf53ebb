"""What kubelet has in its books: facts read from its checkpoint and from PodResources."""

from collections.abc import Mapping

from msgspec import Struct, field

from holdfast.model.ids import (
    NO_CHECKPOINT,
    CheckpointId,
    DeviceId,
    DeviceName,
    PodUid,
    ProcessId,
    ResourceName,
)


class CheckpointEntry(Struct, frozen=True, kw_only=True):
    """One container's devices of one resource, as kubelet wrote them.

    `promised` are the host paths of the device nodes in the answer that kubelet replays at each
    start of the container, `promised_names` the CDI names in it, `promised_indexes` those of GPUs
    for NVIDIA's runtime; all are empty when the answer could not be read.
    """

    pod: PodUid
    container: str
    resource: ResourceName
    devices: frozenset[DeviceId]
    promised: tuple[str, ...] = ()
    promised_names: tuple[str, ...] = ()
    promised_indexes: tuple[str, ...] = ()


class ListedPod(Struct, frozen=True, kw_only=True):
    """A pod that PodResources List names. It has no UID there."""

    namespace: str
    name: str
    devices: frozenset[DeviceName]


class KubeletView(Struct, frozen=True, kw_only=True):
    """The latest that is known of kubelet's books.

    A *question* is: List, send the unchanged devices once more, read the checkpoint that kubelet
    then writes. `questions` counts the complete ones; `asked_at` is when the last of them began,
    so `entries` are at least as new as that, and `sent_at` when its devices were sent, after which
    kubelet wrote. `kubelet` is the process behind kubelet.sock at that time. `file` is the
    checkpoint that was read last, and `read_at` when that reading began. Times are in seconds
    since the machine booted.
    """

    entries: tuple[CheckpointEntry, ...] = ()
    readable: bool = False
    problem: str = "the checkpoint has not been read yet"
    file: CheckpointId = NO_CHECKPOINT
    read_at: float = 0.0
    kubelet: ProcessId | None = None
    questions: int = 0
    asked_at: float = 0.0
    sent_at: float = 0.0
    answered: bool = False
    """Whether `entries` are what kubelet wrote for the last question, not what it wrote since."""
    pods: tuple[ListedPod, ...] = ()
    """What the last List said; empty before the first one."""
    registered: Mapping[ResourceName, frozenset[DeviceId]] = field(default_factory=dict)
    """The devices that kubelet's checkpoint says are healthy, by resource, whoever sent them."""

    @property
    def unreadable(self) -> bool:
        """Tell whether the checkpoint was looked at and could not be read, or was not there."""
        return not self.readable and self.read_at > 0

    def entries_of(
        self, resource: ResourceName, devices: frozenset[DeviceId]
    ) -> tuple[CheckpointEntry, ...]:
        """Return the entries with this resource and exactly these devices."""
        return tuple(
            entry
            for entry in self.entries
            if entry.resource == resource and entry.devices == devices
        )

    def pods_with(self, device: DeviceName) -> frozenset[PodUid]:
        """Return the pods whose entries name *device*."""
        return frozenset(
            entry.pod
            for entry in self.entries
            if entry.resource == device.resource and device.id in entry.devices
        )

    def counts(self, pod: PodUid) -> bool:
        """Tell whether kubelet's books have *pod*; only meaningful while `readable`."""
        return any(entry.pod == pod for entry in self.entries)
