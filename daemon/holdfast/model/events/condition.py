"""What the node's condition says of its devices, and when it is written.

https://kubernetes.io/docs/reference/node/node-status/#condition
"""

from collections.abc import Sequence

from msgspec import Struct

from holdfast.model.events.kept import KeptDevice
from holdfast.model.text import printable

CONDITION = "HoldfastDevicesHeld"
"""The condition's type."""

_MOST_NAMED = 3
_MOST_TEXT = 1000
"""Characters; each reader of the Node object is sent them."""
_LEAST = 5.0
"""Seconds between two writes: each goes to whatever watches the nodes of the cluster."""
_LEAST_FOR_TEXT = 120.0
"""Seconds between two writes of which the second only changes the message."""
_HEARTBEAT = 1800.0
"""Seconds after which it is written although nothing changed: the Node may have been made anew."""


class Condition(Struct, frozen=True, kw_only=True):
    """The condition: whether any device is kept from its next pod, and why."""

    status: bool
    reason: str
    message: str


class Stored(Struct, frozen=True, kw_only=True):
    """What the server has of the condition, and since when it has this `status`.

    `condition` is None and `since` empty where the Node has none; `since` is in the server's words.
    """

    condition: Condition | None = None
    since: str = ""


def condition_of(kept: Sequence[KeptDevice]) -> Condition:
    """Return the condition of a node that keeps these devices from their next pods."""
    if not kept:
        return Condition(
            status=False, reason="NoDeviceHeld", message="no device is kept from its next pod"
        )
    more = len(kept) - _MOST_NAMED
    text = "; ".join(each.text for each in kept[:_MOST_NAMED])
    quarantined = any(each.quarantined for each in kept)
    return Condition(
        status=True,
        reason="DeviceQuarantined" if quarantined else "DeviceHeld",
        message=printable(text, _MOST_TEXT) + (f"; and {more} more" if more > 0 else ""),
    )


def is_due(wanted: Condition, stored: Condition | None, seconds: float) -> bool:
    """Tell whether *wanted* is to be written, *seconds* after the last write.

    *stored* is what the server has, None where it has nothing.
    """
    if stored == wanted:
        return seconds >= _HEARTBEAT
    only_text = stored is not None and (wanted.status, wanted.reason) == (
        stored.status,
        stored.reason,
    )
    return seconds >= (_LEAST_FOR_TEXT if only_text else _LEAST)
