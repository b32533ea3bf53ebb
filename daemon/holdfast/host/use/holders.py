"""Which processes have a device open or mapped: one pass through /proc."""

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from itertools import chain

from msgspec.structs import replace

from holdfast.errors import HostError
from holdfast.host.cgroup.cgroups import Cgroups
from holdfast.host.own import visibility
from holdfast.host.proc.access import AccessSearch
from holdfast.host.proc.openfiles import FileTables
from holdfast.host.proc.procfs import Procfs, SandboxRoles
from holdfast.host.proc.visits import PATIENCE, Visits
from holdfast.host.root import HostRoot
from holdfast.host.use.survey import Survey, Uses
from holdfast.model.ids import DeviceName, PodUid, ProcessId
from holdfast.model.node.cgroup_names import pod_of
from holdfast.model.node.privileges import Visibility
from holdfast.model.use.holders import (
    SANDBOXES,
    DeviceAccess,
    Holder,
    Sandbox,
    Scan,
    ScanTarget,
)

_REEXEC = "exe"
"""The name of a program that was started through /proc/self/exe, such as gVisor's sentry."""
_SOON = 0.25
_NAMING = 1.0
"""How long one read of arguments may take, and all of one look together, in seconds."""
_MOST_ALIKE = 64
"""Of one device: a pod may have it open in thousands of processes."""


class HolderScan:
    """Scans /proc below one root. It blocks: run it on a lane.

    A process that cannot be read in time becomes a gap, and blocks only its own thread.

    Files are matched by device number, never by their path: a node may be mounted under another
    name. What vanishes while it is read is gone, and no gap. This process itself is left out: it
    holds a device only for the moment of an exclusive open.
    """

    def __init__(self, root: HostRoot, *, patience: float = PATIENCE) -> None:
        """Scan below *root*'s proc folder. *patience*: how long one read may take, in seconds."""
        self._root = root
        self._procfs = Procfs(root, patience=min(patience, _SOON))
        self._visits = Visits(self._procfs.start_ticks, patience=patience)
        self._tables = FileTables(root)
        self._cgroups = Cgroups(root)
        self._known_sight: Visibility | None = None

    def scan(
        self,
        targets: Sequence[ScanTarget],
        *,
        pids: Iterable[int] | None = None,
        maps: bool = False,
        hidden: bool = False,
        owners: Collection[PodUid] = frozenset(),
    ) -> Scan:
        """Return who holds each of *targets*, among *pids* (None: every process).

        *maps*: also look for holders that closed all files and only have the memory mapped. This
        is much slower. *hidden*: signs of files that no process shows are gaps. *owners*: the pods
        that have the targets by the ledger; what takes long to read is read of them alone.
        """
        started, worked = time.perf_counter(), time.process_time()
        survey = Survey(
            root=self._root,
            search=partial(
                AccessSearch,
                self._root,
                targets,
                self._procfs.char_major("vfio"),
                self._tables,
                maps=maps,
                hidden=hidden,
            ),
            visits=self._visits,
            procfs=self._procfs,
            cgroups=self._cgroups,
            sight=self._sight,
            owners=owners,
        )
        failed: tuple[str, ...] = ()
        try:
            if pids is None:
                survey.look_at_all()
            else:
                survey.look_at(pids)
        except HostError as error:  # a holder met by then has the device all the same
            failed = (str(error),)
        kept, of_unread = self._kept(survey), tuple(survey.gaps.texts())
        unexplained = dict.fromkeys(chain(*survey.unexplained))
        return Scan(
            holders={device: tuple(found) for device, found in kept.holders.items()},
            unattributed=tuple(kept.unattributed),
            more=dict(kept.more),
            gaps=(*self._sight.hides, *failed, *of_unread, *unexplained),
            unread=survey.gaps.pids,
            of_unread=of_unread,
            processes=survey.processes,
            seconds=time.perf_counter() - started,
            cpu_seconds=time.process_time() - worked,
        )

    def named(self, pids: Iterable[int]) -> dict[int, Holder]:
        """Return those of *pids* that have not ended, reaped or not, as holders without devices."""
        roles = SandboxRoles(self._procfs, seconds=_NAMING)
        found: dict[int, Holder] = {}
        for pid in pids:
            cgroup, facts = self._cgroups.of_process(pid), self._procfs.process(pid)
            if facts is not None and facts.can_act:
                found[pid] = self._describe(facts.process, facts.comm, cgroup, roles)
        return found

    @property
    def hanging(self) -> frozenset[int]:
        """Return the processes on which a thread is still stuck."""
        return self._visits.hanging | self._procfs.hanging

    @property
    def _sight(self) -> Visibility:
        """What limits our view: it does not change while a process runs, and mountinfo is long."""
        sight = self._known_sight or visibility(self._root)
        if sight.capabilities is not None and sight.in_init_pid_namespace is not None:
            self._known_sight = sight
        return sight

    def _kept(self, survey: Survey) -> "_HolderSample":
        """Return who was found, of many that are alike the first few."""
        kept = _HolderSample()
        roles = SandboxRoles(self._procfs, seconds=_NAMING)
        for pid in sorted(survey.found):
            uses = survey.found[pid]
            wanted = kept.wanted(uses)
            if not wanted:
                continue
            holder = self._describe(uses.process, uses.command, uses.cgroup, roles)
            for device, access in wanted:
                kept.add(device, replace(holder, access=access))
        return kept

    def _describe(self, process: ProcessId, comm: str, cgroup: str, roles: SandboxRoles) -> Holder:
        """Return a process as a holder without devices; what is not known in time is left out.

        Arguments are in the process's own memory, and a read of that can hang. Where the uid is
        told, there are up to 65,536 groups, for which the kernel takes 24 ms.
        """
        program = None
        if comm == _REEXEC and roles.in_time:
            program = self._procfs.program(process.pid)
        pod, container = pod_of(cgroup)
        return Holder(
            process=process,
            # Thousands of processes of one pod may have a device open: equal strings are shared.
            command=sys.intern(program or comm),
            access=frozenset(),
            cgroup=sys.intern(cgroup),
            pod=None if pod is None else PodUid(sys.intern(pod)),
            container=None if container is None else sys.intern(container),
            sandbox=_role(roles, process.pid),
            uid=self._procfs.uid(process.pid) if roles.in_time else None,
        )


