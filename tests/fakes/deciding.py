"""What a test decides of each call of kubelet's: that it fails, or has to wait."""

import asyncio
from dataclasses import dataclass, field


@dataclass
class Decisions:
    """Calls wait while `hold` is clear, then raise `fail` where there is one."""

    fail: Exception | None = None
    hold: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: int = 0
    """How many were given up while they waited."""

    def __post_init__(self) -> None:
        self.hold.set()

    async def decided(self) -> None:
        try:
            await self.hold.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.fail is not None:
            raise self.fail
