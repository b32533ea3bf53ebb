"""Claims beside kubelet's record and the API server: taken over, shared, and over when lost."""

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from fakes.books import (
    HALF,
    KUBELET,
    WHOLE,
    X,
    Y,
    Z,
    allocated,
    device_of,
    inventory,
    name,
    silicon,
)
from fakes.claimrecord import write_entries, write_record
from fakes.ledgers import ledger_in
from holdfast.allocation.allocator import GrantBuilder
from holdfast.discovery.source import Sources
from holdfast.dra.records import EVERY, ClaimRecords, ClaimSight
from holdfast.dra.specs import ClaimSpecs, SpecFacts
from holdfast.errors import (
    ApiServerError,
    HoldfastError,
    HostError,
    LaneStuckError,
    ObjectGoneError,
    UnreadableAnswerError,
)
from holdfast.host.files.specfolder import SpecFolder
from holdfast.host.root import HostRoot
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.book import LockState, Phase
from holdfast.model.book.claims import Wish, end_claim, release, share
from holdfast.model.book.draft import Draft
from holdfast.model.cards import CardNames, card_key, replica_key
from holdfast.model.devices import Device, DeviceKind, DeviceNode, Fault, FaultKind, Inventory
from holdfast.model.dra.advertised import AdvertisedDevice, as_found, plain
from holdfast.model.dra.claims import AllocatedClaim, ClaimResult
from holdfast.model.dra.passage import enter, line_up
from holdfast.model.grants import ContainerGrant
from holdfast.model.ids import (
    ClaimRef,
    ClaimUid,
    DeviceId,
    DeviceName,
    PodUid,
    ProcessId,
    ResourceName,
)
from holdfast.model.kubelet import ClaimEntry, RecordedDevice
from holdfast.model.nvidia import REPLICAS
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched
from waiting import beside

_REF = ClaimRef("team", ClaimUid("uid-1"), "claim")
_NODE = inventory({WHOLE: silicon(d0="a", d1="b")})


def _entry(
    *pods: PodUid, ref: ClaimRef = _REF, device: str = "tpu-d0", share: str = ""
) -> ClaimEntry:
    """Return what kubelet has in its record of a claim with that device."""
    devices = {"holdfast.dev": (RecordedDevice("node-1", device, share),)}
    return ClaimEntry(claim=ref, pods=frozenset(pods), devices=devices)


@dataclass
class _Server:
    """What the API server has under the claim's name."""

    has: ClaimRef | None = _REF
    down: bool = False
    nested: str = ""
    """The name of a claim that is nested too deep to be read."""
    admin: bool = False
    """Whether d0 was asked for with adminAccess."""
    allocated: str | None = "tpu-d0"
    """The device that it has; None: it is not allocated."""
    reserved: tuple[PodUid, ...] = (X,)
    grouped: bool = False
    asked: int = 0
    meanwhile: Callable[[], None] = lambda: None
    """What happens on the node before the answer is there."""

    async def claim(self, namespace: str, name: str) -> AllocatedClaim:
        self.meanwhile()
        self.asked += 1
        if self.down:
            raise ApiServerError("cannot ask the API server")
        if name == self.nested:
            raise UnreadableAnswerError("cannot understand the API server's answer")
        if self.has is None:
            raise ObjectGoneError(f"there is no claim {namespace}/{name}")
        result = ClaimResult(
            request="r",
            driver="holdfast.dev",
            pool="node-1",
            device=plain(_GPU).name if self.admin else self.allocated or "",
            admin_access=self.admin,
        )
        return AllocatedClaim(
            ref=self.has,
            results=None if self.allocated is None else (result,),
            reserved_for=dict.fromkeys(self.reserved, ""),
            grouped=self.grouped,
        )


_GPU = device_of(
    name("0000:00:09.0", ResourceName("nvidia.com/gpu")), "card/0", kind=DeviceKind.DRIVER
)


class _Clock(SystemClock):
    """A clock that a test may put forward."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


class _Sight(ClaimSight):
    def __init__(self, inventory: Watched[Inventory]) -> None:
        self._inventory = inventory
        self.cgroups: set[PodUid] = set()
        self.populated: set[PodUid] = set()
        self.unseen: HoldfastError | None = None
        self.boxes: Mapping[str, AdvertisedDevice] = {}

    def known(self) -> Mapping[str, AdvertisedDevice]:
        inventory = self._inventory.value
        found = as_found(lambda devices: [*map(plain, devices)], inventory)
        return {**self.boxes, **{it.name: it for it in (*found, *map(plain, inventory.devices))}}

    async def with_cgroup(self, pods: Collection[PodUid]) -> Mapping[PodUid, bool]:
        if self.unseen is not None:
            raise self.unseen
        return {pod: pod in self.populated for pod in self.cgroups & set(pods)}


@dataclass
class _Scene:
    ledger: Ledger
    records: ClaimRecords
    state: Path
    specs: Path
    server: _Server
    inventory: Watched[Any]
    written: Watched[int]
    clock: "_Clock"
    sight: _Sight

    def record(
        self,
        *pods: PodUid,
        device: str = "tpu-d0",
        others: Collection[str] = (),
        ref: ClaimRef = _REF,
    ) -> None:
        write_record(
            self.state,
            ref,
            pods,
            device=device,
            driver="holdfast.dev",
            pool="node-1",
            others=others,
        )

    async def prepare(self, *pods: PodUid) -> None:
        wish = Wish(ref=_REF, pods=dict.fromkeys(pods, ""), devices={WHOLE: silicon(d0="a")})
        await self.enters(wish)

    async def enters(self, wish: Wish) -> None:
        """Have a claim prepared, which has to wait for nobody."""

        def prepared(draft: Draft) -> None:
            assert enter(draft, wish, "free") is None

        await self.ledger.apply(prepared)
        await self.published()

    async def published(self) -> None:
        await self.ledger.apply(lambda _draft: None)
        await asyncio.sleep(0)

    async def compare(self) -> None:
        await self.records.compare()
        await self.published()

    async def catch_up(self) -> None:
        await self.records.catch_up()
        await self.published()

    @property
    def spec(self) -> Path:
        """Return the file of the claim's CDI spec."""
        return self.specs / f"holdfast.dev-claim_{_REF.uid}.json"

    @property
    def held(self) -> list[LockState]:
        return [lock.state for lock in self.ledger.book.value.locks.values()]


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[_Scene]:
    (tmp_path / "cdi").mkdir()
    server, hardware, written = _Server(), Watched(_NODE), Watched(0)
    lane, clock, sight = Lane("kubelet", deadline=20.0), _Clock(), _Sight(hardware)
    async with ledger_in(tmp_path / "state") as ledger:
        records = ClaimRecords(
            driver="holdfast.dev",
            pool="node-1",
            file=tmp_path / "dra_manager_state",
            claims=server,
            ledger=ledger,
            inventory=hardware,
            sight=sight,
            specs=ClaimSpecs(
                SpecFolder(tmp_path / "cdi", prefix="holdfast.dev-claim"),
                driver="holdfast.dev",
                root=HostRoot.under(tmp_path),
                lane=lane,
            ),
            granting=GrantBuilder(Sources(), None),
            lane=lane,
            written=written,
            kubelet=lambda: KUBELET,
            clock=clock,
        )
        yield _Scene(
            ledger=ledger,
            records=records,
            state=tmp_path / "dra_manager_state",
            specs=tmp_path / "cdi",
            server=server,
            inventory=hardware,
            sight=sight,
            written=written,
            clock=clock,
        )
    lane.close()


