"""Runs the daemon: starts the parts in order, keeps them running, stops them in reverse."""

import asyncio
import contextlib
import itertools
import os
import signal
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import structlog

import holdfast
from holdfast.app import byhand, reports
from holdfast.app.gpus import Gpus
from holdfast.app.hosts import build_host
from holdfast.app.parts import Parts, build
from holdfast.app.readiness import readiness
from holdfast.control.server import ControlServer, Handler
from holdfast.discovery.scanner import Scanner
from holdfast.errors import HoldfastError, HostError
from holdfast.host.udev import Uevents
from holdfast.ledger.ledger import InstanceLock, open_ledger
from holdfast.model.gpu import DriverState
from holdfast.model.locks import LockState
from holdfast.runtime.changes import Changes
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.supervisor import Supervisor
from holdfast.settings import Settings
from holdfast.telemetry.metrics import Metrics
from holdfast.telemetry.probes import Board, ProbeServer

log = structlog.get_logger(__name__)

_BEAT = 1.0
_BEATS_TO_SHOW = 5
"""Metrics are read a few times a minute: no need to set each of them at every beat."""
_TIDY = 60.0
_PROOF = 5.0
"""Between tries to write a ledger that fails, in seconds."""


async def run(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT; raise HoldfastError when it cannot start."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    state = Path(settings.state_dir)
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        stack.enter_context(contextlib.closing(InstanceLock(state)))
        board, metrics = Board(), Metrics()
        if settings.http.port:
            stack.enter_context(_probes(settings, board, metrics))
        host = build_host(settings)
        for lane in host.lanes.values():
            stack.callback(lane.close)
        stack.callback(host.pidfds.close)
        stack.callback(host.paths.close)
        ledger = await open_ledger(
            state,
            host.lanes["ledger"],
            clock=clock,
            boot=host.boot,
            history_per_device=settings.history.per_device,
        )
        stack.push_async_callback(ledger.close)
        parts = build(settings, host, ledger, clock, called=metrics.called)
        stack.callback(parts.resetter.close)
        _observe(parts, metrics)
        control = ControlServer(state, _handlers(parts))
        await control.start()
        stack.push_async_callback(control.close)
        await _first_facts(parts)
        _listen(parts, stack)
        stack.push_async_callback(parts.registrar.close)
        async with Supervisor() as supervisor:
            _start(parts, supervisor, board, metrics)
            log.info("started", version=holdfast.__version__, state=str(state), pid=os.getpid())
            await stop.wait()
            log.info("stopping", reason="asked to; locks stay")


def _probes(settings: Settings, board: Board, metrics: Metrics) -> ProbeServer:
    return ProbeServer(
        settings.http.address,
        settings.http.port,
        board=board,
        registry=metrics.registry,
        stall=settings.liveness.loop_stall,
    )


async def _first_facts(parts: Parts) -> None:
    """Learn what decides the first offer: hardware, ledger and kubelet's checkpoint.

    A device that a pod has must not go Unhealthy for a moment, not even in the first message.
    """
    await parts.scanner.scan()
    parts.folder.refresh()
    try:
        await parts.accounts.refresh()
        # Kubelet's checkpoint tells whether some pod counts on names of a former setting.
        await parts.specs.publish(parts.scanner.inventory.value)
        await parts.watcher.catch_up()
    except HoldfastError as error:
        log.warning("started with less than is known", reason=str(error))
    parts.offering.refresh()


def _listen(parts: Parts, stack: AsyncExitStack) -> None:
    events = Uevents()
    try:
        events.start(parts.scanner.uevent)
    except HostError as error:  # the slow full look remains
        log.warning("device events cannot be heard", reason=str(error))
    else:
        stack.callback(events.close)


def _start(parts: Parts, supervisor: Supervisor, board: Board, metrics: Metrics) -> None:
    supervisor.start("plugin folder", parts.folder.run())
    supervisor.start("offering", parts.offering.run())
    supervisor.start("drift", parts.drift.run())
    supervisor.start("registrar", parts.registrar.run())
    supervisor.start("kubelet's books", parts.accounts.run())
    supervisor.start("discovery", parts.scanner.run())
    if parts.gpus is not None:
        supervisor.start("gpus", parts.gpus.source.run())
        supervisor.start("health of gpus", _follow_health(parts.gpus))
        supervisor.start("gpus for discovery", _poke(parts.scanner, parts.gpus))
    supervisor.start("watcher", parts.watcher.run())
    supervisor.start("memory", parts.memory.run(lambda: parts.kernel.holders, metrics.memory))
    supervisor.start("leaked sandboxes", parts.leaks.run())
    supervisor.start("heartbeat", _beat(parts, board, metrics))
    supervisor.start("housekeeping", _keep_house(parts))
    supervisor.start("ledger", _prove_ledger(parts))


async def _follow_health(gpus: Gpus) -> None:
    """Follow how the GPUs are, once there are any."""
    await gpus.source.reading.until(lambda reading: reading.state is DriverState.READY)
    await gpus.health.run()


async def _poke(scanner: Scanner, gpus: Gpus) -> None:
    """Have discovery take in what is new of the GPUs."""
    while True:
        changes = Changes([gpus.source.facts])
        scanner.poke()
        await changes.wait(_TIDY)


async def _beat(parts: Parts, board: Board, metrics: Metrics) -> None:
    for beat in itertools.count():
        board.beat()
        checks = readiness(parts)
        board.publish(checks)
        if beat % _BEATS_TO_SHOW == 0:
            metrics.show_ready({check.name: check.passes for check in checks})
            _show(parts, metrics)
        await asyncio.sleep(_BEAT)


async def _keep_house(parts: Parts) -> None:
    while True:
        await asyncio.sleep(_TIDY)
        try:
            await parts.ledger.tidy()
        except HoldfastError as error:
            log.warning("ledger not tidied", reason=str(error))


async def _prove_ledger(parts: Parts) -> None:
    while True:
        await asyncio.sleep(_PROOF)
        try:
            await parts.ledger.prove()
        except HoldfastError as error:
            log.warning("ledger still fails", reason=str(error))


def _observe(parts: Parts, metrics: Metrics) -> None:
    parts.ledger.commit_seconds = metrics.committed
    parts.ledger.moved = metrics.moved
    parts.gate.observe = lambda outcome, seconds: metrics.passed_gate(outcome.value, seconds)
    if parts.gpus is not None:
        parts.gpus.health.observe = metrics.heard
    parts.reclaimer.observe = lambda step, outcome: metrics.reclaimed(step.value, outcome)
    parts.resetter.observe = metrics.reclaimed
    parts.leaks.observe = lambda outcome: metrics.reclaimed("sandbox", outcome)


def _show(parts: Parts, metrics: Metrics) -> None:
    inventory, book = parts.scanner.inventory.value, parts.ledger.book.value
    counts: Counter[tuple[str, LockState]] = Counter(
        {(resource, state): 0 for resource in inventory.resources for state in LockState}
    )
    for device in inventory.devices:
        lock = book.lock_on(device.keys)
        counts[device.name.resource, lock.state if lock else LockState.FREE] += 1
    metrics.count_devices(counts)
    for resource in inventory.resources:
        metrics.count_unhealthy(
            resource, sum(not device.healthy for device in inventory.of(resource))
        )
    for resource, state in parts.registrar.registrations.value.items():
        metrics.show_registration(
            resource, streams=state.streams, registrations=state.registrations
        )
    metrics.show_allocations(book.allocations.values())
    for name, lane in parts.host.lanes.items():
        since = lane.stuck_since
        stuck_for = 0.0 if since is None else time.monotonic() - since
        metrics.show_lane(name, lane.latency, stuck_for=stuck_for)
    if (scan := parts.look.last_scan) is not None:
        metrics.show_scan(seconds=scan.seconds, gaps=len(scan.gaps))
    metrics.show_holders(sum(map(len, parts.kernel.holders.values())))
    metrics.show_questions(parts.accounts.view.value.questions)
    metrics.show_marks(book.marks)
    metrics.show_drift(each.kind for each in parts.drift.standing)


def _handlers(parts: Parts) -> dict[str, Handler]:
    """Return what the command line may ask, and who answers."""

    def inventory_reports() -> list[reports.Report]:
        return reports.device_reports(
            parts.scanner.inventory.value,
            parts.ledger.book.value,
            parts.offering.offers.value,
            parts.gpus.notes() if parts.gpus is not None else None,
        )

    async def holders(_: object) -> list[reports.Report]:
        devices, book = parts.scanner.inventory.value.devices, parts.ledger.book.value
        found = await parts.look.scan(devices, book.locks)
        held = {name: each.holders or () for name, each in found.items()}
        return reports.holder_reports(held, await parts.memory.of_holders(held))

    async def history(question: object) -> list[reports.Report]:
        wanted = question if isinstance(question, dict) else {}
        device = wanted.get("device")
        moves = await parts.ledger.history(
            reports.device_called(str(device), parts.scanner.inventory.value) if device else None,
            int(wanted.get("limit", 100)),
        )
        return reports.history_reports(moves)

    return {
        "status": lambda _: _status(parts),
        "devices": lambda _: inventory_reports(),
        "locks": lambda _: reports.lock_reports(parts.ledger.book.value),
        "holders": holders,
        "history": history,
        **byhand.handlers(parts),
    }


def _status(parts: Parts) -> reports.Report:
    return {
        "version": holdfast.__version__,
        "pid": os.getpid(),
        "bootId": parts.host.boot,
        "checks": [
            {"name": check.name, "passes": check.passes, "reason": check.reason}
            for check in readiness(parts)
        ],
        "resources": reports.resource_reports(
            parts.scanner.inventory.value, parts.ledger.book.value, parts.offering.offers.value
        ),
        "drift": reports.drift_reports(parts.drift.standing),
        "byHand": reports.mark_reports(parts.ledger.book.value.marks),
    }
