"""Prepares one claim: the gate of Dynamic Resource Allocation, before the pod's sandbox exists."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

import structlog
from msgspec import Struct

from holdfast.allocation.sharedlook import SharedLook
from holdfast.dra.door import ClaimReader
from holdfast.dra.specs import ClaimSpecs
from holdfast.errors import (
    ApiServerError,
    ClaimRefusedError,
    HostError,
    LaneStuckError,
    LedgerError,
    ObjectGoneError,
)
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.claims import Wish, enlist
from holdfast.model.book.draft import Draft
from holdfast.model.devices import Device, Inventory
from holdfast.model.dra.advertised import Advertised
from holdfast.model.dra.claims import AllocatedClaim, ClaimResult, Prepared
from holdfast.model.dra.handing import Given, devices_of, hand_over
from holdfast.model.dra.outcomes import PrepareOutcome
from holdfast.model.dra.passage import (
    enter,
    in_the_way,
    is_prepared,
    results_for,
    why_not_yet,
    why_unfit,
    wish_for,
)
from holdfast.model.dra.shares import meant_by, placed
from holdfast.model.gate.waiting import Waiting
from holdfast.model.grants import ContainerGrant
from holdfast.model.ids import ClaimRef, ClaimUid, DeviceName, HardwareKey, PodUid, ResourceName
from holdfast.model.use.free import Freedom, Verdict, judge_kernel
from holdfast.runtime.changes import Changes
from holdfast.runtime.clock import Clock
from holdfast.runtime.watched import Watched

log = structlog.get_logger(__name__)

T = TypeVar("T")

_POLL = 0.5
"""Seconds between two looks while a claim waits; what is known to change wakes it at once."""
_READ_AGAIN = 1.0


class _NotYetError(Exception):
    """Why a claim has to wait."""


class Grant(Protocol):
    """Returns the nodes, environment and mounts that a container is given for its devices."""

    def __call__(
        self, resource: ResourceName, devices: tuple[Device, ...], inventory: Inventory, /
    ) -> ContainerGrant:
        """Return what a container gets for *devices*, all of *resource*."""
        ...


class Node(Struct, frozen=True, kw_only=True):
    """What Prepare asks the rest of the daemon.

    `advertised` are the devices that the scheduler knows, and `serves` tells of a resource whether
    it knows of those, also by patterns of names; `looked` is set once the node was
    scanned; `obstacle` tells what was last seen to keep a device from its next pod, empty for
    nothing; `at_work` what we ourselves do to hardware; `refuses` why one claim cannot have several
    shares, empty where it can. `stirred` changes when something on the
    node may have.
    """

    inventory: Watched[Inventory]
    advertised: Callable[[], Sequence[Advertised]]
    serves: Callable[[ResourceName], bool]
    look: SharedLook
    looked: asyncio.Event
    obstacle: Callable[[DeviceName], str]
    at_work: Callable[[frozenset[HardwareKey]], str]
    grant: Grant
    refuses: Callable[[Sequence[Device]], str]
    stirred: Watched[int]


class Preparing:
    """Waits until the kernel shows a claim's devices free, then writes down that it has them."""

    def __init__(
        self,
        *,
        driver: str,
        pool: str,
        claims: ClaimReader,
        ledger: Ledger,
        node: Node,
        specs: ClaimSpecs,
        clock: Clock,
    ) -> None:
        """Prepare what is allocated of *driver* in *pool*, this node's."""
        self._driver = driver
        self._pool = pool
        self._claims = claims
        self._ledger = ledger
        self._node = node
        self._specs = specs
        self._clock = clock
        self.observe: Callable[[PrepareOutcome, float], None] = lambda _outcome, _seconds: None
        """Hears how each claim's Prepare ended, and after how many seconds."""
        self._under_way: dict[ClaimRef, _Waits] = {}

    def waiting(self, now: float) -> Iterator[Waiting]:
        """Yield each claim that waits for its devices at *now*, in monotonic seconds."""
        for claim, waits in self._under_way.items():
            record = self._ledger.book.value.claims.get(claim.uid)
            if waits.seen:
                yield Waiting(
                    pods=waits.pods if record is None else record.pods,
                    what=f"claim {claim.namespace}/{claim.name}",
                    why=waits.seen,
                    seconds=now - waits.since,
                )

    async def prepare(self, claim: ClaimRef, until: float) -> Prepared:
        """Return the devices, or why they cannot be used yet, at *until* (monotonic) at the latest.

        What fails is an answer, never raised.
        """
        began = self._clock.monotonic()
        waits = self._under_way[claim] = _Waits(began)
        try:
            async with asyncio.timeout(max(0.0, until - began)):
                prepared = await self._wait(claim, waits)
        except TimeoutError:
            text = f"cannot prepare claim {claim} yet: {waits.reason} (kubelet will ask again)"
            return self._refused(claim, text, began, PrepareOutcome.WAITING)
        except ClaimRefusedError as error:
            text = f"cannot prepare claim {claim}: {error}"
            return self._refused(claim, text, began, PrepareOutcome.REFUSED)
        finally:
            self._under_way.pop(claim, None)
        self.observe(PrepareOutcome.PREPARED, self._clock.monotonic() - began)
        waited = round(self._clock.monotonic() - began, 3)
        log.info("claim prepared", claim=str(claim), waited=waited)
        return prepared

    def _refused(
        self, claim: ClaimRef, text: str, began: float, outcome: PrepareOutcome
    ) -> Prepared:
        self.observe(outcome, self._clock.monotonic() - began)
        waited = round(self._clock.monotonic() - began, 3)
        log.warning("claim not prepared", claim=str(claim), reason=text, waited=waited)
        return Prepared(error=text)

    async def _wait(self, asked: ClaimRef, waits: "_Waits") -> Prepared:
        claim = await self._read(asked, waits)
        waits.pods = frozenset(claim.reserved_for)
        results = results_for(claim, asked, driver=self._driver, pool=self._pool)
        while True:
            changes = Changes([self._ledger.book, self._node.inventory, self._node.stirred])
            try:
                return await self._try(claim, results, waits)
            except _NotYetError as reason:
                waits.reason = waits.seen = str(reason)
            await changes.wait(_POLL)

    async def _read(self, asked: ClaimRef, waits: "_Waits") -> AllocatedClaim:
        """Return the claim; kubelet could read it a moment ago, so a failure may pass."""
        waits.reason = "the API server does not answer"
        while True:
            try:
                return await self._claims.claim(asked.namespace, asked.name)
            except ObjectGoneError as error:
                raise ClaimRefusedError(str(error)) from error
            except ApiServerError as error:
                waits.reason = str(error)
            await asyncio.sleep(_READ_AGAIN)

    async def _try(
        self, claim: AllocatedClaim, results: Sequence[ClaimResult], waits: "_Waits"
    ) -> Prepared:
        """Return the answer, or raise _NotYetError with the reason."""
        if not self._node.looked.is_set():
            raise _NotYetError("holdfast has just started and has not scanned the node yet")
        wanted = self._wanted(claim.ref.uid, results)
        given, held = await self._record(lambda draft: self._enlist(draft, claim, wanted))
        devices = devices_of(given, admin=False)
        wish = wish_for(claim, devices, devices_of(given, admin=True))
        book = self._ledger.book.value
        reason = held or why_not_yet(book, claim.ref.uid, wish.keys)
        if reason is not None:
            raise _NotYetError(reason + self._by_whom(wish, devices))
        if doing := self._node.at_work(wish.keys):
            raise _NotYetError(doing)
        waits.reason = "who uses its devices could not be found out in time"
        verdicts = await self._judge(devices)
        blocked = in_the_way(verdicts, self._sharing(wish))
        if blocked is not None:
            raise _NotYetError(blocked)
        waits.reason = "its CDI spec could not be written in time"
        answer = await self._hand_over(claim.ref.uid, given)
        waits.reason = "it could not be recorded in time"
        reason = await self._record(lambda draft: enter(draft, wish, _evidence(verdicts)))
        if reason is not None:
            raise _NotYetError(reason)
        if wish.admin:
            names = [str(each) for each in sorted(wish.admin)]
            log.info("adminAccess given", claim=str(claim.ref), devices=names)
        return answer

    def _enlist(
        self, draft: Draft, claim: AllocatedClaim, wanted: Sequence[Given]
    ) -> tuple[Sequence[Given], str | None]:
        """Put the claim into the book; return what it is given, and why it waits before that."""
        given = placed(wanted, draft.book, claim.ref.uid)
        if isinstance(given, str):
            return wanted, given
        shares = tuple(device for each in given if each.is_share for device in each.devices)
        if refusal := self._node.refuses(shares):
            raise ClaimRefusedError(refusal)
        devices, admin = devices_of(given, admin=False), devices_of(given, admin=True)
        return given, enlist(draft, wish_for(claim, devices, admin))

    def _wanted(self, claim: ClaimUid, results: Sequence[ClaimResult]) -> tuple[Given, ...]:
        """Return each result with its devices: a group, or all that its share can be of."""
        inventory, book = self._node.inventory.value, self._ledger.book.value
        known = {each.name: each for each in self._node.advertised()}
        found: list[Given] = []
        for result in results:
            told = known.get(result.device)
            if told is None and any(map(self._node.serves, inventory.unseen)):
                raise _NotYetError(f"not all of the hardware was seen yet, {result.device} neither")
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
                    raise _NotYetError(fault)
            found.append(Given(result=result, devices=tuple(devices)))
        return tuple(found)

    def _by_whom(self, wish: Wish, devices: Iterable[Device]) -> str:
        """Return what is known to be in the way of *wish*, to complete a text with."""
        locks = [lock.device for lock in self._ledger.book.value.locks_on(wish.keys)]
        names = dict.fromkeys((*(each.name for each in devices), *locks))
        known = [self._node.obstacle(name) for name in names]
        return "".join(f"; {text}" for text in known if text)

    def _sharing(self, wish: Wish) -> frozenset[PodUid]:
        """Return the pods that may be using the devices already, by this very claim."""
        book, uid = self._ledger.book.value, wish.ref.uid
        record = book.claims.get(uid)
        if record is None or len(record.pods) < 2 or not is_prepared(book, uid, wish.keys):  # noqa: PLR2004 - one shares with nobody
            return frozenset()
        return record.pods

    async def _judge(self, devices: Sequence[Device]) -> Mapping[DeviceName, Verdict]:
        if not devices:
            return {}
        try:
            seen = await self._node.look.facts(devices)
        except LaneStuckError as error:
            raise _NotYetError(f"the node cannot be scanned: {error}") from error
        return {each.name: judge_kernel(seen[each.name]) for each in devices}

    async def _hand_over(self, claim: ClaimUid, given: Sequence[Given]) -> Prepared:
        """Write the claim's spec, always: after a reboot the folder is empty."""
        inventory = self._node.inventory.value
        handed, answer = hand_over(
            self._driver,
            claim,
            given,
            lambda resource, devices: self._node.grant(resource, devices, inventory),
        )
        try:
            await self._specs.write(claim, handed)
        except (HostError, LaneStuckError) as error:
            raise _NotYetError(str(error)) from error
        return answer

    async def _record(self, decide: Callable[[Draft], T]) -> T:
        try:
            return await self._ledger.apply(decide)
        except (LedgerError, LaneStuckError) as error:
            raise _NotYetError(f"it cannot be recorded: {error}") from error


class _Waits:
    """What a claim waits for at present, as the reason if that does not end.

    `seen` is why its devices could not be used at the last try, empty before there was one; `since`
    is when it began to wait, in monotonic seconds. `pods` use the claim, which is not in the book
    while there is no share left for it.
    """

    def __init__(self, since: float) -> None:
        self.reason = "the node did not answer in time"
        self.seen = ""
        self.pods: frozenset[PodUid] = frozenset()
        self.since = since


def _evidence(verdicts: Mapping[DeviceName, Verdict]) -> str:
    """Return what the kernel showed, for the history of the locks."""
    unknown = [each.reason for each in verdicts.values() if each.freedom is Freedom.UNKNOWN]
    if unknown:
        return f"claim prepared, unverified: {unknown[0]}"
    shown = next((each.reason for each in verdicts.values()), "with adminAccess alone")
    return f"claim prepared: {shown}"