async def test_a_claim_that_is_gone_from_everywhere_is_over(at: _Scene) -> None:
    await at.prepare(X)
    at.record()
    at.server.has = None
    await at.compare()
    assert at.held == [LockState.RELEASING]
    assert (
        "the API server has no such claim"
        in next(iter(at.ledger.book.value.locks.values())).evidence
    )


async def test_a_claim_of_the_same_name_is_another_one(at: _Scene) -> None:
    await at.prepare(X)
    at.record()
    at.server.has = replace(_REF, uid=ClaimUid("uid-2"))
    await at.compare()
    assert at.held == [LockState.RELEASING]


@pytest.mark.parametrize(
    ("allocated", "reserved", "over"),
    [
        (None, (), True),
        ("tpu-d0", (), True),
        ("tpu-d0", (Z,), True),
        ("tpu-d1", (X,), True),
        ("tpu-d0", (X, Z), False),
        ("tpu-of-another-time", (X,), False),
    ],
)
async def test_a_named_claim_that_kubelet_forgot_is_over_once_it_is_not_allocated_to_its_pods(
    at: _Scene, allocated: str | None, reserved: tuple[PodUid, ...], over: bool
) -> None:
    await at.prepare(X)
    at.record()
    at.server.allocated, at.server.reserved = allocated, reserved
    at.sight.cgroups = {X}
    await at.compare()
    assert at.held == [LockState.HELD]
    assert at.ledger.book.value.claims[_REF.uid].forgotten
    at.sight.cgroups = set()
    await at.compare()
    assert at.held == [LockState.RELEASING if over else LockState.HELD]


async def test_a_claim_that_is_allocated_elsewhere_is_over_also_where_a_rule_moves_a_device(
    at: _Scene,
) -> None:
    moved = replace(inventory({HALF: silicon(h0="c")}).devices[0], found_as=WHOLE)
    at.inventory.set(replace(_NODE, devices=(*_NODE.devices, moved)))
    await at.prepare(X)
    at.record()
    at.server.allocated = "tpu-d1"
    await at.compare()
    assert at.held == [LockState.RELEASING]


async def test_a_claim_that_is_reserved_for_a_group_may_be_its_pods(at: _Scene) -> None:
    await at.prepare(X)
    at.record()
    at.server.reserved, at.server.grouped = (), True
    await at.compare()
    assert at.held == [LockState.HELD]


async def test_a_claim_that_kubelet_has_again_is_not_forgotten(at: _Scene) -> None:
    await at.prepare(X)
    at.record()
    await at.compare()
    assert at.ledger.book.value.claims[_REF.uid].forgotten
    at.record(X)
    await at.compare()
    assert not at.ledger.book.value.claims[_REF.uid].forgotten


async def test_a_pod_that_kubelet_asks_for_anew_does_not_keep_a_forgotten_claim(
    at: _Scene,
) -> None:
    """Kubelet writes the pod down before it asks, and the devices when it has been answered."""
    await at.prepare(X)
    write_entries(at.state, [ClaimEntry(claim=_REF, pods=frozenset({Y}))])
    at.server.allocated, at.server.reserved = "tpu-d1", (Y,)
    await at.compare()
    assert at.held == [LockState.RELEASING]
    assert at.ledger.book.value.claims[_REF.uid].pods == {X}


@pytest.mark.parametrize("sign", ["record", "no record", "damaged", "server", "down", "cgroup"])
async def test_while_one_of_them_still_has_it_a_claim_is_not_over(at: _Scene, sign: str) -> None:
    await at.prepare(X)
    at.record()
    at.server.has = None
    if sign == "record":
        at.record(X)
    elif sign == "no record":
        at.state.unlink()
    elif sign == "damaged":
        at.state.write_text("{")
    elif sign == "server":
        at.server.has = _REF
    elif sign == "down":
        at.server.down = True
    else:
        at.sight.cgroups = {X}
    await at.compare()
    assert at.held == [LockState.HELD]


@pytest.mark.parametrize("sign", ["record", "cgroup"])
async def test_what_appears_while_the_server_is_asked_counts(at: _Scene, sign: str) -> None:
    await at.prepare(X)
    at.record()
    at.server.has = None

    def appears() -> None:
        if sign == "record":
            at.record(X)
        else:
            at.sight.cgroups = {X}

    at.server.meanwhile = appears
    await at.compare()
    assert at.held == [LockState.HELD]


async def test_a_claim_that_another_pod_is_given_while_the_server_is_asked_is_not_over(
    at: _Scene,
) -> None:
    await at.prepare(X)
    at.record()
    at.server.has = None
    joined = partial(share, claim=_REF.uid, pods=frozenset({Y}))
    joins: list[asyncio.Task[object]] = []
    at.server.meanwhile = lambda: joins.append(asyncio.create_task(at.ledger.apply(joined)))
    await at.compare()
    await asyncio.gather(*joins)
    assert joins
    assert at.held == [LockState.HELD]


