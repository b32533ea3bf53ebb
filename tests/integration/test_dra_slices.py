"""The node's ResourceSlices on an API server: what is published, when, and who interferes."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fakes.books import device_of, name
from fakes.controlplane import NODE, TOKEN, ControlPlane, control_plane, slice_object
from fakes.ledgers import ledger_in
from fakes.observers import Unobserved
from fakes.standings import device_standings
from fakes.tpus import plain_tpus
from holdfast.apiserver.client import ApiServer
from holdfast.apiserver.resourceslices import NodeSlices
from holdfast.discovery.source import Sources
from holdfast.dra.publisher import WRITE_EVERY, NodePool, Publisher, SliceMirror
from holdfast.host.pci.sysfs import Sysfs
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.book import LockState
from holdfast.model.book.draft import Draft
from holdfast.model.book.marks import Asker, Mark
from holdfast.model.book.queue import settle
from holdfast.model.devices import Device, Fault, FaultKind, Inventory, pci_key
from holdfast.model.dra.slices import SliceFields
from holdfast.model.ids import (
    ClaimUid,
    PciAddress,
    PodUid,
    ResourceName,
)
from holdfast.model.kubelet import Registration
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched
from manual_clock import ManualClock
from simulated.cluster.objects import NODES, SLICES
from simulated.cluster.rules import COUNTERS as COUNTERS_GATE
from simulated.cluster.rules import Rules
from simulated.cluster.server import Rudeness
from simulated.cluster.store import Place, Selector
from simulated.hosttree import HostTree
from waiting import until

DRIVER = "holdfast.dev"
TPU = ResourceName("google.com/tpu")
FIRST = "00000-holdfast.dev-node-1"
COUNTERS = "00001-holdfast.dev-node-1"
BROKEN = Fault(kind=FaultKind.ILL, text="too hot")


def chip(place: int) -> Device:
    address = PciAddress(f"0000:00:{5 + place:02x}.0")
    return device_of(
        name(address, TPU), pci_key(address), functions=(address,), model="v5e", source="tpu"
    )


def chips(count: int) -> tuple[Device, ...]:
    return tuple(map(chip, range(count)))


class Scene:
    """A publisher between a ledger, an inventory and an API server."""

    def __init__(
        self,
        plane: ControlPlane,
        ledger: Ledger,
        folder: Path,
        clock: ManualClock,
        count: int,
        *,
        evict_lost: Watched[bool],
        publishes: bool,
        lane_deadline: float,
    ) -> None:
        self.plane, self.ledger, self.clock = plane, ledger, clock
        self.lane = Lane("pool", deadline=lane_deadline)
        self.server = ApiServer(
            plane.access, name="slices", clock=SystemClock(), observer=Unobserved()
        )
        self.inventory = Watched(Inventory(resources=(TPU,), devices=chips(count)))
        self.registration = Watched(Registration(registrations=1))
        self.tree = HostTree(folder / "host")
        for each in self.inventory.value.devices:
            self.tree.tpu(each.functions[0], group=int(each.functions[0][8:10], 16))
        slices = NodeSlices(self.server, driver=DRIVER, node=NODE)
        self.mirror = SliceMirror(slices, clock=SystemClock())
        self.standings = device_standings(
            ledger, self.inventory, clock, is_dra=lambda resource: resource == TPU
        )
        standings = self.standings
        self.publisher = Publisher(
            pool=NodePool(
                driver=DRIVER,
                serves=lambda resource: resource == TPU,
                standings=standings,
                inventory=self.inventory,
                sources=Sources([plain_tpus()]),
                pcie_root=Sysfs(self.tree.root).pcie_root,
                lane=self.lane,
                evict_lost=evict_lost,
            ),
            server=slices,
            mirror=self.mirror,
            registration=self.registration,
            observer=Unobserved(),
            clock=clock,
            publishes=publishes,
            write_every=WRITE_EVERY,
        )
        self.task = asyncio.create_task(self.publisher.run())
        self.following = asyncio.create_task(standings.run())

    async def close(self) -> None:
        self.task.cancel()
        self.following.cancel()
        await asyncio.wait([self.task, self.following])
        await self.server.close()
        self.lane.close()
        self.tree.close()

    def devices(self) -> dict[str, Any]:
        """Return the devices of the pool by name, if the scheduler would use them."""
        slices = [each["spec"] for each in self.plane.slices().values()]
        if not slices:
            return {}
        newest = max(each["pool"]["generation"] for each in slices)
        current = [each for each in slices if each["pool"]["generation"] == newest]
        if any(len(current) != each["pool"]["resourceSliceCount"] for each in current):
            return {}
        return {each["name"]: each for one in current for each in one.get("devices", ())}

    def tainted(self) -> dict[str, dict[str, str]]:
        """Return the taints of each device that has some: their values by key."""
        return {
            name: {taint["key"]: taint["value"] for taint in each["taints"]}
            for name, each in self.devices().items()
            if each.get("taints")
        }

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for *condition*, while the time of the publisher runs ten times as fast as ours."""

        def met() -> object:
            if self.task.done():
                self.task.result()
            self.standings.now()
            self.clock.shift(0.05)
            return condition()

        await until(met, what=what)

    async def published(self, count: int) -> None:
        await self.until(lambda: len(self.devices()) == count, f"{count} devices")

    async def passes(self, seconds: float) -> None:
        """Let time pass, and the publisher look at what is due."""
        await self.clock.advance(seconds)
        self.standings.now()
        await self.clock.advance(0.0)

    def ill(self, place: int, *faults: Fault) -> None:
        devices = list(self.inventory.value.devices)
        devices[place] = replace(devices[place], faults=faults)
        self.inventory.set(replace(self.inventory.value, devices=tuple(devices)))

    async def foreign(self, place: int) -> None:
        """Let a stranger have a device."""
        device = self.inventory.value.devices[place]
        await self.ledger.apply(
            lambda draft: draft.call_foreign(device.name, device.keys, "a test")
        )

    async def given(self, place: int, claim: str | None = None) -> None:
        """Let a pod have a device, by *claim* or by the device plugin."""
        device = self.inventory.value.devices[place]
        keys = {device.name.id: device.keys}

        def give(draft: Draft) -> None:
            uid = None if claim is None else ClaimUid(claim)
            draft.activate(draft.allocate(TPU, keys, pod=PodUid("pod"), claim=uid))
            settle(draft)

        await self.ledger.apply(give)

    async def free(self, place: int) -> None:
        name = self.inventory.value.devices[place].name
        await self.ledger.apply(lambda draft: draft.move(name, LockState.FREE, "a test"))

    @property
    def writes(self) -> list[tuple[str, str]]:
        return [(verb, at.name) for verb, at in self.plane.store.writes if at.kind == SLICES]


