"""Keeps our ResourceSlices on the API server as they should be, with as few writes as possible."""

import asyncio
import math
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, Protocol

import structlog
from msgspec.structs import replace

from holdfast.apiserver.client import ApiRefusedError
from holdfast.dra.mirror import SliceMirror
from holdfast.dra.pool import NodePool
from holdfast.errors import ApiServerError, ObjectGoneError
from holdfast.model.dra.resourceslice import ResourceSlice, SliceSpec
from holdfast.model.dra.slices import Accepted, Kept, Writes, contents, kept_of, writes
from holdfast.model.kubelet import Registration
from holdfast.runtime.changes import Changes
from holdfast.runtime.clock import Clock, backoff
from holdfast.runtime.watched import Watched

log = structlog.get_logger(__name__)

WRITE_EVERY = 5.0
"""Seconds between two writes of one slice: every scheduler and autoscaler reads each of them."""

_FIRST_RETRY, _LAST_RETRY = 1.0, 60.0
_SETTLES = 30.0
"""Seconds for which devices may be found late after the daemon's start, such as GPUs."""
_LOOK = 1.0
_EVER = math.inf


class SliceWriter(Protocol):
    """Writes the slices of one driver on one node; see `apiserver.resourceslices`."""

    async def node_uid(self) -> str:
        """Return the uid of the Node."""
        ...

    async def create(self, name: str, spec: SliceSpec, *, owner: str) -> ResourceSlice:
        """Make a slice; return what is stored."""
        ...

    async def update(self, stored: ResourceSlice, spec: SliceSpec) -> ResourceSlice:
        """Change a slice; return what is stored."""
        ...

    async def delete(self, stored: ResourceSlice) -> None:
        """Remove a slice."""
        ...


class _ChangedMindError(Exception):
    """What is being written is no longer what is wanted."""