async def test_a_pod_that_joined_without_a_call_is_learned_of(at: _Scene) -> None:
    await at.prepare(X)
    at.record(X, Y)
    await at.compare()
    assert at.ledger.book.value.claims[_REF.uid].pods == {X, Y}


@pytest.mark.parametrize(("populated", "goes_on"), [(True, True), (False, False)])
async def test_a_pod_that_runs_by_the_word_of_a_former_kubelet_keeps_a_claim_that_is_over(
    at: _Scene, *, populated: bool, goes_on: bool
) -> None:
    """Kubelet makes a pod's cgroup before it asks for the claim, and its sandbox after that."""
    await at.prepare(X)
    former = ProcessId(99, 99)
    end = partial(end_claim, claim=_REF.uid, evidence="unprepared", kubelet=former, recorded=[X])
    await at.ledger.apply(end)
    at.record(X, Y)
    at.sight.cgroups, at.sight.populated = {Y}, {Y} if populated else set()
    await at.records.catch_up()
    assert (at.held == [LockState.HELD]) == goes_on


async def test_a_claim_that_is_over_is_not_tried_again_with_each_look(at: _Scene) -> None:
    await at.prepare(X)
    end = partial(end_claim, claim=_REF.uid, evidence="unprepared", kubelet=KUBELET, recorded=[X])
    await at.ledger.apply(end)
    at.record(X)
    with capture_logs() as logs:
        await at.records.catch_up()
    assert logs == []


def _share(at: _Scene, *, pod: PodUid = X, ref: ClaimRef = _REF, share: str = "s") -> ClaimEntry:
    """Return a claim that has a share of a card, which the node has but does not share now."""
    card = replace(
        _GPU,
        name=DeviceName(ResourceName("nvidia.com/gpu"), DeviceId("GPU-1")),
        keys=frozenset({card_key("GPU-1")}),
    )
    names = CardNames(vendors=(REPLICAS,))
    at.inventory.set(replace(_NODE, devices=(*_NODE.devices, card), names=names))
    at.server.allocated = plain(card).name
    return _entry(pod, ref=ref, device=plain(card).name, share=share)


@pytest.mark.parametrize("gone", [False, True])
async def test_of_a_claim_that_is_not_taken_over_the_server_is_asked_and_people_are_told_once(
    at: _Scene, *, gone: bool
) -> None:
    """Kubelet writes its record for each pod, and each time it is compared."""
    entry = _share(at)
    replica = {DeviceId("GPU-1::0"): frozenset({replica_key("GPU-1", 0)})}
    await at.ledger.apply(allocated(replica, resource=ResourceName("nvidia.com/gpu"), pod=Z))
    write_entries(at.state, [entry])
    at.server.has = None if gone else _REF
    with capture_logs() as logs:
        for _ in range(5):
            await at.compare()
    assert [each["event"] for each in logs] == ["claim not taken over"]
    assert at.server.asked == 1
    at.record()
    await at.compare()
    write_entries(at.state, [entry])
    with capture_logs() as logs:
        await at.compare()
    assert [each["event"] for each in logs] == ["claim not taken over"], "it is there again"


async def test_a_pod_that_left_without_a_trace_is_forgotten_while_others_use_the_claim(
    at: _Scene,
) -> None:
    await at.prepare(X)
    at.record(X, Y, Z)
    await at.compare()
    at.sight.cgroups = {Z}
    at.record(X)
    await at.compare()
    assert at.ledger.book.value.claims[_REF.uid].pods == {X, Z}, "of one there is a cgroup"
    at.sight.cgroups = set()
    at.state.write_text("damaged", "utf-8")
    await at.compare()
    assert at.ledger.book.value.claims[_REF.uid].pods == {X, Z}, "nothing is known"
    at.record(X)
    await at.compare()
    assert at.ledger.book.value.claims[_REF.uid].pods == {X}


@pytest.mark.parametrize(
    ("former", "latter", "left"),
    [
        (ProcessId(7, 7), ProcessId(7, 7), {X}),
        (ProcessId(7, 7), ProcessId(9, 9), set()),
        (None, None, set()),
    ],
)
async def test_kubelet_is_done_with_a_pod_that_it_took_out_itself_while_others_use_the_claim(
    at: _Scene, former: ProcessId | None, latter: ProcessId | None, left: set[PodUid]
) -> None:
    """A kubelet that lost its record has in it who came since, and not who lives."""
    at.records.kubelet = lambda: former
    await at.prepare(X, Y)
    at.record(X, Y)
    await at.compare()
    at.records.kubelet = lambda: latter
    at.sight.cgroups = {X}
    at.record(Y)
    await at.compare()
    record = at.ledger.book.value.claims[_REF.uid]
    assert record.pods == {X, Y}, "what it left has the device"
    assert record.let_go == left


async def test_what_the_disk_did_not_take_of_a_pod_that_left_is_written_later(at: _Scene) -> None:
    await at.prepare(X, Y)
    at.record(X, Y)
    await at.compare()
    at.sight.cgroups = {X}
    at.record(Y)
    sqlite = at.ledger.store._db
    await at.ledger.lane.run(lambda: sqlite.execute("PRAGMA query_only = ON"))
    await at.records.catch_up()
    await at.ledger.lane.run(lambda: sqlite.execute("PRAGMA query_only = OFF"))
    assert not at.ledger.book.value.claims[_REF.uid].let_go
    await at.compare()
    assert at.ledger.book.value.claims[_REF.uid].let_go == {X}


async def test_a_pod_that_joins_is_learned_of_as_soon_as_kubelet_has_written_it(
    at: _Scene,
) -> None:
    """It may be over again before the next comparison, and leave a process behind."""
    await at.prepare(X)
    async with beside(at.records.run()):
        await asyncio.sleep(0)
        at.record(X, Y)
        at.written.set(1)
        await at.ledger.book.until(lambda book: book.claims[_REF.uid].pods == {X, Y})


