"""Kubelet hears of each device's health over a real socket, in both versions of the service."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from fakes.books import WHOLE, X, device_lock, inventory, name, silicon
from fakes.driver_side import DRIVER, dra_kubelet, driver_side
from fakes.standings import BookOnly, device_standings
from holdfast.dra.healthserver import HealthServer
from holdfast.model.book.book import Book, LockState
from holdfast.model.book.messages import BlockReason
from holdfast.model.devices import Device, Fault, FaultKind, Inventory
from holdfast.model.dra.advertised import AdvertisedDevice
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.watched import Watched
from manual_clock import ManualClock
from simulated.dramanager import DraManager
from simulated.draplugins import KUBELET_1_36, KUBELET_1_37
from waiting import until

_LOCK = device_lock(name("d0"), "a", pod=X, evidence="pid 7 (python) has it open")


class Heard:
    """What a kubelet hears of `devices`, two of them."""

    def __init__(self, services: Sequence[str], *, send_every: float = 3600.0) -> None:
        self.inventory: Watched[Inventory] = Watched(inventory({WHOLE: silicon(d0="a", d1="b")}))
        self.book: Watched[Book] = Watched(Book())
        self.standings = device_standings(
            BookOnly(self.book),
            self.inventory,
            SystemClock(),
            obstacles=Watched({name("d0"): BlockReason(device=name("d0"), reason="it is reset")}),
            is_dra=lambda resource: resource == WHOLE,
        )
        self.server = HealthServer(
            pool="node-a",
            advertised=lambda: [
                AdvertisedDevice(name=f"tpu-{each.name.id}", devices=(each.name,))
                for each in self.inventory.value.devices
            ],
            standings=self.standings,
            clock=SystemClock(),
            send_every=send_every,
        )
        self.clock = ManualClock()
        self._services = services

    @contextlib.asynccontextmanager
    async def kubelet(self, root: Path) -> AsyncIterator[None]:
        """Be the kubelet with *root*."""
        made = DraManager(root, clock=self.clock, services=self._services)
        async with dra_kubelet(root, made) as kubelet:
            self.plugins = kubelet.plugins
            yield

    def lock(self, state: LockState) -> None:
        lock = replace(_LOCK, state=state)
        self.set(Book(locks={lock.device: lock}))

    def set(self, book: Book) -> None:
        """Publish *book*, and the standings that it makes."""
        self.book.set(book)
        self.standings.now()

    def find(self, found: Inventory) -> None:
        """Publish what hardware was *found*, and the standings that it makes."""
        self.inventory.set(found)
        self.standings.now()

    def of(self, device: str) -> tuple[int, str]:
        """Return health and message of a device of the pool, as kubelet has them."""
        heard = self.plugins.health.get(DRIVER, {}).get(("node-a", device))
        return (-1, "") if heard is None else (heard.health, heard.message)


@pytest.fixture(params=[KUBELET_1_36, KUBELET_1_37], ids=["v1alpha1", "v1"])
def heard(request: pytest.FixtureRequest) -> Heard:
    return Heard(request.param)


async def test_every_message_is_the_whole_list_and_names_the_holder(
    short_path: Path, heard: Heard
) -> None:
    async with heard.kubelet(short_path), driver_side(short_path, health=heard.server):
        await until(lambda: heard.of("tpu-d0") == (1, ""))
        heard.lock(LockState.HELD)
        await until(lambda: heard.of("tpu-d0") == (1, "google.com/tpu/d0 is held by pod pod-x"))
        assert heard.of("tpu-d1") == (1, "")
        heard.lock(LockState.RELEASING)
        await until(lambda: heard.of("tpu-d0")[0] == 2)
        assert "d0 is not free of pod pod-x yet: it is reset; " in heard.of("tpu-d0")[1]
        assert all(len(message.devices) == 2 for message in heard.plugins.messages)


async def test_a_fault_is_heard_of_and_its_end_too(short_path: Path, heard: Heard) -> None:
    def ill(device: Device) -> Device:
        return replace(device, faults=(Fault(kind=FaultKind.ILL, text="too hot"),))

    well = heard.inventory.value
    async with heard.kubelet(short_path), driver_side(short_path, health=heard.server):
        await until(lambda: heard.of("tpu-d0") == (1, ""))
        heard.find(replace(well, devices=tuple(map(ill, well.devices))))
        await until(lambda: heard.of("tpu-d1")[0] == 2)
        assert heard.of("tpu-d1")[1] == "google.com/tpu/d1: too hot (holdfast devices)"
        heard.find(well)
        await until(lambda: heard.of("tpu-d1") == (1, ""))


async def test_a_change_that_changes_no_health_is_not_sent(short_path: Path) -> None:
    heard = Heard(KUBELET_1_37)
    async with heard.kubelet(short_path), driver_side(short_path, health=heard.server):
        await until(lambda: len(heard.plugins.messages) == 1)
        heard.set(Book(fence=7))
        heard.lock(LockState.HELD)
        await until(lambda: heard.of("tpu-d0")[1] != "")
        assert len(heard.plugins.messages) == 2


async def test_the_list_is_sent_again_long_before_kubelet_takes_it_for_outdated(
    short_path: Path,
) -> None:
    heard = Heard(KUBELET_1_37, send_every=0.01)
    async with heard.kubelet(short_path), driver_side(short_path, health=heard.server):
        await until(lambda: len(heard.plugins.messages) >= 3)
        for message in heard.plugins.messages:
            for device in message.devices:
                assert device.health_check_timeout_seconds == 60
                assert device.last_updated_time > 1_700_000_000


async def test_a_stream_that_ended_is_opened_again_after_five_seconds(short_path: Path) -> None:
    heard = Heard(KUBELET_1_37)
    async with heard.kubelet(short_path), driver_side(short_path, health=heard.server) as driver:
        await until(lambda: heard.of("tpu-d0") == (1, ""))
        await driver.registrar._service.stop(0.0)
        await until(lambda: heard.plugins.health == {})
        await until(lambda: driver.state.registrations == 2)
        while heard.of("tpu-d0") != (1, ""):  # each try that comes too early costs five seconds
            await heard.clock.advance(5.1)
            await asyncio.sleep(0.01)


async def test_the_daemon_stops_while_a_stream_is_open(short_path: Path, heard: Heard) -> None:
    async with heard.kubelet(short_path):
        async with driver_side(short_path, health=heard.server):
            await until(lambda: heard.of("tpu-d0") == (1, ""))
        await until(lambda: heard.plugins.health == {})
