"""Follows what the API server has of our ResourceSlices: by a list, then by watches."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

import structlog

from holdfast.apiserver.resourceslices import SliceEvent
from holdfast.apiserver.watch import TooOldError
from holdfast.errors import ApiServerError
from holdfast.model.dra.resourceslice import ResourceSlice
from holdfast.runtime.clock import Clock, backoff
from holdfast.runtime.watched import Watched

log = structlog.get_logger(__name__)

_FIRST_PAUSE, _LAST_PAUSE = 1.0, 30.0


class SliceReader(Protocol):
    """The slices of one driver on one node; see `apiserver.resourceslices`."""

    async def list(self) -> tuple[dict[str, ResourceSlice], str]:
        """Return all by name, and the version to go on from."""
        ...

    def follow(self, version: str) -> AsyncIterator[SliceEvent]:
        """Yield what happens after *version*."""
        ...


class SliceMirror:
    """Publishes `slices` by name; None until they were listed for the first time."""

    def __init__(self, server: SliceReader, *, clock: Clock) -> None:
        """Read from *server*."""
        self._server = server
        self._clock = clock
        self._stale = asyncio.Event()
        self._pauses = backoff(_FIRST_PAUSE, _LAST_PAUSE)
        self._version = ""
        self.slices: Watched[Mapping[str, ResourceSlice] | None] = Watched(None)
        self.problem = ""
        """Why the server cannot be read; empty while it can."""

    def stored(self, slice_: ResourceSlice) -> None:
        """Take *slice_*, which our own write returned, for what the server has.

        Unless the watch has come past it: the slice may have been deleted since.
        """
        if not _is_older(slice_.metadata.resource_version, self._version):
            self._put(slice_)

    def gone(self, slice_: ResourceSlice) -> None:
        """Take *slice_* for deleted, unless another one has its name by now."""
        name, known = slice_.metadata.name, self.slices.value or {}
        if name in known and known[name].metadata.uid == slice_.metadata.uid:
            self.slices.set({other: each for other, each in known.items() if other != name})

    def read_again(self) -> None:
        """List again now: what is known cannot be true."""
        self._stale.set()

    async def run(self) -> None:
        """Follow the server until cancelled."""
        while True:
            self._stale.clear()
            try:
                listed, version = await self._server.list()
                self._report("")
                self._version = version
                self.slices.set(listed)
                await self._until_stale(version)
            except TooOldError as error:
                log.debug("ResourceSlices are listed again", reason=str(error))
                await self._clock.sleep(next(self._pauses))
            except ApiServerError as error:
                self._report(str(error))
                await self._clock.sleep(next(self._pauses))

    async def _until_stale(self, version: str) -> None:
        watching = asyncio.ensure_future(self._watch(version))
        stale = asyncio.ensure_future(self._stale.wait())
        try:
            await asyncio.wait([watching, stale], return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
        finally:
            for task in (watching, stale):
                task.cancel()
            await asyncio.gather(watching, stale, return_exceptions=True)

    async def _watch(self, version: str) -> None:
        while True:
            async for event in self._server.follow(version):
                self._pauses = backoff(_FIRST_PAUSE, _LAST_PAUSE)
                version = self._version = event.version
                if event.slice is not None and event.deleted:
                    self.gone(event.slice)
                elif event.slice is not None:
                    self._put(event.slice)
            # An end is normal after some minutes; a server that ends each at once is given time.
            await self._clock.sleep(next(self._pauses))

    def _put(self, slice_: ResourceSlice) -> None:
        name, known = slice_.metadata.name, self.slices.value or {}
        before = known[name].metadata.resource_version if name in known else ""
        if not _is_older(slice_.metadata.resource_version, before):
            self.slices.set({**known, name: slice_})

    def _report(self, problem: str) -> None:
        if problem and problem != self.problem:
            log.warning("cannot read ResourceSlices", reason=problem)
        elif self.problem and not problem:
            log.info("ResourceSlices can be read again")
        self.problem = problem


def _is_older(version: str, other: str) -> bool:
    """Tell whether *version* comes before *other*; False where they cannot be compared.

    Versions of one resource may be compared from Kubernetes 1.35 on; before they were numbers, too.
    """
    return version.isdecimal() and other.isdecimal() and int(version) < int(other)
