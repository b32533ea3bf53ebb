"""Checks every few seconds that the ledger can be written and no second daemon runs."""

import structlog

from holdfast.errors import HoldfastError, SecondDaemonError
from holdfast.ledger.ledger import Ledger
from holdfast.runtime.clock import Clock

log = structlog.get_logger(__name__)

EVERY = 4.0
DEADLINE = 4.0
"""Seconds. Their sum is how long a dead disk may go unnoticed: less than 10 s."""
PATIENCE = 60.0
"""After so many seconds without a result the check itself counts as stuck."""


class LedgerProof:
    """Writes and reads back; the ledger and the log tell the result."""

    def __init__(self, ledger: Ledger, *, clock: Clock) -> None:
        """Prove *ledger*."""
        self._ledger = ledger
        self._clock = clock
        self._told = ""

    async def run(self) -> None:
        """Check until cancelled; raise SecondDaemonError when another daemon took a lock."""
        while True:
            await self.prove()
            await self._clock.sleep(EVERY)

    async def prove(self) -> None:
        """Check once, and log what has changed since the last time."""
        # A commit may have failed between two proofs, and a proof may have succeeded that nobody
        # waited for any more.
        before, problem = self._ledger.problem or self._told, ""
        try:
            if written_again := await self._ledger.prove(deadline=DEADLINE):
                log.warning(
                    "removed ledger files written again",
                    files=", ".join(written_again),
                )
        except SecondDaemonError:
            raise
        except HoldfastError as error:
            problem = str(error)
        if problem and problem != self._told:
            log.warning("ledger cannot be written", reason=problem)
        elif before and not problem:
            log.info("ledger can be written again", before=before)
        self._told = problem
