"""The daemon's memory against its limit, and its holders': real files, a real lane, the metrics."""

import contextlib
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from inotify_simple import INotify, flags
from prometheus_client import CollectorRegistry, generate_latest
from structlog.testing import capture_logs

from holdfast.app.answers.reports import holder_reports
from holdfast.app.watches.memory import MemoryWatch
from holdfast.cli.tables import table
from holdfast.host.cgroup.memorylimit import MemoryReader
from holdfast.host.own import give_back_memory
from holdfast.model.book.book import Book
from holdfast.model.ids import DeviceId, DeviceName, ProcessId, ResourceName
from holdfast.model.use.holders import DeviceAccess, Holder
from holdfast.runtime.lane import Lane
from holdfast.telemetry.gauges import Readings
from holdfast.telemetry.metrics import Metrics
from manual_clock import ManualClock
from simulated.proctree import STARTED, ProcTree

MIB = 1 << 20
TPU = ResourceName("google.com/tpu")
ONE = DeviceName(TPU, DeviceId("0000:00:05.0"))
TWO = DeviceName(TPU, DeviceId("0000:00:06.0"))


class _Garbage:
    """What only a collection of garbage finds: it refers to itself."""

    def __init__(self) -> None:
        self.itself = self


class Rig:
    """A watch on a made-up node whose daemon has 100 MiB."""

    def __init__(self, folder: Path, lane: Lane) -> None:
        self.tree = ProcTree(folder)
        (self.tree.root.proc / "meminfo").write_text(
            "MemTotal:        1048576 kB\nMemAvailable:     921600 kB\n"
        )
        self.tree.myself(cgroup="/own")
        self.write("own/memory.max", 100 * MIB)
        self.watch = MemoryWatch(MemoryReader(self.tree.root), lane=lane, clock=ManualClock())

    def write(self, path: str, text: object) -> None:
        file = self.tree.root.cgroup / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def holder(self, pid: int, cgroup: str, *, limit: int, usage: int) -> Holder:
        home = self.tree.process(pid, cgroup=f"/{cgroup}")
        (home / "limits").write_text("Max locked memory         8388608    8388608    bytes\n")
        self.write(f"{cgroup}/memory.max", limit)
        self.write(f"{cgroup}/memory.current", usage)
        return Holder(
            process=ProcessId(pid, STARTED),
            command="train",
            access=frozenset({DeviceAccess.NODE}),
            cgroup=f"/{cgroup}",
        )

    def shown(self) -> str:
        return generate_latest(self._registry()).decode()

    def value(self, metric: str, device: DeviceName | None = None) -> float | None:
        labels = {} if device is None else {"resource": device.resource, "device": device.id}
        return self._registry().get_sample_value(metric, labels)

    def _registry(self) -> CollectorRegistry:
        metrics = Metrics()
        watch = self.watch
        metrics.gauges.show(Readings(own_memory=watch.own, tightest=watch.tightest))
        return metrics.registry


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with contextlib.closing(Lane("memory", deadline=30.0)) as lane:
        yield Rig(tmp_path, lane)


async def test_it_warns_once_before_the_limit_and_anew_only_after_there_was_room(rig: Rig) -> None:
    said: list[list[str]] = []
    for used in (50, 86, 90, 80, 86, 70, 86):
        rig.write("own/memory.current", used * MIB)
        with capture_logs() as logs:
            await rig.watch.refresh({})
        said.append([each["event"] for each in logs])

    near, again = "daemon memory near its limit", "daemon memory below its limit again"
    assert said == [[], [near], [], [], [], [again], [near]]


async def test_near_the_limit_it_gives_back_what_it_can_at_each_look(rig: Rig) -> None:
    freed = []
    gc.disable()  # that no other collection frees it
    for used in (50, 86, 90, 70):
        garbage = weakref.ref(_Garbage())
        rig.write("own/memory.current", used * MIB)
        await rig.watch.refresh({})
        freed.append(garbage() is None)

    gc.enable()
    assert freed == [False, True, True, False]


def test_memory_is_given_back_on_any_c_library() -> None:
    give_back_memory()


