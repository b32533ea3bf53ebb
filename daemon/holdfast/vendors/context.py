"""What an adapter is built on, and by what it tells the daemon that something is new."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from holdfast.allocation.cdi import SpecWriter
from holdfast.discovery.source import Source
from holdfast.host.root import HostRoot
from holdfast.ledger.ledger import Ledger
from holdfast.model.devices import Device
from holdfast.model.ids import BootId
from holdfast.model.kubelet import CheckpointEntry
from holdfast.runtime.clock import Clock
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched
from holdfast.settings import Settings


class Context(Struct, frozen=True, kw_only=True):
    """The parts of the daemon that an adapter may use; the callables are for the event loop."""

    settings: Watched[Settings]
    """Take a `part` of it for what is read while the daemon runs (settings.reloading)."""
    root: HostRoot
    boot: BootId
    ledger: Ledger
    clock: Clock
    open_lane: Callable[[str, Watched[float]], Lane]
    """Opens a lane for calls that can block: its name, and its deadline in seconds."""
    spec_writer: Callable[[str, str], SpecWriter]
    """Returns what writes the CDI specs of a vendor: the beginning of the files' names, and what
    joins it with the rest."""
    answers: Callable[[], Sequence[CheckpointEntry]]
    """Returns what kubelet's checkpoint says of every container."""
    look_again: Callable[[], None]
    """Has discovery call `scan` and `found` soon."""
    taken: Callable[[Device], bool]
    """Tells whether a rule of the settings takes a device out of its resource."""
    report: Callable[[], None]
    """Publishes `faults` at once."""
    count: Callable[[str, str, str], None]
    """Counts an event of the hardware: its kind, its code, and what clears it."""
    replace: Callable[[Source], None]
    """Puts another adapter in the place of the one with its name."""


Vendor = Callable[[Context], Source]
"""Builds an adapter; it is called once at the start of the daemon, and must not block."""
