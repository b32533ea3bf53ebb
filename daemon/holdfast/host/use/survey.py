"""One look at processes: repeated for those that come meanwhile, and within limits of time."""

import errno
import math
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from msgspec import Struct

from holdfast.errors import HostError
from holdfast.host.cgroup.cgroups import Cgroups
from holdfast.host.files.kernelfile import read_bytes, stat_or_none
from holdfast.host.proc.access import AccessSearch, ProcessUse
from holdfast.host.proc.openfiles import MOST_FILES, SocketTable, TooMuchError
from holdfast.host.proc.procfs import Procfs
from holdfast.host.proc.visits import Visitor, Visits
from holdfast.host.root import HostRoot
from holdfast.model.ids import DeviceName, PodUid, ProcessId
from holdfast.model.node.privileges import Visibility
from holdfast.model.use.holders import DeviceAccess

_GONE = frozenset({errno.ENOENT, errno.ESRCH, errno.ENOTDIR})
_MOST_PASSES = 16
"""How often the processes are listed until there is nobody new among them."""
_CROWD, _HOPELESS = 64, 3
"""If so many are new, and not half as many as before, so many times in a row, then more lists would
only take time: their processes are born as fast as they are looked at."""
_MOST_ROUNDS = 3
"""How often all are looked at where one that has a device ended meanwhile."""
_LONGEST = 5.0
"""For so many seconds anybody is looked at."""
_MOST_FILES = 256
"""A process with more files open is looked at after all others."""
_SHORT = 0.25
"""So is one that takes more seconds of processor time."""
_EXTRA = 0.6
"""For so many seconds of processor time those are looked at, together; one for half of the rest."""
_STARVED = 4
"""On a busy node processor time comes so much slower, at most, before it counts as used up."""
_CLOSER, _PAUSE = 16, 0.002
"""How often those are looked at again that may hide files, and the seconds between two times."""
_OFTEN = 2
"""What is in flight so often is not just being passed on; nor who exits all the time done soon."""
_CLOSEST = 0.1
"""For so many seconds that goes on, and for so many before it all unix sockets are looked at."""
_CHASES = 64
"""How often whoever was born last is looked at, where the others come faster than that."""
_UNKNOWN = 0
"""Stands for when a process started that ended too soon to be asked."""
_IN_FLIGHT = "files are in messages on its unix sockets, and which ones is not told"
_EXITING = "it exits, and may have files that are not closed yet"
_NO_TIME = "no time was left for it"
_LATE = "no answer in time"
_CROWDED = "its pod has more processes than can be looked at in time"
_TOO_MUCH = "it has more open or mapped than can be read in time"
_ALL_ALIKE, _SHARE = 0.3, 0.15
"""For so many seconds each process is looked at. After that the processes of one pod that has none
of the devices are for so many seconds, and the rest of them is left out: others wait for the look.
"""


class PodShares:
    """How long the processes of each pod are looked at: of a pod with many, others see no end."""

    def __init__(self, cgroups: Cgroups, owners: Collection[PodUid]) -> None:
        """Those of *owners*, who have the devices that are looked for, may take any time."""
        self._cgroups = cgroups
        self._owners = owners
        self._from = time.monotonic() + _ALL_ALIKE
        self._used: dict[PodUid, float] = defaultdict(float)
        self._begun: dict[PodUid, dict[int, float]] = defaultdict(dict)
        self._listed: set[PodUid] = set()
        self.left_out: set[int] = set()
        """Who was in a pod when nothing was left for it: that tells most of them without a read."""

    def pod(self, pid: int) -> PodUid | None:
        """Return the pod of *pid*, to which its time counts; None: it does not count."""
        if time.monotonic() < self._from:
            return None
        pod = self._cgroups.pod_of_process(pid)
        return None if pod in self._owners else pod

    def left(self, pid: int) -> float:
        """Return how many seconds *pid* may still take by its pod."""
        pod = self.pod(pid)
        return math.inf if pod is None else self._left_of(pod)

    def _left_of(self, pod: PodUid) -> float:
        now, begun = time.monotonic(), tuple(self._begun[pod].values())
        return max(0.0, _SHARE - self._used[pod] - sum(now - each for each in begun))

    def are_used_up(self, pod: PodUid) -> bool:
        """Tell whether nothing is left for *pod*; a look that gives no answer uses it as well."""
        if self._left_of(pod):
            return False
        if pod not in self._listed:
            self._listed.add(pod)
            cgroup = self._cgroups.pod(pod, seconds=_SHARE)
            self.left_out.update(cgroup.processes if cgroup is not None else ())
        return True

    def begin(self, pod: PodUid, pid: int) -> None:
        """Note that *pid*, of *pod*, is looked at from now on."""
        self._begun[pod][pid] = time.monotonic()

    def end(self, pod: PodUid, pid: int, *, worked: float) -> None:
        """Note that *pid* was looked at, for which its thread *worked* so many seconds."""
        now = time.monotonic()
        # Where one look at it hangs, a second one may have ended meanwhile.
        took = now - self._begun[pod].pop(pid, now)
        self._used[pod] += max(worked, took / _STARVED)


