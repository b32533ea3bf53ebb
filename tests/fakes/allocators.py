"""An allocator on a node without device nodes, whose kubelet has written no checkpoint."""

from pathlib import Path

from fakes.standings import device_standings
from holdfast.allocation.allocator import Allocator, GrantBuilder
from holdfast.discovery.source import Sources
from holdfast.host.root import HostRoot
from holdfast.ledger.ledger import Ledger
from holdfast.model.devices import Inventory
from holdfast.runtime.clock import Clock, SystemClock
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched

_NOWHERE = Path("/dev/null/none")


def allocator(
    ledger: Ledger,
    inventory: Watched[Inventory],
    sources: Sources,
    lane: Lane,
    *,
    commit_timeout: Watched[float] | None = None,
    clock: Clock | None = None,
) -> Allocator:
    clock = clock or SystemClock()
    return Allocator(
        ledger=ledger,
        inventory=inventory,
        standings=device_standings(ledger, inventory, clock),
        granting=GrantBuilder(sources, None),
        root=HostRoot.under(_NOWHERE),
        checkpoint=_NOWHERE,
        lane=lane,
        clock=clock,
        commit_timeout=commit_timeout or Watched(2.0),
    )
