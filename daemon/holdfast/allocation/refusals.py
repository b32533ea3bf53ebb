"""Why a container start has to wait, and the text in which its user reads that."""

from holdfast.allocation.outcomes import Outcome
from holdfast.model.reclaim.leak import HeldUp

_FINAL = frozenset({Outcome.SEVERAL_PODS, Outcome.GONE, Outcome.PROMISE})
"""What waiting does not mend."""


class Wait(Exception):  # noqa: N818 - not an error: the way in which one try ends
    """Why a start has to wait; `transient`: that is soon over, and says nothing of its devices."""

    def __init__(
        self,
        outcome: Outcome,
        reason: str,
        held_up: frozenset[HeldUp] = frozenset(),
        *,
        transient: bool = False,
    ) -> None:
        """Wait for *reason*; *held_up* is what only its own pod's processes hold up."""
        super().__init__(reason)
        self.outcome = outcome
        self.held_up = held_up
        self.transient = transient

    @property
    def final(self) -> bool:
        """Tell whether waiting does not mend it."""
        return self.outcome in _FINAL

    def text(self, what: str) -> str:
        """Return what kubelet is answered to a start on *what*.

        It is the same for as long as the reason is: kubelet merges events by their text.
        """
        if self.final:
            return f"cannot start on {what}: {self}"
        return f"cannot start on {what} yet: {self} (kubelet will ask again)"