async def test_claims_are_compared_though_there_is_always_something_new(at: _Scene) -> None:
    await at.prepare(X)
    at.record()
    at.server.has = None
    async with beside(at.records.run()):
        await asyncio.sleep(0)
        at.clock.ahead = EVERY
        at.written.set(1)
        await at.ledger.book.until(lambda book: book.claims[_REF.uid].over_at is not None)


@pytest.mark.parametrize("unseen", [None, LaneStuckError("pods"), HostError("no right")])
async def test_what_the_ledger_lost_is_taken_over_before_anything_is_served(
    at: _Scene, unseen: HoldfastError | None
) -> None:
    """Also while a look at the pods' cgroups gives no answer."""
    at.record(X)
    at.sight.unseen = unseen
    await at.catch_up()
    (allocation,) = at.ledger.book.value.allocations.values()
    assert (allocation.claim, allocation.phase) == (_REF.uid, Phase.ACTIVE)
    assert at.held == [LockState.HELD]


@pytest.mark.parametrize("runs", [X, Y])
async def test_of_what_two_claims_had_that_of_the_pods_that_run_is_taken_over(
    at: _Scene, runs: PodUid
) -> None:
    """The other pod was force-deleted, and kubelet has not unprepared its claim yet."""
    refs = {X: _REF, Y: ClaimRef("team", ClaimUid("uid-2"), "other")}
    write_entries(at.state, [_entry(pod, ref=ref) for pod, ref in refs.items()])
    at.sight.cgroups, at.sight.populated = {X, Y}, {runs}
    await at.catch_up()
    assert [lock.claim for lock in at.ledger.book.value.locks.values()] == [refs[runs].uid]


@pytest.mark.parametrize("device", ["tpu-gone", ""])
async def test_what_is_not_on_this_node_is_not_taken_over(at: _Scene, device: str) -> None:
    at.record(X, device=device)
    await at.catch_up()
    assert not at.ledger.book.value.claims


async def test_what_kubelet_has_recorded_for_no_pod_is_not_taken_over(at: _Scene) -> None:
    write_entries(at.state, [_entry()])
    before = at.ledger.book.value
    with capture_logs() as logs:
        await at.catch_up()
    assert at.ledger.book.value == before
    assert logs == []


async def test_what_another_pod_has_by_now_is_not_taken_from_it(at: _Scene) -> None:
    await at.prepare(X)
    at.record(Y, ref=replace(_REF, uid=ClaimUid("uid-2")))
    await at.catch_up()
    book = at.ledger.book.value
    assert [lock.claim for lock in book.locks.values()] == [_REF.uid]
    assert [each.phase for each in book.holdings.of_claim(ClaimUid("uid-2"))] == [Phase.PENDING]


@pytest.mark.parametrize("lives", [True, False])
async def test_what_another_pod_had_is_the_claims_once_that_is_over(
    at: _Scene, *, lives: bool
) -> None:
    """Its pods cannot have started on it before; from then on its end is that of those that run."""
    await at.prepare(X)
    other = ClaimUid("uid-2")
    at.record(Y, ref=replace(_REF, uid=other))
    at.sight.cgroups = at.sight.populated = {Y} if lives else set()
    await at.catch_up()
    await at.ledger.apply(partial(end_claim, claim=_REF.uid, evidence="its pod is over"))
    with capture_logs() as logs:
        for _ in range(2):
            await at.catch_up()
    (lock,) = at.ledger.book.value.locks.values()
    assert lock.claim == _REF.uid
    await at.ledger.apply(partial(release, lock=lock, evidence="nobody uses it"))
    await at.catch_up()

    book = at.ledger.book.value
    assert [(lock.claim, lock.started) for lock in book.locks.values()] == [(other, lives)]
    phase = Phase.ACTIVE if lives else Phase.PENDING
    assert [each.phase for each in book.holdings.of_claim(other)] == [phase]
    assert logs == []


async def test_a_claim_that_waits_for_one_device_stays_as_it_is_with_the_others(at: _Scene) -> None:
    """Kubelet may write its record many times until another has given that one back."""
    half = device_of(name("h0", HALF), "h")
    at.inventory.set(replace(_NODE, devices=(*_NODE.devices, half)))
    await at.prepare(X)
    other = ClaimUid("uid-2")
    at.record(Y, ref=replace(_REF, uid=other), others=(plain(half).name,))
    at.sight.cgroups = at.sight.populated = {Y}
    await at.catch_up()
    before = at.ledger.book.value
    assert {each.phase for each in before.holdings.of_claim(other)} == {*Phase}
    with capture_logs() as logs:
        await at.catch_up()

    assert at.ledger.book.value == before
    assert logs == []


async def test_hardware_that_comes_late_brings_its_claim(at: _Scene) -> None:
    at.inventory.set(replace(_NODE, devices=()))
    at.record(X)
    async with beside(at.records.run()):
        await asyncio.sleep(0)
        at.inventory.set(_NODE)
        await at.ledger.book.until(lambda book: bool(book.claims))


async def test_hardware_that_comes_in_parts_is_all_taken_over(at: _Scene) -> None:
    first, second = _NODE.devices
    at.record(X, others=["tpu-d1"])
    at.inventory.set(replace(_NODE, devices=(first,)))
    await at.records.catch_up()
    at.inventory.set(replace(_NODE, devices=(first, second)))
    await at.catch_up()
    book = at.ledger.book.value
    assert {lock.device: lock.claim for lock in book.locks.values()} == {
        first.name: _REF.uid,
        second.name: _REF.uid,
    }
    assert {each.phase for each in book.allocations.values()} == {Phase.ACTIVE}
    at.inventory.set(replace(_NODE, devices=(second,)))
    await at.catch_up()
    assert at.ledger.book.value == book


@pytest.mark.parametrize("record", ["of unseen hardware", "damaged", "missing"])
async def test_the_spec_of_a_claim_that_may_be_in_use_stays(at: _Scene, record: str) -> None:
    """Kubelet prepares nothing again for a sandbox that lives, so its containers need the spec."""
    if record == "of unseen hardware":
        at.record(X, device="tpu-not-seen-yet")
    elif record == "damaged":
        at.state.write_text("{")
    at.spec.write_text("{}")
    await at.compare()
    assert at.spec.exists()


