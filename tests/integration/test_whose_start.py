"""A start that waits at the gate while kubelet gives its devices to another pod."""

import asyncio
import time
from pathlib import Path

import grpc
import pytest

from fakes.opener import opener
from fakes.stage import TPU, end, pod, stage
from holdfast._pb.deviceplugin.v1beta1 import api_pb2 as api
from simulated.pods import Container, PodSpec

_WAIT = 25.0


async def test_a_start_is_refused_at_once_when_kubelet_gave_its_device_to_another_pod(
    short_path: Path,
) -> None:
    """Kubelet's call for a pod that was deleted by force may be on its way for 30 s."""
    gate = {"wait": f"{_WAIT:g}s"}
    async with stage(short_path, chips=1, gate=gate, reclaim={"mode": "observe"}) as node:
        _, left = await node.left_behind("former")
        first = await node.submit(pod("first"))
        plugin = node.kubelet.devices.plugin(TPU)
        request = api.PreStartContainerRequest(devices_ids=sorted(node.ids(first)))
        began = time.monotonic()
        call = asyncio.ensure_future(plugin.PreStartContainer(request))
        await node.questions(3)
        assert not call.done()
        node.kubelet.delete(first, force=True, grace=0.0)
        second = await node.submit(pod("second"))
        assert node.ids(second) == set(request.devices_ids)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        told = refused.value.details() or ""
        assert "no longer has the devices for " in told
        assert time.monotonic() - began < _WAIT  # waiting would not have mended it
        end(left)
        await node.running(second)
        assert first.starts == 0


async def test_a_pod_that_takes_a_device_by_itself_does_not_get_its_lock(short_path: Path) -> None:
    """What it was never granted it would else be ended for: a guard asks whose the lock is."""
    async with stage(short_path, chips=1, reclaim={"mode": "observe"}) as node:
        (only,) = node.healthy()
        waits = await node.submit(pod("waits", pull=3600.0))

        async def has_it() -> bool:
            return await node.owners() == {only: waits.uid}

        await node.until(has_it, "it to have the lock")
        # A privileged pod sees every node of the host.
        taker = await node.run(PodSpec(name="taker", containers=(Container(),)))
        with opener(node.node.node("/dev/vfio/10")) as taken:
            node.node.enter(taker.uid, "main", taken.pid)

            async def named() -> bool:
                return any(row["pid"] == taken.pid for row in await node.asked("holders"))

            await node.until(named, "the daemon to see who holds it")
            await node.for_some_beats()
            assert await has_it()
            assert await node.ever("releasing") == []
