"""Which pods have a cgroup, what lives in it, read when it may have changed, and who seems over."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import structlog

from holdfast.errors import HostError
from holdfast.host.cgroup.cgroups import Cgroups
from holdfast.host.files.inotify import PathWatcher
from holdfast.model.book.book import Book, LockState
from holdfast.model.book.pods import PodSighting
from holdfast.model.ids import PodUid
from holdfast.runtime.clock import Clock, Turns
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Nudges

log = structlog.get_logger(__name__)

_AT_MOST = 8
_PAUSE = 10.0
"""Seconds after which a cgroup is read again although the kernel reported no change, a few at a
time. Kubelet's own list of pods, asked for once a minute, does not depend on events either."""


@dataclass(kw_only=True, eq=False)
class PodSightings:
    """Reads pods' cgroups on a lane, and watches those that exist for becoming empty.

    One look at a time. `nudges` say when the population of a watched pod changes.
    """

    cgroups: Cgroups
    paths: PathWatcher
    lane: Lane
    clock: Clock
    nudges: Nudges

    def __post_init__(self) -> None:
        self._watched: dict[PodUid, tuple[int, Callable[[], None]]] = {}
        """The inode of each cgroup that is watched, and what ends that."""
        self._seen: dict[PodUid, PodSighting] = {}
        self._announced: set[PodUid] = set()
        """What was seen of these holds until the kernel reports a change."""
        self._turns: Turns[PodUid] = Turns(self.clock, at_most=_AT_MOST, pause=_PAUSE)

    async def sight(
        self, pods: Collection[PodUid], *, again: Collection[PodUid] = ()
    ) -> dict[PodUid, PodSighting]:
        """Return the cgroups that exist of *pods*, with the processes in each and below.

        Those of *again* are read now, and all of which the kernel would not tell a change. Of the
        others it tells when the last process ends; which processes they have may be older.
        """
        wanted = set(pods)
        for pod in self._seen.keys() - wanted:
            self._forget(pod)
        announced = self._announced.difference(again)
        due = (wanted - announced).union(self._turns.next(announced))
        if due:
            await self._look_at(sorted(due))
        return dict(self._seen)

    async def _look_at(self, pods: Sequence[PodUid]) -> None:
        found = await self.lane.run(lambda: self.cgroups.pods(pods))
        for pod in pods:
            sighting = found.get(pod)
            if sighting is None:
                self._forget(pod)
                continue
            self._seen[pod] = sighting
            self._announced.discard(pod)
            inode, _ = self._watched.get(pod, (None, None))
            if inode != sighting.inode:
                self._watch(pod, sighting)
            # Else this watch saw the whole look: it begins after one, and ends with an event. The
            # kernel tells when the last process ends, and not when an empty cgroup is removed.
            # A list that the pod makes long for good is no reason to make it in each look either.
            elif sighting.populated and (sighting.processes or sighting.unlisted):
                self._announced.add(pod)

    def _watch(self, pod: PodUid, sighting: PodSighting) -> None:
        self._unwatch(pod)
        events = self.cgroups.events_path(sighting.cgroup)
        if events is None:
            return
        try:
            end = self.paths.watch(events, lambda *_: self._happened(pod))
        except HostError:  # it vanished, or cgroup v1 has no such file: polling serves
            return
        self._watched[pod] = sighting.inode, end

    def _forget(self, pod: PodUid) -> None:
        self._seen.pop(pod, None)
        self._unwatch(pod)

    def _unwatch(self, pod: PodUid) -> None:
        self._announced.discard(pod)
        if (watch := self._watched.pop(pod, None)) is not None:
            watch[1]()

    def _happened(self, pod: PodUid) -> None:
        self._unwatch(pod)  # the kernel may have ended it: it begins again with the next look
        log.debug("pod cgroup changed", pod=pod)
        self.nudges.nudge()


class Sign(Enum):
    """What makes kubelet worth asking about a pod."""

    STARTED = "started"
    """Processes were seen in its cgroup: a short program may have left others behind."""
    HOLDER_EXITED = "holder exited"
    """A process that had a device open has ended; its pod may well live on."""
    EMPTY = "empty"
    """Its cgroup had processes and has none any more."""
    GONE = "gone"
    """Its cgroup was there and is not any more."""


_UNTIL_IT_AGREES = (0.0, 1.0, 3.0, 6.0, 10.0, 15.0, 20.0, 30.0, 60.0)
_ASK_AFTER = {
    Sign.STARTED: (5.0, 10.0, 20.0),
    Sign.HOLDER_EXITED: (0.0, 1.0, 3.0, 6.0, 10.0),
    Sign.EMPTY: _UNTIL_IT_AGREES,
    Sign.GONE: _UNTIL_IT_AGREES,
}
"""When to ask, in seconds after the sign.

Kubelet drops a pod some time after its last process, and each question costs it a write of its
checkpoint. After the last of these moments the regular questions serve: the cgroup of a pod that
waits for a volume is empty for as long as that takes.
"""


@dataclass(slots=True, kw_only=True)
class _SignState:
    sign: Sign
    since: float
    asked: int = 0

    @property
    def due(self) -> float:
        """Return when to ask next, in monotonic seconds."""
        ages = _ASK_AFTER[self.sign]
        return self.since + ages[self.asked] if self.asked < len(ages) else math.inf


class Endings:
    """Remembers which sign of an end each pod that has something shows, and since when."""

    def __init__(self, clock: Clock) -> None:
        """Count ages by *clock*."""
        self._clock = clock
        self._seen: dict[PodUid, _SignState] = {}
        self._exit: _SignState | None = None

    def holder_exited(self) -> None:
        """Note that a process which had a device open has ended, of whatever pod."""
        self._exit = _SignState(sign=Sign.HOLDER_EXITED, since=self._clock.monotonic())

    def is_question_due(self, book: Book, sightings: Mapping[PodUid, PodSighting]) -> bool:
        """Tell whether to ask kubelet now about pods that seem to be over, and take it as asked.

        They are asked about until kubelet does not count them any more.
        """
        having = [lock.pod for lock in book.locks.values() if lock.state is LockState.HELD]
        having += [each.pod for each in book.allocations.values()]
        pods = {pod for pod in having if pod is not None}
        if not pods:  # there is none that kubelet still has to drop
            self._exit = None
        now = self._clock.monotonic()
        before, self._seen = self._seen, {}
        for pod in pods:
            record, known = book.pods.get(pod), before.get(pod)
            had_cgroup = record is not None and record.cgroup is not None
            sign = _sign(sightings.get(pod), known, had_cgroup=had_cgroup)
            if sign is not None:
                same = known if known is not None and known.sign is sign else None
                self._seen[pod] = same or _SignState(sign=sign, since=now)
        due = [each for each in self._all() if each.due <= now]
        for each in due:
            while each.due <= now:
                each.asked += 1
        return bool(due)

    def pause(self) -> float:
        """Return the seconds until the next question is due; infinite: none will be."""
        next_due = min((each.due for each in self._all()), default=math.inf)
        return max(0.0, next_due - self._clock.monotonic())

    def _all(self) -> list[_SignState]:
        return [*self._seen.values(), *([self._exit] if self._exit is not None else [])]


def _sign(
    sighting: PodSighting | None, known: _SignState | None, *, had_cgroup: bool
) -> Sign | None:
    """Return what a look at a pod's cgroup says; None for a pod that has not begun."""
    if sighting is None:
        return Sign.GONE if had_cgroup else None
    if sighting.populated is not False:
        return Sign.STARTED
    return Sign.EMPTY if known is not None and known.sign is not Sign.GONE else None
