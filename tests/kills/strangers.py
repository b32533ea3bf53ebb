"""What is on the node besides pods, and what becomes of orphans without holdfast."""

from collections.abc import Collection

from holdfast.model.ids import DeviceName
from holdfast.model.use.holders import DeviceAccess
from kills.kernel import Kernel, Process


class Strangers:
    """Persons, VMs and other plugins, which come and go as they like."""

    def __init__(self, kernel: Kernel, names: Collection[DeviceName]) -> None:
        """Let them use the devices called *names*."""
        self._kernel = kernel
        self._rng = kernel.rng
        self._names = sorted(names)
        self._foreign: list[Process] = []

    def one_has_the_pid_of_an_orphan(self) -> None:
        """Let an orphan exit by itself, and another process get its pid."""
        found = [
            each
            for each in self._kernel.processes.values()
            if each.works() is None and not each.stuck
        ]
        if found:
            orphan = self._rng.choice(found)
            self._kernel.exit(orphan)
            taker = self._kernel.spawn(
                "sshd", "/system.slice/sshd.service", lambda: "it is the host's"
            )
            self._kernel.say(f"pid {orphan.id} exits; pid {taker.id} ({taker.cgroup}) is new")

    def one_comes_or_goes(self) -> None:
        """Let somebody use a device that is free, or let go of it."""
        if self._foreign and self._rng.random() < 0.7:
            self._kernel.exit(self._foreign.pop())
            return
        names = [name for name in self._names if not self._kernel.holders(name)]
        if names:
            place = self._rng.choice(("/user.slice/session-1.scope", "/machine.slice/vm"))
            process = self._kernel.spawn("qemu-system-x86", place, lambda: "it is the host's")
            process.access[self._rng.choice(names)] = frozenset(
                {DeviceAccess.NODE, DeviceAccess.DEVICE_FD}
            )
            self._foreign.append(process)
            self._kernel.say(f"pid {process.id} on the host opens a device")
