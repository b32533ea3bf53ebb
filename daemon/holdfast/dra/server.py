"""Answers kubelet's two calls about claims; every decision is the door's."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import grpc
import structlog
from grpc import aio
from msgspec import Struct

from holdfast._pb.dra.v1 import api_pb2
from holdfast.dra.door import Door
from holdfast.errors import bug, no_decision
from holdfast.model.dra.claims import PrepareAnswer
from holdfast.model.ids import ClaimRef, ClaimUid
from holdfast.model.kubelet import RecordedDevice
from holdfast.model.text import printable

log = structlog.get_logger(__name__)

T = TypeVar("T")

_SERVICES = (
    "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
    "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
)
"""Both are answered with v1's messages: v1beta1 lacks `share_id`, and its kubelets skip it."""


DEADLINE = 43.0
"""Seconds after which a call is answered although nothing is decided; kubelet gives up after 45."""


class ClaimServer(Struct, frozen=True):
    """The gRPC service of claims, for every version that a kubelet may choose.

    Each claim that was asked about gets an answer or an error of its own: an error of the whole
    call would tell the pod's owner nothing, and kubelet that nothing was done.

    The `door` decides within 40 s. After `deadline` seconds its call is cancelled, and each claim
    gets an error.
    """

    door: Door
    deadline: float = DEADLINE

    def add_to(self, server: aio.Server) -> None:
        """Have *server* answer kubelet."""
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "NodePrepareResources": grpc.unary_unary_rpc_method_handler(
                self.prepare,
                request_deserializer=api_pb2.NodePrepareResourcesRequest.FromString,
                response_serializer=api_pb2.NodePrepareResourcesResponse.SerializeToString,
            ),
            "NodeUnprepareResources": grpc.unary_unary_rpc_method_handler(
                self.unprepare,
                request_deserializer=api_pb2.NodeUnprepareResourcesRequest.FromString,
                response_serializer=api_pb2.NodeUnprepareResourcesResponse.SerializeToString,
            ),
        }
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(name, handlers) for name in _SERVICES]
        )

    async def prepare(
        self, request: api_pb2.NodePrepareResourcesRequest, _context: object
    ) -> api_pb2.NodePrepareResourcesResponse:
        """Return the devices of each claim, or why it may not be used yet."""
        answers = await self._answers(
            "NodePrepareResources",
            request.claims,
            self.door.prepare,
            lambda text: PrepareAnswer(error=text),
        )
        response = api_pb2.NodePrepareResourcesResponse()
        for uid, answer in answers.items():
            response.claims[uid].error = printable(answer.error)
            response.claims[uid].devices.extend(_device(device) for device in answer.devices)
        return response

    async def unprepare(
        self, request: api_pb2.NodeUnprepareResourcesRequest, _context: object
    ) -> api_pb2.NodeUnprepareResourcesResponse:
        """Return for each claim that it is over, or why it is not yet."""
        answers = await self._answers(
            "NodeUnprepareResources", request.claims, self.door.unprepare, str
        )
        response = api_pb2.NodeUnprepareResourcesResponse()
        for uid, error in answers.items():
            response.claims[uid].error = printable(error)
        return response

    async def _answers(
        self,
        call: str,
        claims: Iterable[api_pb2.Claim],
        ask: Callable[[Sequence[ClaimRef]], Awaitable[Mapping[ClaimUid, T]]],
        error: Callable[[str], T],
    ) -> Mapping[ClaimUid, T]:
        """Return what *ask* answers for each of *claims*; where it fails, an *error* for each."""
        asked = {ClaimUid(each.uid): _claim(each) for each in claims}
        patience = asyncio.timeout(self.deadline)
        try:
            async with patience:
                return await ask(list(asked.values()))
        except Exception as failure:
            log.exception("kubelet call failed", call=call)
            late = isinstance(failure, TimeoutError) and patience.expired()
            why = no_decision(self.deadline) if late else bug(failure)
            return dict.fromkeys(asked, error(f"cannot answer {call}: {why}"))


def _claim(claim: api_pb2.Claim) -> ClaimRef:
    return ClaimRef(namespace=claim.namespace, uid=ClaimUid(claim.uid), name=claim.name)


def _device(device: RecordedDevice) -> api_pb2.Device:
    return api_pb2.Device(
        request_names=device.requests,
        pool_name=device.pool,
        device_name=device.name,
        cdi_device_ids=device.cdi_ids,
        share_id=device.share_id or None,
    )
