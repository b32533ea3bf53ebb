"""Has the running daemon take up its configuration as it is now, or tells why it does not."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog
from msgspec import Struct, field

from holdfast.app.wiring.assembly import Assembly
from holdfast.errors import LaneStuckError, SettingsError, bug
from holdfast.model.groups import grouped
from holdfast.model.node.restarts import why_not_again
from holdfast.runtime.problem import Problem
from holdfast.settings import Settings
from holdfast.settings.named import remember
from holdfast.settings.reloading import TakeUp, changed, take_up
from holdfast.settings.sources import LoadedSettings
from holdfast.telemetry.logs import set_up_logs

log = structlog.get_logger(__name__)

_TRY_AGAIN = 5.0
"""Seconds until a restart that a hanging call forbids is tried again."""


class Orders:
    """What the daemon is asked to do: to stop, to restart, or to read its configuration."""

    def __init__(self) -> None:
        """Take over SIGTERM, SIGINT and SIGHUP; a loop must run."""
        self._over = asyncio.Event()
        self._read = asyncio.Event()
        self.stop = False
        """Whether to stop, which no later restart takes back."""
        self.following: LoadedSettings | None = None
        """What to restart with."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopped)

        def hung_up(_number: int, _frame: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it stops anyway
                loop.call_soon_threadsafe(self.read)

        # Not by the loop, which would restore the default when it closes: that ends the process.
        signal.signal(signal.SIGHUP, hung_up)

    def read(self) -> None:
        """Ask for the configuration to be read."""
        self._read.set()

    def restart(self, found: LoadedSettings) -> None:
        """Ask for a restart in the same process with *found*."""
        self.following = found
        self._over.set()

    async def over(self) -> None:
        """Return when the daemon is to stop or to restart; `stop` tells which it is."""
        await self._over.wait()

    async def to_read(self) -> None:
        """Return when the configuration is to be read."""
        await self._read.wait()
        self._read.clear()

    def _stopped(self) -> None:
        self.stop = True
        self._over.set()


class ReloadOutcome(Struct, frozen=True, kw_only=True):
    """What a reload came to: each key that differs, by how it is taken up, and what forbids it.

    Where there is a `problem`, nothing was taken up. `waits`: it will be tried again by itself.
    """

    keys: Mapping[TakeUp, tuple[str, ...]] = {}
    problem: str = ""
    waits: bool = False


class Reload(Struct, kw_only=True):
    """Takes up changes of the configuration in `parts`: all of one, or nothing of it.

    While calls to the kernel have not returned, nothing restarts: the thread of one could keep the
    process from being replaced. `read` reads the configuration as it is now, of a node with that
    label, or raises SettingsError. `restarts` are those of this process, by the clock's monotonic
    seconds.
    """

    parts: Assembly
    read: Callable[[str | None], LoadedSettings]
    orders: Orders
    restarts: Sequence[float]
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _unkept: Problem = field(
        default_factory=lambda: Problem(
            log,
            "cannot keep the configuration that works",
            next="a start that cannot use its configuration goes by an earlier one that was kept",
        )
    )

    async def run(self) -> None:
        """Take up the configuration whenever that is asked for, until cancelled."""
        # It may have changed since it was read for the start.
        outcome = await self.now(asked=False)
        while True:
            asked = True
            try:
                async with asyncio.timeout(_TRY_AGAIN if outcome.waits else None):
                    await self.orders.to_read()
            except TimeoutError:
                asked = False
            outcome = await self.now(asked=asked)
            if not (outcome.keys or outcome.problem):
                log.info("configuration unchanged")

    async def now(self, *, asked: bool = True) -> ReloadOutcome:
        """Read the configuration, take up what has changed, and return what that came to.

        Where nobody *asked*, a problem that was told before is not told again.
        """
        async with self._turn:
            outcome, found = await self._plan()
            live = self.parts.core.live
            told, live.refused = live.refused, outcome.problem
            if outcome.problem:
                if asked or outcome.problem != told:
                    self._refused(outcome.problem)
            elif found is not None:
                await self._keep(found)
                if TakeUp.RESTART in outcome.keys:
                    log.info("restarting with the changed configuration", **_shown(outcome))
                    self.orders.restart(found)
                    return outcome
                live.goes_by(found)
                if outcome.keys:
                    self._take_up(found.settings)
                    log.info("configuration reloaded", **_shown(outcome))
            return outcome

    async def _keep(self, found: LoadedSettings) -> None:
        """Have later starts go by *found* where what there is by then cannot be used."""
        core = self.parts.core
        lane, state = core.host.lanes["configuration"], core.settings.state_dir
        with self._unkept.noting(LaneStuckError, OSError):
            await lane.run(lambda: remember(state, found.label, found.document))

    def _take_up(self, settings: Settings) -> None:
        self.parts.core.metrics.reloaded(TakeUp.LIVE.value)
        logs = self.parts.core.settings.log
        self.parts.take_up(settings)
        if settings.log != logs:
            set_up_logs(settings.log.level, settings.log.format)

    def _refused(self, problem: str) -> None:
        self.parts.core.metrics.reloaded("refused")
        log.error(
            "configuration not reloaded",
            reason=problem,
            next="the former configuration stays in use",
        )

    async def asked(self, _question: object) -> Mapping[str, object]:
        """Answer the command line: as `now`, in JSON."""
        outcome = await self.now()
        return {"changed": _shown(outcome), "problem": outcome.problem}

    async def _plan(self) -> tuple[ReloadOutcome, LoadedSettings | None]:
        """Return what a reload would do, with the configuration as it is now.

        None: it cannot be read. Nothing is taken up yet.
        """
        # Not on any thread: a file may be on a disk that hangs, and nothing must wait for it.
        core = self.parts.core
        lane, label = core.host.lanes["configuration"], core.live.label.value
        try:
            found = await lane.run(lambda: self.read(label))
        except SettingsError as error:
            return ReloadOutcome(problem=str(error)), None
        except LaneStuckError as error:
            problem = f"cannot read the configuration: {error}"
            return ReloadOutcome(problem=problem, waits=True), None
        except Exception as error:  # whatever a file says, it must not end the daemon
            log.exception("configuration cannot be read")
            return ReloadOutcome(problem=f"cannot read the configuration: {bug(error)}"), None
        keys = by_take_up(changed(core.settings, found.settings))
        if pod := keys.get(TakeUp.POD):
            problem = (
                f"{', '.join(pod)} changed, which mounts and probes depend on; restart holdfast "
                "(with the chart: upgrade the release, or delete the pod)"
            )
            return ReloadOutcome(keys=keys, problem=problem), found
        if TakeUp.RESTART in keys and (problem := await self._why_not_now()):
            return ReloadOutcome(keys=keys, problem=problem, waits=True), found
        return ReloadOutcome(keys=keys), found

    async def _why_not_now(self) -> str:
        if calls := sorted(self.parts.stuck_calls()):
            return f"calls hang ({', '.join(calls)}); it is reloaded when they have returned"
        # What the disk does not have, a restart forgets. Asked now: the last proof may be old.
        proof = self.parts.watches.proof
        await proof.prove()
        if problem := proof.problem.text:
            return f"{problem}; it is reloaded when the ledger can be written"
        return why_not_again(self.restarts, self.parts.core.clock.monotonic())


def by_take_up(paths: Iterable[str]) -> Mapping[TakeUp, tuple[str, ...]]:
    """Return *paths* by how a change of each is taken up."""
    return grouped((take_up(path), path) for path in paths)


def _shown(outcome: ReloadOutcome) -> Mapping[str, list[str]]:
    return {how.value: list(paths) for how, paths in outcome.keys.items()}
