"""Kubelet's calls about claims over a real socket, in both versions of the service."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from grpc import aio

from fakes.driver_side import DriverSide, dial, dra_kubelet, driver_side
from holdfast._pb.dra.v1 import api_pb2 as v1
from holdfast._pb.dra.v1 import api_pb2_grpc as v1_grpc
from holdfast._pb.dra.v1beta1 import api_pb2 as v1beta1
from holdfast._pb.dra.v1beta1 import api_pb2_grpc as v1beta1_grpc
from holdfast.dra.server import DEADLINE
from holdfast.model.ids import ClaimRef, ClaimUid
from waiting import until


class Kubelet(NamedTuple):
    """A kubelet that knows one version, and the driver that it calls."""

    api: ModuleType
    stub: Any
    driver: DriverSide

    async def prepare(self, *uids: str) -> dict[str, Any]:
        request = self.api.NodePrepareResourcesRequest(claims=self._claims(uids))
        return dict((await self.stub.NodePrepareResources(request, timeout=60)).claims)

    async def unprepare(self, *uids: str) -> dict[str, str]:
        request = self.api.NodeUnprepareResourcesRequest(claims=self._claims(uids))
        answer = await self.stub.NodeUnprepareResources(request, timeout=60)
        return {uid: each.error for uid, each in answer.claims.items()}

    def _claims(self, uids: tuple[str, ...]) -> list[Any]:
        return [self.api.Claim(namespace="ns", uid=uid, name=f"claim-{uid}") for uid in uids]


@pytest.fixture
def deadline() -> float:
    return DEADLINE


@pytest.fixture(params=["v1", "v1beta1"])
async def kubelet(
    request: pytest.FixtureRequest, short_path: Path, deadline: float
) -> AsyncIterator[Kubelet]:
    api, stub = {
        "v1": (v1, v1_grpc.DRAPluginStub),
        "v1beta1": (v1beta1, v1beta1_grpc.DRAPluginStub),
    }[request.param]
    async with dra_kubelet(short_path), driver_side(short_path, deadline=deadline) as driver:
        await until(lambda: driver.state.registered)
        async with dial(driver.socket) as channel:
            yield Kubelet(api, stub(channel), driver)


def _ref(uid: str) -> ClaimRef:
    return ClaimRef(namespace="ns", uid=ClaimUid(uid), name=f"claim-{uid}")


async def test_a_batch_is_one_question_and_every_claim_has_its_answer(kubelet: Kubelet) -> None:
    kubelet.driver.door.refusals["u2"] = "cannot prepare claim ns/claim-u2: pid 7 has it open"

    answers = await kubelet.prepare("u1", "u2", "u3")

    assert kubelet.driver.door.calls == [("prepare", (_ref("u1"), _ref("u2"), _ref("u3")))]
    assert {uid: answer.error for uid, answer in answers.items()} == {
        "u1": "",
        "u2": "cannot prepare claim ns/claim-u2: pid 7 has it open",
        "u3": "",
    }
    (device,) = answers["u1"].devices
    assert list(device.request_names) == ["chips"]
    assert (device.pool_name, device.device_name) == ("node-a", "tpu-0")
    assert list(device.cdi_device_ids) == ["holdfast.test/claim=u-tpu-0"]
    assert "share_id" not in [field.name for field, _ in device.ListFields()]
    assert not answers["u2"].devices


async def test_an_unprepare_says_of_each_claim_whether_it_is_over(kubelet: Kubelet) -> None:
    kubelet.driver.door.refusals["u1"] = "cannot unprepare: pid 7 has it open"

    assert await kubelet.unprepare("u1", "u2") == {
        "u1": "cannot unprepare: pid 7 has it open",
        "u2": "",
    }


async def test_what_goes_wrong_is_an_error_of_each_claim_and_never_of_the_call(
    kubelet: Kubelet,
) -> None:
    kubelet.driver.door.fail = ValueError("odd")
    text = "ValueError: odd; this is a bug in holdfast, see its log"

    prepared = await kubelet.prepare("u1", "u2")
    over = await kubelet.unprepare("u1", "u2")

    assert set(prepared) == set(over) == {"u1", "u2"}
    assert all(text in answer.error for answer in prepared.values())
    assert all(text in answer for answer in over.values())


@pytest.mark.parametrize("deadline", [0.5])
async def test_an_answer_comes_before_kubelet_gives_up(kubelet: Kubelet) -> None:
    kubelet.driver.door.hold.clear()

    answers = await kubelet.prepare("u1")

    assert "no decision in 0.5 s" in answers["u1"].error
    assert kubelet.driver.door.cancelled == 1


async def test_two_calls_are_decided_side_by_side(kubelet: Kubelet) -> None:
    kubelet.driver.door.hold.clear()
    waiting = asyncio.create_task(kubelet.prepare("u1"))
    await until(lambda: kubelet.driver.door.calls)
    other = asyncio.create_task(kubelet.unprepare("u2"))
    await until(lambda: len(kubelet.driver.door.calls) == 2)
    kubelet.driver.door.hold.set()
    assert (await waiting)["u1"].error == ""
    assert await other == {"u2": ""}


async def test_a_text_that_would_break_a_terminal_is_escaped(kubelet: Kubelet) -> None:
    kubelet.driver.door.refusals["u1"] = "held by \x1b[2J\n"

    assert (await kubelet.prepare("u1"))["u1"].error == r"held by \x1b[2J\n"


async def test_no_claims_are_no_error(kubelet: Kubelet) -> None:
    assert await kubelet.prepare() == {}
    assert await kubelet.unprepare() == {}


async def test_a_name_of_no_service_is_refused_by_grpc(kubelet: Kubelet) -> None:
    async with dial(kubelet.driver.socket) as channel:
        call: aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/k8s.io.kubelet.pkg.apis.dra.v2.DRAPlugin/NodePrepareResources"
        )
        with pytest.raises(aio.AioRpcError, match="UNIMPLEMENTED"):
            await call(b"")
