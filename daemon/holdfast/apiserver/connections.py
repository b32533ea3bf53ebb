"""A few connections to the API server, so that a slow answer does not hold up the others."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from holdfast.apiserver.access import Access
from holdfast.apiserver.client import ApiServer
from holdfast.apiserver.wire import Request
from holdfast.model.dra.outcomes import ApiOutcome
from holdfast.runtime.clock import Clock

T = TypeVar("T")

AT_ONCE = 4
"""Calls at one time. A pod rarely has more claims, and the API server limits each client, too."""


class ApiServers:
    """Connections that are opened when one more is needed, up to some; each has a lane."""

    def __init__(self, access: Access, *, name: str, clock: Clock, at_once: int = AT_ONCE) -> None:
        """Call the server of *access*; lanes have *name* and a number."""
        self._access = access
        self._name = name
        self._clock = clock
        self._turns = asyncio.Semaphore(at_once)
        self._all: list[ApiServer] = []
        self._idle: deque[ApiServer] = deque()
        self.observe: Callable[[ApiOutcome], None] = lambda _outcome: None
        """Hears how each request ended; to be set before the first."""

    async def ask(self, request: Request, kind: type[T], *, deadline: float) -> T:
        """Return the answer to *request*, as `ApiServer.ask` does.

        *deadline* is from the moment on at which a connection is free for it.
        """
        async with self._turns:
            server = self._idle.pop() if self._idle else self._another()
            try:
                answer = await server.ask(request, kind, deadline=deadline)
            except BaseException:
                self._idle.appendleft(server)  # its thread may still be in the call
                raise
            self._idle.append(server)
            return answer

    async def close(self) -> None:
        """Cut the calls that are under way, and take no more."""
        for each in self._all:
            await each.close()

    def _another(self) -> ApiServer:
        made = ApiServer(self._access, name=f"{self._name} {len(self._all)}", clock=self._clock)
        made.observe = self.observe
        self._all.append(made)
        return made
