"""A node whose GPUs go through all that happens to GPUs, and daemons on it that a test can ask.

NVML is the stub in this process; the parts are those of the daemon, on a clock that a test moves.
"""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from holdfast.app.answers.answers import handlers
from holdfast.app.answers.readiness import readings
from holdfast.app.wiring.assembly import Assembly
from holdfast.app.wiring.core import Core
from holdfast.app.wiring.hosts import Hosts
from holdfast.app.wiring.live import LiveSettings
from holdfast.app.wiring.parts import VENDORS
from holdfast.dra.publisher import NodePool
from holdfast.ledger.ledger import open_ledger
from holdfast.model.book.book import Book, LockState
from holdfast.model.book.draft import Draft
from holdfast.model.cards import NOWHERE
from holdfast.model.dra.slices import SliceFields, contents
from holdfast.model.ids import HardwareKey, PodUid
from holdfast.model.kubelet import CheckpointEntry, KubeletView
from holdfast.runtime.watched import Watched
from holdfast.settings import convert
from holdfast.settings.sources import LoadedSettings
from holdfast.telemetry.metrics import Metrics
from holdfast.telemetry.readyz import Board
from manual_clock import ManualClock
from simulated.gpus import SimulatedGpus, address
from simulated.node import SimulatedNode
from simulated.nvml import CONTROL, Card, Slice, cards, uuid

_GROUP, COUNT = 40, 3
MACHINE = "example.com/gpu-vm"
_LOST, _UNKNOWN = 15, 999
VERSIONS = ("550.54.15", "570.86.10")
_OFTEN = {"look": "1s", "rescan": "1s", "healthBeat": "1s"}
GAUGES = ("holdfast_devices", "holdfast_devices_unhealthy", "holdfast_device_faults")
SOON = 12
"""Seconds in which a daemon has done all that it does about a change."""
_SMALL, _HALF, _THIRD = ("1g.10gb", (1, 1)), ("3g.40gb", (3, 3)), ("1c.3g.40gb", (3, 1))
_LAYOUTS = {"small": (_SMALL, _SMALL), "uneven": (_HALF, _SMALL), "compute": (_THIRD,), "no": ()}
STEPS = (
    *("lost", "nameless", "answers", "hidden", "listed", "replaced", "vfio", "nvidia"),
    *(*_LAYOUTS, "whole", "no node", "another's node", "its node", "rows", "reset"),
    *("unloaded", "loaded", "version"),
)
"""What can happen to a GPU, or to the node."""


