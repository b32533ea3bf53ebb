"""A look at one device on a tree of plain files: what its `enable` and its nodes tell of it."""

import asyncio
import contextlib
import ctypes
import fcntl
import os
import shutil
import socket
import sys
import termios
import threading
from collections.abc import AsyncIterator, Awaitable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest
from inotify_simple import INotify, flags
from msgspec.structs import replace

from fakes.books import BOOT, X, Y, Z, allocated, book_of, device_lock
from fakes.inuse import chip, device_use, known, look_at
from fakes.lanes import NewLanes
from fakes.ledgers import ledger_in
from fakes.opener import opener, stranger
from holdfast.errors import LaneStuckError
from holdfast.host.pci.sysfs import Binding, Sysfs
from holdfast.host.pci.vfio import EnableLevels
from holdfast.host.use.look import Look
from holdfast.inuse.deviceuse import DeviceUse
from holdfast.model.book.book import Book, ClaimRecord
from holdfast.model.book.draft import Draft
from holdfast.model.book.queue import settle
from holdfast.model.devices import Device, DeviceKind, DeviceNode, Inventory
from holdfast.model.ids import (
    ClaimRef,
    ClaimUid,
    DeviceId,
    DeviceName,
    HardwareKey,
    PciAddress,
    PodUid,
)
from holdfast.model.use.free import (
    Freedom,
    KernelFacts,
    OpenOutcome,
    Verdict,
    is_foreign,
    judge_kernel,
)
from holdfast.model.use.holders import DeviceAccess
from holdfast.reclaim.users import Users
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched
from manual_clock import ManualClock
from simulated.node import SimulatedNode
from simulated.proctree import ProcTree
from waiting import until

CHIP = PciAddress("0000:00:05.0")
NODES = ("/dev/vfio/10", "/dev/vfio/11")
_DAC_OVERRIDE = 1 << 1
_DAC_READ_SEARCH = 1 << 2
_SYS_ADMIN = 1 << 21


@dataclass
class Looked:
    node: SimulatedNode
    lane: Lane
    lanes: NewLanes
    look: Look
    device: Device
    clock: ManualClock

    @property
    def opens(self) -> Lane:
        """Return the lane on which the device is opened, from its first open on."""
        return self.lanes.opened[f"open {self.device.name}"]

    async def open_as_anybody(self) -> None:
        """Let opens fail that only CAP_SYS_ADMIN allows: who has it opens what another has."""
        assert await self.look.open(self.device) is OpenOutcome.SUCCEEDED
        await self.opens.run(_lose_sys_admin)

    async def facts(self) -> KernelFacts:
        return (await self.look.scan([self.device], {}))[self.device.name]

    async def judged(self) -> Verdict:
        return judge_kernel(await self.facts())

    async def enabled(self) -> bool:
        return bool((await self.look.enabled([self.device]))[self.device.name])

    def watch(self, *, exclusive_open: bool | Watched[bool] = True) -> DeviceUse:
        return device_use(self.look, self.node.root, self.clock, exclusive_open=exclusive_open)

    async def released(self, watch: DeviceUse) -> Verdict:
        """Return what is thought of the device when it is to become free."""
        enabled = (await watch.look.enabled([self.device]))[self.device.name]
        return judge_kernel(await known(watch, self.device, enabled=enabled, to_free=True))

    def set_enable(self, count: str) -> None:
        self.node.tree.write(CHIP, "enable", count)


@contextlib.contextmanager
def new_threads() -> Iterator[list[str]]:
    """Collect the names of the threads that begin meanwhile."""
    names: list[str] = []

    def begins(*_: object) -> None:
        names.append(threading.current_thread().name)
        sys.setprofile(None)

    threading.setprofile(begins)
    try:
        yield names
    finally:
        threading.setprofile(None)


@pytest.fixture
async def on(tmp_path: Path) -> AsyncIterator[Looked]:
    node = SimulatedNode(tmp_path)
    # The nodes are terminals, so that their major stands for that of VFIO's groups.
    (node.root.proc / "devices").write_text("Character devices:\n136 vfio\n\nBlock devices:\n")
    nodes = tuple(DeviceNode(path=each, rdev=node.node(each).stat().st_rdev) for each in NODES)
    device = replace(chip(node, 0), nodes=nodes)
    scans, opens = Lane("scan", deadline=30.0), NewLanes()
    with contextlib.closing(scans) as lane, contextlib.closing(opens) as lanes:
        look = look_at(node.root, lane, lanes=lanes)
        yield Looked(node, lane, lanes, look, device, ManualClock())
    node.close()


