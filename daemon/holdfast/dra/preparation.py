"""Prepares and unprepares one claim: the gate before the pod's sandbox, and the end by kubelet."""

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import structlog
from msgspec import Struct
from msgspec.structs import replace

from holdfast.allocation.allocator import GrantBuilder
from holdfast.allocation.entry import Entry, EntryOutcome, NodeWatch, Visit, Wait
from holdfast.dra.door import ClaimObserver, ClaimReader, KubeletRecord
from holdfast.dra.specs import ClaimSpecs
from holdfast.errors import (
    ApiServerError,
    ClaimRefusedError,
    HostError,
    LaneStuckError,
    LedgerError,
    ObjectGoneError,
    UnreadableAnswerError,
)
from holdfast.kubelet.reader import KubeletReader
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.book import Book
from holdfast.model.book.claims import Wish, end_claim, locks_of, why_not_free
from holdfast.model.book.draft import Draft
from holdfast.model.book.messages import Demand, Message, of_lock, refusal, sentence
from holdfast.model.devices import Device, Inventory
from holdfast.model.dra.advertised import AdvertisedDevice, makes_no_group
from holdfast.model.dra.claims import AllocatedClaim, ClaimResult, PrepareAnswer
from holdfast.model.dra.handover import ResultDevices, devices_of, hand_over, meant_by, placed
from holdfast.model.dra.outcomes import PrepareOutcome, UnprepareOutcome
from holdfast.model.dra.passage import (
    enter,
    is_prepared,
    line_up,
    of_its_own,
    results_for,
    rights_of_claim,
    why_unfit,
    wish_for,
)
from holdfast.model.gate.gate import Obstacle, Rights
from holdfast.model.ids import (
    ClaimRef,
    ClaimUid,
    DeviceName,
    HardwareKey,
    PodUid,
    ProcessId,
    ResourceName,
)
from holdfast.model.use.free import Verdict
from holdfast.runtime.clock import Clock
from holdfast.runtime.watched import Changes, Watched

log = structlog.get_logger(__name__)

POLL = 0.25
"""Seconds between two looks while a claim waits; what is known to change wakes it at once."""
_READ_AGAIN = 1.0
_POLL = 1.0


@dataclass(slots=True, kw_only=True, eq=False)
class ClaimVisit(Visit):
    """One claim that kubelet wants prepared: what it is to have, as far as that is known.

    `results` is empty until the claim was read. `wanted` are these with all devices that each can
    be of, and `given` with those that it is.
    """

    claim: AllocatedClaim
    wish: Wish
    results: Sequence[ClaimResult] = ()
    wanted: Sequence[ResultDevices] = ()
    given: Sequence[ResultDevices] = ()
    answer: PrepareAnswer = field(default_factory=PrepareAnswer)


