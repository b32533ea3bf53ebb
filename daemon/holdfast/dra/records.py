"""Compares our claims with kubelet's record and the API server: what nobody tells us is found."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from pathlib import Path

import structlog

from holdfast.dra.door import ClaimReader
from holdfast.dra.specs import ClaimSpecs
from holdfast.errors import ApiServerError, ClaimRefusedError, HoldfastError, ObjectGoneError
from holdfast.kubelet.checkpoint import CheckpointState
from holdfast.kubelet.claimstate import ClaimState, read
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.book import ClaimRecord
from holdfast.model.book.claims import Wish, adopt, end_claim, share
from holdfast.model.book.draft import Draft
from holdfast.model.devices import Inventory
from holdfast.model.dra.advertised import Advertised
from holdfast.model.dra.claims import AllocatedClaim, ClaimResult
from holdfast.model.dra.handing import Given, devices_of
from holdfast.model.dra.lost import LostFacts, OnServer, why_over
from holdfast.model.dra.passage import may_be_shared, wish_for
from holdfast.model.dra.shares import as_whole, meant_by, placed
from holdfast.model.ids import ClaimRef, ClaimUid, PodUid
from holdfast.model.kubelet import ClaimEntry
from holdfast.runtime.changes import Changes
from holdfast.runtime.clock import Clock
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched

log = structlog.get_logger(__name__)

EVERY = 60.0
"""Seconds between two comparisons; the API server is asked for each claim that kubelet misses."""


class ClaimRecords:
    """Adopts claims that the ledger lost, learns who shares them, and ends those that are lost."""

    def __init__(
        self,
        *,
        driver: str,
        pool: str,
        state: Path,
        claims: ClaimReader,
        ledger: Ledger,
        inventory: Watched[Inventory],
        advertised: Callable[[], Sequence[Advertised]],
        sight: Callable[[Collection[PodUid]], Awaitable[Collection[PodUid]]],
        specs: ClaimSpecs,
        lane: Lane,
        written: Watched[int],
        clock: Clock,
        every: float = EVERY,
    ) -> None:
        """Read kubelet's record at *state*; *sight* returns which of some pods have a cgroup.

        *written* changes when kubelet may have written the record.
        """
        self._driver = driver
        self._pool = pool
        self._state = state
        self._claims = claims
        self._ledger = ledger
        self._inventory = inventory
        self._advertised = advertised
        self._sight = sight
        self._specs = specs
        self._lane = lane
        self._written = written
        self._clock = clock
        self._every = every
        self.problem = ""
        """Why kubelet's record cannot be read; empty while it can."""
        self.entries: tuple[ClaimEntry, ...] | None = None
        """What it had when it was last read; None where it could not be."""
        self.read_at = 0.0
        """When that reading began, in seconds since the machine booted."""

    async def catch_up(self) -> None:
        """Take over what kubelet has recorded and the ledger has not.

        Kubelet prepares nothing again for a pod that runs, so without this a claim that the ledger
        lost would have no lock. What fails is told, never raised.
        """
        try:
            await self._take_over(await self._read())
        except HoldfastError as error:
            log.warning("cannot compare claims with kubelet's record", reason=str(error))

    async def run(self) -> None:
        """Compare until cancelled; take over at once what kubelet wrote and new hardware brings.

        A pod that joins a claim is in the record alone, and only while it uses the claim.
        """
        changes = self._changes()
        due = self._clock.monotonic() + self._every
        while True:
            changed = await changes.wait(max(0.0, due - self._clock.monotonic()))
            changes = self._changes()
            if changed:
                await self.catch_up()
            if self._clock.monotonic() >= due:
                await self.compare()
                due = self._clock.monotonic() + self._every

    def _changes(self) -> Changes:
        return Changes([self._inventory, self._written])

    async def compare(self) -> None:
        """Compare once; what fails is told, never raised."""
        try:
            state = await self._read()
            await self._take_over(state)
            for record in self._live():
                await self._look_for(record, state)
            # Kubelet prepares nothing again for a sandbox that lives: a spec that the ledger knows
            # nothing of stays for as long as a container may be started with it.
            if state.state is CheckpointState.READ:
                listed = [each.claim.uid for each in state.entries]
                await self._specs.tidy([*listed, *(each.ref.uid for each in self._live())])
        except HoldfastError as error:
            log.warning("cannot compare claims with kubelet's record", reason=str(error))

    async def _read(self) -> ClaimState:
        began = self._clock.uptime()
        state = await self._lane.run(partial(read, self._state))
        self.entries = state.entries if state.state is CheckpointState.READ else None
        self.read_at = began
        if state.problem != self.problem and self._live():
            log.warning("kubelet's record of claims", problem=state.problem or "readable again")
        self.problem = state.problem
        return state

    def _live(self) -> list[ClaimRecord]:
        claims = self._ledger.book.value.claims
        return [each for each in claims.values() if each.over_at is None]

    async def _take_over(self, state: ClaimState) -> None:
        answers = True  # the API server: kubelet waits at our start, with any number of claims
        for entry in state.entries:
            await self._ledger.apply_if_changing(
                partial(share, claim=entry.claim.uid, pods=entry.pods)
            )
            admin = self._known_admin(entry.claim.uid)
            wanted = self._wanted(entry, admin)
            if not (wanted and entry.pods and self._lacks(entry.claim.uid, wanted)):
                continue
            try:
                if answers:
                    admin |= await self._admin(entry.claim, wanted)
            except ObjectGoneError:
                pass
            except ApiServerError:
                answers = False
            await self._adopt(entry, self._wanted(entry, admin))

    def _lacks(self, claim: ClaimUid, wanted: Sequence[Given]) -> bool:
        """Tell whether the ledger has less of a claim than kubelet: some hardware comes late."""
        book = self._ledger.book.value
        record = book.claims.get(claim)
        if record is not None and record.over_at is not None:
            return False
        had = [each.keys for each in book.holdings.of_claim(claim)]
        had += record.admin.values() if record is not None else ()
        given = placed(wanted, book, claim)
        if isinstance(given, str):
            return True
        keys = (device.keys for each in given for device in each.devices)
        return not frozenset().union(*keys) <= frozenset().union(*had)

    async def _adopt(self, entry: ClaimEntry, wanted: Sequence[Given]) -> None:
        def take(draft: Draft) -> None:
            given = placed(wanted, draft.book, entry.claim.uid)
            if isinstance(given, str):
                raise ClaimRefusedError(given)
            adopt(draft, _wish(entry, given))

        try:
            await self._ledger.apply_or_log(take)
        except ClaimRefusedError as error:
            log.warning("claim not taken over", claim=str(entry.claim), reason=str(error))
        else:
            log.warning("claim taken over from kubelet's record", claim=str(entry.claim))

    def _wanted(self, entry: ClaimEntry, admin: Collection[str]) -> tuple[Given, ...]:
        """Return what a claim that kubelet has prepared has of ours, as Prepare was answered.

        *admin* are the scheduler's names of what it has with adminAccess.
        """
        inventory, book = self._inventory.value, self._ledger.book.value
        known = {each.name: each for each in self._advertised()}
        found: list[Given] = []
        for each in sorted(frozenset(entry.devices.get(self._driver, ()))):
            told = known.get(each.name)
            if told is None or each.pool != self._pool:
                continue
            result = ClaimResult(
                request="",
                driver=self._driver,
                pool=each.pool,
                device=each.name,
                admin_access=each.name in admin,
                share_id=each.share_id,
            )
            names = meant_by(result, told, book, entry.claim.uid)
            devices = tuple(it for name in names if (it := inventory.get(name)) is not None)
            if devices:
                found.append(Given(result=result, devices=devices))
        return tuple(found)

    def _known_admin(self, claim: ClaimUid) -> frozenset[str]:
        """Return what the ledger says that *claim* has with adminAccess."""
        record = self._ledger.book.value.claims.get(claim)
        known = record.admin.keys() if record is not None else frozenset()
        told = map(as_whole, self._advertised())
        return frozenset(each.name for each in told if known and known >= set(each.devices))

    async def _admin(self, claim: ClaimRef, wanted: Sequence[Given]) -> frozenset[str]:
        """Return what the API server says of that: kubelet's record does not.

        Raise ApiServerError where it says nothing. Then it is none that the ledger does not know:
        one lock too many ends nobody's work.
        """
        if not any(may_be_shared(device) for each in wanted for device in each.devices):
            return frozenset()
        found = await self._claims.claim(claim.namespace, claim.name)
        if found.ref.uid != claim.uid:
            return frozenset()
        ours = [each for each in found.results or () if each.driver == self._driver]
        locked = {each.device for each in ours if not each.admin_access}
        return frozenset(each.device for each in ours if each.device not in locked)

    async def _look_for(self, record: ClaimRecord, state: ClaimState) -> None:
        if _listed(record.ref.uid, state) is not False or await self._sight(record.pods):
            return
        server = await self._on_server(record.ref)
        # The server may have taken seconds, in which kubelet can have begun with a pod.
        listed = _listed(record.ref.uid, await self._read())
        cgroups = bool(await self._sight(record.pods))
        reason = why_over(LostFacts(listed=listed, server=server, cgroups=cgroups))
        if reason is None:
            return
        log.warning("claim lost", claim=str(record.ref), reason=reason)

        def end(draft: Draft) -> bool:
            if draft.book.claims.get(record.ref.uid) != record:  # another pod uses it by now
                return False
            end_claim(draft, record.ref.uid, f"claim {record.ref} is over: {reason}")
            return True

        if await self._ledger.apply_or_log(end):
            await self._specs.remove(record.ref.uid)

    async def _on_server(self, claim: ClaimRef) -> OnServer:
        try:
            found = await self._claims.claim(claim.namespace, claim.name)
        except ObjectGoneError:
            return OnServer.GONE
        except ApiServerError:
            return OnServer.UNKNOWN
        return OnServer.THERE if found.ref.uid == claim.uid else OnServer.ANOTHER


def _wish(entry: ClaimEntry, given: Sequence[Given]) -> Wish:
    return wish_for(
        AllocatedClaim(ref=entry.claim, reserved_for=dict.fromkeys(entry.pods, "")),
        devices_of(given, admin=False),
        devices_of(given, admin=True),
    )


def _listed(claim: ClaimUid, state: ClaimState) -> bool | None:
    if state.state is not CheckpointState.READ:
        return None
    return any(entry.claim.uid == claim for entry in state.entries)