async def test_what_is_cheap_to_ask_waits_for_no_look_that_has_not_begun(on: Looked) -> None:
    gate, order = threading.Event(), list[str]()

    async def note(name: str, asked: Awaitable[object]) -> None:
        await asked
        order.append(name)

    asked = on.facts(), on.enabled()
    calls = [asyncio.create_task(note("begun", on.lane.run(lambda: gate.wait(20))))]
    for name, each in zip(("look", "enabled"), asked, strict=True):
        waiting = len(calls)
        calls.append(asyncio.create_task(note(name, each)))
        await until(lambda: len(on.lane._waiting) == waiting)  # noqa: B023 - awaited at once
    gate.set()
    await asyncio.gather(*calls)
    assert order[-1] == "look"


async def test_what_any_pod_of_a_claim_has_is_seen_on_the_claims_device_alone(on: Looked) -> None:
    """By a device fd that the kernel does not attribute: the lock names one of the pods."""
    tree, other = ProcTree(on.node.tree.folder), chip(on.node, 1)
    tree.open_file(tree.process(70, cgroup=f"/kubepods/pod{Y}/1"), 7, "anon_inode:[vfio-device]")
    for function in (*on.device.functions, *other.functions):
        on.node.tree.write(function, "enable", "1")
    claim = ClaimRef("team", ClaimUid("uid"), "claim")

    def take(draft: Draft) -> None:
        draft.note_claim(ClaimRecord(ref=claim, pods=frozenset({X, Y}), boot=BOOT))
        for device, pod, its in ((on.device, X, claim.uid), (other, Z, None)):
            name = device.name
            draft.allocate(name.resource, {name.id: device.keys}, pod=pod, claim=its)

    book = book_of(take)
    look = look_at(on.node.root, on.lane, book=lambda: book)
    found = await look.scan([on.device, other], book.locks)
    pids = [[each.process.pid for each in facts.holders or ()] for facts in found.values()]
    assert pids == [[70], []], "though nothing explains why the other is enabled"


@pytest.mark.parametrize("how", ["gone", "a folder", "garbage"])
async def test_an_enable_that_cannot_be_read_proves_nothing(on: Looked, how: str) -> None:
    assert (await on.judged()).freedom is Freedom.FREE
    file = on.node.tree.path(CHIP) / "enable"
    file.unlink()
    if how == "a folder":
        file.mkdir()
    elif how == "garbage":
        file.write_text("on\n")
    facts = await on.facts()
    verdict = judge_kernel(facts)
    assert verdict.freedom is Freedom.UNKNOWN
    assert f"whether {CHIP} is enabled" in verdict.reason
    assert not is_foreign(facts)
    assert on.look.full_gaps == (), "every process could be seen"


@pytest.mark.parametrize("how", ["gone", "empty", "refused"])
async def test_where_processes_cannot_be_listed_nothing_is_free(on: Looked, how: str) -> None:
    """As where the host's /proc is not mounted, or a security module refuses it."""
    assert (await on.judged()).freedom is Freedom.FREE
    proc = on.node.root.proc
    if how == "refused":
        await on.lane.run(_lose_what_reads_all)
        proc.chmod(0o300)
    else:
        proc.rename(proc.with_name("former"))
        if how == "empty":
            proc.mkdir()
    facts = await on.facts()
    if how == "refused":
        proc.chmod(0o700)
    verdict = judge_kernel(facts)
    assert verdict.freedom is Freedom.UNKNOWN
    assert f"cannot list {proc}" in verdict.reason
    assert on.look.full_gaps == facts.gaps


