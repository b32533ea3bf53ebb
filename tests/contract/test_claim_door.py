"""The door of claims before real processes: what it waits for, what it says, and when it ends."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from fakes.doors import SaidRecord, WatchedNode, entry_over
from fakes.inuse import NoDrivers, SlowLook, chip, device_use, look_at
from fakes.ledgers import ledger_in
from fakes.observers import Unobserved
from fakes.opener import opener
from fakes.watchers import KnownKubelet
from holdfast.allocation.allocator import GrantBuilder
from holdfast.discovery.source import Sources
from holdfast.dra.claimdoor import ClaimDoor
from holdfast.dra.preparation import ClaimPreparation, ClaimRelease
from holdfast.dra.specs import ClaimSpecs
from holdfast.errors import ApiServerError, ObjectGoneError, UnreadableAnswerError
from holdfast.host.files.specfolder import SpecFolder
from holdfast.host.use.look import Look
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.book import LockState
from holdfast.model.book.claims import adopt, release
from holdfast.model.devices import DeviceKind, Fault, FaultKind, Inventory
from holdfast.model.dra.advertised import AdvertisedDevice, plain
from holdfast.model.dra.claims import AllocatedClaim, ClaimResult, PrepareAnswer
from holdfast.model.dra.handover import ResultDevices
from holdfast.model.dra.passage import wish_for
from holdfast.model.ids import (
    BootId,
    ClaimRef,
    ClaimUid,
    PodUid,
    ResourceName,
)
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched
from holdfast.settings import sections
from holdfast.settings.types import Interval
from simulated.node import SimulatedNode
from waiting import until

_TPU = ResourceName("google.com/tpu")
_DRIVER, _POOL = "holdfast.dev", "node-1"
_BRIEF, _GENEROUS = 0.4, 20.0


class _Claims:
    """The API server's claims, as far as Prepare asks for them."""

    def __init__(self) -> None:
        self.claims: dict[str, AllocatedClaim] = {}
        self.fails = ""
        self.broken = ""
        """The name of a claim that cannot even be read as one."""
        self.nested = ""
        """The name of a claim that is nested too deep."""

    async def claim(self, namespace: str, name: str) -> AllocatedClaim:
        if name == self.nested:
            raise UnreadableAnswerError("cannot understand the API server's answer: too deep")
        if name == self.broken:
            raise ValueError("no such thing was ever thought of")
        if self.fails:
            raise ApiServerError(self.fails)
        found = self.claims.get(f"{namespace}/{name}")
        if found is None:
            raise ObjectGoneError(f"there is no claim {namespace}/{name}")
        return found


