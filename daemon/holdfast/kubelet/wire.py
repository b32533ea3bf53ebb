"""How kubelet's sockets and our own are dialled."""

from pathlib import Path

from grpc import aio

LARGEST_MESSAGE = 16 << 20
"""The most that is read of one message, in bytes.

Many times what kubelet sends about a full node: a longer message must not exhaust our memory.
"""

_OPTIONS: tuple[tuple[str, str | int], ...] = (
    # Connections to one path share their back-off otherwise: a kubelet that is just back would
    # be left alone for as long as the one before it did not answer.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", LARGEST_MESSAGE),
)


def dial(socket: Path) -> aio.Channel:
    """Return a new channel to the unix socket at *socket* (absolute), shared with nobody."""
    return aio.insecure_channel(f"unix://{socket}", options=_OPTIONS)


def what_went_wrong(error: aio.AioRpcError) -> str:
    """Return the other side's words, with the status code that they came under."""
    details = error.details() or "no reason given"
    return f"{details} ({error.code().name})"
