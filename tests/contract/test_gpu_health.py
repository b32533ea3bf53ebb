"""Events and looks through the real pynvml on the stub library: what reaches the published health."""

import asyncio
import os
import shutil
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from fakes.books import BOOT
from fakes.gpu_health import DEADLINE, QUIET, Follower, Told, following, kept_of_gpus
from fakes.inuse import holder_scan
from fakes.ledgers import ledger_in
from fakes.onegpu import RULES
from forked import Template
from holdfast.errors import HostError
from holdfast.host.nvidia.driver import driver_load
from holdfast.host.nvidia.nvml import Nvml
from holdfast.host.root import HostRoot
from holdfast.model.book.book import Book
from holdfast.model.nvidia.gpu import (
    DriverState,
    Gpu,
    GpuCondition,
    GpuEvent,
    GpuEventKind,
    GpuProcess,
    GpuReading,
    GpuUse,
    MigSlice,
)
from holdfast.model.nvidia.health import NO_DRIVER
from holdfast.model.nvidia.xids import xid_checks
from holdfast.runtime.clock import Clock, SystemClock
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched
from holdfast.vendors.nvidia.gpuusers import GpuUsers, HealthTimes
from holdfast.vendors.nvidia.health import EventSubscription, GpuEventThread, GpuHealthWatch
from simulated.nvml import Event, Node, Slice, cards, uuid
from waiting import beside, until, wait_until

GPU_IS_LOST, UNKNOWN = 15, 999
GPU_RESET = 1
"""NVML's number of what the driver asks for then."""
BAD_MEMORY, CONTAINED, NOTICE, OFF_THE_BUS, ILLEGAL_ACCESS = 48, 94, 63, 79, 31
NO_POWER = 54
Follow = Callable[..., Follower]


@pytest.fixture
def follow(library: Path, template: Template, tmp_path: Path) -> Iterator[Follow]:
    """Follow the health of a node's GPUs until the test ends, or until followed anew."""
    with ExitStack() as stack:

        def start(node: Node, *, boot: str = "boot-1", disabled: str = "") -> Follower:
            stack.close()
            return stack.enter_context(
                following(template, library, tmp_path, node, boot=boot, disabled=disabled)
            )

        yield start


def listening(follower: Follower, node: Node, *events: Event) -> Node:
    """Let *events* happen once they are listened for: what came before is never told."""
    after = replace(node, events=events)
    follower.until(lambda told: told.faults, what="the first look")
    follower.show(after)
    return after


def loaded(folder: Path, number: int) -> None:
    """Let the driver be loaded, as the load of that *number*."""
    (folder / "next").write_text(str(number))
    (folder / "next").replace(folder / "load")


def looked_at(folder: Path) -> bool:
    """Tell whether it is kept of a GPU with an Xid which driver a look has found."""
    return any(gpu.xids and gpu.driver for gpu in kept_of_gpus(folder).values())


def lay_pipe(file: Path) -> None:
    """Have the next look wait when it reads *file*."""
    os.mkfifo(file.with_name("next"))
    file.with_name("next").replace(file)


@contextmanager
def under_way(file: Path, *, load: int) -> Iterator[None]:
    """Run the block while a look waits in *file*, a pipe; it and all later ones read *load*."""
    with file.open("w") as pipe:  # which takes until it is read
        file.with_name("next").write_text(str(load))
        file.with_name("next").replace(file)
        yield
        pipe.write(str(load))


def ill(*uuids: str) -> Callable[[Told], bool]:
    return lambda told: told.ill == {*uuids}


def condemned(follow: Follow, node: Node) -> tuple[Follower, Node]:
    """Return who follows *node* and has heard that its GPU 0 is ill, and the node after that."""
    follower = follow(node)
    after = listening(follower, node, Event(uuid(0), BAD_MEMORY))
    follower.until(ill(uuid(0)), what="the Xid")
    return follower, after


def test_an_xid_condemns_its_gpu_alone_and_is_heard_once(follow: Follow) -> None:
    node = Node(cards=cards(8))
    follower = follow(node)
    listening(follower, node, Event(uuid(3), BAD_MEMORY))
    told = follower.until(ill(uuid(3)), what="the Xid")
    assert "Xid 48 (uncorrectable memory error)" in told.faults[uuid(3)][0]
    time.sleep(3 * QUIET)  # several looks and waits, each of which would tell it again
    told = follower.told()
    assert told.ill == {uuid(3)}, "no time clears it"
    assert told.heard == [BAD_MEMORY]


