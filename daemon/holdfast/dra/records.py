"""Compares our claims with kubelet's record and the API server: what nobody tells us is found."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import structlog
from msgspec import Struct, field

from holdfast.allocation.allocator import GrantBuilder
from holdfast.dra.door import ClaimReader
from holdfast.dra.specs import ClaimSpecs, SpecFacts
from holdfast.errors import (
    ApiServerError,
    ClaimRefusedError,
    HoldfastError,
    ObjectGoneError,
    UnreadableAnswerError,
)
from holdfast.kubelet.checkpoint import CheckpointState, FileLook
from holdfast.kubelet.claimstate import read
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.book import ClaimRecord, Phase
from holdfast.model.book.claims import (
    ClaimPhase,
    adopt,
    end_claim,
    forget,
    joined_after_end,
    locks_of,
    part,
    phase_of,
    share,
)
from holdfast.model.book.draft import Draft
from holdfast.model.cards import clash
from holdfast.model.devices import FaultKind, Inventory
from holdfast.model.dra.advertised import AdvertisedDevice, called_before
from holdfast.model.dra.claims import ClaimResult, LostFacts, OnServer, why_over
from holdfast.model.dra.handover import (
    ResultDevices,
    as_whole,
    hand_over,
    meant_by,
    nodes_of,
    placed,
)
from holdfast.model.dra.passage import may_be_shared, wish_for
from holdfast.model.gate.gate import Obstacle
from holdfast.model.ids import ClaimRef, ClaimUid, DeviceName, HardwareKey, PodUid, ProcessId
from holdfast.model.kubelet import ClaimEntry
from holdfast.runtime.clock import Clock
from holdfast.runtime.kept import keep_only
from holdfast.runtime.lane import Lane
from holdfast.runtime.problem import Problem
from holdfast.runtime.watched import Changes, Watched

log = structlog.get_logger(__name__)

_Look = FileLook[tuple[ClaimEntry, ...]]
EVERY = 60.0
"""Seconds between two comparisons; the API server is asked for each claim that kubelet misses."""
_ON_ITS_WAY = 2.0
"""Seconds that a call of kubelet's may take to be heard, on a node that is busy."""


class ClaimSight(Protocol):
    """What else shows of claims on this node."""

    def known(self) -> Mapping[str, AdvertisedDevice]:
        """Return the devices that a claim may have by name, whatever API serves them at present."""

    async def with_cgroup(self, pods: Collection[PodUid]) -> Mapping[PodUid, bool]:
        """Return those of *pods* that have a cgroup, with whether a process may be in it."""


