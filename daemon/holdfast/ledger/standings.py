"""Publishes the standing of each device, from the book and from what other parts see."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from msgspec import Struct, field

from holdfast.ledger.ledger import Ledger
from holdfast.model.book.messages import BlockReason
from holdfast.model.book.standing import NodeFacts, Standings, standings
from holdfast.model.devices import Inventory
from holdfast.model.ids import DeviceName, PodUid, ResourceName
from holdfast.model.kubelet import KubeletView
from holdfast.runtime.clock import Clock
from holdfast.runtime.watched import Changes, Watched

_LOOK_AGAIN = 1.0
"""Seconds between two looks at whether a patience has run out, or the ledger has begun to fail:
nobody announces that."""


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


class DeviceStandings(Struct, kw_only=True):
    """Makes the standings again when something that they are made of has changed, and only then.

    `latest` is for those who follow them; whoever needs them as of this moment asks `now`. Kubelet
    hears of what is kept after `withhold_after`. `is_dra` tells whether the scheduler hands out the
    devices of a resource, by DRA.
    """

    ledger: Ledger
    inventory: Watched[Inventory]
    view: Watched[KubeletView]
    obstacles: Watched[Mapping[DeviceName, BlockReason]]
    emptied: EmptyPods
    is_dra: Callable[[ResourceName], bool]
    clock: Clock
    withhold_after: Watched[float]
    latest: Watched[Standings] = field(default_factory=lambda: Watched(Standings()))
    _inherited: int = 0
    _made_of: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        self._inherited = self.ledger.book.value.fence

    def now(self) -> Standings:
        """Return the standings of this moment, and publish them."""
        failing = self.ledger.failing_since is not None
        made_of = (*(each.version for each in self._sources()), failing)
        due = failing or self.clock.uptime() > self.latest.value.changes_at
        if due or made_of != self._made_of:
            self._made_of = made_of
            self.latest.set(standings(self._facts(), self.latest.value))
        return self.latest.value

    async def run(self) -> None:
        """Follow the sources until cancelled."""
        while True:
            changes = Changes(self._sources())
            self.now()
            await changes.wait(_LOOK_AGAIN)

    def _sources(self) -> tuple[Watched[Any], ...]:
        return (
            self.ledger.book,
            self.inventory,
            self.view,
            self.obstacles,
            self.emptied.pods,
            self.withhold_after,
        )

    def _facts(self) -> NodeFacts:
        inventory, book = self.inventory.value, self.ledger.book.value
        failing = self.ledger.failing_since
        resources = {*inventory.resources, *(name.resource for name in book.locks)}
        resources |= {each.resource for each in book.allocations.values()}
        return NodeFacts(
            book=book,
            inventory=inventory,
            view=self.view.value,
            emptied=self.emptied.pods.value,
            by_claims=frozenset(filter(self.is_dra, resources)),
            obstacles=self.obstacles.value,
            inherited=self._inherited,
            uncommitted_for=0.0 if failing is None else self.clock.monotonic() - failing,
            withhold_after=self.withhold_after.value,
            now=self.clock.uptime(),
        )
