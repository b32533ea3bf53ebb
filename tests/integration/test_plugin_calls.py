"""What kubelet is answered to each of its calls, over a real socket."""

import asyncio
from pathlib import Path

import grpc
import pytest
from grpc import aio

from fakes.kubelet_side import (
    OTHER,
    TPU,
    Deciding,
    bare_plugin,
    chips,
    kubelet_below,
    kubelet_side,
    plugin_server,
    registered_side,
)
from holdfast._pb.deviceplugin.v1beta1 import api_pb2 as dp
from holdfast._pb.deviceplugin.v1beta1 import api_pb2_grpc as dp_grpc
from holdfast.errors import AllocationRefusedError, GateRefusedError, LedgerError
from holdfast.kubelet.plugin import CallDeadlines
from holdfast.kubelet.podresources import Traffic
from holdfast.model.grants import ContainerGrant
from holdfast.model.ids import DeviceId, ResourceName
from manual_clock import ManualClock
from waiting import until


async def test_only_changes_of_its_own_list_and_wishes_to_resend_are_sent_on_a_stream(
    short_path: Path,
) -> None:
    async with (
        kubelet_below(short_path) as kubelet,
        kubelet_side(short_path, resources=(TPU, OTHER)) as side,
    ):
        await until(lambda: side.registered(TPU) and side.registered(OTHER))
        await until(lambda: kubelet.messages.get(TPU) and kubelet.messages.get(OTHER))
        side.offer(TPU, chips("a", "b", unhealthy="b"))
        await until(lambda: len(kubelet.messages[TPU]) == 2)
        side.resend()
        await until(lambda: len(kubelet.messages[OTHER]) == 2)
        await until(lambda: len(kubelet.messages[TPU]) == 3)
        assert kubelet.messages[TPU] == [
            {"a": "Healthy", "b": "Healthy"},
            {"a": "Healthy", "b": "Unhealthy"},
            {"a": "Healthy", "b": "Unhealthy"},
        ]
        for device in kubelet.devices.endpoints[TPU].devices.values():
            assert [node.ID for node in device.topology.nodes] == [0]
        assert kubelet.messages[OTHER][0] == kubelet.messages[OTHER][1]


async def test_many_changes_at_once_reach_kubelet_as_the_latest_list(short_path: Path) -> None:
    async with registered_side(short_path) as (kubelet, side):
        await until(lambda: kubelet.messages.get(TPU))
        for number in range(50):
            side.offer(TPU, chips(f"d{number}"))
        await until(lambda: [*kubelet.messages[TPU][-1]] == ["d49"])
        assert len(kubelet.messages[TPU]) <= 3


async def test_allocate_answers_once_for_each_container_with_all_of_the_grant(
    short_path: Path,
) -> None:
    async with registered_side(short_path) as (kubelet, side):
        request = dp.AllocateRequest()
        request.container_requests.add(devices_ids=["a"])
        request.container_requests.add(devices_ids=["b", "a"])
        answer = await kubelet.devices.plugin(TPU).Allocate(request)
        assert [dict(each.envs) for each in answer.container_responses] == [
            {"CHIPS": "a"},
            {"CHIPS": "b,a"},
        ]
        one = answer.container_responses[0]
        assert [(each.host_path, each.permissions) for each in one.devices] == [
            ("/dev/vfio/a", "rw")
        ]
        assert one.mounts[0] == dp.Mount(
            host_path="/lib/x", container_path="/lib/y", read_only=True
        )
        assert dict(one.annotations) == {"a": "b"}
        assert [each.name for each in one.cdi_devices] == ["google.com/tpu=0"]
        await until(lambda: side.traffic.in_flight.value == 0, what="kubelet to have its answer")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (
            AllocationRefusedError("cannot allocate x: no such device"),
            grpc.StatusCode.FAILED_PRECONDITION,
        ),
        (
            GateRefusedError("cannot start: pid 7 (python) holds it"),
            grpc.StatusCode.FAILED_PRECONDITION,
        ),
        (LedgerError("cannot commit: disk full"), grpc.StatusCode.UNAVAILABLE),
        (ZeroDivisionError("a bug"), grpc.StatusCode.INTERNAL),
    ],
)
async def test_each_error_has_one_code_and_its_own_text(
    short_path: Path, error: Exception, code: grpc.StatusCode
) -> None:
    async with registered_side(short_path) as (kubelet, side):
        side.deciding.fail = error
        with pytest.raises(aio.AioRpcError) as allocate:
            await kubelet.give("u", TPU, "a")
        with pytest.raises(aio.AioRpcError) as start:
            await kubelet.devices.plugin(TPU).PreStartContainer(
                dp.PreStartContainerRequest(devices_ids=["a"])
            )
        for caught in (allocate.value, start.value):
            assert caught.code() is code
            assert str(error) in (caught.details() or "")
        await until(lambda: side.traffic.in_flight.value == 0, what="kubelet to have its answer")


