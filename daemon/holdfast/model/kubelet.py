"""What kubelet records and tells of pods and claims: its checkpoint, its claims, PodResources."""

from collections.abc import Collection, Mapping
from functools import cached_property
from itertools import islice

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.model.groups import grouped
from holdfast.model.ids import (
    NO_CHECKPOINT,
    CheckpointId,
    ClaimRef,
    DeviceId,
    DeviceName,
    PodUid,
    ProcessId,
    ResourceName,
)


class CheckpointEntry(Struct, frozen=True, kw_only=True):
    """One container's devices of one resource, as kubelet wrote them.

    `promised` are the host paths of the device nodes in the answer that kubelet replays at each
    start of the container, `promised_names` the CDI names in it, `promised_ids` what its variables
    and mounts promise to a vendor's own runtime, in the words of that vendor's adapter; all are
    empty when the answer could not be read.
    """

    pod: PodUid
    container: str
    resource: ResourceName
    devices: frozenset[DeviceId]
    promised: tuple[str, ...] = ()
    promised_names: tuple[str, ...] = ()
    promised_ids: tuple[str, ...] = ()


_Entries = tuple[CheckpointEntry, ...]


class RecordedDevice(Struct, frozen=True):
    """One device of a claim, as kubelet was answered and has recorded it.

    `share_id` is empty for a whole device. Containers with one of `requests`, which are without
    subrequests, are given it by `cdi_ids`.
    """

    pool: str
    name: str
    share_id: str = ""
    requests: tuple[str, ...] = ()
    cdi_ids: tuple[str, ...] = ()


class ClaimEntry(Struct, frozen=True, kw_only=True):
    """One claim as kubelet wrote it: the pods that use it, and its devices by driver.

    A driver has none before its first answer.
    """

    claim: ClaimRef
    pods: frozenset[PodUid]
    devices: Mapping[str, tuple[RecordedDevice, ...]] = field(default_factory=dict)

    def given(self, driver: str, pool: str) -> tuple[RecordedDevice, ...]:
        """Return each device of *pool* that *driver* gave it for itself, once, in its order.

        Nobody has a share of a device and all of it: that is what it has with adminAccess.
        """
        found: dict[tuple[str, str], RecordedDevice] = {}
        for each in self.devices.get(driver, ()):
            if each.pool == pool:
                found.setdefault((each.name, each.share_id), each)
        shared = {name for name, share in found if share}
        return tuple(each for each in found.values() if each.share_id or each.name not in shared)


class ListedPod(Struct, frozen=True, kw_only=True):
    """A pod that PodResources List names. It has no UID there."""

    namespace: str
    name: str
    devices: frozenset[DeviceName]


class Registration(Struct, frozen=True, kw_only=True):
    """The registration of one resource, or of the DRA driver, with kubelet.

    `since` is when `registered` last changed, in seconds since the epoch; `problem` says why it is
    not registered, and is empty where it is. `attempts` counts the calls of Register, or kubelet's
    of GetInfo; `registrations` those that kubelet accepted. Without an open stream kubelet counts
    none of a resource's devices as usable.
    """

    registered: bool = False
    streams: int = 0
    problem: str = "not registered yet"
    since: float = 0.0
    attempts: int = 0
    registrations: int = 0

    def turned(self, problem: str, *, at: float) -> "Registration":
        """Return what it is from *at* on, with that *problem*; with none it is registered."""
        since = at if self.registered is bool(problem) else self.since
        return replace(self, registered=not problem, problem=problem, since=since)


class KubeletView(Struct, frozen=True, kw_only=True, dict=True):
    """The latest that is known of kubelet's checkpoint.

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
    retired: frozenset[PodUid] = frozenset()
    """Pods of which entries were left out: they are over, and nothing made kubelet write so."""

    @property
    def unreadable(self) -> bool:
        """Tell whether the checkpoint was looked at and could not be read, or was not there."""
        return not self.readable and self.read_at > 0

    def entries_of(self, resource: ResourceName, devices: frozenset[DeviceId]) -> _Entries:
        """Return the entries with this resource and exactly these devices."""
        return self._by_devices.get((resource, devices), ())

    def entries_of_pod(self, pod: PodUid) -> _Entries:
        """Return the entries of *pod*."""
        return self._by_pod.get(pod, ())

    def pods_with(self, device: DeviceName) -> frozenset[PodUid]:
        """Return the pods whose entries name *device*."""
        naming = self._by_device.get((device.resource, device.id), ())
        return frozenset(entry.pod for entry in naming)

    def listed_within(self, devices: Collection[DeviceName]) -> list[ListedPod]:
        """Return the listed pods that have devices, all of which are among *devices*."""
        wanted = frozenset(devices)
        some = (each for device in devices for each in self._listed_by_one.get(device, ()))
        return [each for each in some if each.devices <= wanted]

    def counts(self, pod: PodUid) -> bool:
        """Tell whether kubelet's checkpoint has *pod*; only meaningful while `readable`."""
        return pod in self._by_pod

    @cached_property
    def _by_devices(self) -> dict[tuple[ResourceName, frozenset[DeviceId]], _Entries]:
        return grouped(((entry.resource, entry.devices), entry) for entry in self.entries)

    @cached_property
    def _by_pod(self) -> dict[PodUid, _Entries]:
        return grouped((entry.pod, entry) for entry in self.entries)

    @cached_property
    def _listed_by_one(self) -> dict[DeviceName, tuple[ListedPod, ...]]:
        """Return the listed pods, each by only one of its devices."""
        return grouped((device, pod) for pod in self.pods for device in islice(pod.devices, 1))

    @cached_property
    def _by_device(self) -> dict[tuple[ResourceName, DeviceId], _Entries]:
        return grouped(
            ((entry.resource, id_), entry) for entry in self.entries for id_ in entry.devices
        )