def _role(roles: SandboxRoles, pid: int) -> Sandbox | None:
    try:
        return roles.of(pid)
    except HostError:  # then no pod starts beside it as beside a machine of its own
        return None


class _HolderSample:
    """The holders that a scan tells of, and how many more there are.

    Of those that are alike in all that decides anything, the first few stand for all.
    """

    def __init__(self) -> None:
        self.holders: dict[DeviceName, list[Holder]] = defaultdict(list)
        self.unattributed: list[Holder] = []
        self.more: Counter[DeviceName] = Counter()
        self._alike: Counter[object] = Counter()

    def wanted(self, uses: Uses) -> list[tuple[DeviceName | None, frozenset[DeviceAccess]]]:
        """Return what of a process is to be kept; None stands for what is unattributed."""
        command = uses.command
        # Whoever names himself like a virtual machine has as many names as he likes.
        kind = "qemu-" if command.startswith("qemu-") else command if command in SANDBOXES else ""
        where = pod_of(uses.cgroup) if "pod" in uses.cgroup else (None, None)
        had: list[tuple[DeviceName | None, frozenset[DeviceAccess]]] = [*uses.access]
        if uses.unnamed:
            had.append((None, uses.unnamed))
        wanted: list[tuple[DeviceName | None, frozenset[DeviceAccess]]] = []
        for device, each in had:
            alike = (device, each, where, kind)
            self._alike[alike] += 1
            if self._alike[alike] <= _MOST_ALIKE:
                wanted.append((device, each))
            elif device is not None:
                self.more[device] += 1
        return wanted

    def add(self, device: DeviceName | None, holder: Holder) -> None:
        """Keep *holder*, of *device* or unattributed."""
        (self.unattributed if device is None else self.holders[device]).append(holder)