class GpuWorld:
    """A node with three GPUs, each on NVIDIA's driver or on VFIO, whole or divided."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.node = SimulatedNode(folder / "n", chips=0)
        os.environ[CONTROL] = str(folder / "nvml")
        self.gpus = SimulatedGpus(self.node, folder / "nvml")
        self.clock, self.view, self.folder, self.root = ManualClock(), KubeletView(), folder, root
        (folder / "cdi").mkdir()
        self.cards = list(cards(COUNT, mig=0, remap=(0, 0), ancestors={}))
        self.on_vfio: set[int] = set()
        self.hidden: set[int] = set()
        self.made, self.places = 0, NOWHERE
        self.held: frozenset[HardwareKey] = frozenset()
        self.has: list[tuple[int, PodUid]] = []
        for place, card in enumerate(self.cards):
            self.node.tree.function(
                address(card),
                vendor=0x10DE,
                device=0x2330,
                class_code=0x030200,
                driver="nvidia",
                group=_GROUP + place,
                numa=place % 2,
            )
        self.loaded = False
        self.load()

    def load(self) -> None:
        self.show()
        self.gpus.load()
        self.gpus.make_capabilities(2)
        (self.node.root.sys / "module/nvidia").mkdir(parents=True)
        self.loaded = True
        for number in range(COUNT):
            if not self.node_of(number).is_symlink():
                self.node.tree.terminal(f"/dev/nvidia{number}")
        self.show()

    def knows(self, book: Book) -> None:
        """Take from *book* what pods have, and where each card was."""
        self.places = book.holdings.places
        self.held = frozenset[HardwareKey]().union(*(each.keys for each in book.locks.values()))

    def node_of(self, number: int) -> Path:
        return self.node.node(f"/dev/nvidia{number}")

    def is_there(self, path: str) -> bool:
        return self.node.node(path).exists()

    @property
    def listed(self) -> list[Card]:
        """What NVML lists."""
        away = self.on_vfio | self.hidden
        return [card for number, card in enumerate(self.cards) if number not in away]

    @property
    def tells_all(self) -> bool:
        return not (self.hidden or any(card.errors for card in self.cards))

    def show(self) -> None:
        """Let NVML and the driver's files tell what there is."""
        self.gpus.show(replace(self.gpus.stub, cards=tuple(self.listed)))
        folder = self.node.root.proc / "driver/nvidia/gpus"
        shutil.rmtree(folder, ignore_errors=True)
        for number in set(range(COUNT)) - self.on_vfio if self.loaded else ():
            about = folder / address(self.cards[number]) / "information"
            about.parent.mkdir(parents=True)
            about.write_text(f"Device Minor: \t {number}\n")

    def change(self, number: int, what: str) -> None:
        """Let *what* of `STEPS` happen to a GPU, or to the node; what cannot is passed over."""
        card = self.cards[number]
        self.made += 1
        errors = {"lost": {"*": _LOST}, "nameless": {"nvmlDeviceGetUUID": _UNKNOWN}, "answers": {}}
        if what in errors:
            card = replace(card, errors=errors[what])
        elif what == "hidden" and number not in self.on_vfio:
            self.hidden.add(number)
        elif what == "listed":
            self.hidden.discard(number)
        elif what == "replaced" and self.tells_all:
            card = replace(card, uuid=uuid(0x100 + self.made), mig=0, slices=())
        elif what in _LAYOUTS:
            pieces = tuple(
                Slice(f"MIG-{number}-{what}-{gi}", gi, profile=profile, slices=size)
                for gi, (profile, size) in enumerate(_LAYOUTS[what])
            )
            card = replace(card, mig=1, slices=pieces)
        elif what == "whole":
            card = replace(card, mig=0, slices=())
        elif what in {"rows", "reset"}:
            card = replace(card, remap=(int(what == "rows"), 0))
        else:
            self._drive(number, what)
            self._load(what)
        self.cards[number] = card
        self.show()

    def _drive(self, number: int, what: str) -> None:
        """Bind the GPU to another driver, or change its node."""
        card, tree, place = self.cards[number], self.node.tree, self.node_of(number)
        if what == "vfio" and self.tells_all and number not in self.on_vfio:
            tree.bind(address(card), "vfio-pci")
            tree.group_node(_GROUP + number)
            self.on_vfio.add(number)
        elif what == "nvidia" and number in self.on_vfio and self.tells_all:
            tree.bind(address(card), "nvidia")
            tree.drop_group_node(_GROUP + number)
            self.on_vfio.remove(number)
        elif what in {"no node", "another's node", "its node"}:
            place.unlink(missing_ok=True)
            if what == "another's node":
                place.symlink_to("/dev/null")
            elif what == "its node":
                tree.terminal(f"/dev/nvidia{number}")

    def _load(self, what: str) -> None:
        """Let the kernel have NVIDIA's driver, or not, or of another version."""
        if what == "unloaded" and self.loaded:
            self.gpus.leave()
            (self.node.root.sys / "module/nvidia").rename(self.folder / f"module-{self.made}")
            self.loaded = False
        elif what == "loaded" and not self.loaded:
            self.load()
        elif what == "version" and self.loaded:
            self.gpus.replace_driver(VERSIONS[self.gpus.stub.driver == VERSIONS[0]])

    @asynccontextmanager
    async def daemon(self, state: Path, sections: Mapping[str, Any]) -> AsyncIterator[Assembly]:
        """Run those parts of a daemon that know of GPUs."""
        root, gpu = self.node.root, {"driverRoot": str(self.root), "passDeviceSpecs": True}
        made = convert(
            {
                **sections,
                # No thread may wait for events: all daemons here have one library.
                "gpu": {**sections["gpu"], **gpu, **_OFTEN, "disableHealthChecks": "xids"},
                "host": {each: str(getattr(root, each)) for each in root.__struct_fields__},
                "cdi": {"specDir": str(self.folder / "cdi")},
                "stateDir": str(state),
                "tpu": {"enabled": False},
                "pools": [{"resourceName": MACHINE, "devices": ["10de:2330"]}],
                "dra": {"nodeName": "n", "kubeletRoot": str(self.folder)},
            }
        )
        host = Hosts(made)
        lane = host.lanes["ledger"]
        ledger = await open_ledger(state, lane, clock=self.clock, boot=host.boot, locks=())
        core = Core(
            LiveSettings(LoadedSettings(settings=made)), host, ledger, self.clock, Metrics()
        )
        core.view.set(self.view)
        parts = Assembly(core, VENDORS)
        sources, scanner = parts.discovery.sources, parts.discovery.scanner
        await scanner.scan()
        runs = [scanner.run(), core.standings.run(), parts.kubelet.offering.run()]
        tasks = [asyncio.create_task(each) for each in (*runs, *(s.run() for s in sources))]
        try:
            yield parts
        finally:
            for each in sources:
                await each.let_go("this daemon is over")
            await self.pass_by(SOON)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await ledger.close()
            host.close()

    async def pass_by(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.shift(1.0)
            await asyncio.sleep(0.003)

    async def grant(self, parts: Assembly, number: int) -> None:
        """Give a pod a device of the GPU, as kubelet does with what it is offered."""
        own = address(self.cards[number])
        offered = [
            each.device
            for each in parts.core.standings.now()
            if each.device is not None and each.offered and own in each.device.addresses
        ]
        if not offered:
            return
        name, pod = offered[0].name, PodUid(f"pod-{self.made}")
        await parts.allocation.registrar.plugins.door.allocate(name.resource, (name.id,))
        ledger = parts.core.ledger
        new = max(ledger.book.value.allocations.values(), key=lambda each: each.id)

        def started(draft: Draft) -> None:
            draft.identify(new, pod)
            draft.activate(draft.holdings.allocations[new.id])

        await ledger.apply(started)
        self.has.append((new.id, pod))
        entry = CheckpointEntry(
            pod=pod, container="main", resource=name.resource, devices=frozenset({name.id})
        )
        self.view = replace(self.view, entries=(*self.view.entries, entry), readable=True)
        parts.core.view.set(self.view)

    async def end(self, parts: Assembly) -> None:
        """Let the pod that came first be over, with nothing left of it."""
        if not self.has:
            return
        number, pod = self.has.pop(0)
        left = tuple(each for each in self.view.entries if each.pod != pod)
        self.view = replace(self.view, entries=left)

        def over(draft: Draft) -> None:
            allocation = draft.holdings.allocations[number]
            locks = draft.locks_of(allocation)
            draft.end(allocation, "over")
            for lock in locks:
                if draft.locks[lock.device].state is LockState.RELEASING:
                    draft.move(lock.device, LockState.FREE, "over")

        await parts.core.ledger.apply(over)
        parts.core.view.set(self.view)


async def told_by(parts: Assembly) -> dict[str, Any]:
    """Return what each part tells, as values that can be compared."""
    core, sources = parts.core, parts.discovery.sources
    pool = NodePool(
        driver="d",
        serves=lambda _resource: True,
        standings=core.standings,
        inventory=core.inventory,
        sources=sources,
        pcie_root=lambda _address: "",
        lane=core.host.lanes["discovery"],
        evict_lost=Watched(False),
    )
    slices = contents(await pool.facts(SliceFields()))
    parts.kubelet.offering.refresh()
    inventory, offers = core.inventory.value, parts.kubelet.offering.offers.value.devices
    healthy = {name: tuple(e.id for e in each if e.healthy) for name, each in offers.items()}
    core.metrics.gauges.show(readings(parts, ()))
    labels = {**sources.labels(inventory), "nvidia.com/gfd.timestamp": ""}
    grants = {}
    rows: Any = handlers(parts, Board())["devices"]({})
    for each in inventory.devices:
        answer = sources.of([each]).grant(each.name.resource, (each,), inventory, by_claim=False)
        grants[str(each.name)] = (answer.nodes, answer.envs, answer.cdi_devices)
    return {
        "devices": {str(each.name): each for each in inventory.devices},
        "left out": {str(each.device.name): each.reason for each in inventory.left_out},
        "rules": inventory.idle_rules,
        "unseen": inventory.unseen,
        "lists": {str(name): each for name, each in offers.items() if each},
        "preferred": {
            str(name): parts.allocation.preference.preferred(name, ids, (), len(ids) // 2)
            for name, ids in healthy.items()
            if len(ids) > 1
        },
        "slices": {device.name: device for each in slices for device in each.devices},
        "labels": labels,
        "grants": grants,
        "rows": {f"{each['resource']}/{each['id']}": each for each in rows},
        "gauges": {
            (sample.name, *sample.labels.values()): sample.value
            for metric in core.metrics.gauges.collect()
            for sample in metric.samples
            if sample.name in GAUGES
        },
    }
