"""The real daemon under the simulated kubelet's own manager of claims, with its bugs."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fakes.claimstage import NAMESPACE, Claim, ClaimStage, claim_stage
from fakes.controlplane import NODE
from fakes.driver_side import dra_kubelet
from holdfast.dra.records import EVERY
from holdfast.model.ids import PciAddress
from simulated.cdi import resolve
from simulated.cluster.objects import CLAIMS
from simulated.cluster.store import Place
from simulated.dramanager import DraError, DraManager
from simulated.pods import Container, Pod, PodSpec


@contextlib.asynccontextmanager
async def _kubelet(at: ClaimStage) -> AsyncIterator[DraManager]:
    """Yield a kubelet that knows our driver, and forgets what it has in memory."""
    made = DraManager.on_cluster(at.root, at.plane.store, NODE)
    async with dra_kubelet(at.root, made) as manager:
        await _driver_known(at, manager)
        yield manager


async def _driver_known(at: ClaimStage, manager: DraManager) -> None:
    await at.node.until(lambda: manager.plugins.newest("holdfast.dev"), "the driver to be known")


def _pod(claim: Claim, *requests: str, uid: str = "") -> Pod:
    """Return a pod that *claim* is reserved for, with one container of *requests* of it."""
    used = tuple(("c", request) for request in requests or ("",))
    spec = PodSpec(
        name="user",
        namespace=NAMESPACE,
        uid=uid or claim.pods[0],
        claims={"c": claim.name},
        containers=(Container(claims=used),),
    )
    return Pod(spec=spec)


async def test_a_kubelet_that_has_each_device_twice_after_a_restart_changes_nothing(
    short_path: Path,
) -> None:
    addresses = ["0000:00:05.0", "0000:00:06.0"]
    pool = {"resourceName": "a.b/claimed", "addresses": addresses, "api": "dra"}
    async with (
        claim_stage(short_path, kind="claimed", tpu={"enabled": False}, pools=[pool]) as at,
        _kubelet(at) as kubelet,
    ):
        kubelet.appends_devices = True
        both = at.allocate("both", 0, more=[{"request": "others", "device": at.label(1)}])
        pod = _pod(both)
        await kubelet.prepare(pod)
        names = kubelet.cdi(pod, pod.spec.containers[0])

        await kubelet.stop()
        await kubelet.start()
        await _driver_known(at, kubelet)
        await kubelet.prepare(pod)
        (info,) = kubelet.cache.claims.values()
        assert len(info.drivers["holdfast.dev"]) == 6, "kubelet does not have the bug"
        assert kubelet.cdi(pod, pod.spec.containers[0]) == names
        known = {each["name"] for each in at.spec(both)["devices"]}
        assert {each.partition("=")[2] for each in names} == known

        before = at.spec(both)
        at.spec_file(both).unlink()
        kubelet.cache.write()
        await at.node.until(at.spec_file(both).exists, "the spec to be there again")
        assert at.spec(both) == before

        await at.node.for_some_beats()
        assert (await at.node.asked("status") or {})["drift"] == []
        assert set((await at.node.locks()).values()) == {"held"}
        await at.be_patient()
        await kubelet.unprepare(pod)
        assert await at.node.locks() == {}
        assert kubelet.cache.claims == {}


async def test_containers_are_given_the_devices_of_their_requests_alone(short_path: Path) -> None:
    async with claim_stage(short_path) as at, _kubelet(at) as kubelet:
        both = at.allocate("both", 0, more=[{"request": "others", "device": at.label(1)}])
        await kubelet.prepare(_pod(both))
        given = {
            request: kubelet.cdi(pod := _pod(both, request), pod.spec.containers[0])
            for request in ("chips", "others")
        }
        assert given == {
            "chips": [f"holdfast.dev/claim={both.uid}-{at.label(0)}"],
            "others": [f"holdfast.dev/claim={both.uid}-{at.label(1)}"],
        }


async def test_containers_start_again_where_groups_were_numbered_anew(short_path: Path) -> None:
    """As those of virtual functions are that are made anew; kubelet makes no second call."""
    async with claim_stage(short_path) as at, _kubelet(at) as kubelet:
        first = at.allocate("first", 0)
        pod = _pod(first)
        await kubelet.prepare(pod)
        container = pod.spec.containers[0]
        groups = [int(at.path(chip).name) for chip in range(2)]
        at.node.node.tree.regroup(
            {PciAddress("0000:00:05.0"): groups[0] + 40, PciAddress("0000:00:06.0"): groups[0]}
        )

        def given() -> set[str]:
            with contextlib.suppress(OSError):
                return {it.path for it in resolve(at.node.specs, kubelet.cdi(pod, container)).nodes}
            return set()

        wanted = {f"/dev/vfio/{groups[0] + 40}", "/dev/vfio/vfio"}
        await at.node.until(lambda: given() == wanted, lambda: f"{wanted}; there are {given()}")
        assert [call for call, _ in kubelet.calls] == ["prepare"]
        await at.be_patient()
        await kubelet.unprepare(pod)
        await at.node.until(lambda: not at.spec_file(first).exists(), "its spec to be removed")


async def _joins(at: ClaimStage, claim: Claim, uid: str) -> Pod:
    """Let the scheduler reserve *claim*, which is allocated, for one more pod."""
    place = Place(kind=CLAIMS, namespace=NAMESPACE, name=claim.name)
    made = at.plane.store.get(place)
    made["status"]["reservedFor"].append({"resource": "pods", "name": "later", "uid": uid})
    at.plane.store.update(place, made, subresource="status")
    return _pod(claim, uid=uid)


async def test_a_pod_that_joins_is_known_at_once_where_kubelets_folder_is_another_one_now(
    short_path: Path,
) -> None:
    """As when its disk is mounted after the daemon's start: the comparison is once a minute."""
    async with claim_stage(short_path) as at:
        claim = at.allocate("shared", 0)
        await at.prepared(claim)
        at.record(claim)
        at.root.rename(short_path / "below")
        at.root.mkdir()
        await at.node.for_some_beats()
        at.record(claim, (*claim.pods, "bbbbbbbb-0000-0000-0000-000000000002"))
        began = time.monotonic()

        async def both_are_known() -> bool:
            locks = await at.node.asked("locks") or ()
            return [len(each["claimPods"]) for each in locks] == [2]

        await at.node.until(both_are_known, "the pod that has joined to be known")
        assert time.monotonic() - began < EVERY / 2