class Publisher:
    """Writes what differs: at once where it can, and no slice twice within some seconds."""

    def __init__(
        self,
        *,
        driver: str,
        node: str,
        pool: NodePool,
        server: SliceWriter,
        mirror: SliceMirror,
        changes: Sequence[Watched[Any]],
        registration: Watched[Registration],
        clock: Clock,
        publishes: bool = True,
        write_every: float = WRITE_EVERY,
    ) -> None:
        """Publish *pool* for *driver* on *node*, anew when one of *changes* has changed.

        Where it *publishes* nothing, because the hardware went back to the device plugin, slices
        that are left are removed.

        A second *registration* in our life says that kubelet has restarted and has deleted all
        slices of its node.
        """
        self._driver = driver
        self._node = node
        self._pool = pool
        self._server = server
        self._mirror = mirror
        self._registration = registration
        self._changes = (*changes, registration, mirror.slices)
        self._clock = clock
        self._write_every = write_every
        self._written: dict[str, float] = {}
        self._accepted: dict[str, Accepted] = {}
        self._generation = 0
        self._owner = ""
        self._publishes = publishes
        self._not_before = 0.0
        self._retries = backoff(_FIRST_RETRY, _LAST_RETRY)
        self._began = clock.monotonic()
        self._registrations = registration.value.registrations
        self.kept = Kept()
        """Which fields the API server keeps, as far as it has shown."""
        self.observe: Callable[[bool], None] = lambda _written: None
        """Hears of each write of a slice whether it succeeded."""
        self.problem = ""
        """Why the slices are not as they should be; empty while they are."""
        self.failing_since: float | None = None
        """Since when there has been a problem, in monotonic seconds."""
        self.agreed_at: float | None = None
        """When the server last had what it should have, in monotonic seconds."""

    @property
    def offered(self) -> tuple[str, ...] | None:
        """Return the devices that the server has without a taint; None: it was not read yet."""
        slices = self._mirror.slices.value
        if slices is None:
            return None
        devices = (device for each in slices.values() for device in each.spec.devices or ())
        return tuple(sorted(each.name for each in devices if not each.taints))

    async def run(self) -> None:
        """Publish until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._mirror.run(), name="slices on the server")
            tasks.create_task(self._publish(), name="slices")

    async def _publish(self) -> None:
        while True:
            changes = Changes(self._changes)
            self._note_registration()
            try:
                pause = await self._step()
            except _ChangedMindError:
                self._written.clear()
                continue
            await changes.wait(pause)

    async def _step(self) -> float:
        """Write what is due; return after how many seconds to look again at the latest."""
        now = self._clock.monotonic()
        if now < self._not_before or (self._pool.unseen and now - self._began < _SETTLES):
            return _LOOK
        facts, pause = await self._pool.facts(self.kept)
        stored = self._mirror.slices.value
        if stored is None:
            self._report(self._mirror.problem)
            return _LOOK
        found = writes(
            contents(facts) if self._publishes else (),
            stored,
            driver=self._driver,
            node=self._node,
            accepted=self._accepted,
            generation=self._generation,
        )
        if not found.names:
            self._report(self._mirror.problem)
            self.agreed_at = now
            return pause
        # Slices of a new generation are of use only together, so they wait for each other.
        due = max(self._written.get(name, -_EVER) + self._write_every for name in found.names)
        if now < due:
            return min(due - now, pause, _LOOK)
        await self._carry_out(found)
        return min(pause, _LOOK)

    async def _carry_out(self, found: Writes) -> None:
        try:
            for stored in found.delete:
                await self._delete(stored)
            for stored, spec in found.update:
                self._note_write(stored.metadata.name)
                self._took(spec, await self._server.update(stored, spec))
            for name, spec in found.create:
                owner = await self._owner_uid()
                self._note_write(name)
                self._took(spec, await self._server.create(name, spec, owner=owner))
        except ApiServerError as error:
            self._failed(error, found)
        else:
            self._retries = backoff(_FIRST_RETRY, _LAST_RETRY)
            self._report("")
            log.info(
                "ResourceSlices published",
                slices=sorted(found.names),
                generation=self._generation,
            )

    async def _delete(self, stored: ResourceSlice) -> None:
        self._note_write(stored.metadata.name)
        try:
            await self._server.delete(stored)
        except ObjectGoneError:
            log.debug("ResourceSlice was deleted by others", slice=stored.metadata.name)
        self._mirror.gone(stored)
        self.observe(True)

    def _note_write(self, name: str) -> None:
        self._written[name] = self._clock.monotonic()

    def _took(self, spec: SliceSpec, stored: ResourceSlice) -> None:
        """Remember what the server made of *spec*, and what of it it does not keep."""
        name, sent = stored.metadata.name, spec.content
        self._generation = max(self._generation, spec.pool.generation)
        self._accepted[name] = Accepted(sent=sent, stored=stored.spec.content)
        self._mirror.stored(stored)
        self.observe(True)
        found = kept_of(sent, stored.spec.content)
        if found != Kept():
            log.warning(
                "the API server drops fields of ResourceSlices",
                taints=not found.taints,
                counters=not found.counters,
                shares=not found.shares,
                instead="devices that are withheld, or are made of the same hardware, are left "
                "out; a shared GPU is given to one claim at a time",
            )
            self.kept = Kept(
                taints=self.kept.taints and found.taints,
                counters=self.kept.counters and found.counters,
                shares=self.kept.shares and found.shares,
            )
            raise _ChangedMindError

    def _failed(self, error: ApiServerError, found: Writes) -> None:
        """Read again what the server has, and wait before the next try."""
        self._mirror.read_again()
        self._owner = ""
        status = error.status if isinstance(error, ApiRefusedError) else 0
        if (
            status == HTTPStatus.UNPROCESSABLE_ENTITY
            and self.kept.counters
            and _has_counters(found)
        ):
            # Kubernetes 1.34 wants them in the slice of their devices, if it wants them at all.
            log.warning("the API server refuses shared counters", reason=str(error))
            self.kept = replace(self.kept, counters=False)
            raise _ChangedMindError from error
        if str(error) != self.problem:
            log.warning("cannot publish ResourceSlices", reason=str(error))
        self._report(str(error))
        self.observe(False)
        self._not_before = self._clock.monotonic() + next(self._retries)

    def _report(self, problem: str) -> None:
        self.problem = problem
        if not problem:
            self.failing_since = None
        elif self.failing_since is None:
            self.failing_since = self._clock.monotonic()

    async def _owner_uid(self) -> str:
        self._owner = self._owner or await self._server.node_uid()
        return self._owner

    def _note_registration(self) -> None:
        """At a kubelet that has restarted, begin as after a start of the daemon."""
        count = self._registration.value.registrations
        before, self._registrations = self._registrations, count
        if count > before and count > 1:
            self._written.clear()
            self._not_before = 0.0
            self.kept = Kept()
            self._mirror.read_again()


def _has_counters(found: Writes) -> bool:
    specs = (*(spec for _, spec in found.update), *(spec for _, spec in found.create))
    return any(
        spec.shared_counters or any(each.consumes_counters for each in spec.devices or ())
        for spec in specs
    )
