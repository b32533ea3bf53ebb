"""Claims with adminAccess by the real daemon, on GPUs that others have."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from fakes.claimstage import Claim, ClaimStage, begin
from simulated.gpus import SimulatedGpus
from simulated.nvml import GIB, uuid

_AT_ONCE = {
    "foreignScan": "1h",
    **dict.fromkeys(("letGoGrace", "orphanGrace", "termGrace", "killGrace"), "100ms"),
}
"""What is left of a pod is ended as soon as every guard agrees; no scan by the clock helps."""


class _Node:
    """A node with two GPUs that come by claims."""

    def __init__(self, at: ClaimStage, gpus: SimulatedGpus) -> None:
        self.at, self.gpus = at, gpus

    def allocate(self, name: str, index: int) -> Claim:
        return self.at.allocate(name, device=_label(index))

    def administrates(self, name: str, index: int) -> Claim:
        return self.at.allocate(name, device=_label(index), adminAccess=True)

    def computes(self, claim: Claim, index: int) -> int:
        """Let a process of the claim's pod have a GPU open and compute on it; return its pid."""
        held = self.at.opens_gpu(claim.pods[0], index)
        self.gpus.change(index, lambda card: replace(card, processes=(("compute", held.pid, GIB),)))
        return held.pid

    async def locks(self) -> dict[str, str]:
        return await self.at.node.locks()


def _label(index: int) -> str:
    return uuid(index).lower()


@pytest.fixture
async def node(claimed_gpus: Any) -> AsyncIterator[_Node]:
    async with claimed_gpus(2, others={"reclaim": _AT_ONCE}, passDeviceSpecs=True) as made:
        yield _Node(*made)


async def test_an_administrator_gets_what_another_has_and_keeps_the_next_one_from_nothing(
    node: _Node,
) -> None:
    at = node.at
    first = node.allocate("first", 0)
    await at.prepared(first)
    admin = node.administrates("admin", 0)
    (name,) = await at.prepared(admin)
    assert name == f"holdfast.dev/claim={admin.uid}-{_label(0)}"
    nodes = at.spec(admin)["devices"][0]["containerEdits"]["deviceNodes"]
    assert "/dev/nvidia0" in {each["path"] for each in nodes}
    assert await node.locks() == {uuid(0): "held"}

    pid = node.computes(admin, 0)
    await at.be_patient()
    assert await at.unprepare(first) == {"first": ""}
    assert await node.locks() == {}
    second = node.allocate("second", 0)
    await at.prepared(second)

    # A killed daemon remembers it, and kubelet is not asked for it.
    at.node.kill()
    await begin(at)
    report = await at.node.asked("status")
    assert report is not None
    told = {each["claim"].split()[0]: each["adminDevices"] for each in report["claims"]}
    assert told == {"team/admin": [f"nvidia.com/gpu/{uuid(0)}"], "team/second": []}
    rows = await at.node.asked("locks") or ()
    assert {(row["state"], row["claim"].split()[0]) for row in rows} == {
        ("held", "team/second"),
        ("admin", "team/admin"),
    }
    assert await at.unprepare(second) == {"second": ""}
    assert pid in at.node.node.members(admin.pods[0]), "nothing of an administrator's is ended"


async def test_what_an_administrator_leaves_behind_is_in_the_way_as_anybodys_is(
    node: _Node,
) -> None:
    at = node.at
    admin = node.administrates("admin", 0)
    await at.prepared(admin)
    pid = node.computes(admin, 0)
    await at.node.for_some_beats()
    assert await node.locks() == {}, "it is nobody that is foreign"
    assert await at.unprepare(admin) == {"admin": ""}
    assert not at.spec_file(admin).exists()
    await at.node.until_locks({uuid(0): "foreign"})
    rows = await at.node.asked("locks") or ()
    assert [f"pid {pid}" in row["reason"] for row in rows] == [True]


async def test_a_gpu_that_is_ill_is_given_to_an_administrator_alone(node: _Node) -> None:
    at = node.at
    node.gpus.xid(uuid(0), 79)
    await at.node.until(lambda: "Xid 79" in at.node.log, "the GPU to be ill")
    assert await at.error(node.administrates("admin", 0)) == ""
    assert "no device gpu-none" in await at.error(
        at.allocate("nothing", device="gpu-none", adminAccess=True)
    )


async def test_a_claim_with_a_gpu_of_its_own_waits_for_that_one_alone(node: _Node) -> None:
    at = node.at
    had = node.allocate("had", 1)
    await at.prepared(had)
    own = {"request": "own", "device": _label(1)}
    mixed = at.allocate("mixed", device=_label(0), adminAccess=True, more=[own])
    waiting = asyncio.create_task(at.prepare(mixed))
    await at.node.until(lambda: at.queued(mixed), "the claim to wait")
    assert await node.locks() == {uuid(1): "held"}
    assert await at.unprepare(had) == {"had": ""}
    (answer,) = (await waiting).values()
    assert answer.error == ""
    assert [(each.device_name, list(each.request_names)) for each in answer.devices][:2] == [
        (_label(0), ["chips"]),
        (_label(1), ["own"]),
    ]
    assert await node.locks() == {uuid(1): "held"}


async def test_without_its_ledger_it_is_taken_over_as_what_it_is(node: _Node) -> None:
    """Kubelet's record does not tell who is an administrator; the API server does."""
    at = node.at
    first, admin = node.allocate("first", 0), node.administrates("admin", 0)
    await at.prepared(first)
    await at.prepared(admin)
    await _takes_over(node, admin)
    assert await node.locks() == {}
    assert await at.unprepare(admin) == {"admin": ""}


async def test_a_gpu_that_a_claim_uses_is_held_by_it_although_the_ledger_was_lost(
    node: _Node,
) -> None:
    """The process is seen as soon as the GPU is; kubelet's record takes a call to the server."""
    at = node.at
    first = node.allocate("first", 0)
    await at.prepared(first)
    node.computes(first, 0)
    await _takes_over(node, first)
    await at.node.until_locks({uuid(0): "held"})


async def _takes_over(node: _Node, claim: Claim) -> None:
    """Lose the ledger; return when the next daemon knows *claim* from kubelet's record."""
    at = node.at
    at.record(claim, device=_label(0))
    at.node.kill()
    shutil.rmtree(at.node.state)
    await begin(at)
    await at.node.until(
        lambda: "claim taken over from kubelet's record" in at.node.log, "the claim to be known"
    )
