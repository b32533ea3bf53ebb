"""Which processes have a device open or mapped: one pass through /proc."""

import errno
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import HostError
from holdfast.host.cgroup.cgroups import Cgroups
from holdfast.host.own.privileges import Visibility, visibility
from holdfast.host.proc.grips import GripSearch, ProcessUse
from holdfast.host.proc.openfiles import FileTables
from holdfast.host.proc.procfs import Procfs, sandbox_of
from holdfast.host.proc.visits import Visitor, Visits
from holdfast.host.root import HostRoot
from holdfast.model.ids import DeviceName, PodUid
from holdfast.model.node.cgroup_names import pod_of
from holdfast.model.use.holders import Grip, Holder, Sandbox, Scan, ScanTarget

_GONE = frozenset({errno.ENOENT, errno.ESRCH, errno.ENOTDIR})
_REEXEC = "exe"
"""The name of a program that was started through /proc/self/exe, such as gVisor's sentry."""


class _Refused(Struct, frozen=True):
    """A process that could not be inspected, with the kernel's error."""

    reason: str


class HolderScan:
    """Scans /proc below one root. It blocks: run it on a lane.

    A process that cannot be read in time becomes a gap, and blocks only its own thread.

    Files are matched by device number, never by their path: a node may be mounted under another
    name. What vanishes while it is read is gone, and no gap. This process itself is left out: it
    holds a device only for the moment of an exclusive open.
    """

    def __init__(self, root: HostRoot, *, patience: float = 2.0) -> None:
        """Scan below *root*'s proc folder. *patience*: how long one read may take, in seconds."""
        self._root = root
        self._procfs = Procfs(root, patience=patience)
        self._visits = Visits(self._procfs.start_ticks, patience=patience)
        self._tables = FileTables(root)
        self._cgroups = Cgroups(root)
        self._visibility: Visibility | None = None

    def scan(
        self,
        targets: Sequence[ScanTarget],
        *,
        pids: Iterable[int] | None = None,
        maps: bool = False,
    ) -> Scan:
        """Return who holds each of *targets*, among *pids* (None: every process).

        *maps*: also look for holders that closed all files and only have the memory mapped. This
        is much slower.
        """
        started, worked = time.perf_counter(), time.process_time()
        sight = self._sight()
        gaps = _Gaps(sight)
        own = self._procfs.own_pid()
        try:
            wanted = [pid for pid in (self._procfs.pids() if pids is None else pids) if pid != own]
        except HostError as error:
            return Scan(gaps=(str(error),))
        searches: list[GripSearch] = []
        vfio = self._procfs.char_major("vfio")

        def begin() -> Visitor[ProcessUse | _Refused]:
            search = GripSearch(self._root, targets, vfio, self._tables, maps=maps)
            searches.append(search)
            return lambda pid, *, careful, beat: _look_at(search, pid, careful=careful, beat=beat)

        holders: dict[DeviceName, list[Holder]] = defaultdict(list)
        unattributed: list[Holder] = []
        known: dict[frozenset[Grip], frozenset[Grip]] = {}

        def shared(grips: set[Grip]) -> frozenset[Grip]:
            frozen = frozenset(grips)
            return known.setdefault(frozen, frozen)

        for holder, use in self._holders(wanted, begin, gaps):
            for device, grips in use.grips.items():
                holders[device].append(replace(holder, grips=shared(grips)))
            if use.unnamed:
                unattributed.append(replace(holder, grips=shared(use.unnamed)))
        unexplained = dict.fromkeys(each for search in searches for each in search.unexplained)
        return Scan(
            holders={device: tuple(found) for device, found in holders.items()},
            unattributed=tuple(unattributed),
            gaps=(*sight.hides, *gaps.texts(), *unexplained),
            unread=gaps.pids,
            processes=len(wanted),
            seconds=time.perf_counter() - started,
            cpu_seconds=time.process_time() - worked,
        )

    def named(self, pid: int) -> Holder | None:
        """Return *pid* as a holder without devices; None if it has ended, reaped or not."""
        facts = self._procfs.process(pid)
        return self._describe(pid) if facts is not None and facts.can_act else None

    @property
    def hanging(self) -> frozenset[int]:
        """Return the processes on which a thread is still stuck."""
        return self._visits.hanging | self._procfs.hanging

    def _sight(self) -> Visibility:
        # Read once: it does not change while a process runs, and mountinfo is long.
        if self._visibility is None:
            self._visibility = visibility(self._root)
        return self._visibility

    def _holders(
        self,
        pids: Sequence[int],
        begin: Callable[[], Visitor[ProcessUse | _Refused]],
        gaps: "_Gaps",
    ) -> list[tuple[Holder, ProcessUse]]:
        """Return the holders among *pids*, in their order."""
        found: dict[int, tuple[Holder, ProcessUse]] = {}
        suspects = self._uses(pids, begin, gaps)
        while suspects:
            # A process may have ended since, and another may have its pid. Only what is found
            # between two readings of the same start time is this process's own.
            before = {pid: self._procfs.start_ticks(pid) for pid in suspects}
            uses = self._uses(list(suspects), begin, gaps)
            suspects = {}
            for pid, use in uses.items():
                holder = self._describe(pid)
                if holder is not None and holder.process.start_ticks == before[pid]:
                    found[pid] = holder, use
                elif holder is not None:
                    suspects[pid] = use
        return [found[pid] for pid in pids if pid in found]

    def _uses(
        self,
        pids: Sequence[int],
        begin: Callable[[], Visitor[ProcessUse | _Refused]],
        gaps: "_Gaps",
    ) -> dict[int, ProcessUse]:
        """Return what those of *pids* have that have anything; add to *gaps* what was not seen.

        A read that takes too long counts as a refusal.
        """
        found, unread = self._visits.each(pids, begin)
        late = f"no answer within {self._visits.patience:g} s"
        for pid in unread:
            self._refused(pid, late, gaps)
        uses: dict[int, ProcessUse] = {}
        for pid, answer in found.items():
            if isinstance(answer, _Refused):
                self._refused(pid, answer.reason, gaps)
                continue
            if answer.maps_left_out:
                self._refused(pid, f"{late} of what it has mapped", gaps)
            if answer:
                uses[pid] = answer
        return uses

    def _refused(self, pid: int, reason: str, gaps: "_Gaps") -> None:
        facts = self._procfs.process(pid)
        # Kernel threads and exited processes have no files, so nothing is hidden.
        if facts is not None and facts.can_act and not facts.kernel_thread:
            gaps.add(pid, facts.comm, reason)

    def _describe(self, pid: int) -> Holder | None:
        """Return *pid* as a holder without devices, or None if it is gone."""
        cgroup, uid = self._cgroups.of_process(pid), self._procfs.uid(pid)
        facts = self._procfs.process(pid)
        if facts is None:
            return None
        program = self._procfs.program(pid) if facts.comm == _REEXEC else None
        pod, container = pod_of(cgroup)
        return Holder(
            process=facts.process,
            # Thousands of processes of one pod may have a device open: equal strings are shared.
            command=sys.intern(program or facts.comm),
            grips=frozenset(),
            cgroup=sys.intern(cgroup),
            pod=None if pod is None else PodUid(sys.intern(pod)),
            container=None if container is None else sys.intern(container),
            uid=uid,
            sandbox=self._sandbox(pid),
        )

    def _sandbox(self, pid: int) -> Sandbox | None:
        try:
            return sandbox_of(self._procfs, pid)
        except HostError:  # no pod starts beside it as beside a machine of its own
            return None


