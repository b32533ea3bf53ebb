"""Dials the daemon's own sockets: a socket that listens may still not answer."""

import asyncio
import json
from collections.abc import Awaitable, Mapping
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.kubelet.registration import Registrar
from holdfast.model.ids import ResourceName
from holdfast.model.node.readiness import Known
from holdfast.names import CONTROL_SOCKET
from holdfast.runtime.changes import Changes
from holdfast.runtime.clock import Clock

CONTROL = "control"
"""The name of the control socket among the checked sockets."""
PING = "ping"
"""The question whose answer is itself."""

_EACH = 60.0
"""Seconds. A dial costs milliseconds of CPU time, and most failures are noticed without it."""
_SETTLES = 0.2
"""Seconds. A registration changes several times in a few milliseconds; a dial would delay it."""
_PATIENCE = 2.0
_STALE = 3 * _EACH


class OwnSockets:
    """Dials each socket soon after a registration changes, and again every *each* seconds."""

    def __init__(
        self, plugins: Registrar, control: Path, *, clock: Clock, each: float = _EACH
    ) -> None:
        """Dial the sockets of *plugins*, and the control socket in the folder *control*."""
        self._plugins = plugins
        self._control = control / CONTROL_SOCKET
        self._clock = clock
        self._each = each
        self._known: dict[str, Known] = {}

    def known(self, resources: tuple[ResourceName, ...]) -> Mapping[str, Known]:
        """Return the last result for the control socket and for those of *resources*."""
        never = Known(at=None, patience=_STALE, problem="not dialled yet")
        return {name: self._known.get(name, never) for name in (CONTROL, *resources)}

    async def run(self) -> None:
        """Dial until cancelled."""
        while True:
            changes = Changes([self._plugins.registrations])
            await self.dial()
            if await changes.wait(self._each):
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
        self._known[name] = Known(at=self._clock.monotonic(), patience=_STALE, problem=problem)

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