@contextmanager
def named(command: str, folder: Path) -> Iterator[int]:
    """Run a process of that name, outside of any pod."""
    program = folder / command
    shutil.copy("/bin/sleep", program)
    with subprocess.Popen([program, "600"]) as process:
        try:
            comm = Path(f"/proc/{process.pid}/comm")
            wait_until(lambda: comm.read_text().strip() == command[:15], what="its name")
            yield process.pid
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("command", "kind"),
    [("nvidia-cuda-mps-server", "compute"), ("Xorg", "graphics"), ("nv-hostengine", "compute")],
)
def test_what_passes_is_over_after_the_quiet_period_when_the_programs_at_work_are_gone(
    follow: Follow, tmp_path: Path, command: str, kind: str
) -> None:
    one, two = cards(2)
    with named(command, tmp_path) as stays:
        idle = replace(one, processes=((kind, stays, 5),))
        busy = replace(one, processes=((kind, stays, 5), ("compute", 77, 5), ("mps", 77, 5)))
        node = Node(cards=(busy, two))
        follower = follow(node)
        events = (Event(uuid(0), CONTAINED), Event(uuid(1), NOTICE))
        follower.until(lambda told: told.faults, what="the first look")
        began = time.monotonic()
        after = listening(follower, node, *events)
        follower.until(ill(uuid(0), uuid(1)), what="both Xids")
        follower.until(ill(uuid(0)), what="the harmless one to be over")
        assert time.monotonic() - began > QUIET
        follower.show(replace(after, cards=(idle, two)))
        follower.until(ill(), what="the other, once its program is gone")


def test_an_xid_of_a_gpu_that_is_not_known_yet_condemns_it_when_it_is(follow: Follow) -> None:
    one, two = cards(2)
    follower = follow(Node(cards=(one,)))
    follower.until(lambda told: told.faults, what="the first look")
    follower.show(Node(cards=(one, two), events=(Event(uuid(1), BAD_MEMORY),)))
    follower.until(lambda told: told.heard, what="the Xid")
    follower.order("read")
    told = follower.until(lambda told: uuid(1) in told.faults, what="the other GPU")
    assert told.ill == {uuid(1)}


def test_an_xid_of_a_gpu_that_is_not_divided_names_no_slice(follow: Follow) -> None:
    node = Node(cards=cards(1, mig=0))
    follower = follow(node)
    listening(follower, node, Event(uuid(0), CONTAINED, gi=0, ci=0))
    told = follower.until(ill(uuid(0)), what="the Xid")
    assert told.faults[uuid(0)][0].startswith(f"{uuid(0)}: Xid 94 (")


def test_an_xid_of_a_slice_condemns_the_slice_and_its_gpu_not_the_neighbours(
    follow: Follow,
) -> None:
    slices = (Slice("MIG-1", gi=1), Slice("MIG-2", gi=2, processes=(("compute", 77, 5),)))
    one, two = cards(2)
    node = Node(cards=(replace(one, mig=1, slices=slices), two))
    follower = follow(node)
    listening(follower, node, Event(uuid(0), CONTAINED, gi=1, ci=0))
    told = follower.until(ill("MIG-1", uuid(0)), what="the slice")
    assert {*told.faults} == {"MIG-1", "MIG-2", uuid(0), uuid(1)}
    follower.until(ill(), what="the slice to be over it while its neighbour is at work")


def test_ignored_xids_condemn_nobody_and_a_list_adds_to_them(follow: Follow) -> None:
    node = Node(cards=cards(1))
    follower = follow(node, disabled=f"{BAD_MEMORY}")
    listening(follower, node, Event(uuid(0), ILLEGAL_ACCESS), Event(uuid(0), BAD_MEMORY))
    told = follower.until(lambda told: len(told.heard) == 2, what="both")
    assert told.ill == set()


