"""The daemon's own edges to the host, with the kernel in memory behind them."""

import asyncio
import signal
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from holdfast.errors import HostError, LaneStuckError
from holdfast.host.cgroup.cgroups import Cgroups
from holdfast.host.cgroup.runtimestate import RuntimeFiles
from holdfast.host.files.inotify import Changed, PathWatcher
from holdfast.host.proc.pidfd import Pidfds
from holdfast.host.proc.procfs import INIT_PID_NAMESPACE, ProcessFacts, Procfs, SandboxRoles
from holdfast.host.use.look import Look
from holdfast.model.book.book import DeviceLock
from holdfast.model.book.pods import PodSighting
from holdfast.model.book.proof import attribute
from holdfast.model.devices import Device
from holdfast.model.ids import DeviceName, PciAddress, PodUid, ProcessId
from holdfast.model.node.cgroup_names import pod_of
from holdfast.model.reclaim.ending import RuntimeState
from holdfast.model.use.free import KernelFacts, OpenOutcome
from holdfast.model.use.holders import DeviceAccess, Holder, Scan
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched
from kills.kernel import INIT, NODE, Kernel, Process

T = TypeVar("T")

_INIT = ProcessFacts(process=ProcessId(INIT, 0), comm="systemd", state="S", ppid=0, threads=1)
PODS = "/kubepods/burstable/pod"
_LATE, _DEAD = 0.2, 0.3
"""How many freezes come late, and with how many the daemon dies before it has thawed."""


class DaemonKilledError(Exception):
    """The daemon dies here, with whatever it had begun."""


class InlineLane(Lane):
    """Runs each call at once; the daemon can be killed before any of them."""

    def __init__(self) -> None:
        self.name, self._deadline = "inline", Watched(30.0)
        self.calls_left: int | None = None

    @property
    def stuck_since(self) -> float | None:
        return None

    async def run(
        self,
        call: Callable[[], T],
        *,
        deadline: float | None = None,
        after: Callable[[T], None] | None = None,
        ahead: bool = False,
    ) -> T:
        del ahead
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left < 0:
                raise DaemonKilledError
        answer = call()
        await asyncio.sleep(0)  # as with a thread, the loop goes round once
        if after is not None:
            after(answer)
        return answer


class MemoryProcfs(Procfs):
    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def pids(self) -> list[int]:
        return sorted(self._kernel.processes)

    def certain(self, pid: int) -> ProcessFacts | None:
        if pid == INIT:
            return _INIT
        each = self._kernel.processes.get(pid)
        if each is None:
            return None
        return ProcessFacts(
            process=each.id, comm=each.command[:15], state="S", ppid=each.parent, threads=1
        )

    def children(self, pid: int) -> frozenset[int]:
        everybody = self._kernel.processes.values()
        return frozenset(each.id.pid for each in everybody if each.parent == pid)

    def namespace(self, pid: int, kind: str) -> str | None:
        each = self._kernel.processes.get(pid)
        if each is not None and each.namespaces == NODE and kind == "pid":
            return INIT_PID_NAMESPACE
        return None if each is None else f"{kind}:[{each.namespaces}]"

    def runs_a_machine(self, pid: int) -> bool:
        each = self._kernel.processes.get(pid)
        return each is not None and each.machine

    def started_at(self, process: ProcessId) -> float:
        return process.start_ticks / 100

    def uid(self, pid: int) -> int | None:
        return 0 if pid in self._kernel.processes else None

    def arguments(self, pid: int) -> tuple[str, ...]:
        each = self._kernel.processes.get(pid)
        return () if each is None else each.arguments


