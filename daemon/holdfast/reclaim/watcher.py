"""Follows every lock: names who holds it, sees its pod end, and frees it when the kernel agrees."""

import asyncio
from collections.abc import Mapping
from functools import partial

import structlog

from holdfast.errors import HoldfastError
from holdfast.kubelet.books import KubeletBooks
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.draft import Draft
from holdfast.model.book.locks import ENDING, DeviceLock, LockState
from holdfast.model.book.proof import hand_to_true_owner, true_owner
from holdfast.model.book.reconcile import PodSighting, Surroundings, reconcile
from holdfast.model.devices import Device, DeviceKind, Inventory
from holdfast.model.ids import BootId, DeviceName, PciAddress, PodUid
from holdfast.model.use.free import (
    KernelFacts,
    is_foreign,
    judge_kernel,
)
from holdfast.model.use.holding import held_by
from holdfast.model.use.verdict import Freedom
from holdfast.reclaim.endings import Endings
from holdfast.reclaim.kernel import KernelWatch
from holdfast.reclaim.pods import Pods
from holdfast.reclaim.reclaimer import Reclaimer
from holdfast.reclaim.releases import Releases
from holdfast.reclaim.resetter import Resetter
from holdfast.runtime.changes import Changes
from holdfast.runtime.clock import Clock
from holdfast.runtime.watched import Watched
from holdfast.settings.sections import Reclaim

log = structlog.get_logger(__name__)

Enabled = Mapping[DeviceName, tuple[PciAddress, ...]]
"""Which functions of each device are enabled, as one look at all of them showed."""