async def test_a_preference_is_never_an_error_and_always_as_many_answers_as_questions(
    short_path: Path,
) -> None:
    async with registered_side(short_path) as (kubelet, side):
        request = dp.PreferredAllocationRequest()
        for size in (2, 0, -3):
            request.container_requests.add(
                available_deviceIDs=["c", "a", "b"],
                must_include_deviceIDs=["b"][: max(size, 0)],
                allocation_size=size,
            )
        answer = await kubelet.devices.plugin(TPU).GetPreferredAllocation(request)
        assert len(answer.container_responses) == 3
        side.deciding.fail = RuntimeError("a bug")
        answer = await kubelet.devices.plugin(TPU).GetPreferredAllocation(request)
        assert [list(each.deviceIDs) for each in answer.container_responses] == [["b", "a"], [], []]


async def test_kubelet_is_not_asked_for_its_pods_between_a_preference_and_its_allocate(
    short_path: Path,
) -> None:
    async with registered_side(short_path) as (kubelet, side):
        clock = ManualClock()
        quiet = asyncio.create_task(side.traffic.quiet(clock, seconds=0.1))
        await clock.advance(0.09)
        # Kubelet has picked devices by then, and forgets them at a List (kubernetes#137534).
        request = dp.PreferredAllocationRequest()
        await kubelet.devices.plugin(TPU).GetPreferredAllocation(request)
        await until(lambda: side.traffic.in_flight.value == 0, what="kubelet to have its answer")
        await clock.advance(0.02)
        assert not quiet.done()
        await clock.advance(0.11)
        await quiet


async def test_a_decision_that_never_comes_is_answered_all_the_same(short_path: Path) -> None:
    async with registered_side(short_path, deadlines=CallDeadlines(allocate=0.2, gate=0.2)) as (
        kubelet,
        side,
    ):
        side.deciding.hold.clear()
        with pytest.raises(aio.AioRpcError, match="no decision in 0.2 s"):
            await kubelet.devices.plugin(TPU).PreStartContainer(dp.PreStartContainerRequest())
        assert side.deciding.cancelled == 1
        with pytest.raises(aio.AioRpcError, match="no decision in 0.2 s"):
            await kubelet.give("u", TPU, "a")


async def test_a_start_that_kubelet_gives_up_is_cancelled_at_the_gate(short_path: Path) -> None:
    async with registered_side(short_path) as (kubelet, side):
        side.deciding.hold.clear()
        asked = side.deciding.asked
        while not asked:  # on a busy machine its time may be over before it is at the gate
            with pytest.raises(aio.AioRpcError, match="Deadline"):
                await kubelet.devices.plugin(TPU).PreStartContainer(
                    dp.PreStartContainerRequest(devices_ids=["a"]), timeout=0.2
                )
        await until(lambda: side.deciding.cancelled == len(asked))


async def test_an_allocate_that_kubelet_gives_up_is_still_carried_out(short_path: Path) -> None:
    finished: list[bool] = []

    class Slow(Deciding):
        async def allocate(
            self, resource: ResourceName, ids: tuple[DeviceId, ...]
        ) -> ContainerGrant:
            answer = await super().allocate(resource, ids)
            finished.append(True)
            return answer

    slow, traffic = Slow(), Traffic()
    slow.hold.clear()
    plugin = bare_plugin(slow, traffic)
    server = plugin_server(short_path, plugin)
    await server.start()
    async with aio.insecure_channel(f"unix://{server.socket.path}") as channel:
        request = dp.AllocateRequest(container_requests=[dp.ContainerAllocateRequest()])
        call = dp_grpc.DevicePluginStub(channel).Allocate(request)
        await until(lambda: slow.asked)
        call.cancel()
        await until(lambda: traffic.in_flight.value == 0, what="the call to be over for us, too")
        slow.hold.set()
        await until(lambda: finished)
    await server.close()


async def test_the_end_of_a_stream_from_before_tells_nothing_of_the_present_registration(
    short_path: Path,
) -> None:
    plugin = bare_plugin(Deciding())
    server = plugin_server(short_path, plugin)
    await server.start()
    async with aio.insecure_channel(f"unix://{server.socket.path}") as channel:
        stub = dp_grpc.DevicePluginStub(channel)
        former = stub.ListAndWatch(dp.Empty())
        await until(lambda: plugin.streams.value.open == 1)
        plugin.begin_era()
        present = stub.ListAndWatch(dp.Empty())
        await until(lambda: plugin.streams.value.open == 2)
        former.cancel()
        await until(lambda: plugin.streams.value.open == 1)
        assert plugin.streams.value.ended == 0
        present.cancel()
        await until(lambda: plugin.streams.value.ended == 1)
    await server.close()
