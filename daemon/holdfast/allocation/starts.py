"""The container starts at the gate, and which of them only their own pod holds up."""

from dataclasses import dataclass

from holdfast.model.ids import PodUid
from holdfast.model.reclaim.leak import HeldUp
from holdfast.runtime.watched import Watched


@dataclass(slots=True, kw_only=True, eq=False)
class Start:
    """One call: since when it waits, and what is known of it so far.

    `pod` is whose it is, once that was seen; `doing` what a try waits for, as a reason to give if
    that does not end; `asked` how often kubelet was asked for its sake;
    `stirred` when something changed that it may wait for, in monotonic seconds.
    """

    since: float
    pod: PodUid | None = None
    doing: str = ""
    asked: int = 0
    stirred: float = 0.0


class Starts:
    """Publishes which starts wait for nobody but their own pod's processes."""

    def __init__(self) -> None:
        """Begin with none."""
        self._each: dict[Start, frozenset[HeldUp]] = {}
        self.held_up: Watched[frozenset[HeldUp]] = Watched(frozenset())

    @property
    def count(self) -> int:
        """Return how many starts wait."""
        return len(self._each)

    def waits(self, start: Start, held_up: frozenset[HeldUp]) -> None:
        """Note what *start* is held up by; nothing: by others, or not at all."""
        self._each[start] = held_up
        self._publish()

    def leaves(self, start: Start) -> None:
        """Note that *start* is over."""
        self._each.pop(start, None)
        self._publish()

    def _publish(self) -> None:
        every = frozenset[HeldUp]().union(*self._each.values())
        if every != self.held_up.value:
            self.held_up.set(every)