class ClaimPreparation(Struct, frozen=True, kw_only=True):
    """Waits until the kernel shows a claim's devices free, then writes down that it has them.

    It prepares what is allocated of `driver` in `pool`, this node's, and lets claims in by `entry`.
    The scheduler knows the devices that are `advertised`, and those of each resource that the
    driver `serves`. `granting` says which shares one claim cannot have together. Kubelet's `record`
    has the pod of a call that is not late.
    """

    driver: str
    pool: str
    entry: Entry
    claims: ClaimReader
    record: KubeletRecord
    advertised: Callable[[], Sequence[AdvertisedDevice]]
    serves: Callable[[ResourceName], bool]
    ledger: Ledger
    inventory: Watched[Inventory]
    granting: GrantBuilder
    specs: ClaimSpecs
    clock: Clock
    observer: ClaimObserver

    async def prepare(self, claim: ClaimRef, until: float) -> PrepareAnswer:
        """Return the devices, or why they cannot be used yet, at *until* (monotonic) at the latest.

        What fails is an answer, never raised.
        """
        now = self.clock.monotonic()
        visit = ClaimVisit(
            what=f"claim {claim.namespace}/{claim.name}",
            passed="claim prepared",
            since=now,
            claim=AllocatedClaim(ref=claim),
            wish=Wish(ref=claim, pods={}, devices={}),
        )
        left = max(0.0, until - now)
        outcome, reason, level = PrepareOutcome.PREPARED, "", logging.WARNING
        try:
            answer = await self.entry.admit(self, visit, wait=left, longest=left)
        except Wait as error:
            outcome, reason, level = PrepareOutcome.WAITING, str(error), error.level
            answer = PrepareAnswer(error=error.told(visit))
        except ClaimRefusedError as error:
            outcome, reason = PrepareOutcome.REFUSED, str(error)
            answer = PrepareAnswer(error=refusal(f"prepare {visit.what}", reason))
        waited = self.clock.monotonic() - now
        self.observer.prepared(outcome, waited)
        about = {"claim": str(visit.claim.ref), "waited": round(waited, 3)}
        if reason:
            log.log(level, "claim not prepared", reason=reason, **about)
        else:
            log.info("claim prepared", **about)
        return answer

    # The steps of a try, in their order: `entry.DoorSteps`.

    async def identify(self, visit: ClaimVisit, /) -> None:
        """Read the claim, once, and find the devices that its results mean."""
        if not visit.results:
            claim = await self._read(visit)
            if claim.grouped:  # the pod that kubelet asks for is written down by then
                await self.record.catch_up()
                recorded = dict.fromkeys(self.record.users(claim.ref.uid), "")
                claim = replace(claim, reserved_for={**recorded, **claim.reserved_for})
            visit.results = results_for(claim, visit.claim.ref, driver=self.driver, pool=self.pool)
            visit.claim, visit.pods = claim, frozenset(claim.reserved_for)
        visit.wanted = self._wanted(visit.claim.ref.uid, visit.results)
        visit.asked = tuple(each.devices[0].name for each in visit.wanted if each.is_share)
        visit.asked += tuple(
            device.name for each in visit.wanted if not each.is_share for device in each.devices
        )

    async def enlist(self, visit: ClaimVisit, /) -> Obstacle | None:
        """Put the claim into the book; return why it waits before that."""
        claim, wanted = visit.claim, visit.wanted
        known = self.ledger.book.value.claims.get(claim.ref.uid)
        if known is not None and known.over_at is not None:
            await self.record.catch_up()
        given, held = await self.entry.record(lambda draft: self._enlist(draft, claim, wanted))
        visit.given, visit.devices = given, devices_of(given, admin=False)
        visit.wish = wish_for(claim.ref, claim.reserved_for, given)
        return held

    def rights(self, visit: ClaimVisit, book: Book, /) -> Rights:
        """Return what the claim has by *book*."""
        return rights_of_claim(visit.claim.ref.uid, visit.wish.keys, book)

    def held(self, visit: ClaimVisit, keys: frozenset[HardwareKey], /) -> None:
        """Do nothing: kubelet is asked for the sake of container starts alone."""

    def judge(self, visit: ClaimVisit, device: Device, shown: Verdict, /) -> Verdict:
        """Return whether *device* is free but for the pods that share the claim."""
        del device
        return of_its_own(shown, self._sharing(visit.wish))

    async def hand_over(
        self, visit: ClaimVisit, evidence: str, /
    ) -> Callable[[Draft], Obstacle | None]:
        """Write the claim's spec, always: after a reboot the folder is empty."""
        visit.doing = "its CDI spec could not be written in time"
        claim = visit.claim.ref.uid
        grant = partial(self.granting.grant, inventory=self.inventory.value)
        handed, visit.answer = hand_over(self.driver, claim, visit.given, grant)
        try:
            await self.specs.write(claim, handed, visit.devices)
        except (HostError, LaneStuckError) as error:
            raise Wait(EntryOutcome.SPEC, str(error)) from error
        return partial(enter, wish=visit.wish, evidence=evidence)

    def admitted(
        self, visit: ClaimVisit, shown: Mapping[DeviceName, Verdict], outcome: EntryOutcome, /
    ) -> PrepareAnswer:
        """Return kubelet's answer."""
        del shown, outcome
        given = [each.name for each in visit.devices]
        if makes_no_group(given, self.advertised()):
            log.warning(
                "the devices of a claim make no group",
                claim=str(visit.claim.ref),
                devices=[str(each) for each in sorted(given)],
                next="programs that need one may fail: ask for one device of the class of groups",
            )
        if visit.wish.admin:
            names = [str(each) for each in sorted(visit.wish.admin)]
            log.info("adminAccess given", claim=str(visit.claim.ref), devices=names)
        return visit.answer

    async def _read(self, visit: ClaimVisit) -> AllocatedClaim:
        """Return the claim; kubelet could read it a moment ago, so a failure may pass."""
        asked = visit.claim.ref
        visit.doing = "the API server does not answer"
        while True:
            try:
                return await self.claims.claim(asked.namespace, asked.name)
            except (ObjectGoneError, UnreadableAnswerError) as error:
                raise ClaimRefusedError(str(error)) from error
            except ApiServerError as error:
                visit.doing = str(error)
            await self.clock.sleep(_READ_AGAIN)

    def _enlist(
        self, draft: Draft, claim: AllocatedClaim, wanted: Sequence[ResultDevices]
    ) -> tuple[Sequence[ResultDevices], Obstacle | None]:
        """Put the claim into *draft*; return what it is given, and why it waits before that."""
        given = placed(wanted, draft.book, claim.ref.uid)
        if isinstance(given, Obstacle):
            return wanted, given
        recorded = self.record.users(claim.ref.uid)
        wish = replace(wish_for(claim.ref, claim.reserved_for, given), recorded=recorded)
        shares = tuple(device for each in given if each.is_share for device in each.devices)
        # What it has was granted by the settings of that time.
        has = is_prepared(draft.book, claim.ref.uid, wish.keys)
        if not has and (refusal := self.granting.refuses(shares)):
            raise ClaimRefusedError(refusal)
        return given, line_up(draft, wish)

    def _wanted(self, claim: ClaimUid, results: Sequence[ClaimResult]) -> tuple[ResultDevices, ...]:
        """Return each result with its devices: a group, or all that its share can be of."""
        inventory, book = self.inventory.value, self.ledger.book.value
        known = {each.name: each for each in self.advertised()}
        found: list[ResultDevices] = []
        for result in results:
            told = known.get(result.device)
            if told is None and any(map(self.serves, inventory.unseen)):
                raise Wait(
                    EntryOutcome.HARDWARE,
                    f"{result.device} was not found yet; the hardware is still being looked for",
                )
            names = () if told is None else meant_by(result, told, book, claim)
            devices = [each for name in names if (each := inventory.get(name)) is not None]
            if told is None or len(devices) != len(names):
                message = f"this node has no device {result.device} any more; delete the pod"
                raise ClaimRefusedError(message)
            if not devices:
                message = (
                    f"it was allocated a share of {result.device}, which is not shared; delete "
                    "the pod"
                )
                raise ClaimRefusedError(message)
            for each in devices:
                fault = why_unfit(each, admin=result.admin_access)
                if fault is not None:
                    raise Wait(EntryOutcome.HARDWARE, fault)
            found.append(ResultDevices(result=result, devices=tuple(devices)))
        return tuple(found)

    def _sharing(self, wish: Wish) -> frozenset[PodUid]:
        """Return the pods that may be using the devices already, by this very claim.

        One that it is not reserved for any more was deleted: what it left is in the way.
        """
        pods = frozenset(wish.pods)
        shared = len(pods) > 1 and is_prepared(self.ledger.book.value, wish.ref.uid, wish.keys)
        return pods if shared else frozenset()


