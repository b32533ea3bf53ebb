"""What the command line may ask the running daemon, and who answers."""

import os

import holdfast
from holdfast.app.answers import byhand, reports
from holdfast.app.answers.readiness import readiness
from holdfast.app.answers.reports import claim_reports
from holdfast.app.watches.proof import PING
from holdfast.app.wiring.assembly import Assembly
from holdfast.control.server import Handler
from holdfast.model.book.byhand import device_meant
from holdfast.model.ids import DeviceName
from holdfast.telemetry.readyz import Board, check_rows


def handlers(parts: Assembly, board: Board) -> dict[str, Handler]:
    """Return what the command line may ask, and who answers."""
    core = parts.core

    def inventory_reports() -> list[reports.Report]:
        return reports.device_reports(
            core.standings.now(),
            core.inventory.value.left_out,
            core.ledger.book.value,
            _offered(parts),
            {id_: notes for each in parts.discovery.sources for id_, notes in each.notes().items()},
        )

    async def holders(_: object) -> list[reports.Report]:
        devices, book = core.inventory.value.devices, core.ledger.book.value
        found = await parts.discovery.use.scan(devices, book.locks)
        held = {name: each.holders or () for name, each in found.items()}
        return reports.holder_reports(held, book, await parts.watches.memory.of_holders(held))

    async def history(question: object) -> list[reports.Report]:
        wanted = question if isinstance(question, dict) else {}
        device = None
        if text := wanted.get("device"):
            here = {each.name for each in core.inventory.value.devices}
            device = device_meant(str(text), here | await core.ledger.moved_devices())
        limit = reports.moves_wanted(wanted.get("limit", 100))
        moves = await core.ledger.history(device, limit)
        return reports.history_reports(moves, core.ledger.book.value)

    def debug(_: object) -> reports.Report:
        from holdfast.app.answers.debug import debug_state  # noqa: PLC0415 - memory, for what is rare

        return debug_state(parts, board)

    return {
        "status": lambda _: _status(parts, board),
        PING: lambda _: PING,
        "debug": debug,
        "devices": lambda _: inventory_reports(),
        "locks": lambda _: reports.lock_reports(core.ledger.book.value, core.standings.now()),
        "holders": holders,
        "history": history,
        **byhand.handlers(parts),
    }


def _offered(parts: Assembly) -> frozenset[DeviceName]:
    """Return the devices that kubelet, or with DRA the scheduler, may give to a pod."""
    to_kubelet = frozenset(parts.kubelet.offering.offers.value.healthy())
    return to_kubelet if parts.dra is None else to_kubelet | parts.dra.offered()


def _status(parts: Assembly, board: Board) -> reports.Report:
    board.renew(readiness(parts))
    core = parts.core
    inventory = core.inventory.value
    return {
        "version": holdfast.__version__,
        "pid": os.getpid(),
        "bootId": core.host.boot,
        "checks": check_rows(board.readiness),
        "noDevices": not (inventory.devices or inventory.left_out),
        "resources": reports.resource_reports(
            inventory.resources, core.standings.now(), _offered(parts), core.ledger.book.value
        ),
        "claims": claim_reports(core.ledger.book.value, core.obstacles.value),
        "drift": reports.drift_reports(parts.watches.drift.standing),
        "byHand": reports.mark_reports(core.ledger.book.value.marks),
        "rules": reports.rule_reports(inventory),
    }