def test_a_lost_gpu_is_ill_and_well_when_it_is_back_its_xid_too(follow: Follow) -> None:
    whole = cards(8)
    node = Node(cards=whole)
    follower = follow(node)
    follower.until(lambda told: told.faults, what="the first look")
    lost = (*whole[:3], replace(whole[3], errors={"*": GPU_IS_LOST}), *whole[4:])
    after = Node(cards=lost, events=(Event(uuid(3), OFF_THE_BUS),))
    follower.show(after)
    told = follower.until(lambda told: len(told.faults[uuid(3)]) > 1, what="Xid and loss")
    assert told.ill == {uuid(3)}
    follower.show(replace(after, cards=whole))
    follower.until(ill(), what="the GPU to be back")


def test_a_gpu_that_was_lost_when_we_began_to_listen_is_listened_to_when_it_is_back(
    follow: Follow,
) -> None:
    one, two = cards(2)
    follower = follow(Node(cards=(one, replace(two, errors={"nvmlDeviceRegisterEvents": 15}))))
    follower.until(lambda told: told.notes.get(uuid(1)), what="the note")
    follower.show(Node(cards=(one, replace(two, errors={"*": GPU_IS_LOST}))))
    follower.until(ill(uuid(1)), what="the loss")
    follower.show(Node(cards=(one, two)))
    follower.until(lambda told: not (told.ill or told.notes[uuid(1)]), what="all to be well")


def test_an_xid_of_no_gpu_that_nvml_can_name_has_all_asked_and_the_lost_one_found(
    follow: Follow,
) -> None:
    one, two = cards(2)
    node = Node(cards=(one, replace(two, errors={"*": GPU_IS_LOST})))
    follower = follow(replace(node, cards=(one, two)))
    listening(follower, node, Event("", OFF_THE_BUS))
    told = follower.until(
        lambda told: told.heard and "did not name" not in str(told.notes), what="all to be asked"
    )
    assert told.ill == {uuid(1)}
    assert any("Xid 79" in fault for fault in told.faults[uuid(1)])
    follower.show(Node(cards=(one, two), events=(Event("", OFF_THE_BUS),)))
    follower.until(ill(), what="nobody to be ill for ever")


def test_a_fatal_xid_is_not_forgotten_by_a_restart_and_is_by_a_reboot(
    follow: Follow, tmp_path: Path
) -> None:
    node = Node(cards=cards(2))
    follower = follow(node)
    listening(follower, node, Event(uuid(1), BAD_MEMORY))
    follower.until(ill(uuid(1)), what="the Xid")
    wait_until(lambda: any(gpu.xids for gpu in kept_of_gpus(tmp_path).values()))
    kept = follow(node)  # killed, as a crash would
    told = kept.until(lambda told: told.faults, what="the first health")
    assert told.ill == {uuid(1)}
    rebooted = follow(node, boot="boot-2")
    rebooted.until(lambda told: told.faults and not told.ill, what="a fresh start")


def test_a_mark_that_a_person_had_dropped_is_not_back_after_the_next_restart(
    follow: Follow, tmp_path: Path
) -> None:
    def marked() -> bool:
        return any(gpu.xids for gpu in kept_of_gpus(tmp_path).values())

    node = Node(cards=cards(1))
    follower = follow(node)
    listening(follower, node, Event(uuid(0), BAD_MEMORY))
    wait_until(marked, what="the mark to be kept")
    follow(node, disabled=f"{BAD_MEMORY}")
    wait_until(lambda: not marked(), what="the mark to be dropped")
    told = follow(node).until(lambda told: told.faults, what="the first health")
    assert told.ill == set()


def test_a_gpu_that_was_replaced_leaves_the_ledger_unless_a_person_has_to_clear_it(
    follow: Follow, tmp_path: Path
) -> None:
    def places() -> dict[str, str | None]:
        return {uuid: gpu.pci for uuid, gpu in kept_of_gpus(tmp_path).items()}

    one, two, three = cards(3)
    follower = follow(Node(cards=(one, two)))
    listening(follower, Node(cards=(one, two)), Event(uuid(1), NO_POWER))
    wait_until(lambda: kept_of_gpus(tmp_path).get(uuid(1)) and kept_of_gpus(tmp_path)[uuid(1)].xids)
    new = (replace(three, bus=one.bus), replace(cards(4)[3], bus=two.bus))
    follow(Node(cards=new), boot="boot-2")
    wait_until(lambda: places().get(uuid(3)), what="the new GPUs to be kept")
    assert (places()[uuid(0)], places()[uuid(1)]) == (None, None)
    follow(Node(cards=new), boot="boot-3")
    wait_until(lambda: places().keys() == {uuid(1), uuid(2), uuid(3)}, what="one to be forgotten")