@pytest.mark.parametrize("seen", [True, False])
async def test_an_accel_chip_that_is_only_mapped_is_in_use(on: Looked, seen: bool) -> None:
    """Its driver keeps `enable` at 1, and a mapping needs no open file: else nothing tells."""
    device = replace(on.device, kind=DeviceKind.ACCEL, functions=())
    node = on.node.node(NODES[0])
    with opener(node) as child:
        child.close_one()
        on.node.add_process(child.pid, "/user.slice")
        home = on.node.root.proc / str(child.pid)
        (home / "maps").unlink(missing_ok=True)
        (home / "root").unlink(missing_ok=True)
        (home / "root/dev").mkdir(parents=True)
        if seen:
            (home / "root/dev/accel0").symlink_to(node)
        line = "7f5c8a000000-7f5c8a100000 rw-s 00000000 00:05 99   /dev/accel0\n"
        (home / "maps").write_text(line)
        facts = (await on.look.scan([device], {}))[device.name]
    assert judge_kernel(facts).freedom is (Freedom.IN_USE if seen else Freedom.UNKNOWN)


def _only_mapped(on: Looked, pid: int, path: str) -> None:
    """Let a process that has nothing open have *path* mapped, as /proc tells it."""
    on.node.add_process(pid, "/user.slice")
    home = on.node.root.proc / str(pid)
    for name in ("maps", "root"):
        (home / name).unlink(missing_ok=True)
    (home / "root" / Path(path).parent.relative_to("/")).mkdir(parents=True)
    (home / "root" / Path(path).relative_to("/")).symlink_to(on.node.node(path))
    (home / "maps").write_text(f"7f5c8a000000-7f5c8a100000 rw-s 00000000 00:05 99   {path}\n")


@pytest.mark.parametrize("enable", ["1", "on"])
async def test_who_only_has_it_mapped_is_looked_for_where_a_device_may_be_in_use(
    on: Looked, enable: str
) -> None:
    on.set_enable(enable)
    with opener(on.node.node(NODES[0])) as child:
        child.close_one()
        _only_mapped(on, child.pid, NODES[0])
        found = (await on.facts()).holders or ()
    assert [(each.process.pid, each.access) for each in found] == [
        (child.pid, frozenset({DeviceAccess.MAPPED}))
    ]


async def test_mappings_that_cannot_be_read_are_a_gap_of_whom_only_they_would_show(
    on: Looked,
) -> None:
    accel = replace(
        on.device,
        name=DeviceName(on.device.name.resource, DeviceId("accel")),
        kind=DeviceKind.ACCEL,
        functions=(),
    )
    with opener(on.node.node(NODES[0])) as child:
        child.close_one()
        on.node.add_process(child.pid, "/user.slice")
        maps = on.node.root.proc / str(child.pid) / "maps"
        maps.unlink(missing_ok=True)
        maps.mkdir()  # cannot be read
        found = await on.look.scan([on.device, accel], {})
    assert judge_kernel(found[on.device.name]).freedom is Freedom.FREE
    assert judge_kernel(found[accel.name]).freedom is Freedom.UNKNOWN
    assert found[accel.name].unread == {child.pid}


@pytest.mark.parametrize("beside", [False, True])
async def test_a_message_that_nobody_takes_may_have_an_accel_chip(on: Looked, beside: bool) -> None:
    """Also where other devices, which other signs tell of, are looked at beside it."""
    name = DeviceName(on.device.name.resource, DeviceId("accel"))
    accel = replace(on.device, name=name, kind=DeviceKind.ACCEL, functions=())
    one, other = socket.socketpair()
    with one, other, Path(os.devnull).open("rb") as file, opener(on.node.node(NODES[0])) as child:
        child.close_one()
        socket.send_fds(one, [b"!"], [file.fileno()])
        on.node.add_process(child.pid, "/user.slice")
        home = on.node.root.proc / str(child.pid)
        for folder in ("fd", "fdinfo"):
            (home / folder).unlink()
            (home / folder).symlink_to(f"/proc/{os.getpid()}/{folder}")
        found = await on.look.scan([on.device, accel] if beside else [accel], {})
    verdict = judge_kernel(found[name])
    assert verdict.freedom is Freedom.UNKNOWN
    assert "files are in messages on its unix sockets" in verdict.reason
    assert found[name].unread == {child.pid}


