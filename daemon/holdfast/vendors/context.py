"""What an adapter is built on, and by what it tells the daemon that something is new."""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from holdfast.allocation.specwriter import SpecWriter
from holdfast.discovery.source import Source
from holdfast.host.root import HostRoot
from holdfast.ledger.ledger import Ledger
from holdfast.model.devices import Device
from holdfast.model.ids import BootId
from holdfast.model.kubelet import KubeletView
from holdfast.runtime.clock import Clock
from holdfast.runtime.lane import Lanes
from holdfast.runtime.watched import Watched
from holdfast.settings import Settings


class DiscoveryRequests(Protocol):
    """What an adapter asks of discovery, on the event loop; see `discovery.scanner`."""

    def look_again(self) -> None:
        """Have `scan` and `found` called soon."""

    def publish(self) -> None:
        """Publish `faults` at once."""

    def replace(self, source: Source) -> None:
        """Put another adapter in the place of the one with its name."""


class Context(Struct, frozen=True, kw_only=True):
    """The parts of the daemon that an adapter may use."""

    settings: Watched[Settings]
    """Take a `part` of it for what is read while the daemon runs (settings.reloading)."""
    root: HostRoot
    boot: BootId
    ledger: Ledger
    clock: Clock
    lanes: Lanes
    """Opens lanes for calls that can block."""
    specs: Callable[[str, str], SpecWriter]
    """Makes what writes the CDI specs of a vendor: files whose names begin with both texts."""
    view: Watched[KubeletView]
    """What kubelet's checkpoint says of every container."""
    discovery: DiscoveryRequests
    taken: Callable[[Device], bool]
    """Tells whether a rule of the settings takes a device out of its resource."""
    count: Callable[[str, str, str], None]
    """Counts an event of the hardware, for metrics: its kind, its code, and what clears it."""


Vendor = Callable[[Context], Source]
"""Builds an adapter; it is called once at the start of the daemon, and must not block."""