class ClaimRelease(Struct, frozen=True, kw_only=True):
    """Ends a claim in the book at once, then waits for the kernel, for a bounded time.

    Kubelet says by the call that the containers are stopped. An error keeps the pod Terminating
    and the device allocated in the whole cluster, so it must not last: after `patience` seconds
    the claim is over for kubelet, and the lock stays until its device is free.

    The kubelet that `reader` knows is the one that says so. Its `record` has the pods that it is
    done with, and those that join meanwhile.
    """

    ledger: Ledger
    reader: KubeletReader
    record: KubeletRecord
    specs: ClaimSpecs
    watcher: NodeWatch
    clock: Clock
    patience: Watched[float]
    observer: ClaimObserver
    _released: set[ClaimUid] = set()

    async def unprepare(self, claim: ClaimRef, until: float, *, another: bool = False) -> str:
        """Return why *claim* is not over yet at *until* (monotonic), empty where it is.

        A claim that we know nothing of is over. *another*: a call was about it when this one came,
        as of a pod that was force-deleted. A pod that joined since is not what it means.
        """
        began = self.clock.monotonic()
        text = await self._unprepare(claim, until, another=another)
        outcome = UnprepareOutcome.FREE
        if text:
            outcome = UnprepareOutcome.WAITING
        elif locks_of(self.ledger.book.value, claim.uid):
            outcome = UnprepareOutcome.HELD
        self.observer.unprepared(outcome, self.clock.monotonic() - began)
        return text

    async def _unprepare(self, claim: ClaimRef, until: float, *, another: bool) -> str:
        view = self.reader.view
        kubelet = view.value.kubelet
        # It joined while the call was on its way: kubelet makes one for the last pod alone.
        if_over = another or self.record.joined_lately(claim.uid)
        try:
            book = await self._end(claim, kubelet, if_over=if_over)
        except (LedgerError, LaneStuckError) as error:
            log.warning("claim not unprepared", claim=str(claim), reason=str(error))
            text = f"its end cannot be recorded: {error}"
            return sentence(Message.LEDGER.filled(reason=text), _asked(claim))
        self.reader.ask("a claim is over")  # its answer tells which kubelet this is
        text = await self._ended(claim, book, kubelet, until)
        if not text:
            await self.record.catch_up()  # a pod may have joined since
            text = self._joined(claim, self.ledger.book.value)
        # Until kubelet has heard the answer a pod can join, and it makes no call for that one.
        if not text and not self.record.users(claim.uid):
            await self.specs.remove(claim.uid)
        return text

    async def _ended(
        self, claim: ClaimRef, book: Book, kubelet: ProcessId | None, until: float
    ) -> str:
        """Wait until the devices of *claim* are free; return why that must be waited for again."""
        view = self.reader.view
        while True:
            changes = Changes([self.ledger.book, self.watcher.nudges, view, self.patience])
            if view.value.kubelet != kubelet:  # it is known only now which one calls
                kubelet = view.value.kubelet
                with contextlib.suppress(LedgerError, LaneStuckError):
                    await self._end(claim, kubelet, if_over=True)
            if text := self._joined(claim, book):
                return text
            left = locks_of(book, claim.uid)
            if not left:
                self._released.discard(claim.uid)
                log.info("claim unprepared", claim=str(claim))
                return ""
            seen = [self.watcher.obstacle(lock.device) for lock in left]
            why = why_not_free(book, claim.uid), *seen
            reason = "; ".join(str(each) for each in why if each is not None)
            now = self.clock.monotonic()
            patience = self._patience_left(book, claim)
            if patience <= 0:
                self._released.discard(claim.uid)
                log.warning(
                    "claim unprepared, and its devices are not free yet",
                    claim=str(claim),
                    reason=reason,
                    next="no pod gets them until they are free",
                )
                return ""
            if now >= until:
                log.warning("claim not unprepared", claim=str(claim), reason=reason)
                return sentence(of_lock(left[0].device, left[0], seen[0], book), _asked(claim))
            await changes.wait(min(_POLL, until - now, patience))
            book = self.ledger.book.value

    async def _end(self, claim: ClaimRef, kubelet: ProcessId | None, *, if_over: bool) -> Book:
        """End *claim*; *if_over*: only if it is already, to write down that *kubelet* says so."""
        recorded = self.record.users(claim.uid)
        known = self.ledger.book.value.claims.get(claim.uid)
        if known is not None and known.over_at is None:
            self._released.discard(claim.uid)  # that was about a former end

        def over(draft: Draft) -> Book:
            record = draft.book.claims.get(claim.uid)
            if if_over and (record is None or record.over_at is None):
                return draft.book
            text = f"kubelet unprepared claim {claim}"
            end_claim(draft, claim.uid, text, kubelet=kubelet, recorded=recorded)
            return draft.book

        return await self.ledger.apply(over)

    def _joined(self, claim: ClaimRef, book: Book) -> str:
        """Return why *claim* is not over after all; empty: it is."""
        record = book.claims.get(claim.uid)
        if record is None or record.over_at is not None:
            return ""
        reason = (
            "another pod has joined it since (kubelet lets go of the former pod without another "
            "call)"
        )
        return refusal(f"unprepare claim {claim.namespace}/{claim.name}", reason)

    def release(self, claim: ClaimUid) -> None:
        """Keep *claim* from its end no longer: a person released its devices by hand."""
        self._released.add(claim)

    def _patience_left(self, book: Book, claim: ClaimRef) -> float:
        """Return for how many seconds *claim* may be kept from being over; of another boot: 0."""
        record = book.claims.get(claim.uid)
        if claim.uid in self._released:
            return 0.0
        if record is None or record.over_at is None or record.boot != self.ledger.boot:
            return 0.0
        return record.over_at + self.patience.value - self.clock.uptime()


def _asked(claim: ClaimRef) -> Demand:
    return Demand(what=f"the end of claim {claim.namespace}/{claim.name}")
