"""GPUs that claims share: the real daemon, pynvml, an API server and a scheduler."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from msgspec.structs import replace

from fakes.claimrecord import write_entries
from fakes.claimstage import DRIVER, NAMESPACE, Claim, ClaimStage, begin
from fakes.controlplane import NODE
from fakes.gpustage import sharing
from fakes.stage import end
from holdfast.model.ids import ClaimRef, ClaimUid, PodUid
from holdfast.model.kubelet import ClaimEntry, RecordedDevice
from holdfast.model.nvidia.names import GPU_KIND
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
from simulated.cluster.store import Object, Place
from simulated.gpus import SimulatedGpus
from simulated.nvml import GIB, uuid

_OBSERVE = {
    "foreignScan": "100ms",
    "mode": "observe",
}
_CARD = uuid(0).lower()


class _Node:
    """A node with a GPU that claims may share, and the scheduler that gives it out."""

    def __init__(self, at: ClaimStage, gpus: SimulatedGpus) -> None:
        self.at, self.gpus = at, gpus
        self.store = at.plane.store
        self.scheduler = Scheduler(self.store)
        self._works: dict[int, int] = {}
        chosen = f'device.attributes["{DRIVER}"].type == "gpu"'
        add_class(self.store, "gpu", DRIVER, chosen)

    def pod(self, name: str, **wanted: Any) -> None:
        """Add a pod with a claim of its name."""
        self._pod(name, wanting("gpu", "gpus", **wanted))

    def of_two_requests(self, name: str) -> Claim:
        """Schedule a pod whose claim has two shares, each by a request of its own."""
        self._pod(name, wanting("gpu", "one", "other"))
        assert self.scheduler.step() == [name]
        return self.claim(name)

    def _pod(self, name: str, wanted: Object) -> None:
        add(self.store, CLAIMS, name, namespace=NAMESPACE, spec=wanted)
        pod = using({"name": "gpus", "resourceClaimName": name})
        add(self.store, PODS, name, namespace=NAMESPACE, spec=pod)

    def claim(self, name: str) -> Claim:
        found = self.store.get(Place(kind=CLAIMS, namespace=NAMESPACE, name=name))
        pods = tuple(each["uid"] for each in found["status"]["reservedFor"])
        return Claim(name, found["metadata"]["uid"], pods)

    def results(self, name: str) -> list[dict[str, Any]]:
        found = self.store.get(Place(kind=CLAIMS, namespace=NAMESPACE, name=name))
        results: list[dict[str, Any]] = found["status"]["allocation"]["devices"]["results"]
        return results

    def scheduled(self, name: str) -> Claim:
        """Add a pod, which the scheduler must find a place for at once."""
        self.pod(name)
        assert self.scheduler.step() == [name]
        return self.claim(name)

    def offered(self) -> dict[str, Any]:
        return devices_of(self.store.every(SLICES))

    async def until_offered(self, shares: int | None, *, tainted: bool = False) -> None:
        """Return when the GPU is offered with so many shares; None: whole."""

        def so() -> bool:
            card = self.offered().get(_CARD)
            if card is None or bool(card.get("taints")) != tainted:
                return False
            value = card["capacity"].get("shares", {}).get("value")
            return bool(value == (None if shares is None else str(shares)))

        await self.at.node.until(so, lambda: f"{shares} shares; offered are {self.offered()}")

    def computes(self, claim: Claim) -> int:
        """Let a process of the claim's last pod compute on the GPU; return its pid."""
        held = self.at.opens_gpu(claim.pods[-1], 0)
        self._works[held.pid] = GIB
        self._show()
        return held.pid

    def ends(self, pid: int) -> None:
        del self._works[pid]
        self._show()
        end(pid)

    def _show(self) -> None:
        processes = tuple(("compute", pid, size) for pid, size in self._works.items())
        self.gpus.change(0, lambda card: replace(card, processes=processes))

    async def over(self, claim: Claim) -> None:
        """Let the pod of a claim end, and its claim be free for the scheduler."""
        assert await self.at.unprepare(claim) == {claim.name: ""}
        self.scheduler.delete(NAMESPACE, claim.name)

    async def locks(self) -> dict[str, str]:
        return await self.at.node.locks()


