"""Keeps in the ledger how much memory GPUs need while nobody uses them."""

from collections.abc import Mapping
from functools import partial

import structlog

from holdfast.errors import HoldfastError
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.draft import Draft
from holdfast.model.nvidia.idle import IdleMemory
from holdfast.runtime.clock import Clock
from holdfast.runtime.watched import Watched

log = structlog.get_logger(__name__)

_RETRY = 5.0
"""Seconds between two tries to write what the ledger did not take."""


async def keep_idle(
    idle: Watched[Mapping[str, IdleMemory]], ledger: Ledger, *, clock: Clock
) -> None:
    """Write down each new value of *idle*, for ever: a leak must outlive no restart unseen."""
    async for value in idle.follow():
        while value != ledger.book.value.idle:
            try:
                await ledger.apply(partial(_remember, idle=value))
                break
            except HoldfastError as error:
                log.warning("cannot save the idle memory of GPUs", reason=str(error))
            await clock.sleep(_RETRY)


def _remember(draft: Draft, *, idle: Mapping[str, IdleMemory]) -> None:
    draft.remember_idle(idle)
