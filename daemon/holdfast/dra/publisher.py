"""Keeps our ResourceSlices on the API server as they should be, with as few writes as possible."""

import asyncio
import math
import secrets
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Protocol

import structlog
from msgspec import Struct
from msgspec.structs import replace

from holdfast.apiserver.client import ApiRefusedError
from holdfast.apiserver.resourceslices import NodeSlices
from holdfast.apiserver.watch import TooOldError
from holdfast.discovery.source import Sources
from holdfast.errors import ApiServerError, LaneStuckError, ObjectGoneError
from holdfast.ledger.standings import DeviceStandings
from holdfast.model.devices import Inventory
from holdfast.model.dra.advertised import AdvertisedDevice
from holdfast.model.dra.handover import as_whole
from holdfast.model.dra.health import taints
from holdfast.model.dra.resourceslice import ResourceSlice, SliceSpec
from holdfast.model.dra.slices import (
    PoolFacts,
    SentSlice,
    SliceFields,
    Writes,
    another_name,
    contents,
    kept_of,
    writes,
)
from holdfast.model.ids import PciAddress, ResourceName
from holdfast.model.kubelet import Registration
from holdfast.runtime.clock import Clock, backoff
from holdfast.runtime.lane import Lane
from holdfast.runtime.problem import Problem
from holdfast.runtime.watched import Changes, Watched, first_of

log = structlog.get_logger(__name__)
_FIRST_PAUSE, _LAST_PAUSE = 1.0, 30.0
WRITE_EVERY = 5.0
"""Seconds between two writes of one slice: every scheduler and autoscaler reads each of them."""

_FIRST_RETRY, _LAST_RETRY = 1.0, 60.0
_SETTLES = 30.0
"""Seconds for which devices may be found late after the daemon's start, such as GPUs."""
_LOOK, _BEAT = 1.0, 30.0
_TAKEN = "AlreadyExists"
_COUNTER_FIELDS = ("sharedCounters", "consumesCounters")
"""One of them is in what the API server says where it refuses counters."""
_EVER = math.inf


class NodePool(Struct, kw_only=True):
    """Turns what is known of the node into `PoolFacts`, which change with what is `followed`.

    It tells of the devices whose resource `driver` serves. `pcie_root` reads the root port of a
    function, on `lane`; empty where it has none.
    """

    driver: str
    serves: Callable[[ResourceName], bool]
    standings: DeviceStandings
    inventory: Watched[Inventory]
    sources: Sources
    pcie_root: Callable[[PciAddress], str]
    lane: Lane
    evict_lost: Watched[bool]
    _roots: dict[PciAddress, str] = {}

    @property
    def followed(self) -> tuple[Watched[Any], ...]:
        """Return what the facts are made of."""
        return self.inventory, self.standings.latest, self.evict_lost

    @property
    def unseen(self) -> bool:
        """Tell whether some of the hardware was not looked at yet, or cannot be."""
        return any(map(self.serves, self.inventory.value.unseen))

    async def facts(self, kept: SliceFields) -> PoolFacts:
        """Return the facts as of now.

        *kept* is what the API server keeps of slices: without shares each GPU is offered whole.
        """
        inventory = self.inventory.value
        devices = {each.name: each for each in inventory.devices if self.serves(each.name.resource)}
        advertised = self.sources.told(inventory, self.serves)
        if not kept.shares:
            advertised = tuple(map(as_whole, advertised))
            devices |= {each.name: each for each in inventory.shared_cards}
        roots = await self._roots_of(advertised)
        if self.inventory.value is not inventory:
            return await self.facts(kept)
        # From here on without a pause, so that all of it is of one moment.
        standings, evict_lost = self.standings.now(), self.evict_lost.value
        return PoolFacts(
            devices=devices,
            advertised=advertised,
            taints={
                name: taints(self.driver, standing, evict_lost=evict_lost)
                for name in devices
                if (standing := standings.get(name)) is not None
            },
            pcie_roots=roots,
            kept=kept,
        )

    async def _roots_of(self, advertised: tuple[AdvertisedDevice, ...]) -> Mapping[PciAddress, str]:
        """Return the root of each function; where it is not known yet, the device has none."""
        wanted = {each.address for each in advertised if each.address is not None}
        if unread := wanted - self._roots.keys():
            try:
                self._roots |= await self.lane.run(
                    lambda: {each: self.pcie_root(each) for each in unread}
                )
            except LaneStuckError as error:  # a scan hangs: no reason to hide the devices
                log.debug("cannot read the PCIe roots of devices", reason=str(error))
        self._roots = {each: root for each, root in self._roots.items() if root and each in wanted}
        return self._roots