@dataclass
class _AtTheDoor:
    node: SimulatedNode
    ledger: Ledger
    lane: Lane
    folder: Path
    inventory: Watched[Inventory]
    claims: _Claims = field(default_factory=_Claims)
    watch: WatchedNode = field(default_factory=lambda: WatchedNode(keeps="what keeps {}"))
    reader: KnownKubelet = field(default_factory=KnownKubelet)
    record: SaidRecord = field(default_factory=SaidRecord)
    groups: tuple[AdvertisedDevice, ...] = ()

    def door(
        self,
        *,
        longest: float = _GENEROUS,
        patience: float | Watched[float] = 60.0,
        look: Look | None = None,
    ) -> ClaimDoor:
        clock = SystemClock()
        specs = ClaimSpecs(
            SpecFolder(self.folder, prefix=f"{_DRIVER}-claim"),
            driver=_DRIVER,
            root=self.node.root,
            lane=self.lane,
        )
        entry = entry_over(
            self.ledger,
            device_use(
                look or look_at(self.node.root, self.lane),
                self.node.root,
                clock,
                book=self.ledger.book,
            ),
            inventory=self.inventory,
            reader=self.reader,
            watcher=self.watch,
            resetter=self.watch,
            clock=clock,
            settings=sections.GateSettings(poll=Interval(0.25), exclusive_open=False),
        )
        return ClaimDoor(
            ClaimPreparation(
                driver=_DRIVER,
                pool=_POOL,
                entry=entry,
                claims=self.claims,
                record=self.record,
                advertised=self.advertised,
                serves=self.serves,
                ledger=self.ledger,
                inventory=self.inventory,
                granting=GrantBuilder(Sources(), None),
                specs=specs,
                clock=clock,
                observer=Unobserved(),
            ),
            ClaimRelease(
                ledger=self.ledger,
                reader=self.reader,
                record=self.record,
                specs=specs,
                watcher=self.watch,
                clock=clock,
                patience=patience if isinstance(patience, Watched) else Watched(patience),
                observer=Unobserved(),
            ),
            clock=clock,
            longest=longest,
        )

    def advertised(self) -> Sequence[AdvertisedDevice]:
        return (*map(plain, self.inventory.value.devices), *self.groups)

    def serves(self, resource: ResourceName) -> bool:
        return resource == _TPU

    def allocate(self, name: str, *chips: int, pods: tuple[str, ...] = ()) -> ClaimRef:
        ref = ClaimRef("team", ClaimUid(f"uid-of-{name}"), name)
        devices = self.inventory.value.devices
        self.claims.claims[f"team/{name}"] = AllocatedClaim(
            ref=ref,
            results=tuple(
                ClaimResult(
                    request="chips/first",
                    driver=_DRIVER,
                    pool=_POOL,
                    device=plain(devices[chip]).name,
                )
                for chip in chips
            ),
            reserved_for={PodUid(each): each for each in pods or (f"pod-of-{name}",)},
        )
        return ref

    def opened(self, stack: ExitStack, chip: int, pod: str = "") -> int:
        """Have a process open a chip; return its pid."""
        path = self.inventory.value.devices[chip].nodes[0].path
        pid = stack.enter_context(opener(self.node.node(path))).pid
        if pod:
            self.node.add_pod(pod)
            self.node.enter(pod, "main", pid)
        else:
            self.node.add_process(pid, "/user.slice")
        return pid

    def state(self, chip: int) -> LockState:
        lock = self.ledger.book.value.lock_on(self.inventory.value.devices[chip].keys)
        return LockState.FREE if lock is None else lock.state

    async def release_all(self) -> None:
        """Do as the watcher does when the kernel shows everything free."""
        while ending := [
            each
            for each in self.ledger.book.value.locks.values()
            if each.state is LockState.RELEASING
        ]:
            await self.ledger.apply(partial(release, lock=ending[0], evidence="free"))
            await asyncio.sleep(0)

    @property
    def files(self) -> list[str]:
        return sorted(each.name for each in self.folder.iterdir())


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[_AtTheDoor]:
    node = SimulatedNode(tmp_path / "node", chips=2)
    (tmp_path / "cdi").mkdir()
    devices = tuple(chip(node, place) for place in range(2))
    with closing(Lane("scan", deadline=20.0)) as lane:
        async with ledger_in(tmp_path / "state") as ledger:
            made = _AtTheDoor(
                node=node,
                ledger=ledger,
                lane=lane,
                folder=tmp_path / "cdi",
                inventory=Watched(Inventory(resources=(_TPU,), devices=devices)),
            )
            made.watch.looked.set()
            running = asyncio.create_task(node.run())
            try:
                yield made
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                node.close()


async def _one(door: ClaimDoor, claim: ClaimRef) -> PrepareAnswer:
    return (await door.prepare([claim]))[claim.uid]


async def test_a_free_device_is_handed_over_by_names_of_its_own(at: _AtTheDoor) -> None:
    claim = at.allocate("one", 0, 1)
    prepared = await _one(at.door(), claim)
    assert prepared.error == ""
    assert [each.requests for each in prepared.devices] == [("chips",), ("chips",)]
    assert [each.cdi_ids for each in prepared.devices] == [
        (f"holdfast.dev/claim=uid-of-one-tpu-0000-00-0{n}-0",) for n in (5, 6)
    ]
    assert at.files == ["holdfast.dev-claim_uid-of-one.json"]
    assert (at.state(0), at.state(1)) == (LockState.HELD, LockState.HELD)
    assert at.ledger.book.value.claims[claim.uid].pods == {"pod-of-one"}