async def test_what_the_pod_that_has_the_device_has_open_is_read_before_what_others_have(
    on: Looked,
) -> None:
    """Of those with much open; the time for all of them is short."""
    tree, pod = ProcTree(on.node.tree.folder), PodUid(str(UUID(int=7)))
    lock = device_lock(on.device.name, *on.device.keys, since=0.0, pod=pod)

    with INotify() as events:
        pids: dict[int, int] = {}
        other = PodUid(str(UUID(int=8)))
        cgroups = "/", f"/kubepods/pod{pod}/1", f"/kubepods/pod{other}/1"
        for pid, cgroup in zip((70, 71, 72), cgroups, strict=True):
            home = tree.process(pid, cgroup=cgroup)
            for number in range(300):
                (home / "fd" / str(number)).symlink_to(os.devnull)
            pids[events.add_watch(home / "maps", flags.OPEN)] = pid
        accel = replace(on.device, kind=DeviceKind.ACCEL, functions=())
        elsewhere = replace(
            lock,
            device=DeviceName(lock.device.resource, DeviceId("elsewhere")),
            keys=frozenset({HardwareKey("pci/elsewhere")}),
            pod=other,
        )
        locks = {each.device: each for each in (lock, elsewhere)}
        threads, order = 0, list[int]()
        while threads != 2:  # one for each time that all are gone through
            with new_threads() as names:
                await on.look.scan([accel], locks)
            # With more, one got no processor for so long that the next began before it.
            threads = names.count("visits")
            order = [pids[event.wd] for event in events.read(timeout=0)]
    assert order == [71, 70, 72]


async def test_who_cannot_be_read_is_named(on: Looked) -> None:
    with stranger(on.node, NODES[0]) as stuck:
        fds = on.node.root.proc / str(stuck.pid) / "fd"
        fds.unlink()
        fds.symlink_to("fd")
        facts = await on.facts()
    assert facts.unread == {stuck.pid}
    assert facts.gaps


async def test_a_holder_of_a_functions_own_vfio_node_is_a_holder_of_the_device(on: Looked) -> None:
    """/dev/vfio/devices/vfioX: who opens that leaves the group node alone."""
    rdev = on.node.tree.terminal("/dev/vfio/vfio0")
    entry = on.node.tree.path(CHIP) / "vfio-dev/vfio0"
    entry.mkdir(parents=True)
    (entry / "dev").write_text(f"{os.major(rdev)}:{os.minor(rdev)}\n")
    with stranger(on.node, "/dev/vfio/vfio0") as holder:
        holders = (await on.facts()).holders or ()
    found = [(each.process.pid, each.access) for each in holders]
    assert found == [(holder.pid, frozenset({DeviceAccess.NODE}))]


async def test_a_holder_of_another_node_of_the_same_hardware_is_a_holder_of_the_device(
    on: Looked,
) -> None:
    """/dev/dri/renderD128: who draws on a GPU may have none of its driver's own nodes open."""
    (on.node.root.dev / "dri").mkdir()
    rdev = on.node.tree.terminal("/dev/dri/renderD128")
    draws = DeviceNode(path="/dev/dri/renderD128", rdev=rdev)
    on.device = replace(on.device, other_nodes=(draws,))
    assert not (await on.facts()).holders
    with stranger(on.node, "/dev/dri/renderD128") as holder:
        holders = (await on.facts()).holders or ()
    found = [(each.process.pid, each.access) for each in holders]
    assert found == [(holder.pid, frozenset({DeviceAccess.NODE}))]


async def _hanging(lane: Lane, gate: threading.Event, *, deadline: float) -> asyncio.Task[None]:
    """Return a call that has begun on *lane*, and goes on until *gate* is set."""
    begun = threading.Event()

    def hang() -> None:
        begun.set()
        gate.wait(60)

    call = asyncio.create_task(lane.run(hang, deadline=deadline))
    await until(lambda: begun.is_set() or call.done())
    if begun.is_set():
        return call
    call.exception()  # its time was over before its turn came
    return await _hanging(lane, gate, deadline=deadline)


async def test_an_open_that_hangs_costs_no_other_look_its_answer(on: Looked) -> None:
    """The kernel lets it wait for a driver that closes the same group: a reset can take long."""
    assert await on.look.open(on.device) is OpenOutcome.SUCCEEDED
    gate = threading.Event()
    with pytest.raises(LaneStuckError):
        await (await _hanging(on.opens, gate, deadline=0.01))
    assert await on.look.open(on.device) is OpenOutcome.BUSY
    assert (await on.judged()).freedom is Freedom.FREE, "looks go on"
    other = replace(on.device, name=DeviceName(on.device.name.resource, DeviceId("other")))
    assert await on.look.open(other) is OpenOutcome.SUCCEEDED
    gate.set()
    await until(lambda: on.opens.stuck_since is None)
    assert await on.look.open(on.device) is OpenOutcome.SUCCEEDED


