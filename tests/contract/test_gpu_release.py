"""A GPU at the gate and after its pod: the real watcher and gate, with NVML as the stub tells it."""

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from fakes.books import entry, seen
from fakes.doors import gate_over
from fakes.inuse import device_use
from fakes.observers import Unobserved
from fakes.onegpu import MIB, POD, OneGpu, gpus_on
from fakes.reclaimer import reclaimer
from fakes.watchers import KnownKubelet, watcher_of
from holdfast.allocation.gate import Gate
from holdfast.errors import GateRefusedError
from holdfast.host.cgroup.cgroups import Cgroups
from holdfast.host.cgroup.runtimestate import RuntimeFiles
from holdfast.host.files.inotify import PathWatcher
from holdfast.host.nvidia.nvml import Nvml
from holdfast.host.pci.reset import FunctionControl
from holdfast.host.proc.pidfd import Pidfds
from holdfast.host.proc.procfs import Procfs
from holdfast.ledger.ledger import Ledger, open_ledger
from holdfast.model.book.draft import Draft
from holdfast.model.book.queue import settle
from holdfast.model.devices import Device, Inventory
from holdfast.model.ids import BootId, PodUid
from holdfast.model.kubelet import KubeletView
from holdfast.reclaim.pods import Pods
from holdfast.reclaim.resetter import Resetter
from holdfast.reclaim.sightings import PodSightings
from holdfast.reclaim.watcher import Watcher
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Nudges, Watched
from holdfast.settings import sections
from holdfast.settings.types import Duration, Interval
from simulated.nvml import GIB, cards
from waiting import beside, until, wait_until

BOOT = BootId("boot")
BROKEN = cards(1, errors={"*": 999})[0]
IDLE = cards(1, used=5 * MIB)[0]


class Reader(KnownKubelet):
    """It gives no answer when it is asked."""

    async def answered_after(self, _began: float, _timeout: float) -> KubeletView | None:
        return None


@dataclass
class Daemon:
    gpus: OneGpu
    device: Device
    ledger: Ledger
    reader: Reader
    watcher: Watcher
    gate: Gate

    async def granted(self, pod: PodUid = POD) -> None:
        """Let kubelet give the GPU to *pod*, and its container start."""
        self.reader.view.set(
            seen(entry(pod, self.device.name.id, resource=self.device.name.resource))
        )

        def decide(draft: Draft) -> None:
            draft.allocate(self.device.name.resource, {self.device.name.id: self.device.keys})
            settle(draft)

        await self.ledger.apply(decide)

    async def starts(self) -> None:
        await self.gate.pre_start(self.device.name.resource, (self.device.name.id,))

    async def refusal(self) -> str:
        """Return why a container may not start; empty where it has started."""
        try:
            await self.starts()
        except GateRefusedError as error:
            return str(error)
        return ""

    def ends(self) -> None:
        """Let kubelet forget every pod."""
        self.reader.view.set(seen())

    def state(self) -> str:
        lock = self.ledger.book.value.locks.get(self.device.name)
        return "free" if lock is None else lock.state.value

    def evidence(self) -> str:
        lock = self.ledger.book.value.locks.get(self.device.name)
        return "" if lock is None else lock.evidence

    async def is_kept(self, reason: str) -> None:
        """Wait until *reason* is seen to keep the GPU of a pod that is over, and for some looks."""
        await until(
            lambda: reason in str(self.watcher.obstacle(self.device.name)),
            what=f"{reason!r} instead of {self.watcher.obstacle(self.device.name)}",
        )
        assert self.state() == "releasing"


@pytest.fixture
async def daemon(nvml: Nvml, tmp_path: Path) -> AsyncIterator[Daemon]:
    async with gpus_on(tmp_path, nvml) as gpus:
        lanes = [Lane("ledger", deadline=30.0), Lane("pods", deadline=30.0)]
        (tmp_path / "state").mkdir()
        ledger = await open_ledger(
            tmp_path / "state", lanes[0], clock=SystemClock(), boot=BOOT, locks=()
        )
        device, reader, clock = gpus.device(), Reader(), SystemClock()
        inventory = Watched(Inventory(resources=(device.name.resource,), devices=(device,)))
        procfs, cgroups, paths = (
            Procfs(gpus.node.root),
            Cgroups(gpus.node.root),
            PathWatcher(),
        )
        pidfds = Pidfds(procfs)
        pods = Pods(
            cgroups=cgroups,
            runtimes=RuntimeFiles(gpus.node.root),
            procfs=procfs,
            pidfds=pidfds,
            lane=lanes[1],
            ledger=ledger,
        )
        nudges = Nudges()
        sightings = PodSightings(
            cgroups=cgroups,
            paths=paths,
            lane=lanes[1],
            clock=clock,
            nudges=nudges,
        )
        settings = sections.ReclaimSettings(
            mode="observe",
            poll=Interval(0.05),
            release_poll=Interval(0.02),
            foreign_scan=Interval(0.05),
            unseen_grace=Duration(0),
        )
        use = device_use(
            gpus.look, pidfds, clock, book=ledger.book, rescan=float(settings.foreign_scan)
        )
        resetter = Resetter(
            ledger=ledger,
            control=FunctionControl(gpus.node.root),
            clock=clock,
            settings=Watched(settings),
            nudges=Nudges(),
            count=Unobserved().reclaimed,
        )
        watcher = watcher_of(
            ledger=ledger,
            inventory=inventory,
            reader=reader,
            use=use,
            pods=sightings,
            reclaimer=reclaimer(
                ledger=ledger,
                reader=reader,
                pods=pods,
                clock=clock,
                settings=Watched(settings),
            ),
            resetter=resetter,
            clock=clock,
            settings=Watched(settings),
            nudges=nudges,
        )
        gate = gate_over(
            ledger,
            use,
            inventory=inventory,
            reader=reader,
            watcher=watcher,
            resetter=resetter,
            lane=lanes[0],
            settings=sections.GateSettings(wait=Duration(0.3), poll=Interval(0.02)),
        )
        async with beside(watcher.run()):
            await asyncio.wait_for(watcher.looked.wait(), 20.0)
            yield Daemon(gpus, device, ledger, reader, watcher, gate)
        await ledger.close()
        pidfds.close()
        paths.close()
        for lane in lanes:
            lane.close(patience=5.0)