@pytest.mark.parametrize("when", ["while it waits", "between two calls"])
async def test_a_pod_that_joins_a_claim_whose_end_is_waited_for_starts_on_its_device(
    short_path: Path, when: str
) -> None:
    """Kubelet makes no call for it, and none for the end of the former one (1.36.2)."""
    observe = {"mode": "observe"}
    async with (
        claim_stage(short_path, unprepare_wait="600s", reclaim=observe) as at,
        _kubelet(at) as kubelet,
    ):
        claim = at.allocate("shared", 0)
        former = _pod(claim)
        await kubelet.prepare(former)
        alive = await at.leaves_behind(former.uid, 0)
        ending = asyncio.ensure_future(kubelet.unprepare(former))
        (chip,) = await at.node.locks()
        await at.node.until_locks({chip: "releasing"})
        if when == "between two calls":
            ending.cancel()
            with contextlib.suppress(asyncio.CancelledError, DraError):
                await ending
        later = await _joins(at, claim, "bbbbbbbb-0000-0000-0000-000000000002")
        await kubelet.prepare(later)
        if when == "while it waits":
            with pytest.raises(DraError, match="another pod has joined it"):
                await ending
        await at.node.until_locks({chip: "held"})
        assert at.spec_file(claim).exists()
        await kubelet.unprepare(former)
        assert [call for call, _ in kubelet.calls] == ["prepare", "unprepare"]
        for pid in at.node.node.members(former.uid):
            os.kill(pid, signal.SIGKILL)
        await at.node.for_some_beats()
        assert not alive()
        assert set((await at.node.locks()).values()) == {"held"}
        await kubelet.unprepare(later)
        assert await at.node.locks() == {}
        await at.node.until(lambda: not at.spec_file(claim).exists(), "the end of the CDI spec")


async def test_a_pod_that_joins_while_two_calls_wait_for_the_end_keeps_its_device(
    short_path: Path,
) -> None:
    """The pod was force-deleted: its worker calls, and so does kubelet's look each minute."""
    async with (
        claim_stage(short_path, unprepare_wait="600s", reclaim={"mode": "observe"}) as at,
        _kubelet(at) as kubelet,
    ):
        claim = at.allocate("shared", 0)
        former = _pod(claim)
        await kubelet.prepare(former)
        await at.leaves_behind(former.uid, 0)
        ending = asyncio.ensure_future(kubelet.unprepare(former))
        (chip,) = await at.node.locks()
        await at.node.until_locks({chip: "releasing"})
        again = asyncio.ensure_future(kubelet.unprepare_inactive([]))
        await at.node.until(lambda: len(kubelet.calls) == 3, "the second call")
        later = await _joins(at, claim, "bbbbbbbb-0000-0000-0000-000000000002")
        await kubelet.prepare(later)
        with pytest.raises(DraError, match="another pod has joined it"):
            await ending
        await again
        for pid in at.node.node.members(former.uid):
            os.kill(pid, signal.SIGKILL)
        await at.node.for_some_beats()
        assert await at.node.locks() == {chip: "held"}, "a pod is to start with it"
        assert at.spec_file(claim).exists()