@asynccontextmanager
async def scene(
    folder: Path,
    *,
    count: int = 2,
    minor: int = 36,
    gates: Collection[str] | None = None,
    evict_lost: Watched[bool] | None = None,
    publishes: bool = True,
    lane_deadline: float = 30.0,
) -> AsyncIterator[Scene]:
    clock = ManualClock()
    async with ledger_in(folder, clock) as ledger:
        with control_plane(folder / "plane", minor=minor, gates=gates) as made:
            here = Scene(
                made,
                ledger,
                folder,
                clock,
                count,
                evict_lost=evict_lost or Watched(False),
                publishes=publishes,
                lane_deadline=lane_deadline,
            )
            try:
                yield here
            finally:
                await here.close()


async def test_devices_are_published_with_the_node_as_owner(short_path: Path) -> None:
    async with scene(short_path) as here:
        await here.published(2)
        made = here.plane.slices()[FIRST]

    assert made["spec"]["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    assert made["metadata"]["ownerReferences"][0]["name"] == NODE
    (first, _) = made["spec"]["devices"]
    assert first["name"] == "tpu-0000-00-05-0"
    assert first["attributes"]["resource.kubernetes.io/pcieRoot"] == {"string": "pci0000:00"}
    assert first["capacity"] == {"memory": {"value": "16Gi"}}


async def test_nothing_is_written_while_nothing_changes(short_path: Path) -> None:
    async with scene(short_path, count=4) as here:
        await here.published(5)
        before = here.writes
        for _ in range(3):
            here.registration.set(replace(here.registration.value, attempts=here.clock.monotonic()))
            await here.passes(60)

        def watches_again() -> bool:
            here.plane.store.end_watches()  # at each look: the first may not have begun before
            return len(watches(here.plane)) > 1

        await here.until(watches_again, "another watch")
        assert here.writes == before


async def test_the_state_of_a_lock_becomes_a_taint_and_goes_again(short_path: Path) -> None:
    async with scene(short_path, count=4) as here:
        await here.published(5)
        await here.foreign(1)
        await here.passes(10)
        held = {f"{DRIVER}/held": "foreign"}
        expected = {"tpu-0000-00-06-0": held, "tpu-2x2-0000-00-05-0": held}
        await here.until(lambda: here.tainted() == expected, "the taint")
        await here.free(1)
        await here.passes(10)
        await here.until(lambda: here.tainted() == {}, "no taint")


async def test_a_release_of_a_moment_is_no_taint(short_path: Path) -> None:
    async with scene(short_path) as here:
        await here.published(2)
        before = here.writes
        await here.foreign(1)
        await here.passes(2.9)
        await here.free(1)
        await here.passes(60)
        await here.foreign(1)
        await here.passes(2.9)
        assert here.writes == before
        await here.passes(0.2)
        await here.until(here.tainted, "the taint")


async def test_what_a_claim_has_is_no_taint_and_what_a_pod_of_the_device_plugin_has_is_one(
    short_path: Path,
) -> None:
    async with scene(short_path) as here:
        await here.published(2)
        await here.given(0, "claim")
        await here.given(1)
        expected = {"tpu-0000-00-06-0": {f"{DRIVER}/held": "held"}}
        await here.until(lambda: here.tainted() == expected, "the taint of what a pod has")


async def test_health_and_marks_are_told_at_once(short_path: Path) -> None:
    async with scene(short_path) as here:
        await here.published(2)
        await here.passes(WRITE_EVERY)
        here.ill(0, BROKEN)
        await here.until(
            lambda: here.tainted() == {"tpu-0000-00-05-0": {f"{DRIVER}/unhealthy": "ill"}}, "it"
        )
        await here.passes(WRITE_EVERY)
        here.ill(0)
        mark = Mark(asker=Asker(uid=0, pid=1), at=0.0)
        await here.ledger.apply(lambda draft: draft.mark(replace(draft.book.marks, drain=mark)))
        await here.until(lambda: len(here.tainted()) == 2, "the drain of both")
        assert set(map(str, here.tainted()["tpu-0000-00-05-0"].values())) == {"drain"}


@pytest.mark.parametrize(("evict", "effect"), [(False, "NoSchedule"), (True, "NoExecute")])
async def test_hardware_that_is_gone_ends_its_pods_only_where_that_is_wanted(
    short_path: Path, evict: bool, effect: str
) -> None:
    evict_lost = Watched(not evict)
    async with scene(short_path, evict_lost=evict_lost) as here:
        await here.published(2)
        here.ill(0, Fault(kind=FaultKind.GONE, text="it fell off the bus"))
        await here.until(here.tainted, "the taint")
        evict_lost.set(evict)
        await here.until(
            lambda: here.devices()["tpu-0000-00-05-0"]["taints"][0]["effect"] == effect,
            "another effect",
        )
        (taint,) = here.devices()["tpu-0000-00-05-0"]["taints"]
        assert (taint["value"], taint["effect"]) == ("gone", effect)


async def test_a_slice_is_written_once_in_some_seconds_with_the_latest(short_path: Path) -> None:
    async with scene(short_path) as here:
        await here.published(2)
        assert len(here.writes) == 1
        for _ in range(20):
            here.ill(0, BROKEN)
            await here.passes(0.1)
            here.ill(0)
            await here.passes(0.1)
        here.ill(1, BROKEN)
        await here.passes(0.5)
        assert len(here.writes) == 1
        await here.passes(WRITE_EVERY)
        await here.until(lambda: [*here.tainted()] == ["tpu-0000-00-06-0"], "the latest")
        assert len(here.writes) == 2


async def test_shapes_come_with_counters_that_are_written_first(short_path: Path) -> None:
    async with scene(short_path, count=8) as here:
        await here.published(11)
        assert [name for _, name in here.writes] == [COUNTERS, FIRST]
        (sets,) = here.plane.slices()[COUNTERS]["spec"]["sharedCounters"]
        assert len(sets["counters"]) == 8


@pytest.mark.parametrize("minor", [34, 35])
async def test_where_fields_are_dropped_devices_are_left_out_instead(
    short_path: Path, minor: int
) -> None:
    async with scene(short_path, count=4, minor=minor) as here:
        await here.published(4)
        await here.passes(WRITE_EVERY)
        assert not here.publisher.kept.counters
        here.ill(0, BROKEN)
        await here.published(3)
        assert not here.publisher.kept.taints
        writes = len(here.writes)
        await here.passes(60)
        assert len(here.writes) == writes, "and it is not tried again and again"
        here.ill(0)
        await here.published(4)


async def test_where_counters_are_refused_beside_their_devices_boxes_are_left_out(
    short_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with scene(short_path, count=4, minor=34, gates={COUNTERS_GATE}) as here:
        await here.published(4)
        await here.until(lambda: [*here.plane.slices()] == [FIRST], "the counters to go")
        assert not here.publisher.kept.counters
    assert "the API server refuses shared counters" in capsys.readouterr().out


async def test_a_policy_that_refuses_every_slice_for_a_while_takes_no_counters(
    short_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It answers with the same status as to fields that are not valid."""
    async with scene(short_path, count=4) as here:
        ours, here.plane.server.tokens = here.plane.server.tokens, {TOKEN: "node-2"}
        await here.until(lambda: "denied request" in here.publisher.problem, "the refusal")
        here.plane.server.tokens = ours
        await here.published(5)
        assert here.publisher.kept.counters
    assert "refuses shared counters" not in capsys.readouterr().out


async def test_fields_that_a_newer_server_keeps_are_written_once_kubelet_registers_again(
    short_path: Path,
) -> None:
    async with scene(short_path, count=4, minor=34) as here:
        await here.published(4)
        await here.passes(WRITE_EVERY)
        assert not here.publisher.kept.counters
        here.plane.store.rules = Rules(36)
        here.registration.set(replace(here.registration.value, registrations=2))
        await here.passes(WRITE_EVERY)
        await here.published(5)
        assert here.publisher.kept.counters


async def test_after_a_restart_of_kubelet_the_slices_are_back_at_once(short_path: Path) -> None:
    async with scene(short_path, count=8) as here:
        await here.published(11)
        here.plane.store.delete_collection(Place(kind=SLICES), node_selector())
        here.registration.set(replace(here.registration.value, registrations=2))
        await here.published(11)


@pytest.mark.parametrize("noticed", ["kubelet registers anew", "its slices vanish"])
async def test_a_node_that_was_made_anew_owns_what_is_published_next(
    short_path: Path, noticed: str
) -> None:
    """The garbage collector deletes what a Node owned that there is no more."""
    async with scene(short_path) as here:
        await here.published(2)
        store, node = here.plane.store, Place(kind=NODES, name=NODE)
        store.delete(node)
        made = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
        uid = store.create(Place(kind=NODES), made)["metadata"]["uid"]
        if noticed == "kubelet registers anew":
            here.registration.set(replace(here.registration.value, registrations=2))
        store.delete_collection(Place(kind=SLICES), node_selector())
        await here.passes(WRITE_EVERY)
        await here.published(2)
        (owner,) = here.plane.slices()[FIRST]["metadata"]["ownerReferences"]
        assert owner["uid"] == uid


async def test_a_slice_that_others_delete_or_change_is_put_right(short_path: Path) -> None:
    async with scene(short_path) as here:
        await here.published(2)
        here.plane.store.delete(slice_at(FIRST))
        await here.published(2)

        changed = here.plane.store.get(slice_at(FIRST))
        changed["spec"]["devices"] = changed["spec"]["devices"][:1]
        here.plane.store.update(slice_at(FIRST), changed)
        await here.passes(WRITE_EVERY)
        await here.published(2)


async def test_a_name_that_another_node_has_taken_is_told_and_another_one_is_used(
    short_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with scene(short_path) as here:
        squatted = slice_object(FIRST, count=2)
        squatted["spec"] |= {"nodeName": "evil-node"}
        squatted["spec"]["pool"] |= {"name": "evil-node"}
        here.plane.store.create(Place(kind=SLICES), squatted)
        await here.until(lambda: "already exists" in here.publisher.problem, "the problem")
        await here.until(lambda: len(here.plane.slices()) == 2, "the slice")
        await here.until(lambda: here.publisher.problem == "", "no problem")
        (name,) = {*here.plane.slices()} - {FIRST}
        assert name.startswith(f"{FIRST}-")
        assert len(here.plane.slices()[name]["spec"]["devices"]) == 2
    assert "the name of a ResourceSlice is taken" in capsys.readouterr().out


async def test_a_name_is_not_taken_before_the_slices_were_listed_again(
    short_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Our own write may have been carried out, although its answer was lost."""
    async with scene(short_path, count=0) as here:
        server = here.plane.server
        here.inventory.set(replace(here.inventory.value, unseen=frozenset({TPU})))
        server.forbidden.add(("watch", "resourceslices"))
        await here.until(lambda: here.mirror.listings, "the first listing")
        server.forbidden.add(("list", "resourceslices"))
        server.be_rude(Rudeness(method="POST", cut=0))
        here.inventory.set(Inventory(resources=(TPU,), devices=chips(2)))

        def creates() -> int:
            return sum(each.startswith("POST") for each in server.requests)

        await here.until(lambda: creates() == 4, "three more tries")
        assert [*here.plane.slices()] == [FIRST]
        server.forbidden.clear()
        await here.until(lambda: here.publisher.problem == "", "no problem")
        assert [*here.plane.slices()] == [FIRST]
        assert len(here.devices()) == 2
    assert "is taken" not in capsys.readouterr().out


async def test_a_slice_with_our_name_in_another_pool_is_made_again_in_ours(
    short_path: Path,
) -> None:
    """The API server lets no slice change its pool."""
    async with scene(short_path, count=8) as here:
        squatted = slice_object(FIRST, count=2)
        squatted["spec"]["pool"] |= {"name": "elsewhere"}
        here.plane.store.create(Place(kind=SLICES), squatted)
        await here.published(11)
        assert {each["spec"]["pool"]["name"] for each in here.plane.slices().values()} == {NODE}
        assert [*here.plane.slices()] == [FIRST, COUNTERS]
        assert here.publisher.problem == ""


async def test_a_slice_of_others_whose_policy_has_no_default_is_read_and_removed(
    short_path: Path,
) -> None:
    """All of a policy is optional."""
    async with scene(short_path) as here:
        stray = slice_object("stray", count=2)
        capacity = {"m": {"value": "1", "requestPolicy": {}}}
        device = {"name": "x", "allowMultipleAllocations": True, "capacity": capacity}
        stray["spec"]["devices"] = [device]
        here.plane.store.create(Place(kind=SLICES), stray)
        await here.until(lambda: [*here.plane.slices()] == [FIRST], "ours alone")
        assert here.publisher.problem == ""


async def test_a_conflict_is_resolved_by_reading_again(short_path: Path) -> None:
    async with scene(short_path) as here:
        await here.published(2)
        here.plane.server.forbidden.add(("watch", "resourceslices"))
        here.plane.store.end_watches()
        changed = here.plane.store.get(slice_at(FIRST))
        changed["metadata"]["labels"] = {"a": "b"}
        here.plane.store.update(slice_at(FIRST), changed)
        await here.passes(WRITE_EVERY)
        here.ill(0, BROKEN)
        for _ in range(4):
            await here.passes(WRITE_EVERY)
        await here.until(here.tainted, "the taint in spite of it")


async def test_a_lost_watch_and_forgotten_versions_are_got_over(short_path: Path) -> None:
    async with scene(short_path) as here:
        await here.published(2)
        here.plane.store.compact()
        here.plane.server.cut_all()
        here.plane.store.delete(slice_at(FIRST))
        here.plane.store.compact()
        await here.until(lambda: here.mirror.slices.value == {}, "the deletion to be seen")
        await here.passes(WRITE_EVERY)
        await here.published(2)


@pytest.mark.parametrize(
    "rude",
    [
        Rudeness(method="POST", code=500, times=2),
        Rudeness(method="POST", cut=0),
        Rudeness(method="POST", code=422),
        Rudeness(method="GET", path="nodes", code=403),
    ],
    ids=["error", "cut", "refused", "no node"],
)
async def test_a_write_that_fails_is_named_and_done_later(short_path: Path, rude: Rudeness) -> None:
    async with scene(short_path, count=0) as here:
        here.plane.server.be_rude(rude)
        await here.until(lambda: here.publisher.problem, "the problem to be named")
        await here.until(lambda: FIRST in here.plane.slices(), "the slice")
        await here.until(lambda: here.publisher.problem == "", "no problem")
        assert [*here.plane.slices()] == [FIRST]


async def test_a_server_that_is_not_there_is_waited_for(short_path: Path) -> None:
    async with scene(short_path) as here:
        here.plane.server.be_rude(Rudeness(code=503, times=12))
        await here.until(here.devices, "the devices")


async def test_hardware_that_comes_and_goes_changes_the_pool_as_one(short_path: Path) -> None:
    async with scene(short_path, count=3) as here:
        await here.published(3)
        await here.passes(WRITE_EVERY)
        here.inventory.set(replace(here.inventory.value, devices=chips(4)))
        await here.published(5)
        await here.passes(WRITE_EVERY)
        here.inventory.set(replace(here.inventory.value, devices=chips(3)))
        await here.published(3)
        assert [*here.plane.slices()] == [FIRST]


async def test_where_the_hardware_went_back_to_the_device_plugin_slices_are_removed(
    short_path: Path,
) -> None:
    async with scene(short_path, count=8, publishes=False) as here:
        for name in (FIRST, COUNTERS):
            here.plane.store.create(Place(kind=SLICES), slice_object(name, count=2))
        await here.until(lambda: here.plane.slices() == {}, "the slices to go")
        here.ill(0, BROKEN)
        await here.passes(60)
        assert here.plane.slices() == {}


async def test_a_lane_that_hangs_hides_no_device(short_path: Path) -> None:
    async with scene(short_path, lane_deadline=0.05) as here:
        stuck = threading.Event()
        hanging = asyncio.create_task(here.lane.run(stuck.wait, deadline=60))
        await here.published(2)
        assert all("pcieRoot" not in str(each) for each in here.devices().values())
        stuck.set()
        await hanging
        await here.until(
            lambda: all("pcieRoot" in str(each) for each in here.devices().values()), "the roots"
        )


async def test_what_left_while_a_root_was_read_is_not_offered(short_path: Path) -> None:
    async with scene(short_path, count=1) as here:
        await here.published(1)
        both, loop = replace(here.inventory.value, devices=chips(2)), asyncio.get_running_loop()
        left = replace(both, devices=both.devices[1:])

        def root(_address: PciAddress) -> str:
            loop.call_soon_threadsafe(here.inventory.set, left)
            return "pci0000:00"

        here.publisher.pool.pcie_root = root
        here.inventory.set(both)
        facts = await here.publisher.pool.facts(SliceFields())
        assert [*facts.devices] == [each.name for each in left.devices]


async def test_a_root_that_could_not_be_read_is_read_again(short_path: Path) -> None:
    async with scene(short_path, count=1) as here:
        function = Path(here.tree.root.sys) / "bus/pci/devices" / chip(0).functions[0]
        away = function.rename(here.tree.root.sys / "away")
        await here.published(1)
        assert "pcieRoot" not in str(here.devices())
        away.rename(function)
        await here.until(lambda: "pcieRoot" in str(here.devices()), "the root")


async def test_gpus_that_are_not_enumerated_yet_are_waited_for(short_path: Path) -> None:
    async with scene(short_path, count=0) as here:
        here.inventory.set(replace(here.inventory.value, unseen=frozenset({TPU})))
        await here.passes(20)
        assert here.writes == []
        here.inventory.set(Inventory(resources=(TPU,), devices=chips(2)))
        await here.published(2)


async def test_what_changes_is_told_although_a_rule_begins_to_wait_for_hardware(
    short_path: Path,
) -> None:
    async with scene(short_path) as here:
        await here.published(2)
        began = here.clock.monotonic()
        here.inventory.set(Inventory(resources=(TPU,), devices=chips(3), unseen=frozenset({TPU})))
        await here.published(3)
        assert here.clock.monotonic() - began < 20, "it has not waited for what was not seen"


def slice_at(name: str) -> Place:
    return Place(kind=SLICES, name=name)


def node_selector() -> Selector:
    return Selector.of(f"spec.nodeName={NODE}", "resourceslices")


def watches(plane: ControlPlane) -> list[str]:
    return [each for each in plane.server.requests if "watch=true" in each]