class Uses(Struct, frozen=True, kw_only=True):
    """What a process has."""

    process: ProcessId
    command: str
    cgroup: str
    access: tuple[tuple[DeviceName, frozenset[DeviceAccess]], ...]
    unnamed: frozenset[DeviceAccess]


class _ProcessLook(Struct, frozen=True, kw_only=True):
    """What a look at one process gave: what it has, and what could not be seen of it."""

    uses: Uses | None = None
    unseen: str = ""
    too_much: bool = False
    in_flight: bool = False
    exiting: bool = False
    takes: bool = False
    tables: tuple[SocketTable, ...] = ()

    @property
    def hides(self) -> bool:
        """Tell whether another look at it may show more."""
        return self.in_flight or self.exiting or (self.takes and self.uses is None)


_LEFT_OUT = _ProcessLook(unseen=_CROWDED)


class _Allowance:
    """Seconds of this thread's own processor time: what others do on the node costs nobody his."""

    def __init__(self, seconds: float, *, until: float) -> None:
        """Allow *seconds* from now on, and nothing after *until* by the clock."""
        now = time.monotonic()
        self._began = time.thread_time()
        self._seconds = seconds
        self._soonest = now + seconds
        self._latest = min(until, now + _STARVED * seconds)

    @property
    def spent(self) -> float:
        """Return the seconds of processor time since it began."""
        return time.thread_time() - self._began

    @property
    def used_up(self) -> bool:
        """Tell whether nothing is left of it."""
        now = time.monotonic()  # the cheaper clock, and no thread runs longer than it shows
        return now > self._soonest and (now > self._latest or self.spent > self._seconds)


class _Observer:
    """Looks at processes, at each for as long as it may take; belongs to one thread."""

    def __init__(self, survey: "Survey", search: AccessSearch, *, extra: bool) -> None:
        """Look with *search* on behalf of *survey*; *extra*: at those that have much."""
        self._survey = survey
        self._search = search
        self._extra = extra
        self._beat: Callable[[], None] = _nobody_waits
        self._allowance = _Allowance(0.0, until=0.0)

    def __call__(self, pid: int, *, careful: bool, beat: Callable[[], None]) -> _ProcessLook | None:
        """Return what *pid* has; None: nothing, or it is gone."""
        until = self._survey.extra_until if self._extra else self._survey.until
        if time.monotonic() >= until:
            return _ProcessLook(unseen=_TOO_MUCH if self._extra else _NO_TIME)
        shares = self._survey.shares
        pod = None if pid in shares.left_out else shares.pod(pid)
        if pid in shares.left_out or (pod is not None and shares.are_used_up(pod)):
            return _LEFT_OUT
        if pod is not None:
            shares.begin(pod, pid)
        self._beat = beat
        seconds = self._survey.extra_left / 2 if self._extra else _SHORT
        self._allowance = _Allowance(seconds, until=until)
        try:
            return self._at(pid, careful=careful)
        except TooMuchError:
            return _ProcessLook(unseen=_TOO_MUCH, too_much=True)
        except OSError as error:
            gone = error.errno in _GONE
            return None if gone else _ProcessLook(unseen=error.strerror or str(error))
        except HostError as error:
            return _ProcessLook(unseen=str(error))
        finally:
            self._beat = _nobody_waits  # else two objects keep each other, and all that was found
            if self._extra:
                self._survey.extra_left -= self._allowance.spent
            if pod is not None:
                shares.end(pod, pid, worked=self._allowance.spent)

    def _pulse(self) -> None:
        self._beat()
        if self._allowance.used_up:
            raise TooMuchError

    def _at(self, pid: int, *, careful: bool) -> _ProcessLook | None:
        most, beat = MOST_FILES if self._extra else _MOST_FILES, self._pulse
        # The pid may be another process's meanwhile: only what is found while it stays the same is
        # this one's own.
        with self._search.following(pid) as same:
            use = self._search.at(pid, careful=careful, beat=beat, most=most)
            if not use:
                return self._answer(use, None)
            cgroup, facts = self._survey.cgroups.of_process(pid), self._survey.procfs.certain(pid)
            if facts is None or not same():  # it may have handed on what it had
                ended = ProcessId(pid, _UNKNOWN)
                return _ProcessLook(uses=self._survey.uses(ended, "ended", "/", use))
        return self._answer(use, self._survey.uses(facts.process, facts.comm, cgroup, use))

    def _answer(self, use: ProcessUse, uses: Uses | None) -> _ProcessLook | None:
        answer = _ProcessLook(
            uses=uses,
            unseen=use.unseen,
            in_flight=use.in_flight,
            exiting=use.exiting,
            takes=use.takes,
            tables=tuple(use.tables),
        )
        keep = uses or answer.unseen or answer.hides or answer.tables
        return answer if keep else None


