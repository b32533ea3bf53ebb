"""Remembers which pods started on a device before their virtual machine had it."""

from collections.abc import Collection

from holdfast.model.devices import Device, DeviceKind
from holdfast.model.ids import DeviceName, PodUid
from holdfast.model.use.machines import asking_whose, but_for_own_machine
from holdfast.model.use.verdict import Verdict


class OwnMachines:
    """Tells a machine that had the device from the first from one that has not let go of it yet.

    After a restart of the daemon that is not known, and a machine of the pod itself is in nobody's
    way: a start that fails is tried again, one that is refused for ever is not.
    """

    def __init__(self) -> None:
        self._had_none: set[tuple[PodUid, DeviceName]] = set()

    def judge(self, verdict: Verdict, pod: PodUid | None, device: Device) -> Verdict:
        """Return whether *device* is free for *pod*, of which *verdict* tells who has it."""
        if device.kind is not DeviceKind.VFIO:
            return verdict
        had_none = pod is not None and (pod, device.name) in self._had_none
        return asking_whose(but_for_own_machine(verdict, pod, had_none=had_none))

    def started(
        self, pod: PodUid | None, free: Collection[DeviceName], *, pods: Collection[PodUid]
    ) -> None:
        """Hear that *pod* starts on devices, of which nobody had those that are *free*.

        *pods* are all that have anything: what is known of others is dropped.
        """
        self._had_none = {each for each in self._had_none if each[0] in pods}
        if pod is not None:
            self._had_none |= {(pod, device) for device in free}