class Watcher:
    """The one loop that moves locks towards FREE.

    Each beat compares the book with kubelet's books, the pods' cgroups and the kernel, writes down
    what follows, and sleeps until something changes. In the steady state it reads `enable` and
    nothing else.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        inventory: Watched[Inventory],
        books: KubeletBooks,
        kernel: KernelWatch,
        pods: Pods,
        reclaimer: Reclaimer,
        resetter: Resetter,
        clock: Clock,
        boot: BootId,
        settings: Reclaim,
        pending_timeout: float,
    ) -> None:
        """Watch what *ledger* has; `looked` is set after the first full look."""
        self._ledger = ledger
        self._inventory = inventory
        self._books = books
        self._kernel = kernel
        self._pods = pods
        self._reclaimer = reclaimer
        self._releases = Releases(
            ledger=ledger,
            inventory=inventory,
            view=books.view,
            kernel=kernel,
            reclaimer=reclaimer,
            resetter=resetter,
            clock=clock,
            boot=boot,
            unseen_grace=settings.unseen_grace,
        )
        self._clock = clock
        self._boot = boot
        self._settings = settings
        self._pending_timeout = pending_timeout
        self.nudges: Watched[int] = Watched(0)
        """Changes when something on the node has, such as the exit of a holder."""
        self._endings = Endings(clock)
        self._full_look_at = 0.0
        self._free: frozenset[DeviceName] = frozenset()
        self.looked = asyncio.Event()
        self.problem = ""
        self.compared_at: float | None = None
        """When book, kubelet and kernel were last compared, in monotonic seconds."""

    def nudge(self) -> None:
        """Look again now; something on the node has changed."""
        self.nudges.set(self.nudges.value + 1)

    def pod_changed(self, pod: PodUid) -> None:
        """Hear that the population of *pod*'s cgroup changed."""
        log.debug("pod cgroup changed", pod=pod)
        self.nudge()

    def holder_exited(self) -> None:
        """Hear that a process which had a device open has ended."""
        self._endings.holder_exited()
        self.nudge()

    def obstacle(self, device: DeviceName) -> str:
        """Return what was last seen to keep *device* from its next pod; empty: nothing was."""
        holders = self._kernel.holders.get(device, ())
        if holders:
            return f"{device} is {held_by(holders)}"
        reason = self._releases.not_free.get(device)
        return f"{device} is not free: {reason}" if reason else ""

    async def catch_up(self) -> None:
        """Bring the book in line with kubelet's books, before anything is offered."""
        await self._reconcile(await self._sight())

    async def run(self) -> None:
        """Beat for ever."""
        while True:
            changes = Changes([self._ledger.book, self._books.view, self._inventory, self.nudges])
            try:
                await self._beat()
            except (HoldfastError, OSError) as error:
                # Degraded, not dead: locks stay as they are until the node can be looked at again.
                if str(error) != self.problem:
                    log.warning("cannot reconcile locks", reason=str(error))
                self.problem = str(error)
            else:
                self.problem = ""
                self.compared_at = self._clock.monotonic()
            await changes.wait(self._pause())

    async def _beat(self) -> None:
        sightings = await self._sight()
        await self._reconcile(sightings)
        self._ask_about_endings(sightings)
        enabled = await self._kernel.enabled(self._inventory.value.devices)
        await self._look_at_free(enabled)
        await self._look_at_held(sightings, enabled)
        await self._releases.go_on(sightings)
        self.looked.set()

    async def _sight(self) -> dict[PodUid, PodSighting]:
        book, view = self._ledger.book.value, self._books.view.value
        resources = set(self._inventory.value.resources)
        wanted = set(book.pods)
        wanted |= {entry.pod for entry in view.entries if entry.resource in resources}
        return await self._pods.sight(sorted(wanted))

    async def _reconcile(self, sightings: Mapping[PodUid, PodSighting]) -> None:
        around = Surroundings(
            view=self._books.view.value,
            inventory=self._inventory.value,
            boot=self._boot,
            sightings=sightings,
            pending_timeout=self._pending_timeout,
        )

        def decide(draft: Draft) -> None:
            reconcile(draft, around)

        book = self._ledger.book.value
        clock = self._clock
        trial = Draft(book, now=clock.wall(), uptime=clock.uptime(), boot=self._boot)
        decide(trial)
        if trial.book is not book:
            await self._ledger.apply_or_log(decide)

    def _ask_about_endings(self, sightings: Mapping[PodUid, PodSighting]) -> None:
        """Ask kubelet about the pods that seem to be over, until it counts them no more."""
        book = self._ledger.book.value
        held = {lock.pod for lock in book.locks.values() if lock.state is LockState.HELD}
        held |= {each.pod for each in book.allocations.values()}
        had_cgroup = {uid for uid, record in book.pods.items() if record.cgroup is not None}
        self._endings.follow(
            [pod for pod in held if pod is not None], sightings, had_cgroup=had_cgroup
        )
        if self._endings.due():
            self._books.ask("a pod seems to be over")

    async def _look_at_free(self, enabled: Enabled) -> None:
        """Find devices in use that we granted to nobody."""
        book, now = self._ledger.book.value, self._clock.monotonic()
        free = [each for each in self._inventory.value.devices if not book.lock_on(each.keys)]
        seen: dict[DeviceName, KernelFacts] = {}
        if not self.looked.is_set() or now - self._full_look_at >= self._kernel.rescan_pause:
            self._full_look_at = now
            seen.update(await self._kernel.look_at_all(free, book.locks) if free else {})
        elif gpus := [
            each for each in free if each.name not in self._free and each.kind is DeviceKind.DRIVER
        ]:
            # Those that have just come, or become free: what is idle memory is seen only now.
            seen.update(await self._kernel.look_at_all(gpus, book.locks, pids=()))
        self._free = frozenset(device.name for device in free)
        for device in free:
            functions = enabled.get(device.name, ())
            if functions and device.name not in seen:
                seen[device.name] = await self._kernel.facts(device, book.locks, enabled=functions)
        for device in free:
            facts = seen.get(device.name)
            if facts is not None and is_foreign(facts):
                facts = await self._kernel.tried(device, facts)
            verdict = judge_kernel(facts) if facts is not None else None
            if facts is None or verdict is None or verdict.freedom is not Freedom.IN_USE:
                self._kernel.forget(device.name)
            elif is_foreign(facts):
                withhold = partial(_withhold, device=device, reason=verdict.reason)
                await self._ledger.apply_or_log(withhold)

    async def _look_at_held(
        self, sightings: Mapping[PodUid, PodSighting], enabled: Enabled
    ) -> None:
        """Learn who holds what we granted, first among the pod's own processes."""
        book = self._ledger.book.value
        held = [lock for lock in book.locks.values() if lock.state is LockState.HELD]
        self._reclaimer.start_over({lock.pod for lock in held if lock.pod is not None})
        for lock in held:
            device = self._device(lock)
            functions = enabled.get(device.name, ()) if device is not None else ()
            if device is None or not functions:
                self._kernel.forget(lock.device)
                continue
            pod = sightings.get(lock.pod) if lock.pod is not None else None
            facts = await self._kernel.facts(
                device,
                book.locks,
                enabled=functions,
                pids=pod.processes if pod is not None else (),
            )
            await self._prove_holder(lock, facts)

    async def _prove_holder(self, lock: DeviceLock, facts: KernelFacts) -> None:
        """Give a lock whose gate never passed to the pod that in truth has the device."""
        if true_owner(self._ledger.book.value, lock, facts) is not None:
            await self._ledger.apply_or_log(lambda draft: hand_to_true_owner(draft, lock, facts))

    def _device(self, lock: DeviceLock) -> Device | None:
        return self._inventory.value.get(lock.device)

    def _pause(self) -> float:
        ending = any(
            lock.state in ENDING or lock.state is LockState.FOREIGN
            for lock in self._ledger.book.value.locks.values()
        )
        poll = self._settings.release_poll if ending else self._settings.poll
        return min(poll, self._endings.pause())


def _withhold(draft: Draft, device: Device, reason: str) -> None:
    if draft.book.lock_on(device.keys) is None:
        draft.withhold(device.name, device.keys, reason)
