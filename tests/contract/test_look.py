"""A look at one device on a tree of plain files: what its `enable` and its nodes tell of it."""

import contextlib
import ctypes
import fcntl
import os
import shutil
import termios
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from fakes.opener import opener
from holdfast.host.proc.pidfd import Pidfds
from holdfast.host.proc.procfs import Procfs
from holdfast.host.use.look import Look
from holdfast.model.devices import Device, DeviceKind, DeviceNode
from holdfast.model.ids import DeviceId, DeviceName, HardwareKey, PciAddress, ResourceName
from holdfast.model.use.free import Freedom, KernelFacts, Opened, Verdict, is_foreign, judge_kernel
from holdfast.model.use.holders import Grip
from holdfast.reclaim.kernel import KernelWatch
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched
from manual_clock import ManualClock
from simulated.node import SimulatedNode

CHIP = PciAddress("0000:00:05.0")
NODES = ("/dev/vfio/10", "/dev/vfio/11")
_SYS_ADMIN = 1 << 21


@dataclass
class Looked:
    node: SimulatedNode
    lane: Lane
    look: Look
    device: Device
    clock: ManualClock

    async def facts(self) -> KernelFacts:
        return (await self.look.scan([self.device], {}))[self.device.name]

    async def judged(self) -> Verdict:
        return judge_kernel(await self.facts())

    async def enabled(self) -> bool:
        return bool((await self.look.enabled([self.device]))[self.device.name])

    def watch(self, *, exclusive_open: Watched[bool] | None = None) -> KernelWatch:
        return KernelWatch(
            look=self.look,
            pidfds=Pidfds(Procfs(self.node.root)),
            clock=self.clock,
            exited=lambda _process: None,
            rescan=Watched(60.0),
            exclusive_open=exclusive_open or Watched(True),
        )

    async def released(self, watch: KernelWatch) -> Verdict:
        """Return what is thought of the device when it is to become free."""
        enabled = (await watch.enabled([self.device]))[self.device.name]
        return judge_kernel(await watch.facts(self.device, {}, enabled=enabled, to_free=True))

    def set_enable(self, count: str) -> None:
        self.node.tree.write(CHIP, "enable", count)


@pytest.fixture
async def on(tmp_path: Path) -> AsyncIterator[Looked]:
    node = SimulatedNode(tmp_path)
    # The nodes are terminals, so that their major stands for that of VFIO's groups.
    (node.root.proc / "devices").write_text("Character devices:\n136 vfio\n\nBlock devices:\n")
    device = Device(
        name=DeviceName(ResourceName("google.com/tpu"), DeviceId(CHIP)),
        kind=DeviceKind.VFIO,
        keys=frozenset({HardwareKey(f"pci/{CHIP}")}),
        nodes=tuple(DeviceNode(path=each, rdev=node.node(each).stat().st_rdev) for each in NODES),
        functions=(CHIP,),
        model="v5e",
    )
    with contextlib.closing(Lane("scan", deadline=30.0)) as lane:
        yield Looked(node, lane, Look(node.root, lane), device, ManualClock())
    node.close()


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


async def test_a_holder_of_a_functions_own_vfio_node_is_a_holder_of_the_device(on: Looked) -> None:
    """/dev/vfio/devices/vfioX: who opens that leaves the group node alone."""
    rdev = on.node.tree.terminal("/dev/vfio/vfio0")
    entry = on.node.tree.path(CHIP) / "vfio-dev/vfio0"
    entry.mkdir(parents=True)
    (entry / "dev").write_text(f"{os.major(rdev)}:{os.minor(rdev)}\n")
    with opener(on.node.node("/dev/vfio/vfio0")) as holder:
        on.node.add_process(holder.pid, "/user.slice")
        (found,) = (await on.facts()).holders or ()
    assert (found.process.pid, found.grips) == (holder.pid, frozenset({Grip.NODE}))