async def test_the_spec_of_a_claim_whose_pod_lives_stays_though_kubelet_forgot_the_claim(
    at: _Scene,
) -> None:
    await at.prepare(X)
    at.sight.cgroups = {X}
    at.record(Y, device="tpu-gone", ref=replace(_REF, uid=ClaimUid("uid-2")))
    at.spec.write_text("{}")
    await at.compare()
    assert at.spec.exists()


async def test_an_administrators_claim_of_the_same_name_says_nothing_of_this_one(
    at: _Scene,
) -> None:
    at.inventory.set(replace(_NODE, devices=(*_NODE.devices, _GPU)))
    at.record(X, device=plain(_GPU).name, ref=replace(_REF, uid=ClaimUid("uid-2")))
    at.server.admin = True
    await at.compare()
    assert at.held == [LockState.HELD]


@pytest.mark.parametrize(
    ("known", "other", "keys", "stays"),
    [
        (True, "/dev/vfio/7", "b", False),
        (True, "/dev/vfio/8", "b", True),
        (True, "/dev/vfio/7", "a", True),
        (False, "/dev/vfio/7", "b", True),
    ],
)
async def test_a_spec_that_leads_to_the_device_of_another_goes_at_once(
    at: _Scene, *, known: bool, other: str, keys: str, stays: bool
) -> None:
    """A container that restarts in its sandbox is given what the spec says.

    Of a claim that the book does not know, as after a lost ledger, nothing tells what is its own.
    """
    if known:
        await at.prepare(X)
    at.record(X)
    node = "/dev/vfio/7"
    await at.records.specs.write(_REF.uid, {"tpu-d0": ContainerGrant(nodes=(node,))}, ())
    found = device_of(name("d9"), keys, nodes=(DeviceNode(path=other, rdev=1),))
    at.inventory.set(replace(_NODE, devices=(found,)))
    with capture_logs() as logs:
        await at.records.catch_up()
    assert (_REF.uid in at.ledger.book.value.claims) is known
    assert at.spec.exists() is stays
    assert ("CDI specs of claims removed" in [each["event"] for each in logs]) is not stays


async def test_a_spec_stays_that_leads_to_what_its_claim_has_with_adminaccess(at: _Scene) -> None:
    node = DeviceNode(path="/dev/nvidia1", rdev=1)
    found = device_of(name("d9"), "card/9", kind=DeviceKind.DRIVER, nodes=(node,))
    at.inventory.set(replace(_NODE, devices=(*_NODE.devices, found)))
    wish = Wish(
        ref=_REF, pods={X: ""}, devices={WHOLE: silicon(d0="a")}, admin={found.name: found.keys}
    )
    await at.enters(wish)
    at.record(X)
    await at.records.specs.write(_REF.uid, {"d9": ContainerGrant(nodes=(node.path,))}, ())
    await at.records.catch_up()
    assert at.spec.exists()


async def test_the_spec_of_a_claim_that_is_over_stays_while_a_pod_can_join_though_a_part_is_free(
    at: _Scene,
) -> None:
    """Kubelet makes no call for a pod that joins while it waits for the claim's end."""
    nodes = [DeviceNode(path=f"/dev/vfio/{number}", rdev=number) for number in range(1, 3)]
    found = [
        device_of(each.name, *each.keys, nodes=(node,))
        for each, node in zip(
            inventory({WHOLE: silicon(d0="a", d1="b")}).devices, nodes, strict=True
        )
    ]
    at.inventory.set(replace(_NODE, devices=tuple(found)))
    wish = Wish(ref=_REF, pods={X: ""}, devices={WHOLE: silicon(d0="a", d1="b")})

    def ended(draft: Draft) -> None:
        end_claim(draft, _REF.uid, "unprepared", kubelet=KUBELET, recorded=[X])
        release(draft, draft.locks[name("d1")], "nobody has it")

    await at.enters(wish)
    at.record(X, others=["tpu-d1"])
    given = "/dev/vfio/2"
    await at.records.specs.write(_REF.uid, {"tpu-d1": ContainerGrant(nodes=(given,))}, ())
    await at.ledger.apply(ended)
    assert at.held == [LockState.RELEASING]
    await at.records.catch_up()
    assert at.spec.exists()


async def test_specs_of_claims_that_are_over_do_not_stay(at: _Scene) -> None:
    await at.prepare(X)
    at.record(X)
    for uid in (_REF.uid, "another"):
        (at.specs / f"holdfast.dev-claim_{uid}.json").write_text("{}")
    (at.specs / "holdfast_google.com_tpu.json").write_text("{}")
    await at.compare()
    assert sorted(each.name for each in at.specs.iterdir()) == [
        f"holdfast.dev-claim_{_REF.uid}.json",
        "holdfast_google.com_tpu.json",
    ]


async def test_the_spec_of_a_claim_that_is_over_goes_once_kubelet_has_heard_that(
    at: _Scene,
) -> None:
    await at.prepare(X)
    at.spec.write_text("{}")
    at.record(X)
    await at.ledger.apply(partial(end_claim, claim=_REF.uid, evidence="unprepared"))
    await at.records.catch_up()
    assert at.spec.exists()
    at.record()
    await at.records.catch_up()
    assert not at.spec.exists()


async def test_the_spec_of_a_claim_that_is_prepared_anew_goes_at_its_next_end(at: _Scene) -> None:
    for pod in (X, Y):
        await at.prepare(pod)
        at.spec.write_text("{}")
        at.record(pod)
        await at.records.catch_up()
        await at.ledger.apply(partial(end_claim, claim=_REF.uid, evidence="unprepared"))
        (lock,) = at.ledger.book.value.locks.values()
        await at.ledger.apply(partial(release, lock=lock, evidence="free"))
        at.record()
        await at.records.catch_up()
        assert not at.spec.exists()


_NULL, _ZERO = os.makedev(1, 3), os.makedev(1, 5)


def _named(label: str, *, request: str = "r", device: str = "tpu-d0") -> RecordedDevice:
    names = (f"holdfast.dev/claim={_REF.uid}-{label}",)
    return RecordedDevice("node-1", device, requests=(request,), cdi_ids=names)


