"""From the node's chips to a pod's claim: the real daemon, an API server and a scheduler."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.claimstage import DRIVER, NAMESPACE, Claim, ClaimStage, begin, claim_stage
from simulated.cluster.objects import (
    CLAIMS,
    PODS,
    SLICES,
    add,
    add_class,
    devices_of,
    using,
    wanting,
)
from simulated.cluster.scheduler import Scheduler
from simulated.cluster.store import Place

_CHIPS = [f"tpu-0000-00-0{5 + place}-0" for place in range(4)]
_SQUARE = "tpu-2x2-0000-00-05-0"


class Cluster:
    """The classes of the chart, pods that ask for chips, and what they were given."""

    def __init__(self, at: ClaimStage) -> None:
        self.at = at
        self.store = at.plane.store
        self.scheduler = Scheduler(self.store)
        told = f'device.attributes["{DRIVER}"]'
        resource = f'has({told}.resource) && {told}.resource == "google.com/tpu"'
        shape = f'has({told}.type) && {told}.type == "tpu-shape"'
        add_class(
            self.store, f"tpu.{DRIVER}", DRIVER, resource, extendedResourceName="google.com/tpu"
        )
        add_class(self.store, f"tpu-shape.{DRIVER}", DRIVER, shape)

    def pod(self, name: str, chips: int) -> None:
        """Add a pod that asks for chips as pods do without claims."""
        limits = {"google.com/tpu": str(chips)}
        spec = using(resources={"limits": limits})
        add(self.store, PODS, name, namespace=NAMESPACE, spec=spec)

    def pod_with_shape(self, name: str, shape: str) -> None:
        chosen = f'device.attributes["{DRIVER}"].shape == "{shape}"'
        selectors = [{"cel": {"expression": chosen}}]
        spec = wanting(f"tpu-shape.{DRIVER}", "shape", selectors=selectors)
        add(self.store, CLAIMS, f"{name}-shape", namespace=NAMESPACE, spec=spec)
        spec = using({"name": "shape", "resourceClaimName": f"{name}-shape"})
        add(self.store, PODS, name, namespace=NAMESPACE, spec=spec)

    def claim_of(self, name: str) -> tuple[Claim, list[str]]:
        """Return the claim that is *name*, as kubelet calls it, and the devices it was given."""
        found = self.store.get(Place(kind=CLAIMS, namespace=NAMESPACE, name=name))
        devices = [each["device"] for each in found["status"]["allocation"]["devices"]["results"]]
        pods = tuple(each["uid"] for each in found["status"]["reservedFor"])
        return Claim(name, found["metadata"]["uid"], pods), devices

    def given(self, pod: str) -> tuple[Claim, list[str]]:
        status = self.store.get(Place(kind=PODS, namespace=NAMESPACE, name=pod))["status"]
        return self.claim_of(status["extendedResourceClaimStatus"]["resourceClaimName"])

    def offered(self) -> dict[str, Any]:
        return devices_of(self.store.every(SLICES))

    def tainted(self) -> set[str]:
        return {name for name, each in self.offered().items() if each.get("taints")}

    async def published(self) -> None:
        expected = {*_CHIPS, _SQUARE}
        await self.at.node.until(lambda: set(self.offered()) == expected, "the slices")

    async def runs(self, pod: str) -> tuple[Claim, list[str]]:
        """Schedule *pod* and prepare its claim, which must be possible."""
        assert pod in self.scheduler.step()
        claim, devices = self.given(pod)
        await self.at.prepared(claim)
        return claim, devices


@pytest.fixture
async def cluster(short_path: Path) -> AsyncIterator[Cluster]:
    async with claim_stage(short_path, chips=4) as made:
        cluster = Cluster(made)
        await cluster.published()
        yield cluster


async def test_a_pod_that_asks_for_chips_comes_through_claims_unchanged(cluster: Cluster) -> None:
    cluster.pod("train", 3)
    claim, devices = await cluster.runs("train")

    assert devices == _CHIPS[:3]
    assert len(await cluster.at.node.locks()) == 3
    (device, *_) = cluster.at.spec(claim)["devices"]
    assert device["name"].endswith(_CHIPS[0])
    cluster.pod("other", 2)
    assert cluster.scheduler.step() == [], "one chip is left"


async def test_a_claim_for_a_square_gets_its_four_chips(cluster: Cluster) -> None:
    cluster.pod_with_shape("train", "2x2")
    assert cluster.scheduler.step() == ["train"]
    claim, devices = cluster.claim_of("train-shape")
    await cluster.at.prepared(claim)

    assert devices == [_SQUARE]
    assert set((await cluster.at.node.locks()).values()) == {"held"}
    assert len(await cluster.at.node.locks()) == 4
    cluster.pod("other", 1)
    assert cluster.scheduler.step() == []
    await cluster.at.be_patient()
    assert await cluster.at.unprepare(claim) == {"train-shape": ""}
    assert await cluster.at.node.locks() == {}


async def test_a_chip_that_a_stranger_has_is_passed_over_until_it_is_free(cluster: Cluster) -> None:
    stranger = cluster.at.opens("8c5d6f0e-0000-4000-8000-000000000000", 0)
    await cluster.at.node.until(
        lambda: cluster.tainted() == {_CHIPS[0], _SQUARE}, "the taint of what a stranger has"
    )
    cluster.pod("train", 1)
    _, devices = await cluster.runs("train")
    assert devices == [_CHIPS[1]]

    stranger.end()
    await cluster.at.node.until(lambda: not cluster.tainted(), "the taint to go")
    cluster.pod("next", 1)
    assert (await cluster.runs("next"))[1] == [_CHIPS[0]]


async def test_a_holder_that_stays_keeps_the_scheduler_away_after_the_end_of_the_claim(
    cluster: Cluster,
) -> None:
    cluster.pod("first", 1)
    claim, devices = await cluster.runs("first")
    assert devices == [_CHIPS[0]]
    held = cluster.at.opens(claim.pods[0], 0)

    text = (await cluster.at.unprepare(claim))[claim.name]
    while text:
        assert str(held.pid) in text
        text = (await cluster.at.unprepare(claim))[claim.name]
    cluster.scheduler.delete(NAMESPACE, "first")
    await cluster.at.node.until(lambda: _CHIPS[0] in cluster.tainted(), "the taint")
    cluster.pod("second", 1)
    assert (await cluster.runs("second"))[1] == [_CHIPS[1]]
    assert held.lives


async def test_a_daemon_that_begins_anew_writes_no_slice_that_is_as_it_should_be(
    cluster: Cluster,
) -> None:
    cluster.pod("train", 1)
    await cluster.runs("train")
    before = [each for each in cluster.store.writes if each[1].kind == SLICES]
    asked = len(cluster.at.plane.server.requests)

    cluster.at.node.kill()
    await begin(cluster.at)
    await cluster.at.node.until(
        lambda: any("watch=true" in each for each in cluster.at.plane.server.requests[asked:]),
        "the daemon to read the slices",
    )
    assert await cluster.at.node.locks() == {"0000:00:05.0": "held"}
    assert [each for each in cluster.store.writes if each[1].kind == SLICES] == before
