"""The DRA half of the simulated kubelet does what the real one does, with our driver's sockets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fakes.driver_side import CHIP, DRIVER, DriverSide, driver_side
from holdfast._pb.deviceplugin.v1beta1 import api_pb2 as dp
from holdfast.kubelet import claimstate
from holdfast.kubelet.checkpoint import CheckpointState
from manual_clock import ManualClock
from simulated.dramanager import DraManager
from simulated.draplugins import KUBELET_1_33, KUBELET_1_37
from simulated.drastate import UnreadableStateError
from simulated.kubelet import Kubelet
from simulated.pods import Container, Phase, Pod, PodSpec
from waiting import until


@dataclass
class Runtime:
    """Starts nothing; a container lives until its pod is stopped."""

    started: list[tuple[str, list[str]]] = field(default_factory=list)
    stopped: dict[str, asyncio.Event] = field(default_factory=dict)

    def enclose(self, pod: Pod) -> None:
        """It has no cgroup."""

    async def sandbox(self, pod: Pod) -> None:
        """Nothing of it runs."""

    async def start(
        self, pod: Pod, container: Container, grant: dp.ContainerAllocateResponse
    ) -> None:
        self.stopped[pod.uid] = asyncio.Event()
        self.started.append((pod.spec.name, [each.name for each in grant.cdi_devices]))

    async def wait(self, pod: Pod, container: Container) -> int:
        await self.stopped[pod.uid].wait()
        return 0

    async def stop(self, pod: Pod, grace: float) -> None:
        self.stopped.setdefault(pod.uid, asyncio.Event()).set()

    async def remove(self, pod: Pod) -> None:
        """It has no cgroup."""


@dataclass
class Scene:
    """A kubelet with claims, and the driver that it calls."""

    kubelet: Kubelet
    dra: DraManager
    driver: DriverSide
    runtime: Runtime
    clock: ManualClock
    claims: dict[str, dict[str, Any]] = field(default_factory=dict)
    wiped: list[str | None] = field(default_factory=list)

    def pod(self, name: str, *claims: str) -> PodSpec:
        """Return a pod with one container that uses *claims*, which are reserved for it."""
        used = {f"c{number}": claim for number, claim in enumerate(claims)}
        container = Container(claims=tuple((each, "") for each in used))
        spec = PodSpec(name=name, uid=f"uid-{name}", claims=used, containers=(container,))
        for claim in claims:
            self.claims.setdefault(claim, _claim(claim))
            self.claims[claim]["status"]["reservedFor"].append({"uid": spec.uid})
        return spec

    async def running(self, name: str, *claims: str) -> Pod:
        pod = await self.kubelet.submit(self.pod(name, *claims))
        await until(lambda: pod.phase is Phase.RUNNING, what=f"{name} to run: {pod.waiting}")
        return pod

    def connected(self) -> bool:
        return any(each.connected for each in self.dra.plugins.plugins.get(DRIVER, ()))

    def calls(self, call: str) -> list[tuple[str, ...]]:
        return [uids for name, uids in self.dra.calls if name == call]


def _claim(name: str, *, uid: str = "") -> dict[str, Any]:
    result = {"request": "chips", "driver": DRIVER, "pool": "node-a", "device": "tpu-0"}
    return {
        "metadata": {"namespace": "default", "name": name, "uid": uid or f"u-{name}"},
        "status": {"allocation": {"devices": {"results": [result]}}, "reservedFor": []},
    }


@contextlib.asynccontextmanager
async def scene(
    base: Path, *, services: Sequence[str] = KUBELET_1_37, registered: bool = True
) -> AsyncIterator[Scene]:
    clock, runtime = ManualClock(), Runtime()
    root = base / "kubelet"
    (root / "plugins").mkdir(parents=True)

    async def objects(_namespace: str, name: str) -> Mapping[str, Any] | None:
        return here.claims.get(name)

    async def wipe(driver: str | None) -> None:
        here.wiped.append(driver)

    dra = DraManager(root, objects=objects, wipe=wipe, clock=clock, services=services)
    kubelet = Kubelet(base / "dp", base / "pr.sock", runtime, dra=dra)
    async with driver_side(root) as driver:
        here = Scene(kubelet, dra, driver, runtime, clock)
        await kubelet.start()
        if registered:
            await until(lambda: driver.state.registered)
        try:
            yield here
        finally:
            await kubelet.close()


async def test_a_claim_is_prepared_before_its_pods_container_and_unprepared_after(
    short_path: Path,
) -> None:
    async with scene(short_path) as here:
        pod = await here.running("a", "claim-a")
        assert here.runtime.started == [("a", ["holdfast.test/claim=u-tpu-0"])]
        assert here.dra.calls == [("prepare", ("u-claim-a",))]
        here.kubelet.delete(pod)
        await until(lambda: pod.stopped)
        assert here.dra.calls[1:] == [("unprepare", ("u-claim-a",))]
        assert here.dra.cache.claims == {}


@pytest.mark.parametrize(
    ("services", "chosen"), [(KUBELET_1_37, "v1.DRAPlugin"), (KUBELET_1_33, "v1beta1.DRAPlugin")]
)
async def test_the_newest_service_that_kubelet_knows_is_called(
    services: Sequence[str], chosen: str, short_path: Path
) -> None:
    async with scene(short_path, services=services) as here:
        await here.running("a", "claim-a")
        plugin = here.dra.plugins.newest(DRIVER)
        assert plugin is not None
        assert plugin.service == chosen


async def test_a_kubelet_without_a_common_service_refuses_us(short_path: Path) -> None:
    async with scene(short_path, services=("v2.DRAPlugin",), registered=False) as here:
        await until(lambda: "Kubernetes 1.34 and later do" in here.driver.state.problem)
        assert "none of services supported by the plugin" in here.driver.state.problem


async def test_all_claims_of_a_pod_come_in_one_call(short_path: Path) -> None:
    async with scene(short_path) as here:
        await here.running("a", "claim-1", "claim-2", "claim-3")
        assert here.calls("prepare") == [("u-claim-1", "u-claim-2", "u-claim-3")]


async def test_a_refusal_is_shown_and_tried_again_after_60_to_90_seconds(
    short_path: Path,
) -> None:
    async with scene(short_path) as here:
        here.driver.door.refusals["u-claim-a"] = "pid 7 has it open"
        pod = await here.kubelet.submit(here.pod("a", "claim-a"))
        await until(lambda: pod.refusals == 1)
        assert pod.waiting == (
            "Failed to prepare dynamic resources: prepare dynamic resources: NodePrepareResources "
            "failed for ResourceClaim claim-a: pid 7 has it open"
        )
        await here.clock.advance(59.9)
        assert len(here.calls("prepare")) == 1
        here.driver.door.refusals.clear()
        await here.clock.advance(30.2)
        await until(lambda: pod.phase is Phase.RUNNING)
        assert len(here.calls("prepare")) == 2


async def test_a_change_of_the_pod_brings_the_next_try_at_once(short_path: Path) -> None:
    async with scene(short_path) as here:
        here.driver.door.refusals["u-claim-a"] = "busy"
        pod = await here.kubelet.submit(here.pod("a", "claim-a"))
        await until(lambda: pod.refusals == 1)
        here.driver.door.refusals.clear()
        pod.changed.set()
        await until(lambda: pod.phase is Phase.RUNNING)


async def test_kubelet_gives_up_after_45_seconds_with_a_text_that_names_nobody(
    short_path: Path,
) -> None:
    async with scene(short_path) as here:
        here.driver.door.hold.clear()
        pod = await here.kubelet.submit(here.pod("a", "claim-a"))
        await until(lambda: here.driver.door.calls)
        await here.clock.advance(44.9)
        assert pod.refusals == 0
        await here.clock.advance(0.2)
        await until(lambda: pod.refusals == 1)
        assert "code = DeadlineExceeded desc = context deadline exceeded" in pod.waiting
        await until(lambda: here.driver.door.cancelled == 1)


async def test_a_second_pod_that_shares_a_claim_causes_no_call(short_path: Path) -> None:
    async with scene(short_path) as here:
        first = await here.running("a", "shared")
        second = await here.running("b", "shared")
        assert len(here.calls("prepare")) == 1
        here.kubelet.delete(first)
        await until(lambda: first.stopped)
        assert here.calls("unprepare") == []
        here.kubelet.delete(second)
        await until(lambda: second.stopped)
        assert here.calls("unprepare") == [("u-shared",)]


async def test_an_old_kubelet_unprepares_a_claim_that_another_pod_uses(short_path: Path) -> None:
    async with scene(short_path) as here:
        here.dra.unprepares_early = True
        first = await here.running("a", "shared")
        second = await here.running("b", "shared")
        here.kubelet.delete(first)
        await until(lambda: first.stopped)
        assert here.calls("unprepare") == [("u-shared",)]
        assert second.phase is Phase.RUNNING


async def test_a_claim_that_was_never_prepared_is_unprepared_all_the_same(
    short_path: Path,
) -> None:
    async with scene(short_path) as here:
        here.driver.door.refusals["u-claim-a"] = "busy"
        pod = await here.kubelet.submit(here.pod("a", "claim-a"))
        await until(lambda: pod.refusals == 1)
        here.driver.door.refusals.clear()
        here.kubelet.delete(pod)
        await until(lambda: pod.stopped)
        assert here.calls("unprepare") == [("u-claim-a",)]
        assert here.runtime.started == []


async def test_a_pod_stays_until_its_claim_is_unprepared_with_a_try_each_10_to_15_seconds(
    short_path: Path,
) -> None:
    async with scene(short_path) as here:
        pod = await here.running("a", "claim-a")
        here.driver.door.refusals["u-claim-a"] = "pid 7 has it open"
        here.kubelet.delete(pod)
        await until(lambda: "pid 7 has it open" in pod.message)
        await here.clock.advance(9.9)
        assert len(here.calls("unprepare")) == 1
        await here.clock.advance(5.2)
        await until(lambda: len(here.calls("unprepare")) == 2)
        assert not pod.stopped
        here.driver.door.refusals.clear()
        await here.clock.run_until(lambda: pod.stopped)


async def test_a_waiting_prepare_delays_the_deletion_of_its_pod(short_path: Path) -> None:
    async with scene(short_path) as here:
        here.driver.door.hold.clear()
        pod = await here.kubelet.submit(here.pod("a", "claim-a"))
        await until(lambda: here.driver.door.calls)
        here.kubelet.delete(pod)
        await asyncio.sleep(0)
        assert here.calls("unprepare") == []
        here.driver.door.hold.set()
        await until(lambda: pod.stopped)
        assert [call for call, _ in here.dra.calls] == ["prepare", "unprepare"]


async def test_after_a_force_delete_the_new_claim_comes_before_the_end_of_the_old(
    short_path: Path,
) -> None:
    async with scene(short_path) as here:
        former = await here.running("a", "claim-a")
        del here.claims["claim-a"]
        async with former.sync:  # its containers take a while to stop
            here.kubelet.delete(former, force=True)
            assert former not in here.kubelet.active()
            await here.running("b", "claim-b")
        await until(lambda: len(here.dra.calls) == 3)
        assert here.dra.calls[1:] == [("prepare", ("u-claim-b",)), ("unprepare", ("u-claim-a",))]


async def test_a_claim_of_the_same_name_waits_until_the_former_one_is_forgotten(
    short_path: Path,
) -> None:
    async with scene(short_path) as here:
        former = await here.running("a", "web")
        here.claims["web"] = _claim("web", uid="u-next")
        async with former.sync:
            here.kubelet.delete(former, force=True)
            pod = await here.kubelet.submit(here.pod("b", "web"))
            await until(lambda: "previous pod force-deleted?!" in pod.waiting)
        await until(lambda: former.stopped)
        pod.changed.set()
        await until(lambda: pod.phase is Phase.RUNNING)


async def test_a_restart_forgets_what_is_prepared_and_asks_again_only_for_new_sandboxes(
    short_path: Path,
) -> None:
    async with scene(short_path) as here:
        await here.running("a", "claim-a")
        await here.kubelet.restart()
        await until(lambda: here.driver.state.registrations == 2)
        (info,) = here.dra.cache.claims.values()
        assert (info.prepared, info.pods) == (False, {"uid-a"})
        assert len(here.calls("prepare")) == 1
        await here.kubelet.close()
        await here.kubelet.start()
        await until(lambda: here.driver.state.registrations == 3)
        await here.kubelet.readmit()
        # The driver may not have been connected to at first.
        await here.clock.run_until(lambda: len(here.calls("prepare")) == 2)


async def test_a_pod_that_kubelet_lost_sight_of_is_unprepared_within_a_minute(
    short_path: Path,
) -> None:
    async with scene(short_path) as here:
        pod = await here.running("a", "claim-a")
        del here.kubelet.pods[pod.uid]
        await here.clock.advance(60.0)
        await until(lambda: here.calls("unprepare") == [("u-claim-a",)])


async def test_every_start_of_kubelet_deletes_the_slices_of_all_drivers(short_path: Path) -> None:
    async with scene(short_path) as here:
        assert here.wiped == [None]
        await here.kubelet.restart()
        assert here.wiped == [None, None]


async def test_a_driver_that_is_away_for_30_seconds_loses_its_slices_and_not_before(
    short_path: Path,
) -> None:
    async with scene(short_path) as here:
        await until(here.connected)
        async with here.driver.away():
            await until(lambda: not here.connected() and here.clock.sleepers > 1)
            await here.clock.advance(29.9)
            assert here.wiped == [None]
        await until(lambda: here.driver.state.registrations == 2)
        await until(here.connected)
        await here.clock.advance(60.0)
        assert here.wiped == [None]


async def test_a_driver_that_does_not_come_back_loses_its_slices(short_path: Path) -> None:
    async with scene(short_path) as here:
        here.dra.watcher.deaf = True
        here.dra.plugins.deregister(DRIVER, str(here.driver.socket))
        await here.clock.advance(30.1)
        await until(lambda: here.wiped == [None, DRIVER])


async def test_what_kubelet_writes_of_claims_is_what_our_reader_reads(short_path: Path) -> None:
    async with scene(short_path) as here:
        await here.running("a", "claim-a")
        found = claimstate.read(here.dra.root / "dra_manager_state")
        (entry,) = found.contents
        assert str(entry.claim) == "default/claim-a (u-claim-a)"
        assert entry.pods == {"uid-a"}
        assert entry.devices == {DRIVER: (CHIP,)}


async def test_a_kubelet_without_claims_has_written_so(short_path: Path) -> None:
    async with scene(short_path) as here:
        found = claimstate.read(here.dra.root / "dra_manager_state")
        assert (found.state, found.contents) == (CheckpointState.READ, ())


async def test_a_pod_whose_driver_is_missing_fails_before_anything_is_written(
    short_path: Path,
) -> None:
    async with scene(short_path) as here:
        spec = here.pod("a", "claim-a")
        here.claims["claim-a"]["status"]["allocation"]["devices"]["results"][0]["driver"] = "x.y"
        pod = await here.kubelet.submit(spec)
        await until(lambda: "DRA driver x.y is not registered" in pod.waiting)
        assert here.dra.cache.claims == {}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("gone", "not found"),
        ("not reserved", "is not allowed to use ResourceClaim"),
        ("not allocated", "is not allocated"),
    ],
)
async def test_a_claim_that_cannot_be_used_is_not_asked_about(
    change: str, text: str, short_path: Path
) -> None:
    async with scene(short_path) as here:
        spec = here.pod("a", "claim-a")
        if change == "gone":
            del here.claims["claim-a"]
        elif change == "not reserved":
            here.claims["claim-a"]["status"]["reservedFor"].clear()
        else:
            del here.claims["claim-a"]["status"]["allocation"]
        pod = await here.kubelet.submit(spec)
        await until(lambda: text in pod.waiting)
        assert here.dra.calls == []


async def test_a_record_of_claims_that_is_damaged_keeps_kubelet_from_starting(
    short_path: Path,
) -> None:
    async with scene(short_path) as here:
        await here.kubelet.stop()
        path = here.dra.root / "dra_manager_state"
        path.write_bytes(path.read_bytes()[:-4])
        with pytest.raises(UnreadableStateError, match="please drain node and remove DRA state"):
            await here.kubelet.start()
        path.unlink()
        await here.kubelet.start()