def _driven(id_: str = "d0", key: str = "a", path: str = "/dev/d0", **more: Any) -> Device:
    node = DeviceNode(path=path, rdev=more.pop("rdev", _NULL))
    return device_of(name(id_), key, kind=DeviceKind.DRIVER, nodes=(node,), **more)


def _grants(device: Device) -> Mapping[str, ContainerGrant]:
    nodes = tuple(it.path for it in device.nodes)
    return {f"tpu-{device.name.id}": ContainerGrant(nodes=nodes)}


class _Prepared:
    """A claim that is prepared, as kubelet has recorded it, and its spec."""

    def __init__(self, at: _Scene, folder: Path) -> None:
        self._at = at
        self.folder = folder
        self.dev = folder / "dev"
        self.dev.mkdir()
        self.file = at.spec
        self.node("d0", "null")

    def node(self, path: str, of: str) -> None:
        """Let the node at *path* have the number of the host's own *of*."""
        (self.dev / path).symlink_to(f"/dev/{of}")

    async def begin(self) -> None:
        self.found(_driven())
        await self._at.prepare(X)
        self.recorded(_named("tpu-d0"))
        await self._at.records.catch_up()
        assert self.nodes == [("/dev/d0", _NULL)]

    def recorded(self, *devices: RecordedDevice) -> None:
        entry = ClaimEntry(claim=_REF, pods=frozenset({X}), devices={"holdfast.dev": devices})
        write_entries(self._at.state, [entry])

    def found(self, *devices: Device) -> None:
        self._at.inventory.set(replace(_NODE, devices=devices))

    @property
    def nodes(self) -> list[tuple[str, int]]:
        """Return the nodes that a container of the claim is given, with their numbers."""
        if not self.file.exists():
            return []
        return [
            (each["hostPath"], os.makedev(each["major"], each["minor"]))
            for device in json.loads(self.file.read_text())["devices"]
            for each in device["containerEdits"]["deviceNodes"]
        ]


@pytest.fixture
async def prepared(at: _Scene, tmp_path: Path) -> _Prepared:
    made = _Prepared(at, tmp_path)
    await made.begin()
    return made


async def test_a_claim_that_is_prepared_has_its_spec_again(at: _Scene, prepared: _Prepared) -> None:
    """Kubelet asks no second time: without it no container of the claim's pods starts again."""
    before = prepared.file.read_text()
    prepared.file.unlink()
    await at.records.catch_up()
    assert prepared.file.read_text() == before


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_spec_that_led_to_another_is_written_again_with_the_nodes_of_now(
    at: _Scene, prepared: _Prepared, *, at_once: bool
) -> None:
    prepared.node("d7", "zero")
    if not at_once:
        prepared.found(_driven("d1", "b"))
        await at.records.catch_up()
        assert prepared.nodes == []
    prepared.found(_driven("d1", "b"), _driven(path="/dev/d7", rdev=_ZERO))
    await at.records.catch_up()
    assert prepared.nodes == [("/dev/d7", _ZERO)]


@pytest.mark.parametrize(("path", "stays"), [("d0", False), ("d7", False), ("d7", True)])
async def test_a_spec_with_a_node_that_is_not_its_claims_any_more_is_written_again(
    at: _Scene, prepared: _Prepared, path: str, *, stays: bool
) -> None:
    """The device has another path or number now. The former one nobody has, or nobody we know."""
    if not stays:
        (prepared.dev / "d0").unlink()
    prepared.node(path, "zero")
    prepared.found(_driven(path=f"/dev/{path}", rdev=_ZERO))
    await at.records.catch_up()
    assert prepared.nodes == [(f"/dev/{path}", _ZERO)]


async def test_a_spec_that_says_what_is_so_stays_as_it_is(at: _Scene, prepared: _Prepared) -> None:
    """Other settings are for what is prepared from now on."""
    prepared.file.write_text(prepared.file.read_text().replace("rw", "r"))
    before = prepared.file.read_text()
    await at.records.catch_up()
    assert prepared.file.read_text() == before


@pytest.mark.parametrize("kind", [None, FaultKind.ILL, FaultKind.NO_SPEC, FaultKind.GONE])
async def test_a_spec_is_written_again_only_for_devices_that_are_there_to_be_looked_at(
    at: _Scene, prepared: _Prepared, kind: FaultKind | None
) -> None:
    prepared.file.unlink()
    faults = () if kind is None else (Fault(kind=kind, text="something is wrong"),)
    prepared.found(_driven(faults=faults))
    await at.records.catch_up()
    assert prepared.file.exists() is (kind in {None, FaultKind.ILL})


@pytest.mark.parametrize(
    "recorded",
    [
        (),
        (_named("tpu-d0.r"),),
        (_named("tpu-d0"), _named("all.requests", request="all.requests")),
        (RecordedDevice("node-1", "tpu-d0", requests=("r",)),),
    ],
)
async def test_no_spec_is_written_that_has_other_names_than_kubelet(
    at: _Scene, prepared: _Prepared, recorded: tuple[RecordedDevice, ...]
) -> None:
    """A container would be given less than it was promised, or would not start."""
    prepared.recorded(*recorded)
    prepared.file.unlink()
    await at.records.catch_up()
    assert not prepared.file.exists()
    prepared.recorded(_named("tpu-d0"))
    await at.records.catch_up()
    assert prepared.file.exists()


@pytest.mark.parametrize("found", [(), (_driven("d1", "b"),)])
async def test_no_spec_is_written_without_all_that_the_claim_has(
    at: _Scene, prepared: _Prepared, found: tuple[Device, ...]
) -> None:
    prepared.file.unlink()
    prepared.found(*found)
    await at.records.catch_up()
    assert not prepared.file.exists()


async def test_a_group_of_which_one_part_is_gone_has_no_spec_written(
    at: _Scene, prepared: _Prepared
) -> None:
    """It would say less than what the claim has, and the name for it is the same."""
    both = [_driven(), _driven("d1", "b", path="/dev/d1", rdev=_ZERO)]
    prepared.node("d1", "zero")
    box = AdvertisedDevice(name="2x1", devices=tuple(each.name for each in both))
    at.sight.boxes = {box.name: box}
    prepared.found(*both)
    prepared.recorded(_named("2x1", device="2x1"))
    await at.catch_up()
    prepared.file.unlink()
    await at.records.catch_up()
    assert prepared.nodes == [("/dev/d0", _NULL), ("/dev/d1", _ZERO)]
    prepared.file.unlink()
    prepared.found(both[0])
    await at.records.catch_up()
    assert not prepared.file.exists()


