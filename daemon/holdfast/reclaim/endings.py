"""When to ask kubelet about pods that may be over: soon, and again until it agrees."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from holdfast.model.book.book import Book
from holdfast.model.book.locks import LockState
from holdfast.model.book.reconcile import PodSighting
from holdfast.model.ids import PodUid
from holdfast.runtime.clock import Clock


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
class _Seen:
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
        self._seen: dict[PodUid, _Seen] = {}
        self._exit: _Seen | None = None

    def holder_exited(self) -> None:
        """Note that a process which had a device open has ended, of whatever pod."""
        self._exit = _Seen(sign=Sign.HOLDER_EXITED, since=self._clock.monotonic())

    def is_question_due(self, book: Book, sightings: Mapping[PodUid, PodSighting]) -> bool:
        """Tell whether to ask kubelet now about pods that seem to be over, and take it as asked.

        They are asked about until kubelet does not count them any more.
        """
        held = {lock.pod for lock in book.locks.values() if lock.state is LockState.HELD}
        held |= {each.pod for each in book.allocations.values()}
        had_cgroup = {uid for uid, record in book.pods.items() if record.cgroup is not None}
        self.follow([pod for pod in held if pod is not None], sightings, had_cgroup=had_cgroup)
        return self.due()

    def follow(
        self,
        pods: Collection[PodUid],
        sightings: Mapping[PodUid, PodSighting],
        *,
        had_cgroup: Collection[PodUid],
    ) -> None:
        """Compare *sightings* with those before; *pods* are all that kubelet still has to drop."""
        if not pods:
            self._exit = None
        now = self._clock.monotonic()
        before, self._seen = self._seen, {}
        for pod in pods:
            known = before.get(pod)
            sign = _sign(sightings.get(pod), known, had_cgroup=pod in had_cgroup)
            if sign is not None:
                same = known if known is not None and known.sign is sign else None
                self._seen[pod] = same or _Seen(sign=sign, since=now)

    def due(self) -> bool:
        """Tell whether kubelet is to be asked now, and take it as asked."""
        now = self._clock.monotonic()
        due = [each for each in self._all() if each.due <= now]
        for each in due:
            while each.due <= now:
                each.asked += 1
        return bool(due)

    def pause(self) -> float:
        """Return the seconds until the next question is due; infinite: none will be."""
        next_due = min((each.due for each in self._all()), default=math.inf)
        return max(0.0, next_due - self._clock.monotonic())

    def _all(self) -> list[_Seen]:
        return [*self._seen.values(), *([self._exit] if self._exit is not None else [])]


def _sign(sighting: PodSighting | None, known: _Seen | None, *, had_cgroup: bool) -> Sign | None:
    """Return what a look at a pod's cgroup says; None for a pod that has not begun."""
    if sighting is None:
        return Sign.GONE if had_cgroup else None
    if sighting.processes or sighting.unlisted:
        return Sign.STARTED
    return Sign.EMPTY if known is not None and known.sign is not Sign.GONE else None