class SliceMirror:
    """Publishes `slices` by name; None until they were listed for the first time."""

    def __init__(self, server: NodeSlices, *, clock: Clock) -> None:
        """Read from *server*."""
        self._server = server
        self._clock = clock
        self._stale = asyncio.Event()
        self._pauses = backoff(_FIRST_PAUSE, _LAST_PAUSE)
        self._version = ""
        self.listings = 0
        """How often they were listed."""
        self.slices: Watched[Mapping[str, ResourceSlice] | None] = Watched(None)
        self.problem = Problem(
            log, "cannot read ResourceSlices", over="ResourceSlices can be read again"
        )
        """Why the server cannot be read."""

    def stored(self, slice_: ResourceSlice) -> None:
        """Take *slice_*, which our own write returned, for what the server has.

        Unless the watch has come past it: the slice may have been deleted since.
        """
        if not _is_older(slice_.metadata.resource_version, self._version):
            self._put(slice_)

    def gone(self, slice_: ResourceSlice) -> None:
        """Take *slice_* for deleted, unless another one has its name now."""
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
                listed, version = await self._server.read_all()
                self._version = version
                self.listings += 1
                self.slices.set(listed)
                await self._unless_stale(self._watch(version))
            except TooOldError as error:
                log.debug("ResourceSlices are listed again", reason=str(error))
            except ApiServerError as error:
                self.problem.set(str(error))
            else:
                continue
            await self._unless_stale(self._clock.sleep(next(self._pauses)))

    async def _unless_stale(self, work: Coroutine[object, object, None]) -> None:
        """Do *work* until it is over, or until what is known has to be read again."""
        working = asyncio.ensure_future(work)
        stale = asyncio.ensure_future(self._stale.wait())
        if working in await first_of(working, stale):
            working.result()

    async def _watch(self, version: str) -> None:
        while True:
            # A server that can be listed and not watched is one that cannot be read.
            async for event in self._server.follow(version, begun=partial(self.problem.set, "")):
                self._pauses = backoff(_FIRST_PAUSE, _LAST_PAUSE)
                version = self._version = event.version
                if event.stored is not None and event.deleted:
                    self.gone(event.stored)
                elif event.stored is not None:
                    self._put(event.stored)
            # An end is normal after some minutes; a server that ends each at once is given time.
            await self._clock.sleep(next(self._pauses))

    def _put(self, slice_: ResourceSlice) -> None:
        name, known = slice_.metadata.name, self.slices.value or {}
        before = known[name].metadata.resource_version if name in known else ""
        if not _is_older(slice_.metadata.resource_version, before):
            self.slices.set({**known, name: slice_})


def _is_older(version: str, other: str) -> bool:
    """Tell whether *version* comes before *other*; False where they cannot be compared.

    Versions of one resource may be compared from Kubernetes 1.35 on; before they were numbers, too.
    """
    return version.isdecimal() and other.isdecimal() and int(version) < int(other)


class SliceObserver(Protocol):
    """Hears of writes of slices."""

    def wrote_slice(self, written: bool) -> None:
        """Hear of one write, and whether it succeeded."""


class _ChangedMindError(Exception):
    """What is being written is no longer what is wanted."""