class MemoryCgroups(Cgroups):
    """The cgroups; a freeze can come late, and the daemon die with a cgroup frozen."""

    def __init__(self, kernel: Kernel, lane: InlineLane) -> None:
        """Be written to on *lane*."""
        self._kernel = kernel
        self._lane = lane

    def pods(self, uids: Collection[PodUid]) -> dict[PodUid, PodSighting]:
        return {uid: found for uid in uids if (found := self.pod(uid)) is not None}

    def pod(self, uid: PodUid, *, seconds: float = 0.0) -> PodSighting | None:
        path = f"{PODS}{uid}"
        inode = self._kernel.cgroups.get(path)
        if inode is None:
            return None
        pids = tuple(sorted(each.id.pid for each in self._kernel.members(path)))
        return PodSighting(cgroup=path, inode=inode, populated=bool(pids), processes=pids)

    def inode(self, path: str) -> int | None:
        return self._kernel.cgroups.get(path)

    def events_path(self, path: str) -> Path | None:
        return Path(path)

    def kill(self, path: str, inode: int) -> None:
        if not self._kernel.kills_cgroups:
            raise HostError(f"cannot write cgroup.kill of cgroup {path}: no such file")
        if self._kernel.cgroups.get(path) != inode:
            raise HostError(f"cannot write cgroup.kill of cgroup {path}: another cgroup")
        for each in list(self._kernel.members(path)):
            self._kernel.signal(each, signal.SIGKILL, "cgroup.kill")

    def freeze(self, path: str, inode: int, *, frozen: bool) -> None:
        kernel = self._kernel
        self._wait_for_late()
        if not kernel.freezes_cgroups or kernel.cgroups.get(path) != inode:
            raise HostError(f"cannot write cgroup.freeze of cgroup {path}: no such file")
        if not frozen:
            kernel.thaw(path)
            return
        chance = kernel.chance()
        if chance < _LATE:
            kernel.say(f"{path} is to be frozen, and the kernel takes its time")
            kernel.late = path, inode
            raise LaneStuckError("cannot wait for lane pods")
        kernel.freeze(path)
        if chance < _LATE + _DEAD:
            self._lane.calls_left = kernel.mishaps.randrange(5)

    def is_frozen(self, path: str) -> bool:
        self._wait_for_late()
        if not self._kernel.freezes_cgroups:
            raise HostError(f"cannot freeze cgroup {path}: no such file")
        return path in self._kernel.frozen

    def await_frozen(self, path: str, *, patience: float) -> bool:
        return True

    def _wait_for_late(self) -> None:
        """Raise LaneStuckError where a freeze takes its time: what comes after it has to wait."""
        if self._kernel.late is not None:
            raise LaneStuckError("cannot wait for lane pods")


class MemoryPidfds(Pidfds):
    """Pidfds that refer to the very process that had the pid when they were opened."""

    def __init__(self, kernel: Kernel, meanwhile: Callable[[], None], *, checks: bool) -> None:
        """Let *meanwhile* happen before each pidfd is opened; *checks* start times, as it should."""
        self._kernel = kernel
        self._meanwhile = meanwhile
        self._checks = checks
        self._exits: dict[ProcessId, Callable[[ProcessId], None]] = {}
        self._open_on: dict[ProcessId, Process] = {}
        kernel.on_exit.append(self._exited)

    @property
    def watched(self) -> frozenset[ProcessId]:
        return frozenset(self._exits)

    def watch(self, process: ProcessId, exited: Callable[[ProcessId], None]) -> bool:
        each = self._find(process)
        if each is not None:
            self._exits[process] = exited
        return each is not None

    def unwatch(self, process: ProcessId) -> None:
        self._exits.pop(process, None)

    def _hold(self, process: ProcessId) -> bool:
        self._meanwhile()
        each = self._find(process)
        if each is not None:
            self._open_on[process] = each
        return each is not None

    def _release(self, process: ProcessId) -> None:
        self._open_on.pop(process, None)

    def send(self, process: ProcessId, number: signal.Signals) -> str:
        each = self._open_on.get(process)
        if each is None:
            raise HostError(f"cannot signal pid {process}: no pidfd of it is held")
        if not self._kernel.lives(each):
            return "gone"
        self._kernel.signal(each, number, "pidfd")
        return "sent"

    def close(self) -> None:
        self._kernel.on_exit.remove(self._exited)

    def _find(self, process: ProcessId) -> Process | None:
        each = self._kernel.processes.get(process.pid)
        if each is None or (self._checks and each.id != process):
            return None
        return each

    def _exited(self, process: Process) -> None:
        hear = self._exits.pop(process.id, None)
        if hear is not None:
            hear(process.id)


