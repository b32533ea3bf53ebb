"""What the builders of the daemon's parts all build on."""

from msgspec import Struct

from holdfast.app.wiring.hosts import Hosts
from holdfast.discovery.scanner import Scanner
from holdfast.ledger.ledger import Ledger
from holdfast.runtime.clock import Clock
from holdfast.settings import Settings


class Foundation(Struct, frozen=True, kw_only=True):
    """The settings, the node, the book, the hardware and the time."""

    settings: Settings
    host: Hosts
    ledger: Ledger
    scanner: Scanner
    clock: Clock
