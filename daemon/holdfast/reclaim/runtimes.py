"""Since when the container runtime has let go of each pod that is over."""

from collections.abc import Sequence

from msgspec import Struct

from holdfast.errors import LaneStuckError
from holdfast.host.cgroup.runtimestate import RuntimeFiles
from holdfast.model.ids import PodUid
from holdfast.model.reclaim.ending import Member
from holdfast.model.reclaim.runtime_state import RuntimeState
from holdfast.runtime.clock import Clock
from holdfast.runtime.lane import Lane


class LetGo(Struct, frozen=True, kw_only=True):
    """What has been seen of the runtime's letting go of one pod; times in monotonic seconds.

    `gone_at` is since when no process of it has shown a container. `state` is None where the pod
    has no sandbox; `only_pause_at` is since when it has been certain that only pause runs there.
    """

    gone_at: float | None = None
    state: RuntimeState | None = None
    only_pause_at: float | None = None


class Runtimes:
    """Asks the processes of a pod, and for a sandbox the runtime's files; remembers since when."""

    def __init__(self, *, files: RuntimeFiles, lane: Lane, clock: Clock) -> None:
        """Read *files* on *lane*."""
        self._files = files
        self._lane = lane
        self._clock = clock
        self._seen: dict[PodUid, LetGo] = {}

    async def look(self, pod: PodUid, members: Sequence[Member]) -> LetGo:
        """Return what is so now of *pod*, whose processes are *members*."""
        shows = any(each.shows_a_container for each in members)
        state = None
        if any(each.sandbox is not None for each in members):
            state = await self._state(pod)
        # Only now: the pod may have been forgotten while the files were read.
        now, before = self._clock.monotonic(), self._seen.get(pod, LetGo())
        at_work = shows or (state is not None and bool(state.containers))
        sure = state is not None and state.only_pause
        # A file that cannot be read for a moment is no sign of work, and none of its end.
        since = before.only_pause_at or (now if sure else None)
        self._seen[pod] = LetGo(
            gone_at=None if shows else before.gone_at or now,
            state=state,
            only_pause_at=None if at_work else since,
        )
        return self._seen[pod]

    def seen(self, pod: PodUid) -> LetGo:
        """Return what the last look showed."""
        return self._seen.get(pod, LetGo())

    def forget(self, pod: PodUid) -> None:
        """Drop what was seen of *pod*: a later end of it is another one."""
        self._seen.pop(pod, None)

    async def _state(self, pod: PodUid) -> RuntimeState:
        try:
            return await self._lane.run(lambda: self._files.state(pod))
        except LaneStuckError as error:
            return RuntimeState(problem=str(error))
