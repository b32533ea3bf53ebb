"""Keeps kubelet's device lists true: from hardware, book and kubelet's own checkpoint to Offers."""

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from holdfast.ledger.ages import LockAges
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.book import Book
from holdfast.model.book.locks import LockState
from holdfast.model.book.offers import OfferedDevice, OfferFacts, Offers, has_or_awaits, offered
from holdfast.model.book.withheld import why_withheld
from holdfast.model.devices import Device, Inventory
from holdfast.model.ids import DeviceName, ResourceName
from holdfast.model.kubelet import KubeletView
from holdfast.runtime.changes import Changes
from holdfast.runtime.clock import Clock
from holdfast.runtime.watched import Watched


class Offering:
    """Publishes `offers`, anew whenever one of its sources changes or a patience runs out."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        inventory: Watched[Inventory],
        view: Watched[KubeletView],
        clock: Clock,
        withhold_after: Watched[float],
        look_again: float = 1.0,
        elsewhere: Callable[[ResourceName], bool] = lambda _resource: False,
    ) -> None:
        """Withhold what is RELEASING for longer than *withhold_after* seconds.

        Resources that are served *elsewhere*, by DRA, are on no list. While pods still have some
        of their devices, kubelet is sent a list without any: else it would not show their end.
        """
        self._ledger = ledger
        self._inventory = inventory
        self._view = view
        self._clock = clock
        self._ages = LockAges(clock)
        self._withhold_after = withhold_after
        self._look_again = look_again
        self._elsewhere = elsewhere
        self._resend = 0
        self.offers: Watched[Offers] = Watched(Offers())

    def resend(self) -> None:
        """Send the lists once more, unchanged or not, so that kubelet writes its checkpoint."""
        self._resend += 1
        self.refresh()

    def refresh(self) -> None:
        """Publish what holds now."""
        inventory, book = self._inventory.value, self._ledger.book.value
        self._ages.note(book)
        lists = {
            resource: self._of(resource, inventory, book, self._view.value)
            for resource in inventory.resources
            if not self._elsewhere(resource)
        }
        left = frozenset(filter(self._elsewhere, _granted(book)))
        # A node has no use for the name of hardware that it does not have; but a name that kubelet
        # has heard stays, or kubelet would count its devices as lost.
        before = self.offers.value.devices
        devices = {name: each for name, each in lists.items() if each or name in before}
        devices |= dict.fromkeys(left, ())
        self.offers.set(Offers(devices=devices, resend=self._resend))

    async def run(self) -> None:
        """Follow the sources until cancelled."""
        while True:
            changes = Changes(
                [self._ledger.book, self._inventory, self._view, self._withhold_after]
            )
            self.refresh()
            if self._depend_on_time():
                await changes.wait(self._look_again)
                continue
            # That the ledger begins to fail is announced by nobody; it has to be seen in good time.
            pause = max(self._look_again, self._withhold_after.value / 4)
            while not await changes.wait(pause) and not self._depend_on_time():
                pass

    def _depend_on_time(self) -> bool:
        """Tell whether the offers may change although none of their sources does."""
        return self._ledger.failing_since is not None or any(
            lock.state is LockState.RELEASING for lock in self._ledger.book.value.locks.values()
        )

    def _of(
        self, resource: ResourceName, inventory: Inventory, book: Book, view: KubeletView
    ) -> tuple[OfferedDevice, ...]:
        present = [self._offered(device, book, view) for device in inventory.of(resource)]
        names = {each.id for each in present}
        former = [
            self._former(name, inventory, book, view)
            for name in sorted(_given(book))
            if name.resource == resource and name.id not in names
        ]
        return (*present, *former)

    def _former(
        self, name: DeviceName, inventory: Inventory, book: Book, view: KubeletView
    ) -> OfferedDevice:
        """Return what kubelet is told of a device that is not on offer, while its pod is not over.

        Hardware that is gone is Unhealthy, and not as if it had never been. A GPU that was shared
        by more pods, or by fewer, is there: its pod is admitted anew after a reboot.
        """
        device = inventory.get(name)
        if device is None:
            return OfferedDevice(id=name.id, healthy=False)
        leaving = device.leaving or "it is shared in another way"
        return self._offered(replace(device, leaving=leaving), book, view)

    def _offered(self, device: Device, book: Book, view: KubeletView) -> OfferedDevice:
        lock = book.lock_on(device.keys)
        failing = self._ledger.failing_since
        facts = OfferFacts(
            healthy=device.healthy,
            name=device.name,
            lock=lock,
            has_or_awaits=has_or_awaits(device.name, book, view),
            owner_counted=lock is not None and lock.pod is not None and view.counts(lock.pod),
            releasing_for=self._ages.age(lock) if lock is not None else 0.0,
            uncommitted_for=0.0 if failing is None else self._clock.monotonic() - failing,
            withhold_after=self._withhold_after.value,
            withheld=why_withheld(book, device.keys) is not None,
            leaving=bool(device.leaving),
        )
        return OfferedDevice(id=device.name.id, healthy=offered(facts), numa_node=device.numa_node)


def _given(book: Book) -> set[DeviceName]:
    """Return the names of all devices that are locked, or that pods wait for."""
    waited = (each.names() for each in book.allocations.values() if each.claim is None)
    return {*book.locks, *(name for names in waited for name, _ in names)}


def _granted(book: Book) -> Iterator[ResourceName]:
    """Yield the resources of which pods have devices by the device plugin."""
    yield from (each.resource for each in book.allocations.values() if each.claim is None)
    for lock in book.locks.values():
        if lock.claim is None and lock.state is not LockState.FOREIGN:
            yield lock.device.resource
