"""Releases a device by hand (`holdfast release`): shows who holds it, and ends those holders."""

import asyncio

from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import RequestRefusedError
from holdfast.host.use.look import Look
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.book import Book
from holdfast.model.book.byhand import Target
from holdfast.model.book.claims import has_claim
from holdfast.model.book.draft import Draft
from holdfast.model.book.locks import DeviceLock, LockState
from holdfast.model.book.marks import Asker
from holdfast.model.devices import Inventory
from holdfast.model.ids import ClaimUid, ProcessId
from holdfast.model.reclaim.ending import ByHand, Member, Warrant, in_the_way, may_be_at_work
from holdfast.model.reclaim.handrelease import HandFacts, judge_by_hand
from holdfast.model.reclaim.plan import ReclaimStep
from holdfast.model.use.free import KernelFacts
from holdfast.reclaim.evidence import Evidence
from holdfast.reclaim.pods import Pods
from holdfast.reclaim.reclaimer import Reclaimer
from holdfast.runtime.clock import Clock
from holdfast.runtime.watched import Watched


class Shown(HandFacts, frozen=True, kw_only=True):
    """One device as a person sees it before they agree: its lock, its pod, who has it."""

    kernel: KernelFacts
    blockers: tuple[Member, ...] = ()
    """The holders, and what else still runs of the pod."""


class Begun(Struct, frozen=True, kw_only=True):
    """What a release did, for people; `follows`: the watcher has to go on with it, at once.

    `claim` is the one whose devices are released, None where no claim had them.
    """

    text: str
    follows: bool = False
    claim: ClaimUid | None = None


class HandRelease:
    """Looks at the device again for each request, and remembers nothing between requests."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        inventory: Watched[Inventory],
        look: Look,
        pods: Pods,
        evidence: Evidence,
        reclaimer: Reclaimer,
        clock: Clock,
    ) -> None:
        """Have *reclaimer* act."""
        self._ledger = ledger
        self._inventory = inventory
        self._look = look
        self._pods = pods
        self._evidence = evidence
        self._reclaimer = reclaimer
        self._clock = clock

    async def look(self, target: Target) -> Shown:
        """Look at the device and its pod now; kubelet is asked too."""
        lock = self._ledger.book.value.lock_on(target.keys)
        if lock is None or lock.pod is None:
            return Shown(device=target.device, lock=lock, kernel=await self._kernel(target))
        view = await self._evidence.ask()
        members = await self._pods.members(lock.pod)
        state = await self._pods.runtime_state(lock.pod, members)
        kernel = await self._kernel(target)
        book: Book = self._ledger.book.value
        now = book.lock_on(target.keys)
        return Shown(
            device=target.device,
            lock=now,
            claim=None if now is None or now.claim is None else book.claims.get(now.claim),
            holder="" if now is None else book.holder(now),
            pod=book.pods.get(lock.pod),
            kernel=kernel,
            blockers=in_the_way(kernel.holders or (), lock.pod, members),
            counted=None if view is None else view.counts(lock.pod) or has_claim(book, lock.pod),
            at_work=may_be_at_work(members, state),
        )

    async def release(
        self, target: Target, asker: Asker, *, shown: int, typed: str | None = None
    ) -> Begun:
        """Begin to release the device, and return what is done; raise RequestRefusedError.

        The lock is never freed from here: that is for the kernel to show and the watcher to see.
        """
        seen = await self.look(target)
        verdict = judge_by_hand(replace(seen, shown=shown, typed=typed))
        lock = seen.lock
        if verdict.order is ByHand.NOTHING or lock is None or lock.pod is None:
            raise RequestRefusedError(f"cannot release {target.device}: {verdict.refusal}")
        forced = " by force" if verdict.order is ByHand.FORCE else ""
        await self._tell(lock, f"to be released{forced} ({asker})")
        if lock.state is not LockState.HELD:
            self._reclaimer.retry(lock.pod, verdict.order)
            return Begun(text=f"{lock.device} is being reclaimed", follows=True, claim=lock.claim)
        return Begun(text=await self._end_holders(seen, lock))

    async def _end_holders(self, seen: Shown, lock: DeviceLock) -> str:
        """End the holders of a device whose pod lives: SIGTERM, and SIGKILL for who is left."""
        meant = frozenset(
            holder.process for holder in seen.kernel.holders or () if holder.pod == lock.pod
        )
        if not meant:
            return (
                f"no process of pod {seen.pod} holds {lock.device}, which is granted to that pod "
                "until kubelet no longer counts it: delete the pod"
            )
        settings = self._evidence.settings.value
        steps = (
            (ReclaimStep.TERMINATE, settings.term_grace),
            (ReclaimStep.KILL, settings.kill_grace),
        )
        left, sent = meant, False
        for step, grace in steps:
            warrant = Warrant(
                complete=not seen.kernel.gaps, by_hand=ByHand.FORCE, only=frozenset(left)
            )
            sent = await self._reclaimer.signal(lock, step, warrant) or sent
            left = await self._left(lock, left, grace if sent else 0.0)
            if not left:
                break
        names = ", ".join(str(process) for process in sorted(meant - left))
        still = ", ".join(str(process) for process in sorted(left))
        told = [f"ended pid {names}"] if names else []
        told += [f"not ended: pid {still}"] if still else []
        return (
            f"{'; '.join(told)}. {lock.device} is granted to pod {seen.pod} until kubelet no "
            "longer counts it: delete the pod"
        )

    async def _left(
        self, lock: DeviceLock, processes: frozenset[ProcessId], grace: float
    ) -> frozenset[ProcessId]:
        """Return which of *processes* live after *grace* seconds, or none as soon as none does."""
        end = self._clock.monotonic() + grace
        while True:
            if lock.pod is None:
                return frozenset()
            members = await self._pods.members(lock.pod)
            left = processes & {each.process for each in members}
            if not left or self._clock.monotonic() >= end:
                return left
            await asyncio.sleep(self._evidence.settings.value.release_poll)

    async def _kernel(self, target: Target) -> KernelFacts:
        device = self._inventory.value.get(target.device)
        if device is None:
            return KernelFacts()
        found = await self._look.scan([device], self._ledger.book.value.locks)
        return found[device.name]

    async def _tell(self, lock: DeviceLock, evidence: str) -> None:
        def decide(draft: Draft) -> None:
            if not draft.is_as(lock):
                raise RequestRefusedError(
                    f"cannot release {lock.device}: its lock has just changed; look again"
                )
            draft.tell(lock.device, lock.keys, evidence)

        await self._ledger.apply(decide)
