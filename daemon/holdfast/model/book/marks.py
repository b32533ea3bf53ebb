"""What a person withholds from new pods: quarantined devices, and a drained node.

A mark is not a state of a lock. The lock still says which pod has the hardware; a mark only says
that no new pod may get it. So a running pod keeps its device, and no retry can remove a mark.
"""

from collections.abc import Mapping
from datetime import UTC, datetime

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.model.ids import DeviceName, HardwareKey


class Asker(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who asked for something by hand, as the kernel reports the peer of the socket."""

    uid: int
    pid: int

    def __str__(self) -> str:
        """Return ``asked by uid 0, pid 4711``."""
        return f"asked by uid {self.uid}, pid {self.pid}"


class Mark(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """That a person asked, when (seconds since the epoch), and why; the reason may be empty."""

    asker: Asker
    at: float
    reason: str = ""

    def __str__(self) -> str:
        """Return the reason, who asked, and when."""
        when = datetime.fromtimestamp(self.at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        told = f"{self.asker} at {when}"
        return f"{self.reason} ({told})" if self.reason else told


class Quarantine(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device that a person withholds, with the hardware that it had when they asked."""

    device: DeviceName
    keys: frozenset[HardwareKey]
    mark: Mark


class Marks(Struct, frozen=True, kw_only=True):
    """All that is withheld by hand; `drain` is set while the whole node is."""

    quarantines: Mapping[DeviceName, Quarantine] = field(default_factory=dict)
    drain: Mark | None = None

    def __bool__(self) -> bool:
        """Return whether anything is withheld."""
        return bool(self.quarantines) or self.drain is not None

    def with_quarantine(self, quarantine: Quarantine) -> "Marks":
        """Return the same with *quarantine*, in place of a former one of its device."""
        changed = {**self.quarantines, quarantine.device: quarantine}
        return replace(self, quarantines=changed)

    def without(self, device: DeviceName) -> "Marks":
        """Return the same without the quarantine of *device*."""
        kept = {name: each for name, each in self.quarantines.items() if name != device}
        return replace(self, quarantines=kept)
