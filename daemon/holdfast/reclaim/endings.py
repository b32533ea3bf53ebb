"""When to ask kubelet about pods that seem to be over: at once, and again until it agrees."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from holdfast.model.ids import PodUid
from holdfast.model.reconcile import PodSighting
from holdfast.runtime.clock import Clock

_AGES = (0.0, 1.0, 3.0, 6.0, 10.0, 15.0, 20.0, 30.0, 60.0)
"""When to ask, in seconds after a sign: kubelet drops a pod some time after its last process.

After the last of them the regular questions serve: a pod that waits for a volume has an empty
cgroup for as long as that takes, and each question costs kubelet a write of its checkpoint.
"""
_AGES_AFTER_EXIT = _AGES[:5]
"""The same where no more is known than that a process has ended: its pod may well live on."""


@dataclass(slots=True, kw_only=True)
class _Sign:
    """What makes a pod seem over, since when in monotonic seconds; *gone*: it has no cgroup."""

    since: float
    gone: bool = False
    ages: tuple[float, ...] = _AGES
    asked: int = 0

    @property
    def due(self) -> float:
        """Return when to ask next, in monotonic seconds."""
        return self.since + self.ages[self.asked] if self.asked < len(self.ages) else math.inf


class Endings:
    """Remembers since when each pod that has something seems to be over.

    A sign is that a cgroup which had processes has none any more, that it is gone, or that a
    process which had a device open has ended.
    """

    def __init__(self, clock: Clock) -> None:
        """Count ages by *clock*."""
        self._clock = clock
        self._populated: set[PodUid] = set()
        self._signs: dict[PodUid | None, _Sign] = {}

    def holder_exited(self) -> None:
        """Note that a process which had a device open has ended, of whatever pod."""
        self._signs[None] = _Sign(since=self._clock.monotonic(), ages=_AGES_AFTER_EXIT)

    def follow(
        self,
        pods: Collection[PodUid],
        sightings: Mapping[PodUid, PodSighting],
        *,
        had_cgroup: Collection[PodUid],
    ) -> None:
        """Compare *sightings* with those before; *pods* are all that kubelet still has to drop."""
        self._populated = {pod for pod in pods if pod in self._populated}
        signs: dict[PodUid | None, _Sign] = {}
        if None in self._signs and pods:
            signs[None] = self._signs[None]
        for pod in pods:
            sighting = sightings.get(pod)
            if sighting is not None and (sighting.processes or sighting.unlisted):
                self._populated.add(pod)
                continue
            gone = sighting is None
            if pod not in (had_cgroup if gone else self._populated):
                continue  # it was not there yet
            sign = self._signs.get(pod)
            if sign is None or sign.gone != gone:
                sign = _Sign(gone=gone, since=self._clock.monotonic())
            signs[pod] = sign
        self._signs = signs

    def due(self) -> bool:
        """Tell whether kubelet is to be asked now, and take it as asked."""
        now = self._clock.monotonic()
        signs = [each for each in self._signs.values() if each.due <= now]
        for each in signs:
            while each.due <= now:
                each.asked += 1
        return bool(signs)

    def pause(self) -> float:
        """Return the seconds until the next question is due; infinite: none will be."""
        next_due = min((each.due for each in self._signs.values()), default=math.inf)
        return max(0.0, next_due - self._clock.monotonic())
