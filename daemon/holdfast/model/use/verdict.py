"""A decision on whether a device is free, and the words that explain it."""

from enum import Enum

from msgspec import Struct

from holdfast.model.use.use import Holder


class Freedom(Enum):
    """Whether somebody uses a device; UNKNOWN means that we cannot see."""

    FREE = "free"
    IN_USE = "in use"
    UNKNOWN = "unknown"


class Verdict(Struct, frozen=True, kw_only=True):
    """A decision and the words that explain it."""

    freedom: Freedom
    reason: str
    holders: tuple[Holder, ...] = ()
    """The holders that the reason names."""
    final: bool = False
    """UNKNOWN until there is another answer: neither a start nor a release goes on."""
