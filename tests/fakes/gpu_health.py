"""A process that follows the health of a stub's GPUs, told what to do by lines, telling by lines.

A process keeps the NVML library that it loaded, so each test has one of its own, forked from a
template. What it tells is one JSON object a line: the faults and notes by UUID, the Xids heard so
far, and the processor time used.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

from fakes.inuse import holder_scan
from fakes.onegpu import RULES
from forked import Talking, Template
from holdfast.host.nvidia.nvml import Nvml
from holdfast.host.root import HostRoot
from holdfast.ledger.ledger import open_ledger
from holdfast.ledger.readonly import read_only
from holdfast.ledger.rows import read_book
from holdfast.model.book.book import Book
from holdfast.model.ids import BootId
from holdfast.model.nvidia.gpu import DriverState, GpuCondition, GpuEvent, GpuReading
from holdfast.model.nvidia.health import GpuState
from holdfast.model.nvidia.xids import xid_checks
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched
from holdfast.vendors.nvidia.gpuusers import GpuUsers, HealthTimes
from holdfast.vendors.nvidia.health import GpuHealthWatch
from simulated.nvml import CONTROL, Node, write

QUIET = 0.4
DEADLINE = 0.5
_TIMES = HealthTimes(beat=0.1, quiet=QUIET, event_wait=0.3, breath=0.02)
_LIMIT = 20.0
_AWAY = {"absent": DriverState.ABSENT, "leaving": DriverState.NOT_READY}


class Told(Struct, frozen=True):
    """What the process last told."""

    faults: dict[str, list[str]]
    notes: dict[str, list[str]]
    heard: list[int]
    cpu: float

    @property
    def ill(self) -> set[str]:
        return {uuid for uuid, faults in self.faults.items() if faults}


class Follower:
    """The process, as a test has it."""

    def __init__(self, process: Talking, control: Path) -> None:
        self.process = process
        self._control = control

    def show(self, node: Node) -> None:
        """Let the driver answer as *node*."""
        write(self._control, node)

    def order(self, word: str) -> None:
        """``read``: enumerate the GPUs anew. ``absent``: the driver is gone. ``leaving``: it goes."""
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def told(self) -> Told:
        """Return what it tells now."""
        self.order("tell")
        return Told(**json.loads(self.process.stdout.readline()))

    def until(self, wanted: Callable[[Told], object], *, what: str) -> Told:
        """Return the first thing told that *wanted* is true of."""
        deadline = time.monotonic() + _LIMIT
        while True:
            told = self.told()
            if wanted(told):
                return told
            assert time.monotonic() < deadline, f"waited in vain for {what}; told {told}"
            time.sleep(0.005)


@contextmanager
def following(
    template: Template,
    library: Path,
    folder: Path,
    node: Node,
    *,
    boot: str = "boot-1",
    disabled: str = "",
) -> Iterator[Follower]:
    """Run the process on *node*, with its ledger in *folder*, until the block ends."""
    control = folder / "node"
    write(control, node)
    process = template.start(
        "from fakes.gpu_health import main; main()",
        *(library, folder, boot, disabled),
        environment={CONTROL: str(control)},
    )
    try:
        yield Follower(process, control)
    finally:
        process.end()


def _load(file: Path) -> int | None:
    """Return the number in *file*; where it is a pipe, once somebody has written it."""
    return int(file.read_text()) if file.exists() else None


class _PipedNvml(Nvml):
    """Its answer is on its way for as long as somebody has a pipe open for writing.

    While there is a file `odd`, its wait for events fails in a way that nobody thought of.
    """

    def __init__(self, library: Path, pipe: Path, odd: Path) -> None:
        super().__init__(library)
        self._pipe, self._odd = pipe, odd

    def wait_event(self, timeout: float) -> GpuEvent | None:
        """Return the next event."""
        if self._odd.exists():
            raise ZeroDivisionError
        return super().wait_event(timeout)

    def condition(self, uuid: str) -> GpuCondition:
        """Return the GPU's condition."""
        found = super().condition(uuid)
        if self._pipe.exists():
            self._pipe.read_bytes()
        return found


async def _follow(library: Path, folder: Path, boot: BootId, disabled: str) -> None:
    clock = SystemClock()
    ledger_lane, lane = Lane("ledger", deadline=60.0), Lane("gpu-health", deadline=DEADLINE)
    ledger = await open_ledger(folder, ledger_lane, clock=clock, boot=boot, locks=())
    nvml = Nvml(library)
    nvml.open()
    readings: Watched[GpuReading] = Watched(nvml.read())
    heard: list[int] = []

    def count(event: GpuEvent, _condemns: object) -> None:
        heard.append(event.xid)

    watch = GpuHealthWatch(
        source=lambda _: _PipedNvml(library, folder / "answer", folder / "odd"),
        readings=readings,
        ledger=ledger,
        lane=lane,
        clock=clock,
        boot=boot,
        checks=Watched(xid_checks(disabled)),
        load=partial(_load, folder / "load"),
        users=GpuUsers(named=holder_scan(HostRoot.under()).named, book=Book, rules=Watched(RULES)),
        times=Watched(_TIMES),
        count=count,
    )

    def tell() -> None:
        health = watch.health.value
        told = {
            "faults": {uuid: [fault.text for fault in it.faults] for uuid, it in health.items()},
            "notes": {uuid: list(it.notes) for uuid, it in health.items()},
            "heard": heard,
            "cpu": time.process_time(),
        }
        print(json.dumps(told), flush=True)

    def obey() -> None:
        for word in os.read(0, 4096).decode().split():  # a line is written whole
            if word == "tell":
                tell()
            elif word in _AWAY:
                nvml.close()
                readings.set(GpuReading(state=_AWAY[word]))
            elif word == "read":
                nvml.open()
                readings.set(nvml.read())

    asyncio.get_running_loop().add_reader(0, obey)
    with closing(lane), closing(ledger_lane):
        await watch.run()


def kept_of_gpus(state: Path) -> dict[str, GpuState]:
    """Return what is on disk of each GPU, by UUID."""
    texts = read_only(state, read_book).kept.get("nvidia/health", {})
    return {uuid: msgspec.json.decode(text, type=GpuState) for uuid, text in texts.items()}


def main() -> None:
    """Follow, by the arguments that `following` gives."""
    library, folder, boot, disabled = sys.argv[1:]
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asyncio.run(_follow(Path(library), Path(folder), BootId(boot), disabled))
