"""The door of claims before real processes: what it waits for, what it says, and when it ends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from fakes.books import KUBELET, seen
from fakes.opener import opener
from holdfast.allocation.granting import Granting
from holdfast.allocation.sharedlook import SharedLook
from holdfast.discovery.source import Sources
from holdfast.dra.claimdoor import ClaimDoor
from holdfast.dra.preparing import Node, Preparing
from holdfast.dra.specs import ClaimSpecs
from holdfast.dra.unpreparing import Unpreparing
from holdfast.errors import ApiServerError, ObjectGoneError
from holdfast.host.files.cdi import SpecFolder
from holdfast.host.use.look import Look
from holdfast.ledger.ledger import Ledger, open_ledger
from holdfast.model.book.claims import release
from holdfast.model.book.locks import LockState
from holdfast.model.devices import Device, DeviceKind, DeviceNode, Fault, FaultKind, Inventory
from holdfast.model.dra.advertised import plain
from holdfast.model.dra.claims import AllocatedClaim, ClaimResult, Prepared
from holdfast.model.ids import (
    BootId,
    ClaimRef,
    ClaimUid,
    DeviceId,
    DeviceName,
    HardwareKey,
    PciAddress,
    PodUid,
    ResourceName,
)
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched
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

    async def claim(self, namespace: str, name: str) -> AllocatedClaim:
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
    looked: asyncio.Event = field(default_factory=asyncio.Event)
    nudges: Watched[int] = field(default_factory=lambda: Watched(0))
    at_work: str = ""

    def door(
        self, *, longest: float = _BRIEF, patience: float | Watched[float] = 60.0
    ) -> ClaimDoor:
        clock = SystemClock()
        specs = ClaimSpecs(
            SpecFolder(self.folder, prefix=f"{_DRIVER}-claim"),
            driver=_DRIVER,
            node_rdev=lambda path: 0x0C05 if path == "/dev/vfio/vfio" else None,
            lane=self.lane,
        )
        node = Node(
            inventory=self.inventory,
            advertised=lambda: tuple(map(plain, self.inventory.value.devices)),
            serves=lambda resource: resource == _TPU,
            look=SharedLook(
                Look(self.node.root, self.lane),
                locks=lambda: self.ledger.book.value.locks,
                clock=clock,
                exclusive_open=Watched(False),
            ),
            looked=self.looked,
            obstacle=lambda name: f"what keeps {name.id}",
            at_work=lambda _keys: self.at_work,
            grant=Granting(Sources()).grant,
            refuses=lambda _shares: "",
            stirred=self.nudges,
        )
        return ClaimDoor(
            Preparing(
                driver=_DRIVER,
                pool=_POOL,
                claims=self.claims,
                ledger=self.ledger,
                node=node,
                specs=specs,
                clock=clock,
            ),
            Unpreparing(
                ledger=self.ledger,
                view=Watched(replace(seen(), kubelet=KUBELET)),
                ask=lambda _reason: None,
                specs=specs,
                obstacle=lambda name: f"what keeps {name.id}",
                nudges=self.nudges,
                clock=clock,
                patience=patience if isinstance(patience, Watched) else Watched(patience),
            ),
            clock=clock,
            longest=longest,
        )

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
    lane, book_lane = Lane("scan", deadline=20.0), Lane("ledger", deadline=20.0)
    (tmp_path / "state").mkdir()
    ledger = await open_ledger(
        tmp_path / "state", book_lane, clock=SystemClock(), boot=BootId("this boot")
    )
    (tmp_path / "cdi").mkdir()
    devices = tuple(_device(node, place) for place in range(2))
    made = _AtTheDoor(
        node=node,
        ledger=ledger,
        lane=lane,
        folder=tmp_path / "cdi",
        inventory=Watched(Inventory(generation=1, resources=(_TPU,), devices=devices)),
    )
    made.looked.set()
    running = asyncio.create_task(node.run())
    try:
        yield made
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        node.close()
        await ledger.close()
        lane.close()
        book_lane.close()


def _device(node: SimulatedNode, place: int) -> Device:
    address = PciAddress(f"0000:00:{5 + place:02x}.0")
    group = (node.root.sys / "bus/pci/devices" / address / "iommu_group").resolve().name
    path = f"/dev/vfio/{group}"
    return Device(
        name=DeviceName(_TPU, DeviceId(address)),
        kind=DeviceKind.VFIO,
        keys=frozenset({HardwareKey(f"pci/{address}")}),
        nodes=(DeviceNode(path=path, rdev=node.node(path).stat().st_rdev),),
        functions=(address,),
    )


async def _one(door: ClaimDoor, claim: ClaimRef) -> Prepared:
    return (await door.prepare([claim]))[claim.uid]


async def test_a_free_device_is_handed_over_by_names_of_its_own(at: _AtTheDoor) -> None:
    claim = at.allocate("one", 0, 1)
    prepared = await _one(at.door(), claim)
    assert prepared.error == ""
    assert [each.request_names for each in prepared.devices] == [("chips",), ("chips",)]
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


async def test_who_has_the_device_is_named_and_the_place_in_the_queue_is_kept(
    at: _AtTheDoor,
) -> None:
    door = at.door()
    first, second = at.allocate("one", 0), at.allocate("two", 0)
    await _one(door, first)
    prepared = await _one(door, second)
    assert prepared.error == (
        "cannot prepare claim team/two (uid-of-two) yet: google.com/tpu/0000:00:05.0 is held by "
        "pod team/pod-of-one (pod-of-one) by claim team/one; what keeps 0000:00:05.0 "
        "(kubelet will ask again)"
    )
    assert len(at.ledger.book.value.holdings.of_claim(second.uid)) == 1
    assert at.files == ["holdfast.dev-claim_uid-of-one.json"]


async def test_a_process_that_has_the_device_is_waited_for(at: _AtTheDoor) -> None:
    claim = at.allocate("one", 0)
    with ExitStack() as stack:
        pid = at.opened(stack, 0)
        refused = await _one(at.door(), claim)
        assert f"is held by pid {pid}" in refused.error
        assert at.files == []
        waiting = asyncio.create_task(_one(at.door(longest=_GENEROUS), claim))
    assert (await waiting).error == ""


async def test_a_claim_tells_what_it_waits_for_and_for_how_long_until_it_is_answered(
    at: _AtTheDoor,
) -> None:
    door, claim = at.door(longest=_GENEROUS), at.allocate("one", 0)
    preparing = door.preparing
    with ExitStack() as stack:
        pid = at.opened(stack, 0)
        call = asyncio.create_task(_one(door, claim))
        await until(lambda: [*preparing.waiting(0.0)])
        (earlier,), (later,) = preparing.waiting(1000.0), preparing.waiting(1003.0)
        assert later.seconds - earlier.seconds == pytest.approx(3.0)
        assert (later.what, later.pods) == ("claim team/one", frozenset({"pod-of-one"}))
        assert f"is held by pid {pid}" in later.why
    await call
    assert not [*preparing.waiting(0.0)]


async def test_claims_of_one_call_do_not_wait_for_each_other(at: _AtTheDoor) -> None:
    door, free, taken = at.door(), at.allocate("one", 0), at.allocate("two", 1)
    with ExitStack() as stack:
        at.opened(stack, 1)
        answers = await door.prepare([taken, free])
    assert answers[free.uid].error == ""
    assert "yet" in answers[taken.uid].error


async def test_what_nobody_thought_of_fails_one_claim_of_a_call_alone(at: _AtTheDoor) -> None:
    door = at.door(longest=_GENEROUS)
    sound, broken = at.allocate("one", 0), at.allocate("two", 1)
    at.claims.broken = broken.name
    answers = await door.prepare([broken, sound])
    assert answers[sound.uid].error == ""
    assert answers[broken.uid].error == (
        "cannot prepare claim team/two (uid-of-two): ValueError: no such thing was ever thought "
        "of; this is a bug in holdfast, see its log"
    )


async def test_what_its_only_pod_left_behind_is_in_the_way_of_its_next_sandbox(
    at: _AtTheDoor,
) -> None:
    door, claim = at.door(), at.allocate("one", 0)
    await _one(door, claim)
    with ExitStack() as stack:
        at.opened(stack, 0, "pod-of-one")
        assert "of pod pod-of-one" in (await _one(door, claim)).error


async def test_pods_that_share_a_claim_are_not_in_each_others_way(at: _AtTheDoor) -> None:
    door, claim = at.door(), at.allocate("one", 0, pods=("pod-a",))
    await _one(door, claim)
    with ExitStack() as stack:
        at.opened(stack, 0, "pod-a")
        at.allocate("one", 0, pods=("pod-a", "pod-b"))
        assert (await _one(door, claim)).error == ""
        assert at.ledger.book.value.claims[claim.uid].pods == {"pod-a", "pod-b"}
        at.opened(stack, 0)
        assert "is held by" in (await _one(at.door(), claim)).error


async def test_unprepare_frees_and_forgets_and_is_asked_twice_in_vain(at: _AtTheDoor) -> None:
    door, claim = at.door(longest=_GENEROUS), at.allocate("one", 0)
    await _one(door, claim)
    ending = asyncio.create_task(door.unprepare([claim]))
    await until(lambda: at.state(0) is LockState.RELEASING)
    await at.release_all()
    assert await ending == {claim.uid: ""}
    assert at.files == []
    assert await door.unprepare([claim]) == {claim.uid: ""}


async def test_an_unknown_claim_is_over(at: _AtTheDoor) -> None:
    claim = ClaimRef("team", ClaimUid("never seen"), "claim")
    assert await at.door().unprepare([claim]) == {claim.uid: ""}


async def test_unprepare_names_who_is_left_until_its_patience_is_over(at: _AtTheDoor) -> None:
    claim = at.allocate("one", 0)
    await _one(at.door(), claim)
    told = (await at.door(patience=60.0).unprepare([claim]))[claim.uid]
    assert told.startswith("cannot unprepare claim team/one (uid-of-one) yet: google.com/tpu/")
    assert "pod-of-one" in told
    assert "what keeps 0000:00:05.0" in told
    assert (await at.door(longest=_GENEROUS, patience=0.2).unprepare([claim]))[claim.uid] == ""
    assert at.state(0) is LockState.RELEASING
    assert "yet" in (await _one(at.door(), at.allocate("two", 0))).error


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
    door, claim = at.door(longest=_GENEROUS), at.allocate("one", 0)
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
    door, claim = at.door(longest=_GENEROUS), at.allocate("one", 0)
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
    refused = await _one(at.door(), claim)
    assert refused.error == (
        "cannot prepare claim team/one (uid-of-one) yet: cannot ask the API server: connection "
        "refused (kubelet will ask again)"
    )
    waiting = asyncio.create_task(_one(at.door(longest=_GENEROUS), claim))
    await asyncio.sleep(0)
    at.claims.fails = ""
    assert (await waiting).error == ""


async def test_a_claim_that_is_gone_is_refused_at_once(at: _AtTheDoor) -> None:
    claim = ClaimRef("team", ClaimUid("uid"), "gone")
    assert (await _one(at.door(longest=_GENEROUS), claim)).error == (
        "cannot prepare claim team/gone (uid): there is no claim team/gone"
    )


async def test_a_device_that_was_unplugged_is_refused_unless_it_may_yet_be_found(
    at: _AtTheDoor,
) -> None:
    claim = at.allocate("one", 1)
    without = replace(at.inventory.value, devices=at.inventory.value.devices[:1])
    at.inventory.set(without)
    refused = await _one(at.door(longest=_GENEROUS), claim)
    assert "no device tpu-0000-00-06-0 any more" in refused.error
    at.inventory.set(replace(without, unseen=frozenset({_TPU})))
    assert "not all of the hardware was seen yet" in (await _one(at.door(), claim)).error


@pytest.mark.parametrize(("kind", "final"), [(FaultKind.NOT_VIABLE, True), (FaultKind.ILL, False)])
async def test_ill_hardware_is_waited_for_unless_it_stays_so(
    at: _AtTheDoor, kind: FaultKind, final: bool
) -> None:
    claim = at.allocate("one", 0)
    first, second = at.inventory.value.devices
    ill = replace(first, faults=(Fault(kind=kind, text="it is broken"),))
    at.inventory.set(replace(at.inventory.value, devices=(ill, second)))
    error = (await _one(at.door(), claim)).error
    assert "it is broken" in error
    assert ("will ask again" in error) is not final


async def test_nobody_passes_before_the_node_was_looked_at_or_while_it_is_reset(
    at: _AtTheDoor,
) -> None:
    claim = at.allocate("one", 0)
    at.looked.clear()
    assert "has not scanned the node yet" in (await _one(at.door(), claim)).error
    at.looked.set()
    at.at_work = "its functions are being reset"
    assert "being reset" in (await _one(at.door(), claim)).error
    assert at.files == []


async def test_what_cannot_be_recorded_is_neither_prepared_nor_over(at: _AtTheDoor) -> None:
    door, free, had = at.door(), at.allocate("one", 0), at.allocate("two", 1)
    await _one(door, had)
    for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
        (at.folder.parent / "state" / name).unlink()
    assert "yet: it cannot be recorded: cannot write the ledger" in (await _one(door, free)).error
    told = (await door.unprepare([had]))[had.uid]
    assert "yet: its end cannot be recorded: cannot write the ledger" in told
    assert (at.state(0), at.state(1)) == (LockState.FREE, LockState.HELD)
    assert at.files == ["holdfast.dev-claim_uid-of-two.json"]


async def test_without_the_folder_of_specs_nothing_is_prepared(at: _AtTheDoor) -> None:
    claim = at.allocate("one", 0)
    at.folder.rmdir()
    assert "there is no such folder" in (await _one(at.door(), claim)).error
    assert not at.ledger.book.value.locks_on(at.inventory.value.devices[0].keys)[0].started