def test_a_driver_that_was_gone_and_is_back_has_begun_anew_and_is_listened_to(
    follow: Follow,
) -> None:
    node = Node(cards=cards(1))
    follower, after = condemned(follow, node)
    follower.order("absent")
    assert follower.told().ill == {uuid(0)}
    follower.order("read")
    follower.until(ill(), what="the new beginning")
    follower.show(replace(after, events=(*after.events, Event(uuid(0), NOTICE))))
    follower.until(ill(uuid(0)), what="an Xid after it")


@pytest.mark.parametrize("held", ["load", "answer"])
def test_a_look_under_way_when_the_driver_goes_is_not_counted(
    follow: Follow, tmp_path: Path, held: str
) -> None:
    loaded(tmp_path, 1)
    kept = tmp_path / "driver"
    kept.touch()
    node = Node(cards=cards(1), keeps=str(kept))
    follower, _ = condemned(follow, node)
    lay_pipe(tmp_path / held)
    with under_way(tmp_path / held, load=1):
        follower.order("absent")
        follower.told()
    files = Path(f"/proc/{follower.process.pid}/fd")
    wait_until(lambda: kept not in [each.resolve() for each in files.iterdir()], what="its end")
    assert follower.told().ill == {uuid(0)}
    follower.order("read")
    follower.until(ill(), what="the new beginning")


@pytest.mark.parametrize("away", ["absent", "leaving", "unwatched"])
def test_an_xid_of_the_new_driver_outlives_the_first_look_after_a_load(
    follow: Follow, tmp_path: Path, away: str
) -> None:
    loaded(tmp_path, 1)
    node = Node(cards=cards(1))
    follower, after = condemned(follow, node)
    wait_until(partial(looked_at, tmp_path), what="a look to be kept")
    if away == "unwatched":
        lay_pipe(tmp_path / "load")
        follower = follow(replace(after, events=(), past=1))
    else:
        follower.order(away)
        follower.told()
        lay_pipe(tmp_path / "load")
        follower.order("read")
    with under_way(tmp_path / "load", load=2):
        follower.show(replace(after, events=(Event(uuid(0), OFF_THE_BUS),), past=1))
        follower.until(lambda told: OFF_THE_BUS in told.heard, what="an Xid after it")
    told = follower.until(lambda told: "Xid 48" not in str(told.faults), what="the first look")
    assert "Xid 79" in told.faults[uuid(0)][0]


def test_an_event_that_the_driver_that_went_still_told_is_cleared(follow: Follow) -> None:
    node = Node(cards=cards(1), stall="wait")
    follower, after = condemned(follow, node)
    follower.order("absent")
    follower.told()
    follower.show(replace(after, events=(*after.events, Event(uuid(0), OFF_THE_BUS))))
    follower.until(lambda told: OFF_THE_BUS in told.heard, what="what it still told")
    follower.order("read")
    follower.until(ill(), what="the new beginning")


def test_a_driver_that_went_before_a_restart_has_begun_anew_after_it(
    follow: Follow, tmp_path: Path
) -> None:
    node = Node(cards=cards(1))
    follower, after = condemned(follow, node)
    wait_until(partial(looked_at, tmp_path), what="a look to be kept")
    follower.order("absent")
    wait_until(lambda: kept_of_gpus(tmp_path)[uuid(0)].driver == NO_DRIVER, what="it to be kept")
    follow(replace(after, events=(), past=1)).until(ill(), what="the new beginning")


def test_a_driver_that_was_loaded_anew_while_nobody_looked_has_begun_anew(
    follow: Follow, tmp_path: Path
) -> None:
    loaded(tmp_path, 1)
    node = Node(cards=cards(1))
    follower, _ = condemned(follow, node)
    wait_until(partial(looked_at, tmp_path), what="a look to be kept")
    time.sleep(3 * QUIET)
    assert follower.told().ill == {uuid(0)}
    loaded(tmp_path, 2)
    follower.until(ill(), what="the new load to be seen")
    events = (Event(uuid(0), BAD_MEMORY), Event(uuid(0), OFF_THE_BUS))
    follower.show(replace(node, events=events))
    follower.until(ill(uuid(0)), what="an Xid after it")