async def test_the_spec_is_written_again_although_the_claim_is_prepared(at: _AtTheDoor) -> None:
    claim, door = at.allocate("one", 0), at.door()
    first = await _one(door, claim)
    for each in at.folder.iterdir():
        each.unlink()
    before = at.ledger.book.value.allocations.keys()
    assert await _one(door, claim) == first
    assert at.files == ["holdfast.dev-claim_uid-of-one.json"]
    assert at.ledger.book.value.allocations.keys() == before


async def test_a_claim_is_given_no_node_that_is_not_its_devices_any_more(at: _AtTheDoor) -> None:
    """Its group has another number now, and the node was not looked at since."""
    claim = at.allocate("one", 0)
    device, other = at.inventory.value.devices
    (node,) = device.nodes
    moved = replace(node, path="/dev/vfio/99")
    at.node.node(node.path).rename(at.node.node(moved.path))
    refused = await _one(at.door(longest=_BRIEF), claim)
    assert f"{node.path} is not google.com/tpu/0000:00:05.0 any more" in refused.error
    assert at.files == []
    at.inventory.set(replace(at.inventory.value, devices=(replace(device, nodes=(moved,)), other)))
    assert (await _one(at.door(), claim)).error == ""


async def test_who_has_the_device_is_named_and_the_place_in_the_queue_is_kept(
    at: _AtTheDoor,
) -> None:
    first, second = at.allocate("one", 0), at.allocate("two", 0)
    await _one(at.door(), first)
    prepared = await _one(at.door(longest=_BRIEF), second)
    assert prepared.error == (
        "waiting for google.com/tpu: 0000:00:05.0 is held by team/pod-of-one by claim team/one; "
        "kubelet asks again until that has ended (holdfast locks)"
    )
    assert len(at.ledger.book.value.holdings.of_claim(second.uid)) == 1
    assert at.files == ["holdfast.dev-claim_uid-of-one.json"]


async def test_a_process_that_has_the_device_is_waited_for(at: _AtTheDoor) -> None:
    claim = at.allocate("one", 0)
    with ExitStack() as stack:
        pid, door = at.opened(stack, 0), at.door(longest=_BRIEF)
        refused = await _one(door, claim)
        while "the look at them goes on" in refused.error:  # kubelet asks again
            refused = await _one(door, claim)
        assert f"(pid {pid})" in refused.error
        assert at.files == []
        waiting = asyncio.create_task(_one(at.door(), claim))
    assert (await waiting).error == ""


async def test_where_a_look_takes_longer_than_a_prepare_may_the_second_one_succeeds(
    at: _AtTheDoor,
) -> None:
    slow = SlowLook(at.node.root, at.lane, NoDrivers(), SystemClock())
    door, claim = at.door(look=slow, longest=_BRIEF), at.allocate("a", 0)
    told = (await _one(door, claim)).error
    assert "the look at them goes on, and what it shows counts for the next try" in told
    slow.permits.release()
    door.longest = _GENEROUS
    assert not (await _one(door, claim)).error
    assert slow.whole == 1


async def test_a_look_for_the_claim_before_does_not_count(at: _AtTheDoor) -> None:
    """Of an accel node `enable` tells nothing."""
    there, slow = at.inventory.value, SlowLook(at.node.root, at.lane, NoDrivers(), SystemClock())
    accel = (replace(each, kind=DeviceKind.ACCEL, functions=()) for each in there.devices)
    at.inventory.set(replace(there, devices=tuple(accel)))
    door = at.door(look=slow, longest=_BRIEF)
    former, claim = at.allocate("a", 0), at.allocate("b", 0)
    assert (await _one(door, former)).error
    assert await door.unprepare([former]) == {former.uid: ""}
    with ExitStack() as stack:
        pid = at.opened(stack, 0)
        slow.permits.release()
        assert "the look at them goes on" in (await _one(door, claim)).error
        slow.permits.release()
        assert f"(pid {pid})" in (await _one(door, claim)).error