async def test_a_holder_of_another_node_of_the_same_hardware_is_a_holder_of_the_device(
    on: Looked,
) -> None:
    """/dev/dri/renderD128: who draws on a GPU may have none of its driver's own nodes open."""
    (on.node.root.dev / "dri").mkdir()
    rdev = on.node.tree.terminal("/dev/dri/renderD128")
    draws = DeviceNode(path="/dev/dri/renderD128", rdev=rdev)
    on.device = replace(on.device, other_nodes=(draws,))
    assert not (await on.facts()).holders
    with opener(on.node.node("/dev/dri/renderD128")) as holder:
        on.node.add_process(holder.pid, "/user.slice")
        holders = (await on.facts()).holders or ()
    found = [(each.process.pid, each.grips) for each in holders]
    assert found == [(holder.pid, frozenset({Grip.NODE}))]


@pytest.mark.parametrize("busy", NODES)
async def test_one_group_that_is_busy_makes_the_device_busy(on: Looked, busy: str) -> None:
    await on.lane.run(_lose_sys_admin)  # who has it may open what another has for itself
    assert await on.look.open(on.device) is Opened.SUCCEEDED
    held = _for_oneself(on.node.node(busy))
    assert await on.look.open(on.device) is Opened.BUSY
    (other,) = set(NODES) - {busy}
    nodes = tuple(replace(each, rdev=1) if each.path == other else each for each in on.device.nodes)
    gone = replace(on.device, nodes=nodes)
    assert await on.look.open(gone) is Opened.BUSY, "although the other has another number by now"
    fcntl.ioctl(held, termios.TIOCNXCL)
    os.close(held)
    assert await on.look.open(gone) is Opened.UNAVAILABLE


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
        with opener(on.node.node(NODES[0])) as pod:
            on.node.add_process(pod.pid, "/user.slice")
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

    async def test_it_is_not_learned_while_somebody_has_the_group(self, on: Looked) -> None:
        """A virtual machine of the kernel's own has no process that shows it."""
        await on.lane.run(_lose_sys_admin)
        held = _for_oneself(on.node.node(NODES[1]))  # this process itself is left out of looks
        on.set_enable("1")
        tried = await on.watch().tried(on.device, await on.facts())
        assert (tried.opened, is_foreign(tried)) == (Opened.BUSY, True)
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
        watch = on.watch(exclusive_open=Watched(why != "forbidden"))
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
        assert await on.look.open_idle(on.device, learn=True) is Opened.UNAVAILABLE
        assert (await on.watch().tried(on.device, facts)).opened is Opened.UNAVAILABLE


class TestNotEverybodySeen:
    async def test_what_no_look_can_prove_free_an_open_of_its_group_does(self, on: Looked) -> None:
        """One process that is stuck must not keep a device that has had an unknown pod."""
        await on.lane.run(_lose_sys_admin)
        with opener(on.node.node(NODES[0])) as stuck:
            on.node.add_process(stuck.pid, "/user.slice")
            stuck.close_one()
            fds = on.node.root.proc / str(stuck.pid) / "fd"
            fds.unlink()
            fds.symlink_to("fd")  # cannot be inspected
            assert (
                await on.released(on.watch(exclusive_open=Watched(False)))
            ).freedom is Freedom.UNKNOWN
            assert (await on.released(on.watch())).freedom is Freedom.FREE
            held = _for_oneself(on.node.node(NODES[1]))
            assert (await on.released(on.watch())).freedom is not Freedom.FREE
            os.close(held)


def _for_oneself(path: Path) -> int:
    """Open a terminal so that nobody else can, as a group's node is; return the open file."""
    fd = os.open(path, os.O_RDWR | os.O_NOCTTY)
    fcntl.ioctl(fd, termios.TIOCEXCL)
    return fd


def _lose_sys_admin() -> None:
    """Take a capability from this thread alone."""
    capget, capset = {"x86_64": (125, 126), "aarch64": (90, 91)}[os.uname().machine]
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()
    assert libc.syscall(capget, header, sets) == 0
    sets[0] &= ~_SYS_ADMIN
    assert libc.syscall(capset, header, sets) == 0