def _nobody_waits() -> None:
    """Stand for the beat of a thread, between two looks."""


class Survey(Struct, kw_only=True, dict=True):
    """One look at given processes, or at all. Whoever cannot be looked at is a gap, by itself.

    The pods `owners` of the devices are looked at for as long as that takes, and of processes that
    have much open theirs come first. `search` makes what one thread looks at processes with, which
    shares nothing with others.
    """

    root: HostRoot
    search: Callable[[], AccessSearch]
    visits: Visits
    procfs: Procfs
    cgroups: Cgroups
    sight: Visibility
    owners: Collection[PodUid]

    def __post_init__(self) -> None:
        self._own = self.procfs.own_pid()
        self._known: dict[object, tuple[tuple[DeviceName, frozenset[DeviceAccess]], ...]] = {}
        self.unexplained: list[list[str]] = []
        """Of each search the mappings of removed files that might have been a device, as texts."""
        self._hiding: dict[int, _ProcessLook] = {}
        self._tables: dict[int, tuple[SocketTable, ...]] = {}
        self._waits = self.visits.waits(self._may_take)
        self.shares = PodShares(self.cgroups, self.owners)
        self.until = time.monotonic() + _LONGEST
        self.extra_until = 0.0
        self.extra_left = _EXTRA
        self.processes = 0
        """How many were looked at."""
        self.found: dict[int, Uses] = {}
        self.gaps = Gaps(self.sight)

    def look_at(self, pids: Iterable[int]) -> None:
        """Look at *pids* once; whoever has ended is gone."""
        self._pass([pid for pid in pids if pid != self._own])
        self._look_closer()
        self.found = {pid: had for pid, had in self.found.items() if not self._has_ended(had)}

    def look_at_all(self) -> None:
        """Look at every process, and again at all where one that has a device has ended since.

        Or one that had files in messages: who has its sockets now can take them. Whoever inherits
        what another has open is born before that one ends. So all are listed
        until nobody is new, and one that ended may have handed on what it had to anybody.
        """
        ended: dict[int, str] = {}
        for _ in range(_MOST_ROUNDS):
            self.found.clear()
            self.unexplained.clear()
            self._hiding.clear()
            self._tables.clear()
            self.shares = PodShares(self.cgroups, self.owners)
            self.gaps = Gaps(self.sight)
            settled = self._settles()
            self._look_closer()
            if not settled:
                return
            ended = self._ended()
            if not ended:
                return
        # It had the device a moment ago, so for this look it is in use.
        for pid in ended:
            self.gaps.add(pid, ended[pid], "it ended, and may have handed on what it had open")

    def uses(self, process: ProcessId, command: str, cgroup: str, use: ProcessUse) -> Uses:
        """Return *use* of a process in few bytes: thousands may have the same devices open."""
        shared = tuple((device, frozenset(each)) for device, each in use.access.items())
        return Uses(
            process=process,
            command=sys.intern(command),
            cgroup=sys.intern(cgroup),
            access=self._known.setdefault(shared, shared),
            unnamed=frozenset(use.unnamed),
        )

    def _settles(self) -> bool:
        """Look at all until nobody is new; add a gap and return False if that does not come."""
        arrivals = _Arrivals(self._own, self.procfs)
        new: list[int] = []
        steady = 0
        for _ in range(_MOST_PASSES):
            before, new = len(new), arrivals.new()
            if not new:
                return True
            steady = steady + 1 if len(new) >= max(_CROWD, before / 2) else 0
            if steady > _HOPELESS or time.monotonic() >= self.until:
                break
            if not self._pass(new):
                return True
        self._chase()
        for pid in new:
            facts = self.procfs.process(pid)
            command = facts.comm if facts is not None else "gone"
            self.gaps.add(pid, command, "processes come and go faster than they can be looked at")
        return False

    def _chase(self) -> None:
        """Look at whoever was born last, again and again: each may have its parent's files.

        One that is found tells that the device is in use, and of the others nothing.
        """
        looks = self._begin()
        for _ in range(_CHASES):
            pid = self._born_last()
            if pid is None:
                return
            # Who lives for so short hangs in nothing. Only what may hang is left out.
            answer = looks(pid, careful=True, beat=_nobody_waits)
            if answer is not None and answer.uses is not None:
                self.found[pid] = answer.uses
                return

    def _born_last(self) -> int | None:
        text = read_bytes(f"{self.root.proc}/loadavg") or b""
        last = text.split()[-1:]
        return int(last[0]) if last and last[0].isdigit() else None

    def _glance(self) -> None:
        """Look some times at all other unix sockets, and at whoever has got files by one.

        Two that pass a file to and fro can each be without it when they are looked at, and the file
        in neither's messages. That goes well for them once, and not time after time.
        """
        until = time.monotonic() + _CLOSEST

        def begin() -> Visitor[_ProcessLook]:
            looks = self._begin()

            def glance(pid: int, *, careful: bool, beat: Callable[[], None]) -> _ProcessLook | None:
                # None: what it had, as far as can be told so quickly.
                news = any(table.has_more() for table in self._tables[pid])
                return looks(pid, careful=careful, beat=beat) if news else None

            return glance

        for _ in range(_CLOSER):
            pids = sorted(self._tables.keys() - self._hiding.keys())
            if not pids or time.monotonic() >= until:
                return
            answers, _unread = self.visits.each(pids, begin, waits=self._waits)
            for pid, answer in answers.items():
                if answer.hides:
                    self._hiding[pid] = answer
                if answer.uses is not None:
                    self.found[pid] = answer.uses

    def _look_closer(self) -> None:
        """Look a few times more at those that may hide files, and add a gap where they still may.

        A message is taken soon, and a file that two take out of each other is in one of them. Who
        is not seen again, for there are too many or it gives no answer, hides what it hid before.
        """
        self._glance()
        hiding, until = dict(self._hiding), time.monotonic() + _CLOSEST
        flights, exits = Counter[int](), Counter[int]()
        looks = 0
        while hiding and looks < _CLOSER and (not looks or time.monotonic() < until):
            time.sleep(_PAUSE)
            looks += 1
            answers, unread = self.visits.each(sorted(hiding), self._begin, waits=self._waits)
            for pid in (*answers, *unread):
                answer = answers.get(pid, hiding[pid])
                shown = hiding[pid] if answer.unseen and not answer.hides else answer
                flights[pid] += shown.in_flight
                exits[pid] += shown.exiting
                if answer.uses is not None:
                    self.found[pid] = answer.uses
        for pid in hiding:
            if looks and flights[pid] >= min(_OFTEN, looks):
                self._refused(pid, _IN_FLIGHT)
            elif looks and exits[pid] == looks:
                self._refused(pid, _EXITING)

    def _may_take(self, pid: int) -> float:
        return self.shares.left(pid)

    def _begin(self, *, extra: bool = False) -> _Observer:
        search = self.search()
        self.unexplained.append(search.unexplained)
        return _Observer(self, search, extra=extra)

    def _ended(self) -> dict[int, str]:
        """Return who has ended since, with its command, that had a device, or files in messages."""
        ended = {pid: each.command for pid, each in self.found.items() if self._has_ended(each)}
        for pid in (pid for pid, each in self._hiding.items() if each.in_flight):
            facts = self.procfs.process(pid)
            if facts is None or not facts.can_act:
                ended[pid] = "ended"
        return ended

    def _has_ended(self, uses: Uses) -> bool:
        try:
            return self.procfs.has_ended(uses.process)
        except HostError:  # it had the device a moment ago, and nothing shows that it is gone
            return False

    def _pass(self, pids: Sequence[int]) -> bool:
        """Look at *pids*; return False if they were all left out."""
        self.processes += len(pids)
        much, left_out = self._looks(pids, extra=False)
        if not much:
            return left_out < len(pids)
        latest = self.until + self.extra_left
        self.extra_until = min(latest, time.monotonic() + _STARVED * self.extra_left)
        for pid in self._looks(sorted(much, key=self._turn), extra=True)[0]:
            self._refused(pid, _TOO_MUCH)
        return True

    def _turn(self, pid: int) -> tuple[bool, int]:
        """Return when it is the turn of a process that has much open: the least comes first."""
        pod = self.cgroups.pod_of_process(pid)
        found = stat_or_none(f"{self.root.proc}/{pid}/fd")
        size = 0 if found is None else found.st_size
        return pod not in self.owners, size

    def _looks(self, pids: Sequence[int], *, extra: bool) -> tuple[list[int], int]:
        """Look at *pids*; return those that have too much for that, and how many were left out."""
        begin = partial(self._begin, extra=extra)
        answers, unread = self.visits.each(pids, begin, waits=self._waits)
        for pid in unread:
            self._refused(pid, _LATE)
        much: list[int] = []
        left_out = 0
        for pid, answer in answers.items():
            if answer.too_much:
                much.append(pid)
                continue
            if answer.hides:
                self._hiding[pid] = answer
            if answer.tables:
                self._tables[pid] = answer.tables
            if answer.unseen == _CROWDED:
                left_out += 1
            if answer.unseen:
                self._refused(pid, answer.unseen)
            if answer.uses is not None:
                self.found[pid] = answer.uses
        return much, left_out

    def _refused(self, pid: int, reason: str) -> None:
        if reason == _CROWDED and reason in self.gaps:  # of some thousand one is named
            self.gaps.add(pid, "", reason)
            return
        try:
            facts = self.procfs.certain(pid)
        except HostError:  # without a file left to open nothing of it can be read, and it is there
            self.gaps.add(pid, "unreadable", reason)
            return
        # Exited processes have no files, so nothing is hidden.
        if facts is not None and facts.can_act:
            self.gaps.add(pid, facts.comm, reason)