def _replica(number: int) -> str:
    return f"{uuid(0)}::{number}"


@pytest.fixture
async def node(
    request: pytest.FixtureRequest, claimed_gpus: Any, driver_root: Path
) -> AsyncIterator[_Node]:
    """A node of a cluster of Kubernetes 1.36, or of the minor version that is asked for.

    It tells runtimes of GPUs by the strategy that is asked for in place of a version.
    """
    asked = getattr(request, "param", 36)
    minor, strategy = (asked, "envvar") if isinstance(asked, int) else (36, asked)
    (driver_root / "usr/lib64/libcuda.so.550.54.15").touch()
    others = {
        "unprepare_wait": "1s",
        "minor": minor,
        "reclaim": _OBSERVE,
        "sharing": sharing(2),
    }
    async with claimed_gpus(
        1,
        others=others,
        passDeviceSpecs=True,
        deviceIdStrategy="index",
        deviceListStrategy=[strategy],
    ) as stage:
        made = _Node(*stage)
        await made.until_offered(2 if minor >= 36 else None)
        yield made


async def test_claims_share_a_gpu_and_what_one_leaves_keeps_its_own_share(node: _Node) -> None:
    at = node.at
    first, second = node.scheduled("first"), node.scheduled("second")
    node.pod("third")
    assert node.scheduler.step() == [], "all shares are given out"

    answer = (await at.prepare(first))["first"]
    (device,) = answer.devices
    assert device.share_id == node.results("first")[0]["shareID"]
    assert list(device.cdi_device_ids) == [f"holdfast.dev/claim={first.uid}-{_CARD}"]
    (edits,) = [each["containerEdits"] for each in at.spec(first)["devices"]]
    assert "/dev/nvidia0" in {each["path"] for each in edits["deviceNodes"]}
    await at.prepared(second)
    assert await node.locks() == {_replica(0): "held", _replica(1): "held"}
    works = node.computes(second)

    # A killed daemon knows who has which share, and answers the same again.
    at.node.kill()
    await begin(at)
    assert (await at.prepare(first))["first"] == answer
    assert await node.locks() == {_replica(0): "held", _replica(1): "held"}

    # One ends and leaves a process: its own share is kept, and is no longer offered.
    leftover = node.computes(first)
    assert await at.unprepare(first) == {"first": ""}
    node.scheduler.delete(NAMESPACE, "first")
    await at.node.until_locks({_replica(0): "releasing", _replica(1): "held"})
    await node.until_offered(1)
    assert node.scheduler.step() == []
    assert works in at.node.node.members(second.pods[0])

    node.ends(leftover)
    await at.node.until_locks({_replica(1): "held"})
    await node.until_offered(2)
    assert node.scheduler.step() == ["third"]
    third = node.claim("third")
    await at.prepared(third)
    assert await node.locks() == {_replica(0): "held", _replica(1): "held"}
    node.ends(works)
    await at.be_patient()
    assert await at.unprepare(second, third) == {"second": "", "third": ""}
    assert await node.locks() == {}


@pytest.mark.parametrize("node", ["cdi-cri"], indirect=True)
async def test_claims_share_a_gpu_that_cdi_specs_describe(node: _Node) -> None:
    first, second = node.scheduled("first"), node.scheduled("second")
    (device,) = (await node.at.prepare(first))["first"].devices
    assert f"{GPU_KIND}={uuid(0)}" in device.cdi_device_ids, "an index could be another's later"
    await node.at.prepared(second)
    assert await node.locks() == {_replica(0): "held", _replica(1): "held"}
    # They count on the spec although new ones are told in another way.
    await node.at.node.stop()
    node.at.node.settings["gpu"]["deviceListStrategy"] = ["envvar"]
    spec = node.at.node.specs / "k8s.device-plugin.nvidia.com-gpu.json"
    spec.write_text("{}")
    await begin(node.at)
    await node.at.node.until(lambda: uuid(0) in spec.read_text(), "the spec that claims count on")