async def test_a_claim_tells_what_it_waits_for_and_for_how_long_until_it_is_answered(
    at: _AtTheDoor,
) -> None:
    door, claim = at.door(), at.allocate("one", 0)
    preparing = door.preparing.entry
    with ExitStack() as stack:
        pid = at.opened(stack, 0)
        call = asyncio.create_task(_one(door, claim))
        await until(lambda: [*preparing.waiting(0.0)])
        (earlier,), (later,) = preparing.waiting(1000.0), preparing.waiting(1003.0)
        assert later.seconds - earlier.seconds == pytest.approx(3.0)
        assert later.pods == {"pod-of-one"}
        assert later.why == earlier.why, "the time is apart"
        assert f"(pid {pid}) outside any pod, which it was not given to; " in later.why
    await call
    assert not [*preparing.waiting(0.0)]


async def test_claims_of_one_call_do_not_wait_for_each_other(at: _AtTheDoor) -> None:
    door, free, taken = at.door(longest=2.0), at.allocate("one", 0), at.allocate("two", 1)
    with ExitStack() as stack:
        at.opened(stack, 1)
        answers = await door.prepare([taken, free])
    assert answers[free.uid].error == ""
    assert "is open in" in answers[taken.uid].error


async def test_a_claim_that_cannot_be_read_is_refused_alone_and_at_once(at: _AtTheDoor) -> None:
    one, other = at.allocate("one", 0), at.allocate("other", 1)
    at.claims.nested = "one"
    async with asyncio.timeout(_GENEROUS):
        found = await at.door(longest=3600.0).prepare([one, other])
    assert found[one.uid].error == (
        "cannot prepare claim team/one: cannot understand the API server's answer: too deep"
    )
    assert not found[other.uid].error


async def test_what_nobody_thought_of_fails_one_claim_of_a_call_alone(at: _AtTheDoor) -> None:
    door = at.door()
    sound, broken = at.allocate("one", 0), at.allocate("two", 1)
    at.claims.broken = broken.name
    with capture_logs():  # a traceback in colours takes seconds on a busy machine
        answers = await door.prepare([broken, sound])
    assert answers[sound.uid].error == ""
    assert answers[broken.uid].error == (
        "cannot prepare claim team/two: ValueError: no such thing was ever thought "
        "of; this is a bug in holdfast, see its log"
    )


async def test_what_its_only_pod_left_behind_is_in_the_way_of_its_next_sandbox(
    at: _AtTheDoor,
) -> None:
    claim = at.allocate("one", 0)
    await _one(at.door(), claim)
    with ExitStack() as stack:
        at.opened(stack, 0, "pod-of-one")
        assert "of this pod itself" in (await _one(at.door(longest=_BRIEF), claim)).error


async def test_pods_that_share_a_claim_are_not_in_each_others_way(at: _AtTheDoor) -> None:
    door, claim = at.door(), at.allocate("one", 0, pods=("pod-a",))
    await _one(door, claim)
    with ExitStack() as stack:
        at.opened(stack, 0, "pod-a")
        at.allocate("one", 0, pods=("pod-a", "pod-b"))
        assert (await _one(door, claim)).error == ""
        assert at.ledger.book.value.claims[claim.uid].pods == {"pod-a", "pod-b"}
        at.opened(stack, 0)
        assert "is open in" in (await _one(at.door(longest=_BRIEF), claim)).error


async def test_a_pod_that_was_deleted_shares_its_claim_no_more(at: _AtTheDoor) -> None:
    """It was force-deleted while kubelet was down, and others were given the claim since."""
    door, claim = at.door(), at.allocate("one", 0, pods=("pod-a",))
    await _one(door, claim)
    with ExitStack() as stack:
        pid = at.opened(stack, 0, "pod-a")
        at.allocate("one", 0, pods=("pod-b", "pod-c"))
        refused = (await _one(at.door(longest=_BRIEF), claim)).error
        assert f"(pid {pid}) of team/pod-a, which it was not given to; " in refused
    assert (await _one(door, claim)).error == ""


