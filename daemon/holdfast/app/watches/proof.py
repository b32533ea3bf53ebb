"""Checks every few seconds that the ledger can be written and that the own sockets answer."""

import asyncio
import json
from collections.abc import Awaitable, Iterator, Mapping
from pathlib import Path

import structlog
from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import HoldfastError, SecondDaemonError
from holdfast.kubelet.registration import Registrar
from holdfast.ledger.ledger import Ledger
from holdfast.model.node.readiness import ReadinessCheck, check, check_result
from holdfast.names import CONTROL_SOCKET
from holdfast.runtime.clock import Clock
from holdfast.runtime.problem import Problem
from holdfast.runtime.watched import Changes

log = structlog.get_logger(__name__)

EVERY = 4.0
DEADLINE = 4.0
"""Seconds. Their sum is how long a dead disk may go unnoticed: less than 10 s."""
PATIENCE = 60.0
"""After so many seconds without a result the check itself counts as stuck."""
CONTROL = "control"
"""The name of the control socket among the checked sockets."""
PING = "ping"
"""The question whose answer is itself."""

_TOLD_FOR = 3600.0
"""Seconds for which it is said that the files were written again: somebody has to look into it."""
_EACH = 60.0
"""Seconds. A dial costs milliseconds of CPU time, and most failures are noticed without it."""
_SETTLES = 0.2
"""Seconds. A registration changes several times in a few milliseconds; a dial would delay it."""
_PATIENCE = 2.0
_STALE = 3 * _EACH


class LedgerProof:
    """Writes and reads back; the ledger and the log tell the result."""

    def __init__(self, ledger: Ledger, *, clock: Clock) -> None:
        """Prove *ledger*."""
        self._ledger = ledger
        self._clock = clock
        self.problem = Problem(log, "ledger cannot be written")
        """Why the last proof failed."""
        self._told, self._told_at = "", clock.monotonic()

    def checks(self) -> Iterator[ReadinessCheck]:
        """Yield whether the last test write succeeded, and that was recently."""
        ledger, now = self._ledger, self._clock.monotonic()
        since, problem, at = ledger.failing_since, ledger.problem, ledger.proven_at
        if since is None:
            found = check_result("ledger", problem, at=at, now=now, within=PATIENCE)
            told = found.passes and self._told and now - self._told_at < _TOLD_FOR
            yield replace(found, reason=self._told) if told else found
        else:
            public = f"no write has succeeded for {now - since:.0f} s"
            reason = f"{public}: {problem}" if problem else public
            yield check("ledger", reason, public=public, seen=at)

    async def run(self) -> None:
        """Check until cancelled; raise SecondDaemonError when another daemon took a lock."""
        while True:
            await self.prove()
            await self._clock.sleep(EVERY)

    async def prove(self) -> None:
        """Check once, and log what has changed since the last time."""
        # A commit may have failed between two proofs, and a proof may have succeeded that nobody
        # waited for any more.
        before, problem = self._ledger.problem or self.problem.text, ""
        try:
            if told := await self._ledger.prove(deadline=DEADLINE):
                reason = "; ".join(told)
                log.warning("ledger files written again", reason=reason)
                self._told = f"its files were written again: {reason}"
                self._told_at = self._clock.monotonic()
        except SecondDaemonError:
            raise
        except HoldfastError as error:
            problem = str(error)
        self.problem.set(problem)
        if before and not problem:
            log.info("ledger can be written again", before=before)


class Dial(Struct, frozen=True, kw_only=True):
    """What dialling one socket came to: its `problem`, empty for none.

    `at` is when that was (monotonic seconds), None before the first.
    """

    at: float | None = None
    problem: str = "not dialled yet"


class OwnSockets:
    """Dials each socket soon after a registration changes, and again every minute."""

    def __init__(self, plugins: Registrar, control: Path, *, clock: Clock) -> None:
        """Dial the sockets of *plugins*, and the control socket in the folder *control*."""
        self._plugins = plugins
        self._control = control / CONTROL_SOCKET
        self._clock = clock
        self._results: dict[str, Dial] = {}

    @property
    def results(self) -> Mapping[str, Dial]:
        """The last result for the control socket, and for that of each resource on offer."""
        return {
            name: self._results.get(name, Dial()) for name in (CONTROL, *self._plugins.resources)
        }

    def checks(self) -> Iterator[ReadinessCheck]:
        """Yield whether each socket answered when it was last dialled, and that was recently."""
        now = self._clock.monotonic()
        for name, dial in self.results.items():
            yield check_result(f"socket {name}", dial.problem, at=dial.at, now=now, within=_STALE)

    async def run(self) -> None:
        """Dial until cancelled."""
        while True:
            changes = Changes([self._plugins.registrations])
            await self.dial()
            if await changes.wait(_EACH):
                await self._clock.sleep(_SETTLES)

    async def dial(self) -> None:
        """Dial each socket once."""
        await self._note(CONTROL, self._ping())
        for resource in self._plugins.registrations.value:
            await self._note(resource, self._plugins.answers(resource))

    async def _note(self, name: str, dialled: Awaitable[None]) -> None:
        problem = ""
        try:
            await dialled
        except HoldfastError as error:
            problem = str(error)
        self._results[name] = Dial(at=self._clock.monotonic(), problem=problem)

    async def _ping(self) -> None:
        """Ask as the command line does; raise HoldfastError without the right answer."""
        try:
            async with asyncio.timeout(_PATIENCE):
                reader, writer = await asyncio.open_unix_connection(self._control)
                try:
                    writer.write(json.dumps({"ask": PING}).encode() + b"\n")
                    answer = json.loads(await reader.readline())
                finally:
                    writer.close()
        except (OSError, ValueError) as error:  # a timeout is an OSError too
            reason = str(error) or f"no answer within {_PATIENCE:g} s"
            raise HoldfastError(f"cannot reach our own socket {self._control}: {reason}") from error
        if answer != {"answer": PING}:
            raise HoldfastError(f"cannot reach our own socket {self._control}: another answers")