@contextmanager
def named(daemon: Daemon, command: str, folder: Path) -> Iterator[int]:
    """Run a process that is called *command* outside any pod."""
    program = folder / command
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    with subprocess.Popen([program, "600"]) as process:
        comm = Path(f"/proc/{process.pid}/comm")
        wait_until(lambda: comm.read_text().strip() == command[:15], what="the program")
        daemon.gpus.node.add_process(process.pid, "/system.slice")
        yield process.pid
        process.kill()


async def test_a_container_starts_on_an_idle_gpu(daemon: Daemon) -> None:
    await daemon.granted()
    await daemon.starts()
    assert "NVML names no process that uses it" in daemon.evidence()


async def test_no_container_starts_on_a_gpu_of_which_nvml_cannot_tell_who_uses_it(
    daemon: Daemon,
) -> None:
    daemon.gpus.show(BROKEN)
    await daemon.granted()
    assert "is free: NVML cannot tell who uses" in await daemon.refusal()
    daemon.gpus.show(IDLE)
    await daemon.starts()


async def test_no_container_starts_before_what_a_killed_process_had_is_taken_down(
    daemon: Daemon,
) -> None:
    await daemon.granted()
    daemon.gpus.show(cards(1, used=GIB)[0])
    assert "not freed" in await daemon.refusal()
    daemon.gpus.show(IDLE)
    await daemon.starts()


async def test_a_gpu_whose_pod_is_over_becomes_free_only_when_nvml_and_its_memory_say_so(
    daemon: Daemon,
) -> None:
    await daemon.granted()
    await daemon.starts()
    daemon.gpus.show(BROKEN)
    daemon.ends()
    await daemon.is_kept("NVML_ERROR_UNKNOWN")
    daemon.gpus.show(cards(1, used=GIB, processes=(("compute", 4000000, GIB),))[0])
    await daemon.is_kept("what pid 4000000 had on it")
    daemon.gpus.show(cards(1, used=GIB)[0])
    await daemon.is_kept("not freed yet")
    daemon.gpus.clock.now += 61.0
    await daemon.is_kept("--gpu-reset")
    daemon.gpus.show(IDLE)
    await until(lambda: daemon.state() == "free", what="a free GPU")


@pytest.mark.slow
async def test_a_gpu_that_a_process_computes_on_is_foreign_by_its_name_until_it_ends(
    daemon: Daemon, tmp_path: Path
) -> None:
    with named(daemon, "trainer", tmp_path) as pid:
        daemon.gpus.show(cards(1, used=GIB, processes=(("compute", pid, GIB),))[0])
        await until(lambda: daemon.state() == "foreign", what="a foreign GPU")
        assert f"pid {pid}" in daemon.evidence()
        assert "(trainer)" in daemon.evidence()
    daemon.gpus.show(IDLE)
    await until(lambda: daemon.state() == "free", what="a free GPU")


@pytest.mark.parametrize(
    ("command", "kind"),
    [("nv-hostengine", "compute"), ("nvidia-cuda-mps-server", "compute"), ("Xorg", "graphics")],
)
async def test_a_monitoring_agent_the_mps_server_and_the_display_keep_no_gpu_from_a_pod(
    daemon: Daemon, tmp_path: Path, command: str, kind: str
) -> None:
    with named(daemon, command, tmp_path) as pid:
        use = (kind, pid, 300 * MIB)
        daemon.gpus.show(cards(1, used=305 * MIB, processes=(use,))[0])
        await daemon.granted()
        await daemon.starts()
        assert f"beside it pid {pid}" in daemon.evidence()
        daemon.ends()
        await until(lambda: daemon.state() == "free", what="a free GPU")
        for _ in range(3):
            await daemon.watcher._beat()
        assert daemon.state() == "free"


async def test_an_agent_with_the_node_open_keeps_no_gpu_of_a_pod_that_kubelet_refused(
    daemon: Daemon,
) -> None:
    """Allocate, and then kubelet refuses the pod for want of something else: nobody names it."""

    device = daemon.device

    def refused(draft: Draft) -> None:
        allocation = draft.allocate(device.name.resource, {device.name.id: device.keys})
        settle(draft)
        draft.end(allocation, "no entry in kubelet's checkpoint names it")

    agent = PodUid("99999999-2222-3333-4444-555555555555")
    with daemon.gpus.process(pod=agent):
        await daemon.ledger.apply(refused)
        assert daemon.ledger.book.value.locks[device.name].pod is None
        await until(lambda: daemon.state() == "free", what="a free GPU")


async def test_a_gpu_that_works_for_nobody_is_handed_over_with_a_word_about_it(
    daemon: Daemon,
) -> None:
    await daemon.granted()
    await daemon.starts()
    daemon.gpus.show(cards(1, used=5 * MIB, utilization=100)[0])
    daemon.ends()
    await daemon.is_kept("it is 100 % busy")
    daemon.gpus.clock.now += 61.0
    await until(lambda: daemon.state() == "free", what="a free GPU")
    (*_, move) = await daemon.ledger.history(daemon.device.name, 1)
    assert "unverified: it is 100 % busy" in move.evidence