@dataclass(kw_only=True, eq=False)
class Publisher:
    """Writes what differs: at once where it can, and no slice twice within `write_every` seconds.

    It publishes `pool` to `server`, again whenever that has changed. Where it `publishes` nothing,
    because the hardware went back to the device plugin, slices that are left are removed.

    A second `registration` in our life says that kubelet has restarted and has deleted all slices
    of its node.
    """

    pool: NodePool
    server: NodeSlices
    mirror: SliceMirror
    registration: Watched[Registration]
    clock: Clock
    observer: SliceObserver
    publishes: bool
    write_every: float = WRITE_EVERY

    def __post_init__(self) -> None:
        self._written: dict[str, float] = {}
        self._accepted: dict[str, SentSlice] = {}
        self._refused: dict[str, int] = {}
        """The names of slices that the server had and the mirror had not, each with how often they
        had been listed by then."""
        self._others: dict[str, str] = {}
        """What slices are called instead whose names somebody else has taken."""
        self._generation = 0
        self._owner = ""
        self._not_before = 0.0
        self._retries = backoff(_FIRST_RETRY, _LAST_RETRY)
        self._began = self.clock.monotonic()
        self._settled = False
        """Whether all hardware was seen once, or had its time. From then on a taint never waits."""
        self._registrations = self.registration.value.registrations
        self.kept = SliceFields()
        """Which fields the API server keeps, as far as it has shown."""
        self._problem = Problem(log, "cannot publish ResourceSlices")
        self.failing_since: float | None = None
        """Since when there has been a problem, in monotonic seconds."""
        self.agreed_at: float | None = None
        """When the server last had what it should have, in monotonic seconds."""

    @property
    def problem(self) -> str:
        """Return why the slices are not as they should be, or not known; empty while they are."""
        return self._problem.text or self.mirror.problem.text

    @property
    def offered(self) -> tuple[str, ...] | None:
        """Return the devices that the server has without a taint; None: it was not read yet."""
        slices = self.mirror.slices.value
        if slices is None:
            return None
        devices = (device for each in slices.values() for device in each.spec.devices or ())
        return tuple(sorted(each.name for each in devices if not each.taints))

    async def run(self) -> None:
        """Publish until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.mirror.run(), name="slices on the server")
            tasks.create_task(self._publish(), name="slices")

    async def _publish(self) -> None:
        while True:
            changes = Changes((*self.pool.followed, self.registration, self.mirror.slices))
            self._note_registration()
            try:
                pause = await self._step()
            except _ChangedMindError:
                self._written.clear()
                continue
            await changes.wait(pause)

    async def _step(self) -> float:
        """Write what is due; return after how many seconds to look again at the latest."""
        now = self.clock.monotonic()
        self._settled = self._settled or not self.pool.unseen or now - self._began >= _SETTLES
        if now < self._not_before or not self._settled:
            return _LOOK
        facts = await self.pool.facts(self.kept)
        stored = self.mirror.slices.value
        if stored is not None and self._accepted.keys() - stored.keys():
            self._owner = ""  # somebody deletes them: the garbage collector, without their Node
        if stored is None:
            self._report("")
            return _LOOK
        found = writes(
            contents(facts) if self.publishes else (),
            stored,
            driver=self.server.driver,
            node=self.server.node,
            accepted=self._accepted,
            generation=self._generation,
            others=self._others,
        )
        if not found.names:
            self._report("")
            self.agreed_at = now
            return _BEAT
        # Slices of a new generation are of use only together, so they wait for each other.
        due = max(self._written.get(name, -_EVER) + self.write_every for name in found.names)
        if now < due:
            return min(due - now, _LOOK)
        await self._carry_out(found, stored)
        return _LOOK

    async def _carry_out(self, found: Writes, stored: Mapping[str, ResourceSlice]) -> None:
        try:
            for left in found.delete:
                await self._delete(left)
            left_over = stored.keys() - {each.metadata.name for each in found.delete}
            for name, spec in found.put.items():
                if name in left_over:
                    self._note_write(name)
                    self._took(spec, await self.server.update(stored[name], spec))
                else:
                    await self._create(name, spec)
        except ApiServerError as error:
            self._failed(error)
        else:
            self._retries = backoff(_FIRST_RETRY, _LAST_RETRY)
            self._refused.clear()
            self._report("")
            log.info(
                "ResourceSlices published",
                slices=sorted(found.names),
                generation=self._generation,
            )

    async def _create(self, name: str, spec: SliceSpec) -> None:
        self._owner = self._owner or await self.server.node_uid()
        self._note_write(name)
        try:
            self._took(spec, await self.server.create(name, spec, owner=self._owner))
        except ApiRefusedError as error:
            if error.reason != _TAKEN:
                raise
            if self.mirror.listings > self._refused.setdefault(name, self.mirror.listings):
                # Listed again since, it is not ours: names can be known beforehand.
                self._others[name] = another_name(name, secrets.token_hex(4))
                log.warning(
                    "the name of a ResourceSlice is taken",
                    slice=name,
                    instead=self._others[name],
                    reason="a slice of another node or driver has it: see who made it",
                )
            raise

    async def _delete(self, stored: ResourceSlice) -> None:
        self._note_write(stored.metadata.name)
        pool = stored.spec.pool.name
        if pool != self.server.node:
            log.warning(
                "a ResourceSlice of this node is in another pool and is deleted",
                slice=stored.metadata.name,
                pool=pool,
            )
        try:
            await self.server.delete(stored)
        except ObjectGoneError:
            log.debug("ResourceSlice was deleted by others", slice=stored.metadata.name)
        self.mirror.gone(stored)
        self.observer.wrote_slice(True)

    def _note_write(self, name: str) -> None:
        self._written[name] = self.clock.monotonic()

    def _took(self, spec: SliceSpec, stored: ResourceSlice) -> None:
        """Remember what the server made of *spec*, and what of it it does not keep."""
        name, sent = stored.metadata.name, spec.content
        self._generation = max(self._generation, spec.pool.generation)
        self._accepted[name] = SentSlice(sent=sent, stored=stored.spec.content)
        self.mirror.stored(stored)
        self.observer.wrote_slice(True)
        found = kept_of(sent, stored.spec.content)
        if found != SliceFields():
            log.warning(
                "the API server drops fields of ResourceSlices",
                taints=not found.taints,
                counters=not found.counters,
                shares=not found.shares,
                instead="devices that are withheld, or are made of the same hardware, are left "
                "out; a shared device is given to one claim at a time",
            )
            self.kept = SliceFields(
                taints=self.kept.taints and found.taints,
                counters=self.kept.counters and found.counters,
                shares=self.kept.shares and found.shares,
            )
            raise _ChangedMindError

    def _failed(self, error: ApiServerError) -> None:
        """Read again what the server has, and wait before the next try."""
        self.mirror.read_again()
        self._owner = ""
        status = error.status if isinstance(error, ApiRefusedError) else 0
        if (
            status == HTTPStatus.UNPROCESSABLE_ENTITY
            and self.kept.counters
            and any(field in str(error) for field in _COUNTER_FIELDS)
        ):
            # Kubernetes 1.34 wants them in the slice of their devices, if it wants them at all. A
            # policy that denies every slice answers with the same status.
            log.warning("the API server refuses shared counters", reason=str(error))
            self.kept = replace(self.kept, counters=False)
            raise _ChangedMindError from error
        self._report(str(error))
        self.observer.wrote_slice(False)
        self._not_before = self.clock.monotonic() + next(self._retries)

    def _report(self, problem: str) -> None:
        self._problem.set(problem)
        if not self.problem:
            self.failing_since = None
        elif self.failing_since is None:
            self.failing_since = self.clock.monotonic()

    def _note_registration(self) -> None:
        """At a kubelet that has restarted, begin as after a start of the daemon."""
        count = self.registration.value.registrations
        before, self._registrations = self._registrations, count
        if count > before and count > 1:
            self._owner = ""  # a Node that was deleted has another uid now
            self._written.clear()
            self._not_before = 0.0
            self.kept = SliceFields()
            self.mirror.read_again()