def _look_at(
    search: GripSearch, pid: int, *, careful: bool, beat: Callable[[], None]
) -> ProcessUse | _Refused | None:
    """Return what *pid* has; None: nothing, or it is gone."""
    try:
        use = search.at(pid, careful=careful, beat=beat)
    except OSError as error:
        return None if error.errno in _GONE else _Refused(error.strerror or str(error))
    return use if use or use.maps_left_out else None


class _Gaps:
    """Collects the processes that could not be inspected, and makes short texts of them."""

    def __init__(self, sight: Visibility) -> None:
        self._hint = f"; holdfast lacks {', '.join(sight.blinding)}" if sight.blinding else ""
        self._seen: dict[str, dict[int, str]] = defaultdict(dict)

    def add(self, pid: int, command: str, reason: str) -> None:
        self._seen[reason][pid] = command

    @property
    def pids(self) -> frozenset[int]:
        return frozenset().union(*self._seen.values())

    def texts(self) -> list[str]:
        return [self._text(reason, commands) for reason, commands in self._seen.items()]

    def _text(self, reason: str, commands: dict[int, str]) -> str:
        first = min(commands)
        others = f" and {len(commands) - 1} others" if len(commands) > 1 else ""
        who = f"pid {first} ({commands[first]}){others}"
        return f"{who} cannot be inspected: {reason}{self._hint}"
