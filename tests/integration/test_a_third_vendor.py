"""A vendor that nobody has: docs/add-a-vendor.md as a program, on a node with the real daemon."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from fakes.stage import TPU, Stage, asks, pod, stage
from holdfast.app.wiring.parts import VENDORS
from holdfast.discovery.source import Source
from holdfast.host.pci.sysfs import Snapshot
from holdfast.model.book.book import DeviceLock
from holdfast.model.devices import Device, DeviceKind, DeviceNode, Fault, FaultKind, Inventory
from holdfast.model.grants import ContainerGrant
from holdfast.model.ids import DeviceId, DeviceName, HardwareKey, ResourceName
from holdfast.model.use.free import Freedom, KernelFacts, Verdict
from holdfast.model.use.holders import Holder
from holdfast.vendors.context import Context
from simulated.pods import PodSpec

WIDGET = ResourceName("acme.example/widget")


class Jobs(Struct, frozen=True):
    """What the driver tells of one widget: how many jobs it has; None: it does not answer."""

    count: int | None
    pids: frozenset[int] = frozenset()

    def seen_in(
        self,
        facts: KernelFacts,
        *,
        named: Mapping[int, Holder],
        locks: Mapping[DeviceName, DeviceLock],
    ) -> KernelFacts:
        return replace(facts, sight=self)

    def judge(self, *, looked: bool, gaps: tuple[str, ...]) -> Verdict:
        if self.count is None or not looked or gaps:
            reason = "the widget driver does not answer"
            return Verdict(freedom=Freedom.UNKNOWN, reason=reason, final=True)
        if self.count:
            return Verdict(freedom=Freedom.IN_USE, reason=f"busy with {self.count} jobs")
        return Verdict(freedom=Freedom.FREE, reason="it has no job, and nobody has it open")


class Widgets(Source):
    name = "acme"
    resources = (WIDGET,)

    def __init__(self, on: Context) -> None:
        self._on = on
        self._home = on.root.sys / "class/widget"
        self._broken: frozenset[str] = frozenset()

    def scan(self, snapshot: Snapshot) -> Iterator[Device]:
        for folder in self._home.glob("*"):
            node = DeviceNode(path=f"/dev/{folder.name}", rdev=int((folder / "rdev").read_text()))
            yield Device(
                name=DeviceName(WIDGET, DeviceId(folder.name)),
                kind=DeviceKind.DRIVER,
                keys=frozenset({HardwareKey(f"widget/{folder.name}")}),
                nodes=(node,),
                functions=(),
            )

    def faults(self) -> Mapping[str, tuple[Fault, ...]]:
        return {name: (Fault(kind=FaultKind.ILL, text="broken"),) for name in self._broken}

    async def ask(self, devices: tuple[Device, ...]) -> Mapping[DeviceName, Jobs]:
        return {each.name: self._jobs(self._home / each.name.id / "jobs") for each in devices}

    def grant(
        self,
        resource: ResourceName,
        devices: tuple[Device, ...],
        inventory: Inventory,
        *,
        by_claim: bool,
    ) -> ContainerGrant:
        nodes = super().grant(resource, devices, inventory, by_claim=by_claim)
        return replace(nodes, envs={"WIDGETS": ",".join(each.name.id for each in devices)})

    async def run(self) -> None:
        while True:
            broken = frozenset(file.parent.name for file in self._home.glob("*/broken"))
            if broken != self._broken:
                self._broken = broken
                self._on.discovery.publish()
            await self._on.clock.sleep(0.02)

    @staticmethod
    def _jobs(file: Path) -> Jobs:
        return Jobs(int(file.read_text()) if file.exists() else None)


def wants(name: str) -> PodSpec:
    return PodSpec(name=name, containers=(asks(WIDGET, 1),))


@asynccontextmanager
async def widgets(folder: Path, **settings: Any) -> AsyncIterator[tuple[Stage, Path]]:
    vendors = (*VENDORS, Widgets)
    async with stage(folder, chips=1, start=False, vendors=vendors, **settings) as node:
        home = node.node.root.sys / "class/widget/widget0"
        home.mkdir(parents=True)
        (home / "rdev").write_text(str(node.node.tree.terminal("/dev/widget0")))
        (home / "jobs").write_text("0")
        await node.start_and_register()
        await node.until(lambda: node.healthy(WIDGET) == {"widget0"}, "the widget to be offered")
        yield node, home


@pytest.mark.parametrize("gpu", [{"api": "dra"}, {"enabled": False, "api": "dra"}])
async def test_a_vendors_devices_are_offered_whatever_the_api_of_others_is(
    short_path: Path, gpu: dict[str, object]
) -> None:
    async with widgets(short_path, gpu=gpu) as (node, _):
        (device,) = [each for each in await node.asked("devices") if each["resource"] == WIDGET]
        assert device["offered"]
        await node.run(wants("first"))


async def test_a_vendors_devices_go_the_whole_way(short_path: Path) -> None:
    async with widgets(short_path) as (node, home):
        first = await node.run(wants("first"))
        (answer,) = node.answers(first)
        assert [each.host_path for each in answer.devices] == ["/dev/widget0"]
        assert dict(answer.envs) == {"WIDGETS": "widget0"}
        (home / "jobs").write_text("3")

        await node.end(first)
        following = await node.submit(wants("following"))
        await node.waiting(following, "busy with 3 jobs")
        assert await node.locks() == {"widget0": "releasing"}
        (home / "jobs").unlink()
        await node.waiting(following, "the widget driver does not answer")
        (home / "jobs").write_text("0")
        await node.running(following)
        assert await node.owners() == {"widget0": following.uid}

        (home / "broken").touch()
        await node.until(lambda: not node.healthy(WIDGET), "kubelet to hear of the fault")
        (home / "broken").unlink()
        await node.until(lambda: node.healthy(WIDGET) == {"widget0"}, "it to be mended")
        await node.end(following)
        await node.until_free()
        chip = await node.run(pod("chip"))
        assert len(node.ids(chip, TPU)) == 1, "chips are served beside it"
