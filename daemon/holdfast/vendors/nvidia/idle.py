"""Keeps in the ledger how much memory GPUs need while nobody uses them."""

from collections.abc import Mapping

import structlog

from holdfast.errors import HoldfastError
from holdfast.ledger.kept import Kept
from holdfast.model.nvidia.idle import IdleMemory
from holdfast.runtime.clock import Clock
from holdfast.runtime.watched import Watched

log = structlog.get_logger(__name__)

_RETRY = 5.0
"""Seconds between two tries to write what the ledger did not take."""


async def keep_idle(
    idle: Watched[Mapping[str, IdleMemory]], kept: Kept[IdleMemory], *, clock: Clock
) -> None:
    """Keep each new value of *idle*, until cancelled: a restart must not hide a leak."""
    async for value in idle.follow():
        while True:
            try:
                await kept.keep(value)
                break
            except HoldfastError as error:
                log.warning("cannot save the idle memory of GPUs", reason=str(error))
            await clock.sleep(_RETRY)
