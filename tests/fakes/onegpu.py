"""A node with one GPU: NVML as the stub tells it, and real processes that have its node open."""

import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fakes.books import device_lock, device_of, name
from fakes.inuse import device_use, look_at
from fakes.opener import opener
from holdfast.host.nvidia.nvml import Nvml
from holdfast.host.nvidia.use import GpuUses
from holdfast.host.use.look import Look
from holdfast.inuse.deviceuse import DeviceUse
from holdfast.model.book.book import Book, DeviceLock, LockState
from holdfast.model.devices import Device, DeviceKind, DeviceNode
from holdfast.model.ids import DeviceName, PodUid, ResourceName
from holdfast.model.nvidia.free import GpuRules
from holdfast.model.use.free import KernelFacts, Verdict, judge_kernel
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched
from holdfast.settings.hardware import GpuSettings
from manual_clock import ManualClock
from simulated.node import SimulatedNode
from simulated.nvml import CONTROL, Card, Node, cards, uuid, write

MIB = 1 << 20
RULES = GpuRules(
    monitors=GpuSettings().monitors,
    displays=GpuSettings().displays,
    slack=GpuSettings().memory_slack_mib * MIB,
    deadline=GpuSettings().memory_deadline,
)
"""What holds unless it is set otherwise."""
PATH = "/dev/vfio/10"
"""Whose node stands in for /dev/nvidia0: a device that a test can make and open."""
POD = PodUid("11111111-2222-3333-4444-555555555555")


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class OneGpu:
    node: SimulatedNode
    look: Look
    control: Path
    clock: Clock
    locks: dict[DeviceName, DeviceLock] = field(default_factory=dict)
    ages: ManualClock = field(default_factory=ManualClock)

    def watch(self) -> DeviceUse:
        return device_use(self.look, self.node.root, self.ages)

    def show(self, card: Card) -> None:
        """Let NVML tell of this one GPU from now on."""
        write(self.control, Node(cards=(card,)))

    def device(self, *keys: str) -> Device:
        keys = keys or (f"card/{uuid(0)}",)
        return device_of(
            name(keys[0].partition("/")[2], ResourceName("nvidia.com/gpu")),
            *keys,
            kind=DeviceKind.DRIVER,
            nodes=(DeviceNode(path=PATH, rdev=self.node.node(PATH).stat().st_rdev),),
        )

    def grant(self, device: Device, state: LockState = LockState.RELEASING) -> None:
        self.locks[device.name] = device_lock(
            device.name, *device.keys, state=state, since=0.0, pod=POD
        )

    async def facts(self, device: Device) -> KernelFacts:
        return (await self.look.scan([device], self.locks))[device.name]

    async def judge(self, device: Device) -> Verdict:
        return judge_kernel(await self.facts(device))

    @contextmanager
    def process(self, *, pod: PodUid | None = None, opens: bool = True) -> Iterator[int]:
        """Run a process of *pod* that has the GPU's node open, or has not."""
        with opener(*([self.node.node(PATH)] if opens else [])) as process:
            if pod is None:
                self.node.add_process(process.pid, "/user.slice")
            else:
                self.node.add_pod(pod)
                self.node.enter(pod, "main", process.pid)
            yield process.pid


@contextmanager
def opened_nvml(library: Path) -> Iterator[Nvml]:
    """Open the stub *library* with the real adapter, in this process."""
    control = library.parent / "node"
    write(control, Node(cards=cards(1)))
    os.environ[CONTROL] = str(control)
    opened = Nvml(library)
    opened.open()
    yield opened
    opened.close()


def gpu_uses(lane: Lane, nvml: Nvml | None, **more: Any) -> GpuUses:
    """Return what asks *nvml* on *lane*, of GPUs that no claim has, unless *more* says otherwise."""
    given: dict[str, Any] = {
        "rules": Watched(RULES),
        "book": Book,
        "load": str,
        "idle": Watched({}),
        "divided": dict,
        "patience": 5.0,
        "monotonic": time.monotonic,
    }
    return GpuUses(lane=lane, source=lambda: nvml, **given | more)


@asynccontextmanager
async def gpus_on(folder: Path, nvml: Nvml) -> AsyncIterator[OneGpu]:
    """Make the node in *folder*; its GPU is idle, with 5 MiB in use."""
    control = folder / "control"
    os.environ[CONTROL] = str(control)
    node, clock = SimulatedNode(folder / "host"), Clock()
    scan, lane = Lane("scan", deadline=30.0), Lane("nvml", deadline=30.0)
    uses = gpu_uses(lane, nvml, monotonic=clock)
    found = OneGpu(node, look_at(node.root, scan, uses), control, clock)
    found.show(cards(1, used=5 * MIB)[0])
    yield found
    scan.close(patience=5.0)
    lane.close(patience=5.0)
    node.close()