def test_a_load_that_sysfs_does_not_show_for_a_moment_is_no_other_one(
    follow: Follow, tmp_path: Path
) -> None:
    loaded(tmp_path, 1)
    node = Node(cards=cards(1))
    follower, _ = condemned(follow, node)
    wait_until(partial(looked_at, tmp_path), what="a look to be kept")
    (tmp_path / "load").unlink()
    time.sleep(3 * QUIET)
    assert follower.told().ill == {uuid(0)}
    loaded(tmp_path, 1)
    time.sleep(3 * QUIET)
    assert follower.told().ill == {uuid(0)}


def test_waits_that_fail_are_told_cost_no_time_and_are_tried_again(follow: Follow) -> None:
    node = Node(cards=cards(1), wait=UNKNOWN)
    follower = follow(node)
    told = follower.until(lambda told: told.notes.get(uuid(0)), what="the note")
    assert "cannot wait for GPUs' events: NVML_ERROR_UNKNOWN" in told.notes[uuid(0)][0]
    assert told.ill == set(), "what is not heard is no fault"
    before = told.cpu
    time.sleep(0.5)
    assert follower.told().cpu - before < 0.2, "a wait that fails at once must not be busy"
    follower.show(Node(cards=cards(1)))
    follower.until(lambda told: not told.notes[uuid(0)], what="the next try")
    follower.show(Node(cards=cards(1), events=(Event(uuid(0), BAD_MEMORY),)))
    follower.until(ill(uuid(0)), what="an Xid after it")


def test_a_wait_that_fails_as_nobody_thought_of_is_told_and_tried_again(
    follow: Follow, tmp_path: Path
) -> None:
    node = Node(cards=cards(1))
    follower = follow(node)
    (tmp_path / "odd").touch()
    told = follower.until(lambda told: told.notes.get(uuid(0)), what="the note")
    assert "ZeroDivisionError: ; this is a bug in holdfast, see its log" in told.notes[uuid(0)][0]
    (tmp_path / "odd").unlink()
    follower.until(lambda told: not told.notes[uuid(0)], what="the next try")
    follower.show(replace(node, events=(Event(uuid(0), BAD_MEMORY),)))
    follower.until(ill(uuid(0)), what="an Xid after it")


class _Deaf(Nvml):
    """It cannot be begun, for a reason that a test changes; without one no event comes."""

    why = "NVML_ERROR_UNKNOWN"

    def open(self) -> None:
        """Say why not."""
        if self.why:
            raise HostError(self.why)

    def subscribe(self, _uuids: Iterable[str]) -> Mapping[str, str]:
        """Return that all can be heard."""
        return {}

    def wait_event(self, _seconds: float) -> None:
        """Return that nothing came."""

    def close(self) -> None:
        """End it."""


async def test_why_no_event_can_be_received_is_logged_once_however_often_it_is_tried() -> None:
    nvml, unheard = _Deaf(), list[Mapping[str, str]]()
    ears = GpuEventThread(
        source=lambda _: nvml, event=lambda _event: None, heard=unheard.append, wait=60.0
    )
    reasons = ["no memory", "no memory", "no driver", "no driver", "", "no driver"]
    with closing(ears), capture_logs() as logs:
        for generation, nvml.why in enumerate(reasons):  # another one is tried at once
            unheard.clear()
            ears.want(EventSubscription(library="", uuids=("a",), generation=generation))
            await until(lambda: {"a": nvml.why} in unheard or {} in unheard)
    told = [each["reason"] for each in logs if each["event"] == "cannot receive GPU events"]
    assert told == ["no memory", "no driver", "no driver"]


def test_a_gpu_that_hangs_is_ill_and_the_others_are_heard_and_it_recovers(follow: Follow) -> None:
    one, two = cards(2)
    node = Node(cards=(one, replace(two, hangs={"nvmlDeviceGetRemappedRows": 4 * DEADLINE})))
    follower = follow(node)
    told = follower.until(ill(uuid(1)), what="the one that hangs")
    assert "no answer within" in told.faults[uuid(1)][0]
    follower.show(replace(node, events=(Event(uuid(0), BAD_MEMORY),)))
    follower.until(ill(uuid(0), uuid(1)), what="an Xid of the other")
    follower.show(Node(cards=(one, two), events=(Event(uuid(0), BAD_MEMORY),)))
    follower.until(ill(uuid(0)), what="the end of the hang")


