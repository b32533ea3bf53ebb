"""The real daemon under the simulated kubelet's own manager of claims, with its bugs."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from fakes.claimstage import NAMESPACE, Claim, ClaimStage, claim_stage
from fakes.controlplane import CLAIMS
from simulated.cluster.store import Place, RefusedError
from simulated.dramanager import DraManager
from simulated.pods import Container, Pod, PodSpec


@contextlib.asynccontextmanager
async def _kubelet(at: ClaimStage) -> AsyncIterator[DraManager]:
    """Yield a kubelet that knows our driver, and forgets what it has in memory."""

    async def objects(namespace: str, name: str) -> Mapping[str, Any] | None:
        try:
            return at.plane.store.get(Place(kind=CLAIMS, namespace=namespace, name=name))
        except RefusedError:
            return None

    manager = DraManager(at.root, objects=objects)
    await _started(at, manager)
    try:
        yield manager
    finally:
        await manager.stop()


async def _started(at: ClaimStage, manager: DraManager) -> None:
    await manager.start()
    await at.node.until(lambda: manager.plugins.newest("holdfast.dev"), "the driver to be known")


def _pod(claim: Claim, *requests: str) -> Pod:
    """Return the pod that *claim* is reserved for, with one container of *requests* of it."""
    used = tuple(("c", request) for request in requests or ("",))
    spec = PodSpec(
        name="user",
        namespace=NAMESPACE,
        uid=claim.pods[0],
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
        await _started(at, kubelet)
        await kubelet.prepare(pod)
        (info,) = kubelet.cache.claims.values()
        assert len(info.drivers["holdfast.dev"]) == 6, "kubelet does not have the bug"
        assert kubelet.cdi(pod, pod.spec.containers[0]) == names
        known = {each["name"] for each in at.spec(both)["devices"]}
        assert {each.partition("=")[2] for each in names} == known

        await at.node.for_some_beats()
        assert (await at.node.asked("status") or {})["drift"] == []
        assert set((await at.node.locks()).values()) == {"held"}
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