@pytest.mark.parametrize("pods", [("x",), ("x", "y")])
async def test_what_a_device_grew_by_is_looked_at_before_the_next_sandbox(
    at: _AtTheDoor, pods: tuple[str, ...]
) -> None:
    """It is the claim's by kubelet's record, which a comparison finds first."""
    whole = at.inventory.value
    first, more = whole.devices
    at.inventory.set(replace(whole, devices=(first,)))
    claim = at.allocate("one", 0, pods=pods)
    assert (await _one(at.door(), claim)).error == ""
    with ExitStack() as stack:
        at.inventory.set(whole)
        pid = at.opened(stack, 1)
        grown = replace(
            first,
            keys=first.keys | more.keys,
            nodes=(*first.nodes, *more.nodes),
            functions=(*first.functions, *more.functions),
        )
        at.inventory.set(replace(whole, devices=(grown,)))
        known = at.claims.claims["team/one"]
        given = ResultDevices(result=(known.results or ())[0], devices=(grown,))
        wish = wish_for(known.ref, known.reserved_for, [given])
        assert await at.ledger.apply(
            partial(adopt, wish=wish, running=frozenset(map(PodUid, pods)))
        )
        refused = await _one(at.door(longest=_BRIEF), claim)
        while "the look at them goes on" in refused.error:  # kubelet asks again
            refused = await _one(at.door(longest=_BRIEF), claim)
        assert f"(pid {pid})" in refused.error
        waiting = asyncio.create_task(_one(at.door(), claim))
    assert (await waiting).error == ""


async def test_a_claim_of_a_group_is_for_the_pods_that_kubelet_has_written_down(
    at: _AtTheDoor,
) -> None:
    """It is reserved for a PodGroup (1.36, alpha), and no pod is named."""
    ref = at.allocate("grouped", 0)
    claim = at.claims.claims["team/grouped"]
    at.claims.claims["team/grouped"] = replace(claim, reserved_for={}, grouped=True)
    door = at.door()
    refused = (await door.prepare([ref]))[ref.uid]
    assert "reserved for no pod any more" in refused.error
    at.record.pods = frozenset({PodUid("member")})
    assert (await door.prepare([ref]))[ref.uid].error == ""
    assert at.ledger.book.value.claims[ref.uid].pods == {PodUid("member")}


async def test_unprepare_frees_and_forgets_and_is_asked_twice_in_vain(at: _AtTheDoor) -> None:
    door, claim = at.door(), at.allocate("one", 0)
    await _one(door, claim)
    ending = asyncio.create_task(door.unprepare([claim]))
    await until(lambda: at.state(0) is LockState.RELEASING)
    await at.release_all()
    assert await ending == {claim.uid: ""}
    assert at.files == []
    assert await door.unprepare([claim]) == {claim.uid: ""}


async def test_a_spec_stays_while_kubelets_record_has_the_claim(at: _AtTheDoor) -> None:
    """A pod that joins before kubelet has heard the answer is given the same CDI devices."""
    door, claim = at.door(), at.allocate("one", 0)
    await _one(door, claim)
    at.record.pods = frozenset({PodUid("pod-of-one")})
    ending = asyncio.create_task(door.unprepare([claim]))
    await until(lambda: at.state(0) is LockState.RELEASING)
    await at.release_all()
    assert await ending == {claim.uid: ""}
    assert at.files != []


async def test_an_unknown_claim_is_over(at: _AtTheDoor) -> None:
    claim = ClaimRef("team", ClaimUid("never seen"), "claim")
    assert await at.door().unprepare([claim]) == {claim.uid: ""}


async def test_unprepare_names_who_is_left_until_its_patience_is_over(at: _AtTheDoor) -> None:
    claim = at.allocate("one", 0)
    await _one(at.door(), claim)
    told = (await at.door(longest=_BRIEF).unprepare([claim]))[claim.uid]
    assert told == (
        "waiting for the end of claim team/one: google.com/tpu/0000:00:05.0 is not free of "
        "team/pod-of-one by claim team/one yet: what keeps 0000:00:05.0; holdfast looks again by "
        "itself (holdfast locks)"
    )
    assert (await at.door(patience=0.2).unprepare([claim]))[claim.uid] == ""
    assert at.state(0) is LockState.RELEASING
    refused = await _one(at.door(longest=_BRIEF), at.allocate("two", 0))
    assert " yet: what keeps " in refused.error


