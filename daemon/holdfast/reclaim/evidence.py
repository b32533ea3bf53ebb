"""Since when kubelet has let go of each pod, by a clock that nobody can set."""

from collections.abc import Collection

from holdfast.model.book.book import PodRecord
from holdfast.model.ids import PodUid, ProcessId
from holdfast.runtime.clock import Clock

Evidence = tuple[ProcessId | None, float]


class Evidences:
    """Remembers when this daemon first saw the evidence that the ledger keeps of each pod.

    After a restart a grace begins anew: the daemon was away, and did not see that it stood.
    """

    def __init__(self, clock: Clock) -> None:
        """Measure by *clock*'s monotonic reading."""
        self._clock = clock
        self._seen: dict[PodUid, tuple[Evidence, float]] = {}

    def standing_since(self, record: PodRecord | None) -> float | None:
        """Return since when (monotonic seconds) kubelet has let go of the pod; None: it has not.

        The first call for a piece of evidence is what starts its time.
        """
        if record is None:
            return None
        if record.let_go_at is None:
            self._seen.pop(record.uid, None)
            return None
        evidence = (record.counted_by, record.let_go_at)
        known = self._seen.get(record.uid)
        if known is None or known[0] != evidence:
            known = self._seen[record.uid] = (evidence, self._clock.monotonic())
        return known[1]

    def forget(self, pod: PodUid) -> None:
        """Drop what is remembered of *pod*."""
        self._seen.pop(pod, None)


class Uncounted:
    """Remembers since when kubelet's books have been without each pod that had something.

    By a clock that nobody sets, and anew after a restart, as for the evidence.
    """

    def __init__(self, clock: Clock) -> None:
        """Measure by *clock*'s monotonic reading."""
        self._clock = clock
        self._since: dict[PodUid, float] = {}

    def seconds(self, pod: PodUid, *, counted: bool | None) -> float:
        """Return for how long *pod* has not been counted; *counted* is what the books say now.

        Books that cannot be read (None) neither begin nor end that time.
        """
        now = self._clock.monotonic()
        if counted:
            self._since.pop(pod, None)
        elif counted is False:
            self._since.setdefault(pod, now)
        return now - self._since.get(pod, now)

    def keep(self, pods: Collection[PodUid | None]) -> None:
        """Drop what is remembered of others than *pods*."""
        for pod in self._since.keys() - set(pods):
            del self._since[pod]