async def test_more_claims_than_shares_wait_for_whichever_is_free_first(node: _Node) -> None:
    """A scheduler that errs is no way to a third share."""
    at = node.at
    first, second = node.scheduled("first"), node.scheduled("second")
    await at.prepared(first)
    await at.prepared(second)
    third = at.allocate("third", device=_CARD, shareID=str(uuid4()))
    waiting = asyncio.create_task(at.prepare(third))
    await at.node.for_some_beats()
    assert not waiting.done()
    assert await node.locks() == {_replica(0): "held", _replica(1): "held"}
    assert await at.unprepare(second) == {"second": ""}
    assert (await waiting)["third"].error == ""
    assert await node.locks() == {_replica(0): "held", _replica(1): "held"}

    whole = at.allocate("whole", device=_CARD)
    waiting = asyncio.create_task(at.prepare(whole))
    await at.unprepare(third)
    await at.node.until(lambda: at.queued(whole), "the claim without a share to wait")
    assert await at.unprepare(first) == {"first": ""}
    assert (await waiting)["whole"].error == ""
    assert await node.locks() == {uuid(0): "held"}
    await node.until_offered(1, tainted=True)


async def test_a_claim_may_have_several_shares_and_pods_that_share_one_are_neighbours(
    node: _Node,
) -> None:
    at = node.at
    shared = at.allocate(
        "shared", device=_CARD, shareID=str(uuid4()), pods=[str(uuid4()), str(uuid4())]
    )
    await at.prepared(shared)
    pid = node.computes(shared)
    beside = node.at.allocate("beside", device=_CARD, shareID=str(uuid4()))
    assert await node.at.error(beside) == ""
    node.ends(pid)
    assert await at.unprepare(shared, beside) == {"shared": "", "beside": ""}

    node.pod("two", count=2)
    assert node.scheduler.step() == [], "one request takes no GPU twice"
    two = node.of_two_requests("both")
    answer = (await at.prepare(two))[two.name]
    assert [each.share_id for each in answer.devices] == [
        each["shareID"] for each in node.results("both")
    ]
    assert await node.locks() == {_replica(0): "held", _replica(1): "held"}
    for each in at.spec(two)["devices"]:
        paths = {it["path"] for it in each["containerEdits"]["deviceNodes"]}
        assert "/dev/nvidia0" in paths


async def test_an_administrator_is_in_no_shares_way_and_has_none(node: _Node) -> None:
    at = node.at
    first = node.scheduled("first")
    await at.prepared(first)
    admin = at.allocate("admin", device=_CARD, adminAccess=True)
    await at.prepared(admin)
    node.computes(admin)
    assert await node.locks() == {_replica(0): "held"}
    second = node.scheduled("second")
    assert await node.at.error(second) == ""


async def test_shares_that_the_ledger_lost_are_taken_over_from_kubelets_record(node: _Node) -> None:
    at = node.at
    first, second = node.scheduled("first"), node.scheduled("second")
    await at.prepared(first)
    await at.prepared(second)
    pid = node.computes(first)
    node.computes(second)
    at.node.kill()
    shutil.rmtree(at.node.state)
    write_entries(
        at.root / "dra_manager_state",
        [
            ClaimEntry(
                claim=ClaimRef(NAMESPACE, ClaimUid(each.uid), each.name),
                pods=frozenset(map(PodUid, each.pods)),
                devices={
                    DRIVER: (RecordedDevice(NODE, _CARD, node.results(each.name)[0]["shareID"]),)
                },
            )
            for each in (first, second)
        ],
    )
    await begin(at)
    await at.node.until_locks({_replica(0): "held", _replica(1): "held"})
    node.ends(pid)
    assert await at.unprepare(first) == {"first": ""}
    await at.node.until_locks({_replica(1): "held"})