async def test_its_own_memory_is_shown_against_its_limit(rig: Rig) -> None:
    assert "holdfast_memory_limit_bytes NaN" in rig.shown()
    rig.write("own/memory.current", 25 * MIB)

    await rig.watch.refresh({})

    assert rig.value("holdfast_memory_limit_bytes") == 100 * MIB
    assert rig.value("holdfast_memory_usage_bytes") == 25 * MIB
    assert rig.value("holdfast_memory_limit_used_ratio") == 0.25


async def test_of_each_device_the_holder_with_the_least_headroom_is_shown(rig: Rig) -> None:
    roomy = rig.holder(71, "pod/a", limit=300 * MIB, usage=100 * MIB)
    tight = rig.holder(72, "pod/b", limit=400 * MIB, usage=390 * MIB)
    rig.write("own/memory.current", 25 * MIB)

    await rig.watch.refresh({ONE: (roomy, tight), TWO: (roomy,)})

    assert rig.value("holdfast_holder_memory_headroom_bytes", ONE) == 10 * MIB
    assert rig.value("holdfast_holder_memory_limit_bytes", ONE) == 400 * MIB
    assert rig.value("holdfast_holder_memory_usage_bytes", ONE) == 390 * MIB
    assert rig.value("holdfast_holder_memory_headroom_bytes", TWO) == 200 * MIB


async def test_what_nobody_holds_any_more_is_not_shown(rig: Rig) -> None:
    one = rig.holder(71, "pod/a", limit=300 * MIB, usage=100 * MIB)
    await rig.watch.refresh({ONE: (one,)})
    assert "0000:00:05.0" in rig.shown()

    await rig.watch.refresh({ONE: ()})

    assert "0000:00:05.0" not in rig.shown()


async def test_of_a_holder_that_is_gone_or_out_of_sight_nothing_is_shown(rig: Rig) -> None:
    gone = Holder(process=ProcessId(4711, 1), command="gone", access=frozenset({DeviceAccess.NODE}))

    await rig.watch.refresh({ONE: (gone,)})

    assert "0000:00:05.0" not in rig.shown()


async def test_a_holder_is_reported_with_limit_usage_headroom_and_memlock(rig: Rig) -> None:
    one = rig.holder(71, "pod/a", limit=300 * MIB, usage=100 * MIB)

    (row,) = holder_reports({ONE: (one,)}, Book(), await rig.watch.of_holders({ONE: (one,)}))

    wanted = {
        "limit": 300 * MIB,
        "limitAt": "/pod/a",
        "usage": 100 * MIB,
        "headroom": 200 * MIB,
        "memlock": 8 * MIB,
    }
    assert {key: row[key] for key in wanted} == wanted
    cells = [cell.strip() for cell in table([{key: row[key] for key in wanted}])[1].split("  ")]
    assert cells == ["300.0 MiB", "/pod/a", "100.0 MiB", "200.0 MiB", "8.0 MiB"]


async def test_of_a_holder_that_is_gone_nothing_is_reported(rig: Rig) -> None:
    gone = Holder(process=ProcessId(4711, 1), command="gone", access=frozenset({DeviceAccess.NODE}))

    (row,) = holder_reports({ONE: (gone,)}, Book(), await rig.watch.of_holders({ONE: (gone,)}))

    assert all(row[key] is None for key in ("limit", "usage", "headroom", "memlock"))


async def test_what_is_around_several_holders_is_read_once(rig: Rig) -> None:
    """With 96 devices in use it was two fifths of the CPU of an idle daemon."""
    held = {
        ONE: (rig.holder(71, "pods/a", limit=300 * MIB, usage=0),),
        TWO: (rig.holder(72, "pods/b", limit=300 * MIB, usage=0),),
    }
    rig.write("pods/memory.max", 500 * MIB)
    cgroups = rig.tree.root.cgroup
    files = [cgroups / name / "memory.max" for name in ("pods/a", "pods/b", "pods")]
    mounts = rig.tree.root.proc / "self/mountinfo"

    with INotify() as events:
        watched = {events.add_watch(each, flags.OPEN): each for each in (*files, mounts)}
        await rig.watch.refresh(held)
        opened = [watched[each.wd] for each in events.read(timeout=0)]

    assert sorted(opened) == files