async def test_no_spec_is_written_with_a_node_that_is_not_the_devices_any_more(
    at: _Scene, prepared: _Prepared
) -> None:
    """It has not been looked at since; who has its number now may be another."""
    prepared.file.unlink()
    (prepared.dev / "d0").unlink()
    prepared.node("d0", "zero")
    with capture_logs() as logs:
        await at.records.catch_up()
    assert not prepared.file.exists()
    assert "/dev/d0 is not google.com/tpu/d0 any more" in logs[-1]["reason"]


async def test_a_spec_without_a_node_that_was_away_for_a_while_has_it_again(
    at: _Scene, prepared: _Prepared
) -> None:
    """As nodes that all GPUs of a driver need are, while it is loaded again."""
    more = DeviceNode(path="/dev/d7", rdev=_ZERO)
    prepared.node("d7", "zero")
    once = _driven()
    for nodes in ((*once.nodes, more), once.nodes, (*once.nodes, more)):
        prepared.found(replace(once, nodes=nodes))
        await at.records.catch_up()
        assert prepared.nodes == [(each.path, each.rdev) for each in nodes]


async def test_a_spec_that_cannot_be_written_keeps_no_other_from_being_written(
    at: _Scene, prepared: _Prepared
) -> None:
    moved = _driven("d1", "b", path="/dev/d1", rdev=_NULL)
    prepared.node("d1", "zero")
    facts = {
        claim: SpecFacts(device.keys, _grants(device), (device,))
        for claim, device in ((ClaimUid("uid-2"), moved), (_REF.uid, _driven()))
    }
    prepared.file.unlink()
    with capture_logs() as logs:
        await at.records.specs.tidy(facts, {})
    assert prepared.nodes == [("/dev/d0", _NULL)]
    assert [each["event"] for each in logs] == [
        "CDI specs of claims written again",
        "cannot keep CDI specs of claims up to date",
    ]


async def test_a_claim_that_is_over_has_no_spec_written(at: _Scene, prepared: _Prepared) -> None:
    """Kubelet has it in its record until it hears of that."""
    prepared.file.unlink()
    await at.ledger.apply(partial(end_claim, claim=_REF.uid, evidence="unprepared"))
    await at.records.catch_up()
    assert not prepared.file.exists()


async def test_a_claim_that_is_unprepared_meanwhile_keeps_no_spec(
    at: _Scene, prepared: _Prepared
) -> None:
    """The spec is about to be written, and is removed as soon as it is."""
    prepared.file.unlink()

    async def unprepare() -> None:
        await at.ledger.apply(partial(end_claim, claim=_REF.uid, evidence="unprepared"))
        ended.set()
        await at.records.specs.remove(_REF.uid)

    loop, ended = asyncio.get_running_loop(), threading.Event()
    unpreparing: list[Future[None]] = []

    class Folder(SpecFolder):
        def names(self) -> tuple[str, ...]:
            unpreparing.append(asyncio.run_coroutine_threadsafe(unprepare(), loop))
            ended.wait()
            return super().names()

    slow = Folder(at.specs, prefix="holdfast.dev-claim")
    at.records.specs = replace(at.records.specs, folder=slow)
    with capture_logs() as logs:
        await at.records.catch_up()
        await asyncio.wrap_future(unpreparing[0])
    assert "CDI specs of claims written again" in [each["event"] for each in logs]
    assert at.held == [LockState.RELEASING]
    assert not prepared.file.exists()


async def test_a_claim_that_still_waits_has_no_spec_written(
    at: _Scene, prepared: _Prepared
) -> None:
    """Kubelet asks for it again after a restart, and has recorded what it was answered before."""
    await at.ledger.apply(partial(end_claim, claim=_REF.uid, evidence="unprepared"))
    (lock,) = at.ledger.book.value.locks.values()
    await at.ledger.apply(partial(release, lock=lock, evidence="free"))
    prepared.file.unlink()
    wish = Wish(ref=_REF, pods={Y: ""}, devices={WHOLE: silicon(d0="a")})
    await at.ledger.apply(partial(line_up, wish=wish))
    assert {each.phase for each in at.ledger.book.value.allocations.values()} == {Phase.PENDING}
    at.sight.unseen = LaneStuckError("no answer")
    await at.records._tidy()
    assert not prepared.file.exists()


async def test_what_the_ledger_lost_of_an_administrators_claim_takes_no_lock(at: _Scene) -> None:
    at.inventory.set(replace(_NODE, devices=(*_NODE.devices, _GPU)))
    at.record(X, device=plain(_GPU).name)
    at.server.admin = True
    await at.compare()
    assert at.held == []
    assert at.ledger.book.value.claims[_REF.uid].admin == {_GPU.name: _GPU.keys}
    at.server.down = True
    at.record(X, device=plain(_GPU).name, others=["tpu-d0"])  # a device that is found late
    await at.compare()
    assert [lock.device for lock in at.ledger.book.value.locks.values()] == [name("d0")]
    assert at.ledger.book.value.claims[_REF.uid].admin == {_GPU.name: _GPU.keys}


async def test_a_server_that_does_not_say_who_is_an_administrator_is_asked_once(
    at: _Scene,
) -> None:
    """A lock too many is the lesser evil, and kubelet waits for us when we begin."""
    at.inventory.set(replace(_NODE, devices=(*_NODE.devices, _GPU)))
    at.server.down = at.server.admin = True
    refs = (_REF, ClaimRef("team", ClaimUid("uid-2"), "second"))
    write_entries(at.state, [_entry(X, ref=ref, device=plain(_GPU).name) for ref in refs])
    await at.catch_up()
    assert at.held == [LockState.HELD]
    assert at.server.asked == 1