class _Arrivals:
    """Tells who is new among the processes.

    By the inode that procfs gives a process's folder: it is made for this process and never again,
    which says as much as a start time, and the list of all tells it at no cost. Kernel threads are
    left out: they have no files, nobody inherits any of them, and a node has thousands.
    """

    def __init__(self, own: int, procfs: Procfs) -> None:
        """List by *procfs*; the process *own* is left out."""
        self._procfs = procfs
        self._known = {own: 0}
        self._own = own

    def new(self) -> list[int]:
        """Return who has come since the last call; raise HostError if nobody can be listed."""
        now = self._procfs.inodes() | {self._own: 0}
        new = sorted(pid for pid, inode in now.items() if self._known.get(pid) != inode)
        self._known = now
        facts = ((pid, self._procfs.process(pid)) for pid in new)
        return [pid for pid, each in facts if each is None or not each.kernel_thread]


class Gaps:
    """Collects the processes that could not be inspected, and makes short texts of them."""

    def __init__(self, sight: Visibility) -> None:
        """Add to each text what *sight* lacks."""
        self._hint = f"; holdfast lacks {', '.join(sight.blinding)}" if sight.blinding else ""
        self._seen: dict[str, dict[int, str]] = defaultdict(dict)

    def add(self, pid: int, command: str, reason: str) -> None:
        """Add a process, with why it could not be inspected."""
        self._seen[reason][pid] = command

    def __contains__(self, reason: str) -> bool:
        """Tell whether a process is among them for *reason*."""
        return reason in self._seen

    @property
    def pids(self) -> frozenset[int]:
        """Return the processes among them."""
        return frozenset().union(*self._seen.values())

    def texts(self) -> list[str]:
        """Return one text for each reason."""
        return [self._text(reason, commands) for reason, commands in self._seen.items()]

    def _text(self, reason: str, commands: dict[int, str]) -> str:
        named = (pid for pid, command in commands.items() if command)
        first = min(named, default=min(commands))
        others = f" and {len(commands) - 1} others" if len(commands) > 1 else ""
        who = f"pid {first} ({commands[first]}){others}"
        return f"{who} cannot be inspected: {reason}{self._hint}"