@pytest.mark.parametrize("deadline", [0.01, 60.0])
async def test_nobody_starts_on_a_device_while_our_own_open_of_it_hangs(
    on: Looked, monkeypatch: pytest.MonkeyPatch, deadline: float
) -> None:
    """Once the driver is done that open has the group, and the container would find it busy."""
    monkeypatch.setattr("holdfast.host.use.look._OPENING", 0.5)
    assert await on.look.open(on.device) is OpenOutcome.SUCCEEDED
    gate, watch = threading.Event(), on.watch()
    hangs = await _hanging(on.opens, gate, deadline=deadline)
    facts = (await watch.facts([on.device]))[on.device.name]
    assert judge_kernel(facts).freedom is Freedom.IN_USE
    gate.set()
    await asyncio.wait([hangs])
    assert hangs.exception() is None or deadline < 1
    await until(lambda: on.opens.stuck_since is None)
    facts = (await watch.facts([on.device]))[on.device.name]
    assert judge_kernel(facts).freedom is Freedom.FREE


async def test_the_devices_of_a_start_are_opened_at_once(
    on: Looked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each open may take seconds where a driver is at work; also when kubelet asks once more."""
    name = DeviceName(on.device.name.resource, DeviceId("other"))
    both = [on.device, replace(on.device, name=name)]
    book = Book(locks={each.name: device_lock(each.name, str(each.name), pod=X) for each in both})
    use = device_use(
        on.look, on.node.root, on.clock, book=Watched(book), exclusive_open=Watched(True)
    )
    opened, gate, together = on.look.open, asyncio.Event(), asyncio.Barrier(2)

    async def at_once(device: Device) -> OpenOutcome:
        await gate.wait()
        async with asyncio.timeout(10):
            await together.wait()
        return await opened(device)

    monkeypatch.setattr(on.look, "open", at_once)
    first = asyncio.create_task(use.facts(both))
    await asyncio.wait([first], timeout=0.1)
    first.cancel()  # it has been answered
    await asyncio.wait([first])
    gate.set()
    await until(lambda: use._late.keys() == {each.name for each in both})
    found = await use.facts(both)
    assert {each.opened for each in found.values()} == {OpenOutcome.SUCCEEDED}
    assert not use._late, "what was found too late has served"


@pytest.mark.parametrize("busy", NODES)
async def test_one_group_that_is_busy_makes_the_device_busy(on: Looked, busy: str) -> None:
    await on.open_as_anybody()
    assert await on.look.open(on.device) is OpenOutcome.SUCCEEDED
    held = _for_oneself(on.node.node(busy))
    assert await on.look.open(on.device) is OpenOutcome.BUSY
    (other,) = set(NODES) - {busy}
    nodes = tuple(replace(each, rdev=1) if each.path == other else each for each in on.device.nodes)
    gone = replace(on.device, nodes=nodes)
    assert await on.look.open(gone) is OpenOutcome.BUSY, (
        "although the other has another number by now"
    )
    fcntl.ioctl(held, termios.TIOCNXCL)
    os.close(held)
    assert await on.look.open(gone) is OpenOutcome.UNAVAILABLE


@pytest.mark.parametrize("kind", [DeviceKind.ACCEL, DeviceKind.DRIVER])
async def test_only_a_vfio_group_is_opened_to_see_whether_it_can_be(
    on: Looked, kind: DeviceKind
) -> None:
    """An accel chip's node is for one process: to open it would fail a program that starts."""
    assert await on.look.open(replace(on.device, kind=kind)) is OpenOutcome.UNAVAILABLE


class TestLeftEnabled:
    async def test_where_the_group_can_be_opened_its_level_is_learned_and_it_is_free(
        self, on: Looked
    ) -> None:
        on.set_enable("1")
        facts = await on.facts()
        assert is_foreign(facts), "by a look alone"
        watch = on.watch()
        tried = await watch.tried(on.device, facts)
        assert judge_kernel(tried).freedom is Freedom.FREE
        assert not await on.enabled()
        assert (await on.judged()).freedom is Freedom.FREE, "without another open"
        on.set_enable("2")
        assert await on.enabled()
        assert is_foreign(await on.facts())
        on.set_enable("1")
        assert (await on.released(watch)).freedom is Freedom.FREE

    async def test_it_is_learned_also_when_a_pod_is_over_that_had_it(self, on: Looked) -> None:
        on.set_enable("2")
        watch = on.watch()
        with stranger(on.node, NODES[0]) as pod:
            assert (await on.released(watch)).freedom is Freedom.IN_USE
            pod.close_one()
            on.set_enable("1")
            on.clock.shift(5.0)
            assert (await on.released(watch)).freedom is Freedom.FREE
        assert not await on.enabled()

    @pytest.mark.parametrize("how", ["bound anew", "plugged in anew", "not enabled meanwhile"])
    async def test_the_level_of_a_function_is_forgotten_when_it_is(
        self, on: Looked, how: str
    ) -> None:
        on.set_enable("1")
        watch = on.watch()
        await watch.tried(on.device, await on.facts())
        assert not await on.enabled()
        home = on.node.tree.path(CHIP)
        if how == "bound anew":
            (home / "held").symlink_to("so that the next link has another inode")
            (home / "driver").rename(home / "former")
            on.node.tree.bind(CHIP, "vfio-pci")
        elif how == "plugged in anew":
            shutil.copytree(home, home.with_name("new"), symlinks=True)
            home.rename(home.with_name("old"))
            home.with_name("new").rename(home)
        else:
            on.set_enable("0")
            assert not await on.enabled()
            on.set_enable("1")
        assert await on.enabled()

    async def test_two_threads_may_forget_a_level_at_once(
        self, on: Looked, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A look and an open have lanes of their own."""
        on.set_enable("1")
        levels, binding = EnableLevels(Sysfs(on.node.root)), Sysfs.binding
        levels.learn([CHIP])
        (on.node.tree.path(CHIP) / "driver").unlink()
        others = iter([levels])

        def meanwhile(sysfs: Sysfs, address: PciAddress) -> Binding | None:
            for other in others:
                assert other.of([CHIP]).above == (CHIP,)
            return binding(sysfs, address)

        monkeypatch.setattr(Sysfs, "binding", meanwhile)
        assert levels.of([CHIP]).above == (CHIP,)

    async def test_it_is_not_learned_while_somebody_has_the_group(self, on: Looked) -> None:
        """A virtual machine of the kernel's own has no process that shows it."""
        await on.open_as_anybody()
        held = _for_oneself(on.node.node(NODES[1]))  # this process itself is left out of looks
        on.set_enable("1")
        tried = await on.watch().tried(on.device, await on.facts())
        assert (tried.opened, is_foreign(tried)) == (OpenOutcome.BUSY, True)
        os.close(held)
        assert await on.enabled()

    async def test_it_is_not_learned_by_a_look_that_missed_somebody(self, on: Looked) -> None:
        """The open tells about now, and a level is for ever."""
        on.set_enable("1")
        tried = await on.watch().tried(on.device, replace(await on.facts(), gaps=("pid 7",)))
        assert judge_kernel(tried).freedom is Freedom.FREE
        assert await on.enabled()

    @pytest.mark.parametrize("why", ["forbidden", "not a group", "of another kind"])
    async def test_where_the_group_cannot_be_opened_it_is_never_called_free(
        self, on: Looked, why: str
    ) -> None:
        on.set_enable("1")
        if why == "not a group":
            (on.node.root.proc / "devices").write_text("Character devices:\n136 pts\n")
        if why == "of another kind":
            on.device = replace(on.device, nodes=())
        watch = on.watch(exclusive_open=why != "forbidden")
        tried = await watch.tried(on.device, await on.facts())
        assert is_foreign(tried)
        assert "it was left enabled: unbind it, write 0" in judge_kernel(tried).reason
        assert await on.enabled()

    async def test_whether_groups_are_opened_can_change_at_any_time(self, on: Looked) -> None:
        on.set_enable("1")
        allowed = Watched(False)
        watch = on.watch(exclusive_open=allowed)
        assert is_foreign(await watch.tried(on.device, await on.facts()))
        allowed.set(True)
        tried = await watch.tried(on.device, await on.facts())
        assert judge_kernel(tried).freedom is Freedom.FREE

    async def test_what_is_not_enabled_any_more_is_left_alone(self, on: Looked) -> None:
        """A pod may have passed the gate since it was looked at: it must not find it busy."""
        on.set_enable("1")
        facts = await on.facts()
        on.set_enable("0")
        assert await on.look.open_idle(on.device, learn=True) is OpenOutcome.UNAVAILABLE
        assert (await on.watch().tried(on.device, facts)).opened is OpenOutcome.UNAVAILABLE


async def test_a_free_device_that_was_left_enabled_is_no_strangers(
    on: Looked, tmp_path: Path
) -> None:
    on.set_enable("1")
    devices = Inventory(resources=(on.device.name.resource,), devices=(on.device,))
    async with ledger_in(tmp_path / "state", on.clock) as ledger:
        for may_open in (True, False):
            users = Users(
                ledger=ledger,
                inventory=Watched(devices),
                use=on.watch(exclusive_open=may_open),
                clock=on.clock,
            )
            enabled = await on.look.enabled([on.device])
            await users.look_at_free(enabled, at_all=True)
            assert bool(ledger.book.value.locks) is not may_open
            on.set_enable("2")


async def test_the_pod_that_has_a_device_open_gets_its_lock_from_one_that_waits(
    on: Looked, tmp_path: Path
) -> None:
    """Both were granted it: by the end of the one that waits, the device would be the other's."""
    first, second = PodUid(str(UUID(int=7))), PodUid(str(UUID(int=8)))
    name, keys = on.device.name, on.device.keys
    with opener(on.node.node(NODES[0])) as holder:
        on.node.add_process(holder.pid, f"/kubepods/pod{second}/1")
        on.set_enable("1")
        async with ledger_in(tmp_path / "state", on.clock) as ledger:
            for pod in (first, second):
                await ledger.apply(allocated({name.id: keys}, resource=name.resource, pod=pod))
            await ledger.apply(settle)
            users = Users(
                ledger=ledger,
                inventory=Watched(Inventory(resources=(name.resource,), devices=(on.device,))),
                use=on.watch(),
                clock=on.clock,
            )
            enabled = await on.look.enabled([on.device])
            assert ledger.book.value.locks[name].pod == first
            await users.look_at_held(list(ledger.book.value.locks.values()), {}, enabled)
            assert ledger.book.value.locks[name].pod == second


class TestNotEverybodySeen:
    async def test_what_no_look_can_prove_free_an_open_of_its_group_does(self, on: Looked) -> None:
        """One process that is stuck must not keep a device that has had an unknown pod."""
        await on.open_as_anybody()
        with stranger(on.node, NODES[0]) as stuck:
            stuck.close_one()
            fds = on.node.root.proc / str(stuck.pid) / "fd"
            fds.unlink()
            fds.symlink_to("fd")  # cannot be inspected
            assert (await on.released(on.watch(exclusive_open=False))).freedom is Freedom.UNKNOWN
            assert (await on.released(on.watch())).freedom is Freedom.FREE
            held = _for_oneself(on.node.node(NODES[1]))
            assert (await on.released(on.watch())).freedom is not Freedom.FREE
            os.close(held)


def _for_oneself(path: Path) -> int:
    """Open a terminal so that nobody else can, as a group's node is; return the open file."""
    fd = os.open(path, os.O_RDWR | os.O_NOCTTY)
    fcntl.ioctl(fd, termios.TIOCEXCL)
    return fd


def _lose_what_reads_all() -> None:
    _lose(_DAC_OVERRIDE | _DAC_READ_SEARCH)


def _lose_sys_admin() -> None:
    _lose(_SYS_ADMIN)


def _lose(capabilities: int) -> None:
    """Take *capabilities* from this thread alone."""
    capget, capset = {"x86_64": (125, 126), "aarch64": (90, 91)}[os.uname().machine]
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()
    assert libc.syscall(capget, header, sets) == 0
    sets[0] &= ~capabilities
    assert libc.syscall(capset, header, sets) == 0
