"""Frees what a pod that is over had, as soon as the kernel agrees, and acts on what it does not."""

from collections.abc import Mapping

import structlog
from msgspec.structs import replace

from holdfast.ledger.ledger import Ledger
from holdfast.model.book.book import Book
from holdfast.model.book.draft import Draft
from holdfast.model.book.locks import ENDING, DeviceLock, LockState
from holdfast.model.book.queue import settle
from holdfast.model.book.reconcile import PodSighting
from holdfast.model.devices import Device, Inventory
from holdfast.model.ids import BootId, DeviceName, PodUid
from holdfast.model.kubelet import KubeletView
from holdfast.model.use.free import FormerPod, KernelFacts, ReleaseFacts, judge_release
from holdfast.model.use.verdict import Freedom
from holdfast.reclaim.evidence import Uncounted
from holdfast.reclaim.kernel import KernelWatch
from holdfast.reclaim.reclaimer import Reclaimer
from holdfast.reclaim.resetter import Resetter
from holdfast.runtime.clock import Clock
from holdfast.runtime.watched import Watched

log = structlog.get_logger(__name__)


class Releases:
    """Goes through the locks that are ending, and those of foreign holders, at each beat.

    `not_free` says what was last seen to keep each of their devices from its next pod.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        inventory: Watched[Inventory],
        view: Watched[KubeletView],
        kernel: KernelWatch,
        reclaimer: Reclaimer,
        resetter: Resetter,
        clock: Clock,
        boot: BootId,
        unseen_grace: float,
    ) -> None:
        """Have *reclaimer* act on what is not free, and *resetter* check what was forced."""
        self._ledger = ledger
        self._inventory = inventory
        self._view = view
        self._kernel = kernel
        self._reclaimer = reclaimer
        self._resetter = resetter
        self._uncounted = Uncounted(clock)
        self._boot = boot
        self._unseen_grace = unseen_grace
        self.not_free: dict[DeviceName, str] = {}
        self._unrecorded: dict[DeviceName, str] = {}

    async def go_on(self, sightings: Mapping[PodUid, PodSighting]) -> None:
        """Free what is free; only then act on the rest, for which kubelet may have to be asked."""
        book = self._ledger.book.value
        ending = [
            lock
            for lock in book.locks.values()
            if lock.state in ENDING or lock.state is LockState.FOREIGN
        ]
        before = self.not_free
        self.not_free = {lock.device: before.get(lock.device, "") for lock in ending}
        self._unrecorded = {
            device: text for device, text in self._unrecorded.items() if device in self.not_free
        }
        self._uncounted.keep({lock.pod for lock in ending})
        rest: list[tuple[DeviceLock, ReleaseFacts]] = []
        for lock in ending:
            if detained := await self._resetter.detains(lock):
                self.not_free[lock.device] = detained
                continue
            facts = replace(
                await self._facts(lock, book, sightings),
                nobodys=lock.pod is None and (lock.state is LockState.FOREIGN or not lock.started),
                heir=_heir(lock, book),
            )
            verdict = judge_release(facts)
            if verdict.freedom is Freedom.FREE:
                # Why it is free is no reason why it is not: what keeps it now is told below.
                self.not_free[lock.device] = self._unrecorded.pop(lock.device, "")
                await self._free(lock, facts, verdict.reason)
                continue
            self.not_free[lock.device] = verdict.reason
            self._unrecorded.pop(lock.device, None)
            # Processes that cannot all be listed cannot be judged: each is judged by the others.
            listed = facts.pod is None or not facts.pod.unlisted
            if lock.state in ENDING and listed:
                rest.append((lock, facts))
        for lock, facts in rest:
            await self._reclaimer.step(lock, facts, self.not_free[lock.device])

    async def _free(self, lock: DeviceLock, facts: ReleaseFacts, reason: str) -> None:
        cleared = self._resetter.clears(lock, self._inventory.value.get(lock.device), facts.kernel)
        if cleared is None:
            return
        self._reclaimer.forget(lock)
        self._kernel.forget(lock.device)
        evidence = "; ".join(filter(None, (reason, cleared)))

        def failed(reason: str) -> None:
            text = f"its release cannot be recorded: {reason}"
            self.not_free[lock.device] = self._unrecorded[lock.device] = text

        await self._ledger.apply_or_log(lambda draft: _free(draft, lock, evidence), failed=failed)

    async def _facts(
        self, lock: DeviceLock, book: Book, sightings: Mapping[PodUid, PodSighting]
    ) -> ReleaseFacts:
        device: Device | None = self._inventory.value.get(lock.device)
        pod = self._former_pod(lock, book, sightings)
        grace = self._unseen_grace
        if device is None and self._inventory.value.may_have(lock.device.resource):
            return ReleaseFacts(kernel=KernelFacts(), pod=pod, unseen_grace=grace)
        if device is None:  # unplugged: nothing is left that anybody could hold
            return ReleaseFacts(kernel=KernelFacts(holders=()), pod=pod, unseen_grace=grace)
        counted = pod is not None and pod.counted is not False and not pod.unreadable
        alive = pod is not None and (counted or bool(pod.processes or pod.unlisted))
        kernel = await self._kernel.facts(
            device,
            book.locks,
            enabled=(await self._kernel.enabled([device]))[device.name],
            pids=(pod.processes or ()) if pod is not None else (),
            to_free=not alive,
        )
        return ReleaseFacts(kernel=kernel, pod=pod, unseen_grace=grace)

    def _former_pod(
        self, lock: DeviceLock, book: Book, sightings: Mapping[PodUid, PodSighting]
    ) -> FormerPod | None:
        if lock.pod is None:
            return None
        view, record = self._view.value, book.pods.get(lock.pod)
        sighting = sightings.get(lock.pod)
        rebooted = record is not None and record.boot != self._boot
        replaced = (
            record is not None
            and sighting is not None
            and record.is_former(sighting.inode, self._boot)
        )
        counted = view.counts(lock.pod) if view.readable else None
        return FormerPod(
            counted=counted,
            unreadable=view.unreadable,
            processes=None if sighting is None or replaced else sighting.processes,
            unlisted="" if sighting is None or replaced else sighting.unlisted,
            cgroup_seen=record is not None and (record.cgroup is not None or rebooted),
            uncounted_for=self._uncounted.seconds(
                lock.pod, counted=False if view.unreadable else counted
            ),
        )


def _heir(lock: DeviceLock, book: Book) -> PodUid | None:
    """Return the pod whose Allocation is the oldest that waits for the lock."""
    waiting = sorted(book.claims.on(lock.keys), key=book.rank)
    return next((each.pod for each in waiting if each.id != lock.allocation), None)


def _free(draft: Draft, lock: DeviceLock, reason: str) -> None:
    if not draft.is_as(lock):
        return  # it moved while we looked; the next beat judges it anew
    if lock.state is LockState.QUARANTINED:
        draft.move(lock.device, LockState.RECLAIMING, reason)
    draft.move(lock.device, LockState.FREE, reason)
    settle(draft, near=lock.keys)
