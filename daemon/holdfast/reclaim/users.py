"""Learns from the kernel who uses a device where the book does not say so, and writes it down.

A free device in use is FOREIGN. A device whose lock is another pod's is handed to the pod that is
proven to hold it.
"""

from collections.abc import Mapping
from functools import partial

from msgspec import Struct

from holdfast.inuse.deviceuse import DeviceUse, Enabled
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.book import Book, DeviceLock
from holdfast.model.book.claims import admins_on
from holdfast.model.book.pods import PodSighting
from holdfast.model.book.proof import call_foreign, hand_to_true_owner, true_owner, unlocked
from holdfast.model.devices import Device, DeviceKind, Inventory
from holdfast.model.ids import DeviceName, PodUid
from holdfast.model.use.free import Freedom, KernelFacts, is_foreign, judge_kernel
from holdfast.runtime.clock import Clock
from holdfast.runtime.watched import Watched


class _Free(Struct, frozen=True, kw_only=True):
    """The devices without a lock, of one inventory and one book.

    `users` are the pods that may use them all the same, with adminAccess, where drivers know users.
    """

    inventory: Inventory
    book: Book
    devices: tuple[Device, ...]
    users: Mapping[DeviceName, frozenset[PodUid]]


class Users(Struct, kw_only=True):
    """Looks at the devices that are free or held; those in release are the watcher's."""

    ledger: Ledger
    inventory: Watched[Inventory]
    use: DeviceUse
    clock: Clock
    _full_look_at: float = 0.0
    _free: _Free | None = None

    async def look_at_free(self, enabled: Enabled, *, at_all: bool) -> None:
        """Find devices in use that were granted to no pod; *at_all*: scan every process now.

        Of those that *enabled* does not name nothing new is known.
        """
        book, now = self.ledger.book.value, self.clock.monotonic()
        known = self._free.users if self._free is not None else {}
        found = self._free_in(self.inventory.value, book)
        free = found.devices
        seen: dict[DeviceName, KernelFacts] = {}
        if at_all or now - self._full_look_at >= self.use.budget.clock:
            self._full_look_at = now
            seen.update(await self.use.scan(free, book.locks) if free else {})
        elif new := [each for each in free if known.get(each.name) != found.users.get(each.name)]:
            # They have just come, or become free: what is idle memory is seen only now. Or an
            # administrator has left, whose processes were not in the way until then.
            seen.update(await self.use.scan(new, book.locks, pids=()))
        if self._free is None or self._free.inventory is not found.inventory:
            self.use.keep([each.name for each in found.inventory.devices])
        self._free = found
        busy = [each for each in free if enabled.get(each.name) and each.name not in seen]
        seen.update(await self.use.known(busy, book.locks, enabled=enabled))
        for device in free:
            if device.name in seen or device.name in enabled:
                await self._judge_free(device, seen.get(device.name))

    def _free_in(self, inventory: Inventory, book: Book) -> _Free:
        """Return the devices without a lock; they are looked for once for each book."""
        found = self._free
        if found is not None and found.inventory is inventory and found.book is book:
            return found
        devices = unlocked(inventory.devices, book)
        return _Free(
            inventory=inventory,
            book=book,
            devices=devices,
            users={
                each.name: admins_on(book, each.keys)
                for each in devices
                if each.kind is DeviceKind.DRIVER
            },
        )

    async def look_at_held(
        self,
        held: list[DeviceLock],
        sightings: Mapping[PodUid, PodSighting],
        enabled: Enabled,
    ) -> None:
        """Learn who holds the devices of the locks *held*, first among the pod's own processes."""
        locks, found = self.ledger.book.value.locks, self.inventory.value.get
        in_use = [found(lock.device) for lock in held if enabled.get(lock.device)]
        own = {
            lock.device: pod.processes
            for lock in held
            if lock.pod is not None and (pod := sightings.get(lock.pod)) is not None
        }
        known = await self.use.known(filter(None, in_use), locks, enabled=enabled, pids=own)
        for lock in held:
            if (facts := known.get(lock.device)) is not None:
                if true_owner(self.ledger.book.value, lock, facts) is not None:
                    prove = partial(hand_to_true_owner, lock=lock, facts=facts)
                    await self.ledger.if_unmoved(lock, prove)
            elif lock.device in enabled or found(lock.device) is None:  # else nothing new is known
                self.use.forget_unless_awaited(lock.device)

    async def _judge_free(self, device: Device, facts: KernelFacts | None) -> None:
        if facts is not None and is_foreign(facts):
            facts = await self.use.tried(device, facts)
        verdict = judge_kernel(facts) if facts is not None else None
        if facts is None or verdict is None or verdict.freedom is not Freedom.IN_USE:
            self.use.forget_unless_awaited(device.name)
        elif is_foreign(facts):
            withhold = partial(call_foreign, device=device, reason=verdict.reason)
            await self.ledger.apply_or_log(withhold)