async def test_a_gpu_that_claims_begin_to_share_is_let_go_first_and_the_other_way_round(
    node: _Node,
) -> None:
    at = node.at
    share = node.scheduled("share")
    await at.prepared(share)
    at.node.configure(sharing=sharing(0))
    await node.until_offered(None, tainted=True)
    assert (await at.prepare(share))["share"].error == "", "it keeps what it has"
    stray = at.allocate("stray", device=_CARD, shareID=str(uuid4()))
    assert "which is not shared; delete the pod" in await node.at.error(stray)
    node.pod("whole")
    assert node.scheduler.step() == []
    await node.over(share)
    await node.until_offered(None)
    assert node.scheduler.step() == ["whole"]
    whole = node.claim("whole")
    await at.prepared(whole)
    assert await node.locks() == {uuid(0): "held"}

    at.node.configure(sharing=sharing(2, failRequestsGreaterThanOne=True))
    await node.until_offered(1, tainted=True)
    assert (await at.prepare(whole))["whole"].error == ""
    await node.over(whole)
    await node.until_offered(2)
    two = node.of_two_requests("two")
    assert "maximum request size for shared resources is 1; found 2" in await node.at.error(two)
    assert await node.locks() == {}


@pytest.mark.parametrize("node", [35], indirect=True)
async def test_where_the_api_server_knows_no_shares_one_claim_at_a_time_has_the_gpu(
    node: _Node,
) -> None:
    at = node.at
    only = node.scheduled("only")
    assert "shareID" not in node.results("only")[0]
    await at.prepared(only)
    assert await node.locks() == {uuid(0): "held"}
    node.pod("next")
    assert node.scheduler.step() == []
    assert _CARD in node.offered()


async def test_a_share_beside_adminaccess_to_its_gpu_is_all_that_is_locked(node: _Node) -> None:
    """In kubelet's record, which has no adminAccess, that is the same GPU without a share."""
    at, share = node.at, str(uuid4())
    look = {"request": "look", "device": _CARD, "adminAccess": True}
    both = at.allocate("both", device=_CARD, shareID=share, more=[look])
    await at.prepared(both)
    entry = ClaimEntry(
        claim=ClaimRef(NAMESPACE, ClaimUid(both.uid), both.name),
        pods=frozenset(map(PodUid, both.pods)),
        devices={DRIVER: (RecordedDevice(NODE, _CARD, share), RecordedDevice(NODE, _CARD))},
    )
    write_entries(at.root / "dra_manager_state", [entry])
    never = at.allocate("never", device=_CARD, shareID=str(uuid4()))
    assert await at.unprepare(never) == {"never": ""}  # for which the record is read
    assert await node.locks() == {_replica(0): "held"}
    assert await node.at.error(at.allocate("other", device=_CARD, shareID=str(uuid4()))) == ""


async def test_a_claim_is_prepared_again_with_more_shares_than_the_settings_allow_by_now(
    node: _Node,
) -> None:
    two = node.of_two_requests("two")
    assert await node.at.error(two) == ""
    await node.at.node.reload(sharing=sharing(2, failRequestsGreaterThanOne=True))
    assert await node.at.error(two) == ""


async def test_a_rule_takes_no_gpu_from_a_claim_that_has_it_with_adminaccess(node: _Node) -> None:
    at = node.at
    admin = at.allocate("admin", device=_CARD, adminAccess=True)
    await at.prepared(admin)
    await at.node.reload(devices=[{"match": {"index": "0"}, "exclude": True}])
    await at.node.until(lambda: bool(node.offered()[_CARD].get("taints")), "the GPU to be leaving")
    assert await node.at.error(admin) == ""