class MemoryPaths(PathWatcher):
    """Tells of each change in a watched cgroup."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._watches: dict[str, Changed] = {}
        kernel.on_change.append(self._happened)

    def watch(self, path: Path, changed: Changed) -> Callable[[], None]:
        self._watches[str(path)] = changed
        return lambda: self._forget(str(path))

    def close(self) -> None:
        self._kernel.on_change.remove(self._happened)

    def _forget(self, path: str) -> None:
        self._watches.pop(path, None)

    def _happened(self, cgroup: str) -> None:
        hear = self._watches.get(cgroup)
        if hear is not None:
            hear("", 0)


class MemoryLook(Look):
    """Sees every process's access, and what the kernel alone has enabled."""

    def __init__(self, kernel: Kernel, procfs: MemoryProcfs) -> None:
        self._kernel = kernel
        self._procfs = procfs
        self.last_scan = None
        self.full_scan_cpu_seconds = 0.0
        self.full_scan_at = None
        self.gaps_for = None

    async def enabled(self, devices: Iterable[Device]) -> dict[DeviceName, tuple[PciAddress, ...]]:
        return {each.name: self._enabled(each) for each in devices}

    async def scan(
        self,
        devices: Iterable[Device],
        locks: Mapping[DeviceName, DeviceLock],
        *,
        pids: Sequence[int] | None = None,
    ) -> dict[DeviceName, KernelFacts]:
        wanted = tuple(devices)
        enabled = {each.name: self._enabled(each) for each in wanted}
        busy = frozenset(name for name, functions in enabled.items() if functions)
        scan = self._scan_for(frozenset(enabled), pids)
        holders = attribute(scan, busy, locks)
        return {
            each.name: KernelFacts(
                enabled=enabled[each.name], holders=holders.get(each.name, ()), gaps=scan.gaps
            )
            for each in wanted
        }

    async def open_idle(self, device: Device, *, learn: bool) -> OpenOutcome:
        return await self.open(device)

    async def open(self, device: Device) -> OpenOutcome:
        return OpenOutcome.BUSY if self._kernel.holders(device.name) else OpenOutcome.SUCCEEDED

    def _enabled(self, device: Device) -> tuple[PciAddress, ...]:
        return device.functions if self._kernel.holders(device.name) else ()

    def _scan_for(self, names: frozenset[DeviceName], pids: Sequence[int] | None) -> Scan:
        holders: dict[DeviceName, tuple[Holder, ...]] = {}
        loose: list[Holder] = []
        for each in list(self._kernel.processes.values()):
            if not each.access or (pids is not None and each.id.pid not in pids):
                continue
            for device, access in each.access.items():
                if DeviceAccess.NODE not in access:
                    loose.append(self._holder(each, access))
                elif device in names:
                    holders[device] = (*holders.get(device, ()), self._holder(each, access))
        return Scan(
            holders=holders,
            unattributed=tuple(loose),
            gaps=("pid 7 (secret) cannot be inspected",) if self._kernel.blind else (),
        )

    def _holder(self, process: Process, access: frozenset[DeviceAccess]) -> Holder:
        pod, container = pod_of(process.cgroup)
        return Holder(
            process=process.id,
            command=process.command,
            access=access,
            cgroup=process.cgroup,
            pod=pod,
            container=container,
            sandbox=SandboxRoles(self._procfs, seconds=60.0).of(process.id.pid),
        )


class MemoryRuntimeFiles(RuntimeFiles):
    """The runtime's files, as the simulated runtime keeps them."""

    def __init__(self, states: Callable[[PodUid], RuntimeState]) -> None:
        self._states = states

    def state(self, pod: PodUid) -> RuntimeState:
        return self._states(pod)
