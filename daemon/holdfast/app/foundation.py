"""What the builders of the daemon's parts all build on."""

from dataclasses import dataclass

from holdfast.app.hosts import Hosts
from holdfast.discovery.scanner import Scanner
from holdfast.ledger.ledger import Ledger
from holdfast.runtime.clock import Clock
from holdfast.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Foundation:
    """The settings, the node, the book, the hardware and the time."""

    settings: Settings
    host: Hosts
    ledger: Ledger
    scanner: Scanner
    clock: Clock
