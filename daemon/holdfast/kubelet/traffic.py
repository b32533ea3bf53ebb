"""Counts the Allocates in flight, during which nobody may ask kubelet for its pods."""

from holdfast.runtime.clock import Clock
from holdfast.runtime.watched import Watched


class Traffic:
    """The Allocates of all resources that kubelet waits for.

    A List that kubelet handles while it waits for an Allocate makes it forget that the devices are
    taken (k/k#137534), and the next pod gets them too.
    """

    def __init__(self) -> None:
        self.allocates: Watched[int] = Watched(0)
        """How many Allocates kubelet waits for."""

    def began(self) -> None:
        """Count an Allocate that kubelet waits for."""
        self.allocates.set(self.allocates.value + 1)

    def ended(self) -> None:
        """Count one less: kubelet has the answer, or has gone."""
        self.allocates.set(self.allocates.value - 1)

    async def none_in_flight(self) -> None:
        """Return when there is none."""
        await self.allocates.until(lambda count: count == 0)

    async def quiet(self, clock: Clock, *, seconds: float = 0.0) -> None:
        """Return when there has been none for *seconds*.

        A little more than zero lets kubelet write down the answer that it has just got, and
        lets the Allocates of a pod's next containers come first.
        """
        while True:
            await self.none_in_flight()
            version = self.allocates.version
            if seconds > 0:
                await clock.sleep(seconds)
            if self.allocates.version == version:
                return
