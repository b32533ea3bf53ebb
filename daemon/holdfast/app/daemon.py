"""Runs the daemon: starts the parts in order, keeps them running, stops them in reverse."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import structlog

import holdfast
from holdfast.app.answers.answers import handlers
from holdfast.app.answers.readiness import readiness, readings
from holdfast.app.reload import Orders, Reload
from holdfast.app.watches.configuration import ConfigurationFiles
from holdfast.app.wiring.assembly import Assembly
from holdfast.app.wiring.core import Core
from holdfast.app.wiring.hosts import Hosts, missing_folders
from holdfast.app.wiring.live import LiveSettings
from holdfast.app.wiring.parts import VENDORS
from holdfast.control.server import PATIENCE, ControlServer
from holdfast.errors import HoldfastError, HostError
from holdfast.host.own import keep_freed_memory_small, raise_open_files_limit
from holdfast.host.pci.udev import Uevents
from holdfast.ledger.instance import InstanceLock, PluginFolderLock
from holdfast.ledger.ledger import open_ledger
from holdfast.runtime.clock import Clock, SystemClock
from holdfast.runtime.problem import Problem
from holdfast.runtime.supervisor import Stalls, Supervisor
from holdfast.runtime.watched import Changes, Watched
from holdfast.settings import Settings
from holdfast.settings.named import follows_label
from holdfast.settings.sources import LoadedSettings
from holdfast.telemetry.metrics import Metrics
from holdfast.telemetry.probes import ProbeServer
from holdfast.telemetry.readyz import Board
from holdfast.vendors.context import Vendor

log = structlog.get_logger(__name__)

_BEAT = 2.0
_TIDY = 60.0


async def run(
    found: LoadedSettings,
    read: Callable[[str | None], LoadedSettings],
    *,
    files: Sequence[Path] = (),
    restarts: Sequence[float] = (),
    clock: Clock | None = None,
    vendors: Iterable[Vendor] = VENDORS,
    stalls: Stalls | None = None,
) -> LoadedSettings | None:
    """Run until SIGTERM or SIGINT, with *found*; raise HoldfastError when it cannot start.

    Time is *clock*'s; without one, the machine's. *stalls* are those of the loop that it runs in.
    What changes in the configuration, which *read* reads from *files* and more (see `Reload`), is
    taken up at once, or, where that takes a restart, everything stops as at SIGTERM and what it is
    to restart with is returned: the caller is to start the program again in this process.
    *restarts* tells when it did so before, in seconds of the clock of time.monotonic, which goes
    on.
    """
    settings = found.settings
    orders, live = Orders(), LiveSettings(found)
    if found.refused:
        log.error("configuration cannot be used", reason=found.refused, next=found.instead)
    raise_open_files_limit()
    keep_freed_memory_small()
    state = Path(settings.state_dir)
    clock = clock or SystemClock()
    async with AsyncExitStack() as stack:
        locks = _lock(settings, stack)
        board, metrics = Board(), Metrics(stalls)
        stall = Watched[float](settings.liveness.loop_stall)
        if settings.http.port:
            address, port, registry = settings.http.address, settings.http.port, metrics.registry
            server = ProbeServer(address, port, board=board, registry=registry, stall=stall)
            stack.callback(server.close)
        pulse = asyncio.create_task(_pulse(board, stall, live), name="pulse")
        stack.callback(pulse.cancel)
        board.down("opening the ledger")
        host = Hosts(settings)
        stack.callback(host.close)
        ledger = await open_ledger(
            state,
            host.lanes["ledger"],
            clock=clock,
            boot=host.boot,
            locks=locks,
        )
        stack.push_async_callback(ledger.close)
        parts = Assembly(Core(live, host, ledger, clock, metrics), vendors)
        stack.callback(parts.reclaim.resetter.close)
        reload = Reload(parts=parts, read=read, orders=orders, restarts=restarts)
        answers = {**handlers(parts, board), "reload": reload.asked}
        control = ControlServer(state, answers, patience=PATIENCE)
        board.down("scanning the node for the first time")
        await control.start()
        stack.push_async_callback(control.close)
        await _first_facts(parts)
        _listen(parts, stack)
        _close_at_end(parts, stack)
        stack.callback(board.down, "stopping")
        async with Supervisor() as supervisor:
            _start(parts, supervisor, board)
            log.info("started", version=holdfast.__version__, state=str(state), pid=os.getpid())
            for each in (*parts.lacks.value, *missing_folders(settings, host.root)):
                log.warning("permission or mount missing", reason=each)
            _follow_configuration(parts, supervisor, reload, orders, files)
            await orders.over()
            why = "asked to stop" if orders.stop else "restarting with the changed configuration"
            log.info("stopping", reason=f"{why}; locks stay")
    return None if orders.stop else orders.following


def _lock(settings: Settings, stack: AsyncExitStack) -> tuple[InstanceLock, PluginFolderLock]:
    """Keep a second daemon from the state folder and the plugin folder until *stack* ends."""
    instance = stack.enter_context(contextlib.closing(InstanceLock(Path(settings.state_dir))))
    plugins = stack.enter_context(
        contextlib.closing(PluginFolderLock(Path(settings.kubelet.plugin_dir)))
    )
    if plugins.problem:
        log.warning("cannot lock the plugin folder against a second daemon", reason=plugins.problem)
    return instance, plugins


def _close_at_end(parts: Assembly, stack: AsyncExitStack) -> None:
    """Have *stack* close what kubelet and the API server are connected to."""
    stack.push_async_callback(parts.allocation.registrar.close)
    if parts.dra is not None:
        stack.push_async_callback(parts.dra.close)
    if parts.events is not None:
        stack.push_async_callback(parts.events.server.close)


async def _first_facts(parts: Assembly) -> None:
    """Learn what decides the first offer: hardware, ledger and kubelet's checkpoint.

    A device that a pod has must not go Unhealthy for a moment, not even in the first message.
    """
    problem = ""
    try:
        await parts.kubelet.folder.refresh()
        await parts.kubelet.reader.refresh()
    except HoldfastError as error:
        problem = str(error)
    # What pods have decides what a device is called that a rule of the settings moves, and whether
    # some pod counts on CDI names of a former setting.
    await parts.discovery.scanner.scan()
    try:
        await parts.reclaim.watcher.catch_up()
    except HoldfastError as error:
        problem = problem or str(error)
    if problem:
        log.warning("started without all facts of the node", reason=problem)
    if parts.dra is not None:
        await parts.dra.records.catch_up()
    parts.kubelet.offering.refresh()


def _listen(parts: Assembly, stack: AsyncExitStack) -> None:
    try:
        events = Uevents(parts.discovery.scanner.uevent)
    except HostError as error:  # the slow full look remains
        log.warning("cannot receive kernel device events", reason=str(error))
    else:
        stack.callback(events.close)


def _start(parts: Assembly, supervisor: Supervisor, board: Board) -> None:
    supervisor.start("plugin folder", parts.kubelet.folder.run())
    supervisor.start("standings", parts.core.standings.run())
    supervisor.start("offering", parts.kubelet.offering.run())
    supervisor.start("drift", parts.watches.drift.run())
    supervisor.start("registrar", parts.allocation.registrar.run())
    supervisor.start("kubelet's checkpoint", parts.kubelet.reader.run())
    supervisor.start("discovery", parts.discovery.scanner.run())
    for source in parts.discovery.sources:
        supervisor.start(f"adapter {source.name}", source.run())
    supervisor.start("frozen cgroups", parts.reclaim.pods.run())
    supervisor.start("watcher", parts.reclaim.watcher.run())
    supervisor.start("memory", parts.watches.memory.run(parts.discovery.use))
    supervisor.start("leaked sandboxes", parts.allocation.leaks.run())
    supervisor.start("own sockets", parts.watches.sockets.run())
    supervisor.start("node labels", parts.watches.labels.run())
    supervisor.start("readiness", _publish(parts, board))
    supervisor.start("housekeeping", _keep_house(parts))
    for name, task in parts.dra.tasks() if parts.dra is not None else ():
        supervisor.start(name, task)
    if parts.events is not None:
        supervisor.start("events", parts.events.notices.run())
    supervisor.start("ledger", parts.watches.proof.run())


def _follow_configuration(
    parts: Assembly, supervisor: Supervisor, reload: Reload, orders: Orders, files: Sequence[Path]
) -> None:
    settings = parts.core.settings
    folders = [Path(settings.named.folder)] if settings.named.folder else []
    lane = parts.core.host.lanes["configuration"]
    watch = ConfigurationFiles(
        [*files, *folders], paths=parts.core.host.paths, lane=lane, read=orders.read
    )
    # Before they are read: what changes after that look is a change.
    supervisor.start("files of the configuration", watch.run())
    supervisor.start("configuration", reload.run())
    if follows_label(settings):
        from holdfast.app.watches.nodelabel import NodeLabel  # noqa: PLC0415 - it loads TLS

        live = parts.core.live
        label = NodeLabel(
            settings=settings,
            label=live.label,
            clock=parts.core.clock,
            read=orders.read,
            problem=live.node_label,
            observer=parts.core.metrics.claims,
        )
        supervisor.start("node label", label.run())


async def _pulse(board: Board, stall: Watched[float], live: LiveSettings) -> None:
    """Show that the loop turns, from before anything that can take long to after the last of it.

    *stall* is what the probes go by: a shorter one counts only once there was a beat.

    A node that is slow to be looked at is no reason for a restart, which would only begin again.
    """
    while True:
        changes = Changes([live.in_use])
        board.beat()
        stall.set(live.whole.liveness.loop_stall)
        await changes.wait(min(_BEAT, stall.value / 4))


async def _publish(parts: Assembly, board: Board) -> None:
    while True:
        checks = readiness(parts)
        board.publish(checks)
        parts.core.metrics.gauges.show(readings(parts, checks))
        await asyncio.sleep(_BEAT)


async def _keep_house(parts: Assembly) -> None:
    problem = Problem(log, "cannot delete old history from the ledger")
    while True:
        changes = Changes([parts.core.live.history])
        await changes.wait(_TIDY)
        with problem.noting(HoldfastError):
            await parts.core.ledger.tidy(keep=parts.core.settings.history.per_device)