async def test_the_end_of_a_claim_from_before_a_reboot_is_not_waited_for(at: _AtTheDoor) -> None:
    """When it was over is told in seconds since that boot, which mean nothing in this one."""
    claim = at.allocate("one", 0)
    await _one(at.door(), claim)
    assert (await at.door(longest=_BRIEF).unprepare([claim]))[claim.uid]
    at.ledger.boot = BootId("the next boot")
    assert await at.door().unprepare([claim]) == {claim.uid: ""}


async def test_a_shorter_patience_counts_at_once_for_an_unprepare_that_waits(
    at: _AtTheDoor,
) -> None:
    claim, patience = at.allocate("one", 0), Watched(3600.0)
    await _one(at.door(), claim)
    door = at.door(longest=3600.0, patience=patience)
    ending = asyncio.create_task(door.unprepare([claim]))
    await until(lambda: at.state(0) is LockState.RELEASING)
    patience.set(0.01)
    assert await ending == {claim.uid: ""}
    assert at.state(0) is LockState.RELEASING


async def test_unprepare_ends_the_prepare_that_waits(at: _AtTheDoor) -> None:
    door, claim = at.door(), at.allocate("one", 0)
    with ExitStack() as stack:
        at.opened(stack, 0)
        waiting = asyncio.create_task(_one(door, claim))
        await until(lambda: at.state(0) is LockState.HELD)
        assert await door.unprepare([claim]) == {claim.uid: ""}
        assert (await waiting).error == "kubelet unprepared the claim meanwhile"
    assert at.state(0) is LockState.FREE
    assert at.files == []
    assert "no other pod is to use it since" in (await _one(door, claim)).error


async def test_a_prepare_that_commits_while_it_is_ended_leaves_nothing(at: _AtTheDoor) -> None:
    door, claim = at.door(), at.allocate("one", 0)
    for _ in range(20):
        waiting = asyncio.create_task(_one(door, claim))
        await asyncio.sleep(0)
        ending = asyncio.create_task(door.unprepare([claim]))
        await asyncio.wait({waiting})
        await until(lambda: at.state(0) is not LockState.HELD)
        await at.release_all()
        assert await ending == {claim.uid: ""}
        assert not at.ledger.book.value.allocations
        assert at.files == []


async def test_a_server_that_cannot_be_asked_is_asked_again(at: _AtTheDoor) -> None:
    claim = at.allocate("one", 0)
    at.claims.fails = "cannot ask the API server: connection refused"
    refused = await _one(at.door(longest=_BRIEF), claim)
    assert refused.error == (
        "waiting for claim team/one: cannot ask the API server: connection refused; kubelet asks "
        "again (holdfast status)"
    )
    waiting = asyncio.create_task(_one(at.door(), claim))
    await asyncio.sleep(0)
    at.claims.fails = ""
    assert (await waiting).error == ""


async def test_a_claim_that_is_gone_is_refused_at_once(at: _AtTheDoor) -> None:
    claim = ClaimRef("team", ClaimUid("uid"), "gone")
    assert (await _one(at.door(), claim)).error == (
        "cannot prepare claim team/gone: there is no claim team/gone"
    )


async def test_a_device_that_was_unplugged_is_refused_unless_it_may_yet_be_found(
    at: _AtTheDoor,
) -> None:
    claim = at.allocate("one", 1)
    without = replace(at.inventory.value, devices=at.inventory.value.devices[:1])
    at.inventory.set(without)
    refused = await _one(at.door(), claim)
    assert "no device tpu-0000-00-06-0 any more" in refused.error
    at.inventory.set(replace(without, unseen=frozenset({_TPU})))
    assert (
        "was not found yet; the hardware is still being looked for"
        in (await _one(at.door(longest=_BRIEF), claim)).error
    )


async def test_a_group_of_which_a_device_is_gone_is_refused(at: _AtTheDoor) -> None:
    first, second = at.inventory.value.devices
    at.groups = (AdvertisedDevice(name="pair", devices=(first.name, second.name)),)
    claim = at.allocate("one", 0)
    known = at.claims.claims["team/one"]
    asked = tuple(replace(each, device="pair") for each in known.results or ())
    at.claims.claims["team/one"] = replace(known, results=asked)
    at.inventory.set(replace(at.inventory.value, devices=(first,)))
    refused = await _one(at.door(), claim)
    assert "no device pair any more" in refused.error


