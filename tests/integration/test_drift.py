"""Disagreements between the ledger, kubelet's checkpoint and the kernel, on a whole node: told once."""

import asyncio
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from fakes.opener import stranger
from fakes.stage import TPU, Stage, pod, stage
from holdfast._pb.deviceplugin.v1beta1 import api_pb2 as api
from waiting import beside

_SOON = {"settle": "200ms", "beat": "100ms"}


async def _told(node: Stage, kind: str) -> dict[str, Any]:
    """Return the disagreement of *kind* once `status` names it."""
    found: list[dict[str, Any]] = []

    async def so() -> bool:
        found[:] = [each for each in await _standing(node) if each["kind"] == kind]
        return bool(found)

    await node.until(so, f"{kind} to be told")
    return found[0]


async def _another_plugin(node: Stage) -> None:
    """Be a second plugin under our resource's name: each of its messages replaces ours."""
    while True:
        endpoint = node.kubelet.devices.endpoints[TPU]
        endpoint.devices = {
            id_: api.Device(ID=id_, health="Healthy") for id_ in ("accel0", "accel1")
        }
        node.kubelet.devices.write()
        await asyncio.sleep(0.05)


async def _standing(node: Stage) -> list[dict[str, Any]]:
    status = await node.asked("status")
    return list(status["drift"]) if status else []


async def _until_over(node: Stage) -> None:
    async def so() -> bool:
        return not await _standing(node)

    await node.until(so, "all truths to agree again")


async def test_a_kubelet_that_lost_its_books_of_a_running_pod_is_told_to_delete_it(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=2, drift=_SOON) as node:
        living = await node.run(pod("living", chips=2))
        await node.until_named(living)
        node.kubelet.devices.entries.clear()
        node.kubelet.devices.write()
        told = await _told(node, "lost-books")
        assert "default/living" in told["subject"]
        assert "no devices found allocated in local cache" in told["advice"]
        assert "delete the pod" in told["advice"]
        await node.end(living)
        await _until_over(node)


async def test_another_plugin_that_serves_our_resource_is_told(short_path: Path) -> None:
    async with stage(short_path, chips=2, drift=_SOON) as node:
        living = await node.run(pod("living"))
        async with beside(_another_plugin(node)):
            told = await _told(node, "not-our-list")
            assert told["subject"] == TPU
            assert "accel0, accel1" in told["other"]
            assert "another plugin" in told["advice"]
        await _until_over(node)
        await node.end(living)


async def test_a_pod_with_a_device_that_nobody_here_granted_is_told(short_path: Path) -> None:
    async with stage(short_path, chips=2, drift=_SOON) as node:
        living = await node.run(pod("living"))
        strange = await node.submit(pod("strange", chips=0))
        node.kubelet.devices.note(strange.uid, TPU, ["accel7"])
        node.kubelet.devices.write()
        told = await _told(node, "never-granted")
        assert told["subject"] == f"{TPU} accel7"
        assert strange.uid in told["one"]
        await node.end(strange)
        await node.end(living)
        await _until_over(node)


async def test_a_person_who_uses_a_chip_on_the_host_is_told_and_left_alone(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=2, drift=_SOON) as node:
        with capture_logs() as logged:
            await _someone_on_the_host(node)
    assert [each["event"] for each in logged if "drift" in each["event"]] == [
        "drift found",
        "drift resolved",
    ]


async def _someone_on_the_host(node: Stage) -> None:
    with stranger(node.node, "/dev/vfio/10") as person:
        told = await _told(node, "held-by-another")
        assert f"pid {person.pid}" in told["other"]
        assert "granted it to nobody" in told["one"]
        assert person.lives
    await _until_over(node)


async def test_devices_that_kubelet_leaked_are_told(short_path: Path) -> None:
    async with stage(short_path, chips=4, drift=_SOON) as node:
        # Kubelet counts a device as taken that no pod of its own has (kubernetes#130145).
        leaked = min(node.healthy())
        node.kubelet.devices.leaked[TPU] = {leaked}
        living = await node.run(pod("living"))
        told = await _told(node, "stale-accounting")
        assert leaked in told["subject"]
        assert "restart kubelet" in told["advice"]
        node.kubelet.devices.leaked.clear()
        await node.end(living)
        again = await node.run(pod("again"))
        await _until_over(node)
        await node.end(again)


async def test_a_pods_whole_life_leaves_no_disagreement(short_path: Path) -> None:
    async with stage(short_path, chips=2, drift={"settle": "0s", "beat": "100ms"}) as node:
        seen: list[dict[str, Any]] = []
        for turn in range(2):
            made = await node.run(pod(f"turn-{turn}", chips=2))
            await node.questions()
            seen += await _standing(node)
            await node.end(made)
            await node.until_free()
        seen += await _standing(node)
        assert seen == []