@pytest.mark.parametrize("others", [(), ("tpu-d0",)])
async def test_an_administrators_claim_gives_its_lock_up_once_the_server_says_what_it_is(
    at: _Scene, others: tuple[str, ...]
) -> None:
    at.inventory.set(replace(_NODE, devices=(*_NODE.devices, _GPU)))
    at.record(X, device=plain(_GPU).name, others=others)
    at.server.down = at.server.admin = True
    await at.compare()
    assert set(at.held) == {LockState.HELD}
    await at.compare()
    asked, at.server.down = at.server.asked, False
    await at.records.catch_up()
    assert at.server.asked == asked, "it is asked once a minute"
    for _ in range(2):
        await at.compare()
    assert at.server.asked == asked + 1
    book = at.ledger.book.value
    assert book.claims[_REF.uid].admin == {_GPU.name: _GPU.keys}
    assert [str(each.id) for each in book.locks] == ["d0"] * len(others)


async def test_a_claim_that_cannot_be_read_keeps_no_administrator_from_being_known(
    at: _Scene,
) -> None:
    at.inventory.set(replace(_NODE, devices=(*_NODE.devices, _GPU)))
    refs = (ClaimRef("team", ClaimUid("uid-0"), "nested"), _REF)
    write_entries(at.state, [_entry(X, ref=ref, device=plain(_GPU).name) for ref in refs])
    at.server.nested, at.server.admin = "nested", True
    await at.catch_up()
    assert at.server.asked == 2
    assert at.ledger.book.value.claims[_REF.uid].admin == {_GPU.name: _GPU.keys}


async def test_an_answer_that_made_no_sense_is_asked_for_again(at: _Scene) -> None:
    """A proxy on the way may have given it; a tenant's claim can be so for good."""
    at.inventory.set(replace(_NODE, devices=(*_NODE.devices, _GPU)))
    at.record(X, device=plain(_GPU).name)
    at.server.nested, at.server.admin = _REF.name, True
    await at.compare()
    await at.records.catch_up()
    assert (at.server.asked, at.held) == (1, [LockState.HELD])
    at.server.nested = ""
    for _ in range(2):
        await at.compare()
    assert (at.server.asked, at.held) == (2, [])
    assert at.ledger.book.value.claims[_REF.uid].admin == {_GPU.name: _GPU.keys}


async def test_what_kubelet_lets_go_while_the_server_is_asked_is_not_taken_over(
    at: _Scene,
) -> None:
    at.inventory.set(replace(_NODE, devices=(*_NODE.devices, _GPU)))
    at.server.allocated = plain(_GPU).name
    at.record(X, device=plain(_GPU).name)
    at.server.meanwhile = at.record
    await at.catch_up()
    assert at.server.asked == 1
    assert at.held == []


async def test_shares_of_what_is_not_shared_any_more_are_taken_over(at: _Scene) -> None:
    other = ClaimRef("team", ClaimUid("uid-2"), "other")
    write_entries(at.state, [_share(at), _share(at, pod=Y, ref=other, share="another")])
    await at.compare()
    assert at.held == [LockState.HELD] * 2
    assert {name.id for name in at.ledger.book.value.locks} == {"GPU-1::0", "GPU-1::1"}


@dataclass
class _Hung:
    """An API server that answers once it is let."""

    server: _Server

    def __post_init__(self) -> None:
        self.asked, self.answers = asyncio.Event(), asyncio.Event()

    async def claim(self, namespace: str, name: str) -> AllocatedClaim:
        self.asked.set()
        await self.answers.wait()
        return await self.server.claim(namespace, name)


async def _loses_another(at: _Scene) -> _Hung:
    """Let kubelet's record lack a claim that the ledger has, so that the server is asked for it."""
    lost = ClaimRef("team", ClaimUid("uid-lost"), "lost")
    await at.enters(Wish(ref=lost, pods={Z: ""}, devices={WHOLE: silicon(d1="b")}))
    hung = _Hung(at.server)
    at.records.claims = hung
    return hung


def _ends(draft: Draft) -> None:
    end_claim(draft, _REF.uid, "unprepared", kubelet=KUBELET, recorded=[X])


async def test_a_pod_that_joins_is_learned_of_while_the_server_is_asked_about_another_claim(
    at: _Scene,
) -> None:
    hung = await _loses_another(at)
    await at.prepare(X)
    at.record(X)
    running = asyncio.create_task(at.records.run())
    await asyncio.sleep(0)
    at.clock.ahead = EVERY
    at.written.set(1)
    await hung.asked.wait()
    await at.ledger.apply(_ends)
    at.record(X, Y)
    at.written.set(2)
    try:
        async with asyncio.timeout(30):
            await at.ledger.book.until(lambda book: book.claims[_REF.uid].over_at is None)
    finally:
        hung.answers.set()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_spec_stays_of_a_claim_that_was_joined_since_the_comparison_began(
    at: _Scene,
) -> None:
    hung = await _loses_another(at)
    at.record()
    comparing = asyncio.create_task(at.records.compare())
    await hung.asked.wait()
    await at.prepare(X)
    at.spec.write_text("{}")
    at.record(X)
    await at.ledger.apply(_ends)
    at.record(X, Y)  # it starts with the spec as it is: kubelet makes no call
    hung.answers.set()
    await comparing
    assert at.spec.exists()


async def test_who_joined_and_what_was_prepared_while_the_server_was_asked_is_not_forgotten(
    at: _Scene,
) -> None:
    """It is in kubelet's record since, and nothing makes kubelet write that once more."""
    at.inventory.set(replace(_NODE, devices=(*_NODE.devices, _GPU)))
    ref = ClaimRef("team", ClaimUid("uid-lost"), "lost")
    lost = _entry(Z, ref=ref, device=plain(_GPU).name)
    write_entries(at.state, [lost])
    at.records.claims = hung = _Hung(at.server)
    comparing = asyncio.create_task(at.records.compare())
    await hung.asked.wait()
    await at.prepare(X)
    write_entries(at.state, [_entry(X, Y), lost])
    following = asyncio.create_task(at.records.catch_up())
    await at.ledger.book.until(lambda book: book.claims[_REF.uid].pods == {X, Y})
    hung.answers.set()
    await asyncio.gather(comparing, following)
    await at.published()
    claim = at.ledger.book.value.claims[_REF.uid]
    assert claim.pods == {X, Y}
    assert not claim.forgotten
