"""Publishes the standing of each device, from the book and from what other parts see."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from holdfast.ledger.ledger import Ledger
from holdfast.model.book.messages import BlockReason
from holdfast.model.book.standing import NodeFacts, Standings, standings
from holdfast.model.devices import Inventory
from holdfast.model.ids import DeviceName, PodUid, ResourceName
from holdfast.model.kubelet import KubeletView
from holdfast.runtime.clock import Clock
from holdfast.runtime.watched import Changes, Watched

_LOOK_AGAIN = 1.0
"""Seconds between two looks while a patience may run out, or the ledger fails."""
_MOST_SETTLING = 3.0
"""Seconds for which a device may be kept before the scheduler hears of it: unlike Unhealthy devices
of a device plugin, a tainted one fails no pod that is on its way."""


class EmptyPods:
    """Publishes in `pods` whose last process has ended since we registered with kubelet.

    What lost its processes before that is not over for certain: a kubelet that starts again may
    admit it once more, and refuses a pod for good whose device is Unhealthy then.
    """

    def __init__(self) -> None:
        self.pods: Watched[frozenset[PodUid]] = Watched(frozenset())
        self.registrations = 0
        self._populated: frozenset[PodUid] = frozenset()

    def registered(self) -> None:
        """Begin again: we are about to register with kubelet."""
        self.registrations += 1
        self._populated = frozenset()
        self.pods.set(frozenset())

    def note(self, populated: Mapping[PodUid, bool | None], registrations: int) -> None:
        """Note which of all pods have processes; None: that is unknown.

        They were looked at when there were so many *registrations*.
        """
        if registrations != self.registrations:
            return
        live = frozenset(pod for pod, has in populated.items() if has)
        unknown = frozenset(pod for pod, has in populated.items() if has is None)
        ended = self._populated - live - unknown
        self._populated = live | (self._populated & unknown)
        self.pods.set((self.pods.value | ended) - live)

    def keep(self, pods: Collection[PodUid]) -> None:
        """Forget all others than *pods*."""
        self.pods.set(self.pods.value.intersection(pods))


class DeviceStandings:
    """Makes the standings again when something that they are made of has changed, and only then.

    `latest` is for those who follow them; whoever needs them as of this moment asks `now`.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        inventory: Watched[Inventory],
        view: Watched[KubeletView],
        obstacles: Watched[Mapping[DeviceName, BlockReason]],
        emptied: EmptyPods,
        is_dra: Callable[[ResourceName], bool],
        clock: Clock,
        withhold_after: Watched[float],
    ) -> None:
        """Go by what the others publish; kubelet hears of what is kept after *withhold_after*.

        *is_dra* tells whether the scheduler hands out the devices of a resource, by DRA.
        """
        self._ledger = ledger
        self._inventory = inventory
        self._view = view
        self._obstacles = obstacles
        self._emptied = emptied
        self._is_dra = is_dra
        self._clock = clock
        self._withhold_after = withhold_after
        self._inherited = ledger.book.value.fence
        self._made_of: tuple[int, ...] | None = None
        self.latest: Watched[Standings] = Watched(Standings())

    def now(self) -> Standings:
        """Return the standings of this moment, and publish them."""
        sources = tuple(each.version for each in self._sources())
        if sources != self._made_of or self._depend_on_time():
            self._made_of = sources
            self.latest.set(standings(self._facts(), self.latest.value))
        return self.latest.value

    async def run(self) -> None:
        """Follow the sources until cancelled."""
        while True:
            changes = Changes(self._sources())
            self.now()
            if self._depend_on_time():
                await changes.wait(_LOOK_AGAIN)
                continue
            # That the ledger begins to fail is announced by nobody; it has to be seen in good time.
            pause = max(_LOOK_AGAIN, self._settle_after / 4)
            while not await changes.wait(pause) and not self._depend_on_time():
                pass

    def _sources(self) -> tuple[Watched[Any], ...]:
        return (
            self._ledger.book,
            self._inventory,
            self._view,
            self._obstacles,
            self._emptied.pods,
            self._withhold_after,
        )

    def _depend_on_time(self) -> bool:
        """Tell whether they may change although none of their sources does."""
        return self._ledger.failing_since is not None or self.latest.value.depend_on_time

    @property
    def _settle_after(self) -> float:
        return min(self._withhold_after.value, _MOST_SETTLING)

    def _facts(self) -> NodeFacts:
        inventory, book = self._inventory.value, self._ledger.book.value
        failing = self._ledger.failing_since
        resources = {*inventory.resources, *(name.resource for name in book.locks)}
        resources |= {each.resource for each in book.allocations.values()}
        return NodeFacts(
            book=book,
            inventory=inventory,
            view=self._view.value,
            emptied=self._emptied.pods.value,
            by_claims=frozenset(filter(self._is_dra, resources)),
            obstacles=self._obstacles.value,
            inherited=self._inherited,
            uncommitted_for=0.0 if failing is None else self._clock.monotonic() - failing,
            withhold_after=self._withhold_after.value,
            settle_after=self._settle_after,
            now=self._clock.uptime(),
        )
