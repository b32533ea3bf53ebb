"""Releases a device by hand (`holdfast release`): shows who holds it, and ends those holders."""

from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import RequestRefusedError
from holdfast.inuse.deviceuse import DeviceUse
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.book import Book, DeviceLock, LockState
from holdfast.model.book.byhand import Target, lock_meant
from holdfast.model.book.claims import end_claim, has_claim
from holdfast.model.book.draft import Draft
from holdfast.model.book.marks import Asker
from holdfast.model.devices import Inventory
from holdfast.model.ids import ClaimUid, PodUid
from holdfast.model.reclaim.ending import Grounds, Member, Warrant, in_the_way, may_be_at_work
from holdfast.model.reclaim.handrelease import HandFacts, judge_by_hand
from holdfast.model.text import some
from holdfast.model.use.free import KernelFacts
from holdfast.model.use.holders import MOST_NAMED
from holdfast.reclaim.reclaimer import Reclaimer
from holdfast.runtime.watched import Watched


class HandReleaseView(HandFacts, frozen=True, kw_only=True):
    """One device as a person sees it before they agree: its lock, its pod, who has it."""

    kernel: KernelFacts
    blockers: tuple[Member, ...] = ()
    """The holders, and what else still runs of the pod."""


class HandReleaseOutcome(Struct, frozen=True, kw_only=True):
    """What a release did, for people; `follows`: the watcher has to go on with it, at once.

    `claim` is the one whose devices are released, None where no claim had them.
    """

    text: str
    follows: bool = False
    claim: ClaimUid | None = None


class HandRelease(Struct, frozen=True, kw_only=True):
    """Looks at the device again for each request, and remembers nothing between requests.

    It has `reclaimer` act where the pod is over; where it may live, what that ends by.
    """

    ledger: Ledger
    inventory: Watched[Inventory]
    use: DeviceUse
    reclaimer: Reclaimer

    async def look(self, target: Target) -> HandReleaseView:
        """Look at the device and its pod now; kubelet is asked too."""
        lock = lock_meant(target, self.ledger.book.value)
        if lock is None or lock.pod is None:
            return HandReleaseView(
                device=target.device, lock=lock, kernel=await self._kernel(target)
            )
        evidence = self.reclaimer.evidence
        view = await evidence.ask()
        members = await evidence.pods.members(lock.pod)
        state = await evidence.pods.runtime_state(lock.pod, members)
        kernel = await self._kernel(target)
        book: Book = self.ledger.book.value
        now = lock_meant(target, book)
        return HandReleaseView(
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
    ) -> HandReleaseOutcome:
        """Begin to release the device, and return what is done; raise RequestRefusedError.

        The lock is never freed from here: that is for the kernel to show and the watcher to see.
        """
        seen = await self.look(target)
        verdict = judge_by_hand(replace(seen, shown=shown, typed=typed))
        lock = seen.lock
        if verdict.grounds is None or lock is None or lock.pod is None:
            raise RequestRefusedError(f"cannot release {target.device}: {verdict.refusal}")
        forced = " by force" if verdict.grounds is Grounds.FORCE else ""
        await self._tell(lock, f"to be released{forced} ({asker})")
        text = f"{lock.device} is being reclaimed"
        if verdict.ends_claim and lock.claim is not None:
            evidence = f"ended by force ({asker}): kubelet has no record of the claim"
            end = partial(end_claim, claim=lock.claim, evidence=evidence)
            await self.ledger.if_unmoved(lock, end)
            text = f"{lock.device} is free once no process of the claim's pods is left"
        elif lock.state is LockState.HELD:
            return HandReleaseOutcome(text=await self._end_holders(seen, lock, lock.pod))
        self.reclaimer.retry(lock.pod, verdict.grounds)
        return HandReleaseOutcome(text=text, follows=True, claim=lock.claim)

    async def _end_holders(self, seen: HandReleaseView, lock: DeviceLock, pod: PodUid) -> str:
        """End the holders of a device whose pod lives; return what came of it."""
        holders = seen.kernel.holders or ()
        meant = frozenset(holder.process for holder in holders if holder.pod == pod)
        if not meant:
            return (
                f"no process of pod {seen.pod} holds {lock.device}, which is granted to that pod "
                "until kubelet no longer counts it: delete the pod"
            )
        warrant = Warrant(
            grounds=Grounds.FORCE,
            lock=lock,
            pod=pod,
            gap=seen.kernel.gap(),
            only=meant,
        )
        left = await self.reclaimer.ending.end_at_once(warrant, self.reclaimer.evidence)
        names, still = (
            some([str(process) for process in sorted(each)], MOST_NAMED)
            for each in (meant - left, left)
        )
        told = [f"ended pid {names}"] if names else []
        told += [f"not ended: pid {still}"] if still else []
        return (
            f"{'; '.join(told)}. {lock.device} is granted to pod {seen.pod} until kubelet no "
            "longer counts it: delete the pod"
        )

    async def _kernel(self, target: Target) -> KernelFacts:
        device = self.inventory.value.get(target.device)
        if device is None:
            return KernelFacts()
        return (await self.use.scan([device], self.ledger.book.value.locks))[device.name]

    async def _tell(self, lock: DeviceLock, evidence: str) -> None:
        def decide(draft: Draft) -> None:
            if not draft.is_as(lock):
                raise RequestRefusedError(
                    f"cannot release {lock.device}: its lock has just changed; look again"
                )
            draft.tell(lock.device, lock.keys, evidence)

        await self.ledger.apply(decide)