def test_a_gpu_that_waits_for_a_reset_does_so_after_a_restart_too_while_another_hangs(
    follow: Follow, tmp_path: Path
) -> None:
    """Looks go by one GPU after the other, and none comes to those behind one that hangs."""
    one, two = cards(2)
    waits = replace(two, recovery=GPU_RESET)
    follow(Node(cards=(one, waits))).until(ill(uuid(1)), what="the look")
    wait_until(lambda: any(gpu.awaits for gpu in kept_of_gpus(tmp_path).values()))
    hangs = replace(one, hangs={"nvmlDeviceGetRemappedRows": 4 * DEADLINE})
    told = follow(Node(cards=(hangs, waits))).until(lambda told: told.ill, what="one that is ill")
    assert "the driver asks to reset the GPU" in str(told.faults[uuid(1)])


class _Hanging(Nvml):
    """Everything is well, and one call does not come back before it `may`."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs, self.may = "", threading.Event()

    def open(self) -> None:
        """Begin it."""

    def close(self) -> None:
        """End it."""
        self._answer("close")

    def condition(self, uuid: str) -> GpuCondition:
        """Return the GPU's condition."""
        self._answer(uuid)
        return GpuCondition()

    def use(self, uuid: str) -> GpuUse:
        """Return that this process computes on it."""
        del uuid
        return GpuUse(processes=(GpuProcess(pid=os.getpid(), kind="compute", memory=1),))

    def subscribe(self, uuids: Iterable[str]) -> Mapping[str, str]:
        """Subscribe to events, of which there are none."""
        del uuids
        return {}

    def wait_event(self, timeout: float) -> GpuEvent | None:
        """Return that there was none."""
        self.may.wait(timeout)
        return None

    def _answer(self, call: str) -> None:
        if call == self.hangs:
            self.may.wait()


class _CountingClock(SystemClock):
    """Counts the pauses, of which there is one after each look; each takes a moment."""

    pauses = 0

    async def sleep(self, _seconds: float) -> None:
        self.pauses += 1
        await super().sleep(0.001)


_TWO = GpuReading(
    state=DriverState.READY, gpus=tuple(Gpu(index=index, uuid=uuid(index)) for index in range(2))
)


@asynccontextmanager
async def _watching(
    folder: Path, nvml: Nvml, readings: Watched[GpuReading], clock: Clock, *, disabled: str = ""
) -> AsyncIterator[GpuHealthWatch]:
    """Follow the health of GPUs in this process until the block ends."""
    named = holder_scan(HostRoot.under()).named
    async with ledger_in(folder) as ledger:
        with closing(Lane("gpu health", deadline=1.0)) as lane:
            watch = GpuHealthWatch(
                source=lambda _: nvml,
                readings=readings,
                ledger=ledger,
                lane=lane,
                clock=clock,
                boot=BOOT,
                checks=Watched(xid_checks(disabled)),
                load=lambda: None,
                users=GpuUsers(named=named, book=Book, rules=Watched(RULES)),
                times=Watched(HealthTimes(beat=0.001, quiet=60.0)),
                count=lambda _event, _condemns: None,
            )
            async with beside(watch.run()):
                yield watch


async def test_a_gpu_that_hung_once_is_not_ill_for_an_end_of_nvml_that_hangs(
    tmp_path: Path,
) -> None:
    nvml, clock, readings = _Hanging(), _CountingClock(), Watched(_TWO)
    nvml.hangs = uuid(1)
    async with _watching(tmp_path, nvml, readings, clock, disabled="xids") as watch:
        await until(lambda: watch.faults.value.keys() == {uuid(1)})
        nvml.hangs = ""
        nvml.may.set()
        await until(lambda: not watch.faults.value)
        nvml.may.clear()
        nvml.hangs = "close"
        readings.set(GpuReading())
        await until(lambda: watch.lane.stuck_since is not None)
        readings.set(_TWO)
        so_far = clock.pauses
        await until(lambda: clock.pauses > so_far + 20)
        assert not watch.faults.value
        nvml.may.set()