class ClaimRecords(Struct, kw_only=True):
    """Adopts claims that the ledger lost, learns who shares them, and ends those that are lost.

    Kubelet's record is at `file`, and `written` changes when kubelet may have written it.
    `kubelet` returns which one is known to run.
    """

    driver: str
    pool: str
    file: Path
    claims: ClaimReader
    ledger: Ledger
    inventory: Watched[Inventory]
    sight: ClaimSight
    specs: ClaimSpecs
    granting: GrantBuilder
    lane: Lane
    written: Watched[Any]
    kubelet: Callable[[], ProcessId | None]
    clock: Clock
    problem: str = ""
    """Why kubelet's record cannot be read; empty while it can."""
    entries: tuple[ClaimEntry, ...] | None = None
    """What it had when it was last read; None where it could not be."""
    read_at: float = 0.0
    """When that reading began, in seconds since the machine booted."""
    _since: dict[tuple[ClaimUid, PodUid], float] = {}
    """When each pod was first seen in it, in monotonic seconds."""
    _left: frozenset[tuple[ClaimUid, PodUid]] = frozenset()
    """Which pods the kubelet that wrote them has taken out of it, while the book has not heard."""
    _writer: ProcessId | None = None
    """Which kubelet had written it when it was last read."""
    _admin_by_server: dict[ClaimUid, frozenset[str] | None] = {}
    """The scheduler's names of what claims have with adminAccess, by the API server.

    What it said stays true; None where it did not say. Kept, because a claim that is not taken over
    is tried often.
    """
    _not_taken: dict[ClaimUid, str] = {}
    """Why claims were not taken over, as the log said it last."""
    _incomparable: Problem = field(
        default_factory=lambda: Problem(log, "cannot compare claims with kubelet's record")
    )

    def users(self, claim: ClaimUid) -> frozenset[PodUid]:
        """Return the pods that kubelet's record had for *claim* when it was last read."""
        had = (each.pods for each in self.entries or () if each.claim.uid == claim)
        return next(had, frozenset())

    def joined_lately(self, claim: ClaimUid) -> bool:
        """Tell whether it has had one of them only for a moment, beside others."""
        since = [self._since[claim, pod] for pod in self.users(claim)]
        lately = self.clock.monotonic() - _ON_ITS_WAY
        return bool(since) and max(since) > max(min(since), lately)

    async def catch_up(self) -> None:
        """Take over what kubelet has recorded and the ledger has not.

        Kubelet prepares nothing again for a pod that runs, so without this a claim that the ledger
        lost would have no lock. What fails is told, never raised.
        """
        with self._incomparable.noting(HoldfastError):
            await self._take_over(await self._read())
            await self._tidy()

    async def run(self) -> None:
        """Compare until cancelled; take over at once what kubelet wrote and new hardware brings.

        A pod that joins a claim is in the record alone, and only while it uses the claim. So that
        does not wait for the API server, which may take its time in a comparison.
        """
        comparing: asyncio.Task[None] | None = None
        changes = self._changes()
        due = self.clock.monotonic() + EVERY
        async with asyncio.TaskGroup() as tasks:
            while True:
                changed = await changes.wait(max(0.0, due - self.clock.monotonic()))
                changes = self._changes()
                if changed:
                    await self.catch_up()
                if self.clock.monotonic() >= due:
                    if comparing is None or comparing.done():
                        comparing = tasks.create_task(self.compare(), name="comparison of claims")
                    due = self.clock.monotonic() + EVERY

    def _changes(self) -> Changes:
        return Changes([self.inventory, self.written])

    async def compare(self) -> None:
        """Compare once; what fails is told, never raised."""
        with self._incomparable.noting(HoldfastError):
            await self._take_over(await self._read(), again=True)
            for record in self._live():
                await self._look_for(record)
                await self._part(record)
            await self._tidy()

    async def _read(self) -> _Look:
        began = self.clock.uptime()
        state = await self.lane.run(partial(read, self.file))
        self.entries = state.contents if state.state is CheckpointState.READ else None
        if self.entries is not None:
            now = self.clock.monotonic()
            had = {(each.claim.uid, pod): now for each in self.entries for pod in each.pods}
            gone = (self._left | self._since.keys()) - had.keys()
            # One that was started meanwhile may have lost what the former one had written.
            former, self._writer = self._writer, self.kubelet()
            same = former is not None and former == self._writer
            claims = self.ledger.book.value.claims
            self._left = frozenset(
                (claim, pod)
                for claim, pod in gone
                if same and claim in claims and pod in claims[claim].pods - claims[claim].let_go
            )
            self._since = had | {each: at for each, at in self._since.items() if each in had}
        self.read_at = began
        if state.problem != self.problem and self._live():
            if state.problem:
                log.warning("cannot read kubelet's record of claims", reason=state.problem)
            else:
                log.info("kubelet's record of claims can be read again")
        self.problem = state.problem
        return state

    async def _tidy(self) -> None:
        """Remove the specs of claims that are over, once kubelet has heard of that.

        It has when its record has them no more. Until then a pod that joins is given the same CDI
        devices without another call, and a container starts in a sandbox that lives. Prepare writes
        a spec only after its claim is not over any more. A spec that would give a container the
        device of another goes at once. What is prepared has its spec again as soon as it can.
        """
        state = await self._read()  # the server may have taken its time
        if state.state is not CheckpointState.READ:
            return
        entries = {each.claim.uid: each for each in state.contents}
        known = entries.keys() | {each.ref.uid for each in self._live()}
        inventory = self.inventory.value
        left_out = (each.device for each in inventory.left_out)
        # Nothing comes in between: who ends a claim removes its spec after that is in the book.
        await self.specs.tidy(
            {claim: self._facts(claim, entries.get(claim)) for claim in known},
            nodes_of((*inventory.devices, *left_out)),
        )

    def _facts(self, claim: ClaimUid, entry: ClaimEntry | None) -> SpecFacts:
        """Return what decides on the spec of *claim*; it has no keys if the book does not know it.

        What kubelet has recorded counts, too: the book has none of it that is free, or came late.
        The spec is given where the claim is prepared, and kubelet would be answered now what it has
        recorded: it asks no second time, and by other settings names may stand for less.
        """
        book = self.ledger.book.value
        record = book.claims.get(claim)
        has = frozenset[HardwareKey]().union(
            *(each.keys for each in book.holdings.of_claim(claim)),
            *(each.keys for each in locks_of(book, claim)),
            *(record.admin.values() if record is not None else ()),
        )
        recorded = () if entry is None else self._wanted(entry)
        keys = has and has.union(*(device.keys for each in recorded for device in each.devices))
        given = placed(recorded, book, claim, prepared=True)
        prepared = record is not None and phase_of(book, record) is ClaimPhase.PREPARED
        if entry is None or not prepared or isinstance(given, Obstacle):
            return SpecFacts(keys)
        devices = [device for each in given for device in each.devices]
        whole = has == frozenset().union(*(each.keys for each in devices))
        # What reports an error is there all the same.
        well = all(fault.kind is FaultKind.ILL for each in devices for fault in each.faults)
        grant = partial(self.granting.grant, inventory=self.inventory.value)
        grants, answer = hand_over(self.driver, claim, given, grant)
        same = {*answer.devices} == {*entry.devices.get(self.driver, ())}
        return SpecFacts(keys, grants, devices) if whole and well and same else SpecFacts(keys)

    def _live(self) -> list[ClaimRecord]:
        claims = self.ledger.book.value.claims
        return [each for each in claims.values() if each.over_at is None]

    async def _take_over(self, state: _Look, *, again: bool = False) -> None:
        """Take over what the ledger lacks; *again*: ask the server what it could not say before."""
        answers = True  # the API server: kubelet waits at our start, with any number of claims
        living = await self._living({pod for each in state.contents for pod in each.pods})
        # Of two that had a device one after the other it is the one's whose pods run.
        for entry in sorted(state.contents, key=lambda each: each.pods.isdisjoint(living)):
            if entry.devices.get(self.driver):  # else it is about to ask for them
                left = frozenset(pod for claim, pod in self._left if claim == entry.claim.uid)
                await self.ledger.apply_if_changing(
                    partial(share, claim=entry.claim.uid, pods=entry.pods, left=left)
                )
            wanted, uid, running = self._wanted(entry), entry.claim.uid, entry.pods & living
            lacks = self._lacks(entry, wanted, running)
            unsaid = self._admin_by_server.get(uid, frozenset()) is None
            if not (wanted and entry.pods and (lacks or (again and unsaid))):
                continue
            shared = any(may_be_shared(device) for each in wanted for device in each.devices)
            if shared and (uid not in self._admin_by_server or (again and unsaid)):
                self._admin_by_server[uid] = None
                answers = answers and await self._ask(entry.claim)
            if lacks or self._admin_by_server.get(uid):
                await self._adopt(entry, running)
        listed = {each.claim.uid for each in state.contents}
        keep_only(listed, self._admin_by_server, self._not_taken)
        for record in self._live():
            if self._listed(record) is False:
                await self.ledger.apply_if_changing(partial(forget, claim=record.ref.uid))

    async def _living(self, pods: Collection[PodUid]) -> frozenset[PodUid]:
        """Return in which of *pods* a process may live; none where that cannot be told."""
        cgroups: Mapping[PodUid, bool] = {}
        with suppress(HoldfastError):  # no reason to leave the claims of all without locks
            cgroups = await self.sight.with_cgroup(pods)
        return frozenset(pod for pod, populated in cgroups.items() if populated)

    def _lacks(
        self, entry: ClaimEntry, wanted: Sequence[ResultDevices], running: frozenset[PodUid]
    ) -> bool:
        """Tell whether the ledger has less of a claim than kubelet: some hardware comes late.

        Or another had some when the claim was taken over, so that its pods that are *running* could
        not have started on it. They can since.
        """
        book, claim = self.ledger.book.value, entry.claim.uid
        record = book.claims.get(claim)
        if record is not None and record.over_at is not None:
            kubelet, boot = self.kubelet(), self.ledger.boot
            pods = entry.pods
            return bool(joined_after_end(book, claim, pods, kubelet, boot, running=running))
        mine = book.holdings.of_claim(claim)
        had = [each.keys for each in mine if each.phase is Phase.ACTIVE or not running]
        had += record.admin.values() if record is not None else ()
        given = placed(wanted, book, claim, prepared=True)
        if isinstance(given, Obstacle):
            return True
        keys = (device.keys for each in given for device in each.devices)
        return not frozenset().union(*keys) <= frozenset().union(*had)

    async def _adopt(self, entry: ClaimEntry, running: frozenset[PodUid]) -> None:
        wanted = self._wanted(entry)
        now = await self._read()  # the server may have taken its time
        listed = {each.claim.uid for each in now.contents}
        if now.state is CheckpointState.READ and entry.claim.uid not in listed:
            return

        def take(draft: Draft) -> bool:
            given = placed(wanted, draft.book, entry.claim.uid, prepared=True)
            if isinstance(given, Obstacle):
                raise ClaimRefusedError(given.text)
            wish = wish_for(entry.claim, dict.fromkeys(entry.pods, ""), given)
            return adopt(draft, wish, self.kubelet(), running)

        try:
            taken = await self.ledger.apply_or_log(take)
        except ClaimRefusedError as error:
            uid, reason = entry.claim.uid, str(error)
            if self._not_taken.get(uid) != reason:
                self._not_taken[uid] = reason
                log.warning("claim not taken over", claim=str(entry.claim), reason=reason)
            return
        if taken:
            log.warning("claim taken over from kubelet's record", claim=str(entry.claim))

    def _wanted(self, entry: ClaimEntry) -> tuple[ResultDevices, ...]:
        """Return which of our devices a claim of kubelet's has, as Prepare was answered."""
        admin = self._admin(entry.claim.uid)
        inventory, book = self.inventory.value, self.ledger.book.value
        known = self.sight.known()
        found: list[ResultDevices] = []
        for each in entry.given(self.driver, self.pool):
            told = known.get(each.name) or called_before(each.name, known.values())
            if told is None:
                continue
            result = ClaimResult(
                request=next(iter(each.requests), ""),
                driver=self.driver,
                pool=each.pool,
                device=each.name,
                admin_access=each.name in admin,
                share_id=each.share_id,
            )
            names = meant_by(result, told, book, entry.claim.uid)
            if each.share_id:
                names += self._shares(each.name, as_whole(told).devices[0])
            devices = tuple(it for name in names if (it := inventory.get(name)) is not None)
            if devices:
                found.append(ResultDevices(result=result, devices=devices))
        return tuple(found)

    def _shares(self, name: str, card: DeviceName) -> tuple[DeviceName, ...]:
        """Return as many shares of *card* as kubelet has recorded for the device called *name*.

        It may not be shared any more, or by fewer.
        """
        recorded = (
            each for entry in self.entries or () for each in entry.devices.get(self.driver, ())
        )
        count = sum(each.name == name and each.share_id != "" for each in recorded)
        return self.inventory.value.names.replicas(card, count)

    def _admin(self, claim: ClaimUid) -> frozenset[str]:
        """Return the scheduler's names of what *claim* is known to have with adminAccess."""
        record = self.ledger.book.value.claims.get(claim)
        known = record.admin.keys() if record is not None else frozenset()
        told = map(as_whole, self.sight.known().values())
        recorded = {each.name for each in told if known and known >= set(each.devices)}
        return (self._admin_by_server.get(claim) or frozenset()) | recorded

    async def _ask(self, claim: ClaimRef) -> bool:
        """Ask the API server what *claim* has with adminAccess: kubelet's record does not say.

        Tell whether it answers at all. Where it does not say, it is none that the ledger does not
        know: one lock too many ends no work.
        """
        try:
            found = await self.claims.claim(claim.namespace, claim.name)
        except ObjectGoneError:
            self._admin_by_server[claim.uid] = frozenset()
            return True
        except UnreadableAnswerError:  # that says nothing of other claims
            return True
        except ApiServerError:
            return False
        its = (found.results or ()) if found.ref.uid == claim.uid else ()
        ours = [each for each in its if each.driver == self.driver]
        locked = {each.device for each in ours if not each.admin_access}
        self._admin_by_server[claim.uid] = frozenset(each.device for each in ours) - locked
        return True

    async def _look_for(self, record: ClaimRecord) -> None:
        sight = self.sight
        if self._listed(record) is not False:
            return
        if await sight.with_cgroup(record.pods):
            return
        server = await self._on_server(record)
        # The server may have taken seconds, in which kubelet can have begun with a pod.
        await self._read()
        cgroups = bool(await sight.with_cgroup(record.pods))
        facts = LostFacts(listed=self._listed(record), server=server, cgroups=cgroups)
        reason = why_over(facts)
        if reason is None:
            return
        log.warning("claim ended without kubelet", claim=str(record.ref), reason=reason)

        def end(draft: Draft) -> bool:
            if draft.book.claims.get(record.ref.uid) != record:  # another pod uses it now
                return False
            end_claim(draft, record.ref.uid, f"claim {record.ref} is over: {reason}")
            return True

        await self.ledger.apply_or_log(end)

    async def _part(self, record: ClaimRecord) -> None:
        """Forget the pods that used a claim which others use still: a tenant can bring thousands.

        Kubelet writes a pod down before it starts, so one that it no longer has, and that has no
        cgroup, has no process. One that comes back is written down, and read again, before it has.
        """
        kept = self.users(record.ref.uid)
        if not kept & record.pods:
            return
        gone = record.pods - kept
        gone -= frozenset(await self.sight.with_cgroup(gone))
        if gone:
            await self.ledger.apply_if_changing(partial(part, claim=record.ref.uid, pods=gone))

    def _listed(self, record: ClaimRecord) -> bool | None:
        """Tell whether kubelet has *record* for one of its pods; None: its record is not known.

        By the last look at it: the server may have taken its time since an earlier one. For another
        pod it is about to ask for the claim again, and has no devices written down.
        """
        if self.entries is None:
            return None
        return any(
            entry.claim.uid == record.ref.uid
            and (entry.pods & record.pods or entry.devices.get(self.driver))
            for entry in self.entries
        )

    async def _on_server(self, record: ClaimRecord) -> OnServer:
        claim = record.ref
        try:
            found = await self.claims.claim(claim.namespace, claim.name)
        except ObjectGoneError:
            return OnServer.GONE
        except ApiServerError:
            return OnServer.UNKNOWN
        if found.ref.uid != claim.uid:
            return OnServer.ANOTHER
        if found.results is None:
            return OnServer.DEALLOCATED
        if not found.grouped and found.reserved_for.keys().isdisjoint(record.pods):
            return OnServer.UNRESERVED
        return OnServer.ELSEWHERE if self._is_elsewhere(record, found.results) else OnServer.THERE

    def _is_elsewhere(self, record: ClaimRecord, results: Sequence[ClaimResult]) -> bool:
        """Tell whether *results*, what it is allocated, are none of the devices that it has."""
        ours = {each.device for each in results if each.driver == self.driver}
        known = [as_whole(told) for name, told in self.sight.known().items() if name in ours]
        devices = map(self.inventory.value.get, (name for each in known for name in each.devices))
        keys = [None if device is None else device.keys for device in devices]
        had = {*record.admin.values()}
        had |= {each.keys for each in self.ledger.book.value.holdings.of_claim(record.ref.uid)}
        return len(known) == len(ours) and all(
            each is not None and not any(clash(each, mine) for mine in had) for each in keys
        )