@pytest.mark.parametrize(("kind", "final"), [(FaultKind.NOT_VIABLE, True), (FaultKind.ILL, False)])
async def test_ill_hardware_is_waited_for_unless_it_stays_so(
    at: _AtTheDoor, kind: FaultKind, final: bool
) -> None:
    claim = at.allocate("one", 0)
    first, second = at.inventory.value.devices
    ill = replace(first, faults=(Fault(kind=kind, text="it is broken"),))
    at.inventory.set(replace(at.inventory.value, devices=(ill, second)))
    error = (await _one(at.door(longest=_BRIEF), claim)).error
    assert "it is broken" in error
    assert ("asks again" in error) is not final


async def test_nobody_passes_before_the_node_was_looked_at_or_while_it_is_reset(
    at: _AtTheDoor,
) -> None:
    claim = at.allocate("one", 0)
    at.watch.looked.clear()
    door = at.door(longest=_BRIEF)
    assert "has not scanned the node yet" in (await _one(door, claim)).error
    at.watch.looked.set()
    at.watch.doing = "its functions are being reset"
    assert "being reset" in (await _one(door, claim)).error
    assert at.files == []


async def test_what_cannot_be_recorded_is_neither_prepared_nor_over(at: _AtTheDoor) -> None:
    door, free, had = at.door(), at.allocate("one", 0), at.allocate("two", 1)
    await _one(door, had)
    state = at.folder.parent / "state"
    state.rename(at.folder.parent / "moved")
    state.touch()  # so that no ledger can be written anew in its place
    assert (
        "for google.com/tpu: it cannot be recorded: cannot write the"
        in (await _one(at.door(longest=_BRIEF), free)).error
    )
    told = (await door.unprepare([had]))[had.uid]
    assert "claim team/two: its end cannot be recorded: cannot write the ledger" in told
    assert (at.state(0), at.state(1)) == (LockState.FREE, LockState.HELD)
    assert at.files == ["holdfast.dev-claim_uid-of-two.json"]


async def test_without_the_folder_of_specs_nothing_is_prepared(at: _AtTheDoor) -> None:
    claim = at.allocate("one", 0)
    at.folder.rmdir()
    refused = await _one(at.door(longest=_BRIEF), claim)
    assert "such folder; make it on the host" in refused.error
    assert not at.ledger.book.value.locks_on(at.inventory.value.devices[0].keys)[0].started


async def test_a_release_by_hand_ends_the_patience_for_one_end_of_the_claim(
    at: _AtTheDoor,
) -> None:
    door, claim = at.door(), at.allocate("one", 0, pods=("pod-1",))
    await _one(door, claim)
    door.longest = _BRIEF
    assert (await door.unprepare([claim]))[claim.uid]
    door.longest = _GENEROUS
    door.unpreparing.release(claim.uid)
    assert not (await door.unprepare([claim]))[claim.uid]
    await at.release_all()
    at.allocate("one", 0, pods=("pod-2",))
    assert not (await _one(door, claim)).error
    door.longest = _BRIEF
    assert (await door.unprepare([claim]))[claim.uid]


async def test_a_release_by_hand_after_the_end_of_a_claim_says_nothing_of_its_next_end(
    at: _AtTheDoor,
) -> None:
    door, claim = at.door(), at.allocate("one", 0, pods=("pod-1",))
    await _one(door, claim)
    door.unpreparing.patience.set(0.0)
    assert not (await door.unprepare([claim]))[claim.uid], "kubelet was told that it is over"
    door.unpreparing.patience.set(60.0)
    door.unpreparing.release(claim.uid)
    await at.release_all()
    at.allocate("one", 0, pods=("pod-2",))
    assert not (await _one(door, claim)).error
    door.longest = _BRIEF
    assert (await door.unprepare([claim]))[claim.uid], "its next end is waited for"