@pytest.mark.parametrize("again", [False, True])
async def test_an_xid_is_forgotten_though_a_look_finds_out_meanwhile_who_is_on_the_gpu(
    tmp_path: Path, *, again: bool
) -> None:
    """A person's word is written down before the Xid is dropped; another Xid since then stays."""
    contained = GpuEvent(kind=GpuEventKind.XID, uuid=uuid(0), xid=CONTAINED)
    async with _watching(tmp_path, _Hanging(), Watched(_TWO), _CountingClock()) as watch:
        watch.hear(contained)
        overruled = watch.xids_on(uuid(0))
        await until(lambda: watch.xids_on(uuid(0)) != overruled)
        if again:
            watch.hear(contained)
        watch.forgive(uuid(0), overruled)
        assert bool(watch.faults.value) is again


async def test_of_events_that_are_wanted_no_more_nobody_is_told_that_they_cannot_be_received(
    tmp_path: Path,
) -> None:
    async with _watching(tmp_path, _Deaf(), Watched(_TWO), _CountingClock()) as watch:
        await until(lambda: any(each.notes for each in watch.health.value.values()))
        watch.checks.set(xid_checks("xids"))
        await until(lambda: not any(each.notes for each in watch.health.value.values()))


async def test_that_events_cannot_be_received_is_not_told_late_where_none_is_wanted_since(
    tmp_path: Path,
) -> None:
    begun, goes_on, told = threading.Event(), threading.Event(), threading.Event()

    class Late(_Deaf):
        def open(self) -> None:
            if threading.current_thread().name == "gpu-events":
                begun.set()
                goes_on.wait(10.0)
            super().open()

        def close(self) -> None:
            if threading.current_thread().name == "gpu-events":
                told.set()

    async with _watching(tmp_path, Late(), Watched(_TWO), _CountingClock()) as watch:
        await until(begun.is_set)
        watch.checks.set(xid_checks("xids"))
        await asyncio.sleep(0.1)
        goes_on.set()
        await until(told.is_set)
        await asyncio.sleep(0.1)
        assert not any(each.notes for each in watch.health.value.values())


async def test_a_word_about_a_slice_that_is_gone_by_then_changes_nothing(tmp_path: Path) -> None:
    """A person's word is written down before the Xid is dropped: the GPU may be divided anew."""
    part = MigSlice(uuid="MIG-1", gi=1, ci=0, profile="1g.10gb")
    whole = Gpu(index=0, uuid=uuid(0), mig=True)
    readings = Watched(replace(_TWO, gpus=(replace(whole, slices=(part,)),)))
    async with _watching(tmp_path, _Hanging(), readings, _CountingClock()) as watch:
        await until(lambda: watch.health.value.keys() == {uuid(0), part.uuid})
        watch.hear(GpuEvent(kind=GpuEventKind.XID, uuid=part.uuid, xid=BAD_MEMORY))
        overruled = watch.xids_on(part.uuid)
        assert overruled
        readings.set(replace(_TWO, gpus=(whole,)))
        await until(lambda: watch.health.value.keys() == {uuid(0)})
        assert watch.xids_on(part.uuid) == ()
        watch.forgive(part.uuid, overruled)
        assert watch.xids_on(uuid(0)) == overruled


def test_a_gpu_without_events_is_said_to_be_unmonitored_and_is_not_ill(follow: Follow) -> None:
    one, two = cards(2)
    follower = follow(Node(cards=(replace(one, events=0), two)))
    told = follower.until(lambda told: told.notes.get(uuid(0)), what="the note")
    assert "its events cannot be received" in told.notes[uuid(0)][0]
    assert (told.ill, told.notes[uuid(1)]) == (set(), [])


def test_a_load_of_the_module_is_told_from_the_next(tmp_path: Path) -> None:
    """By its folder in sysfs, of which the kernel makes another each time, as here."""
    root = HostRoot.under(tmp_path)
    assert driver_load(root) is None
    module = tmp_path / "sys/module/nvidia"
    module.mkdir(parents=True)
    first = driver_load(root)
    assert first is not None
    assert driver_load(root) == first
    (module.parent / "another").mkdir()  # made before the other goes, so that it has its own
    (module.parent / "another").rename(module)
    assert driver_load(root) not in {None, first}
