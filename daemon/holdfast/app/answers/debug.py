"""All that the running daemon knows, as JSON: told on the control socket alone, never over HTTP.

It names pods, processes and paths, which are the node's business; root on the node may see them.
"""

import asyncio
import math
import os
import platform
import sys
import threading
import traceback
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

import holdfast
from holdfast.app.answers.readiness import readiness
from holdfast.app.answers.reports import claim_reports
from holdfast.app.wiring.assembly import Assembly
from holdfast.settings import plain
from holdfast.telemetry.readyz import Board, check_rows

_LIBRARIES = ("grpcio", "protobuf", "msgspec", "prometheus-client", "structlog")
_FRAMES = 6
"""The innermost ones of each thread and task: enough to see what it waits for."""


def debug_state(parts: Assembly, board: Board) -> dict[str, Any]:
    """Return everything; reads nothing from the node, so that it answers when the node does not."""
    board.renew(readiness(parts))
    core, discovery, kubelet = parts.core, parts.discovery, parts.kubelet
    allocation, reclaim = parts.allocation, parts.reclaim
    now = core.clock.monotonic()
    return {
        "versions": _versions(),
        "process": {
            "pid": os.getpid(),
            "bootId": core.host.boot,
            "loopSilentFor": board.silent_for,
            "tasks": {task.get_name(): _task(task) for task in asyncio.all_tasks()},
            "threads": _threads(),
        },
        "settings": plain(core.settings),
        "checks": check_rows(board.readiness),
        "inventory": as_json(core.inventory.value),
        "discovery": {
            "problem": discovery.scanner.problem.text,
            "scans": discovery.scanner.scans,
            "lookedAgo": _ago(discovery.scanner.looked_at, now),
        },
        "book": as_json(core.ledger.book.value),
        "claims": claim_reports(core.ledger.book.value, core.obstacles.value),
        "ledger": {
            "failingFor": _ago(core.ledger.failing_since, now),
            "problem": core.ledger.problem,
            "provenAgo": _ago(core.ledger.proven_at, now),
        },
        "kubelet": {
            "view": as_json(core.view.value),
            "folder": as_json(kubelet.folder.state.value),
            "registrations": as_json(allocation.registrar.registrations.value),
            "offers": as_json(kubelet.offering.offers.value),
            "sockets": as_json(parts.watches.sockets.results),
        },
        "cdi": as_json(discovery.specs.published),
        "gate": {
            "waiting": allocation.gate.entry.count,
            "heldUp": as_json(allocation.gate.entry.held_up.value),
        },
        "watch": {
            "problem": reclaim.watcher.problem.text,
            "comparedAgo": _ago(reclaim.watcher.compared_at, now),
            "looked": reclaim.watcher.looked.is_set(),
            "holders": as_json(discovery.use.holders),
        },
        "dra": _dra(parts, now),
        "resets": reclaim.resetter.stuck,
        "scan": {
            "last": as_json(discovery.look.last_scan),
            "fullAgo": _ago(discovery.look.full_scan_at, now),
            "fullSeconds": discovery.look.full_scan_seconds,
            "fullGaps": list(discovery.look.full_gaps),
        },
        "lanes": {
            name: {
                "deadline": lane.deadline,
                "lastSeconds": lane.latency,
                "stuckFor": _ago(lane.stuck_since, now),
            }
            for name, lane in core.host.lanes.items()
        },
        "drift": [
            {"since": since, **as_json(each)}
            for each, since in parts.watches.drift.standing.items()
        ],
        "adapters": {each.name: as_json(each.state()) for each in discovery.sources},
    }


def _dra(parts: Assembly, now: float) -> dict[str, Any] | None:
    dra = parts.dra
    if dra is None:
        return None
    publisher = dra.publisher
    return {
        "driver": dra.driver,
        "pool": dra.node,
        "registration": as_json(dra.registrar.registration.value),
        "slices": {
            "problem": publisher.problem,
            "agreedAgo": _ago(publisher.agreed_at, now),
            "failingFor": _ago(publisher.failing_since, now),
            "taintsKept": publisher.kept.taints,
            "countersKept": publisher.kept.counters,
            "sharesKept": publisher.kept.shares,
            "untainted": as_json(publisher.offered),
        },
        "kubeletsRecord": {
            "problem": dra.records.problem,
            "claims": as_json(dra.records.entries),
        },
    }


def as_json(value: object) -> Any:  # noqa: ANN401 - JSON
    """Return *value* as JSON has it: structs as objects, keys and what is unknown as text."""
    value = value.value if isinstance(value, Enum) else value
    if value is None or isinstance(value, (bool, int, float, str)):
        # JSON has no NaN and no infinity.
        return value if not isinstance(value, float) or math.isfinite(value) else str(value)
    if isinstance(value, Struct):
        return {name: as_json(each) for name, each in asdict(value).items()}
    if isinstance(value, Mapping):
        return {str(key): as_json(each) for key, each in value.items()}
    if isinstance(value, AbstractSet):
        return sorted((as_json(each) for each in value), key=str)
    return [as_json(each) for each in value] if isinstance(value, (list, tuple)) else str(value)


def _versions() -> dict[str, str]:
    from importlib.metadata import version  # noqa: PLC0415 - 3 MiB that only a bug report needs

    return {
        "holdfast": holdfast.__version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        **{name: version(name) for name in _LIBRARIES},
    }


def _ago(moment: float | None, now: float) -> float | None:
    return None if moment is None else max(0.0, now - moment)


def _task(task: asyncio.Task[Any]) -> list[str]:
    return [_place(frame.f_code.co_filename, frame.f_lineno) for frame in task.get_stack()]


def _threads() -> dict[str, list[str]]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    # CPython's own way to see where a lane's call hangs, as faulthandler and debuggers do.
    return {
        names.get(ident, str(ident)): [
            _place(each.filename, each.lineno or 0)
            for each in traceback.extract_stack(frame)[-_FRAMES:]
        ]
        for ident, frame in sys._current_frames().items()  # noqa: SLF001 - as said above
    }


def _place(path: str, line: int) -> str:
    _, found, inside = path.rpartition("holdfast/")
    return f"{found}{inside}:{line}"
