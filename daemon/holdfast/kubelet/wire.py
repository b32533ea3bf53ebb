"""The gRPC edge: how sockets are dialled, and which status code each error of ours becomes."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import grpc
from grpc import aio

from holdfast.errors import (
    AllocationRefusedError,
    GateRefusedError,
    HoldfastError,
    LaneStuckError,
    LedgerError,
)

Request = TypeVar("Request")
Response = TypeVar("Response")

_CODES: tuple[tuple[type[HoldfastError], grpc.StatusCode], ...] = (
    (AllocationRefusedError, grpc.StatusCode.FAILED_PRECONDITION),
    (GateRefusedError, grpc.StatusCode.FAILED_PRECONDITION),
    (LedgerError, grpc.StatusCode.UNAVAILABLE),
    (LaneStuckError, grpc.StatusCode.UNAVAILABLE),
    (HoldfastError, grpc.StatusCode.FAILED_PRECONDITION),
)

LARGEST_MESSAGE = 16 << 20
"""The most that is read of one message, in bytes.

Many times what kubelet tells of a full node: one that says more must not end us for memory.
"""

_OPTIONS: tuple[tuple[str, str | int], ...] = (
    # Connections to one path share their back-off otherwise: a kubelet that is just back would
    # be left alone for as long as the one before it did not answer.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", LARGEST_MESSAGE),
)


def code_of(error: HoldfastError) -> grpc.StatusCode:
    """Return the status code that *error* becomes on the wire."""
    return next(code for kind, code in _CODES if isinstance(error, kind))


def dial(socket: Path) -> aio.Channel:
    """Return a new channel to the unix socket at *socket* (absolute), shared with nobody."""
    return aio.insecure_channel(f"unix://{socket}", options=_OPTIONS)


def what_went_wrong(error: aio.AioRpcError) -> str:
    """Return the other side's words, with the status code that they came under."""
    details = error.details() or "no reason given"
    return f"{details} ({error.code().name})"


def when_over(context: aio.ServicerContext[Request, Response], act: Callable[[], None]) -> None:
    """Call *act* once the call of *context* is over: answered, failed or given up by its caller."""
    # The stub's callback type is a class where a protocol is meant; no function can satisfy it.
    context.add_done_callback(lambda _: act())  # type: ignore[arg-type]
