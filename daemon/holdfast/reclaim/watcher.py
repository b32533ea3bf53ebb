"""The one loop that follows every lock: it sees a pod end, and frees what the pod had.

A device becomes free as soon as the kernel agrees. On what the kernel does not agree on, the
reclaimer acts.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import structlog
from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import HoldfastError
from holdfast.inuse.deviceuse import DeviceUse
from holdfast.kubelet.reader import KubeletReader
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.standings import EmptyPods
from holdfast.model.book.book import ENDING, Book, DeviceLock, LockState
from holdfast.model.book.claims import following, release
from holdfast.model.book.draft import Draft
from holdfast.model.book.messages import BlockReason
from holdfast.model.book.places import on_vfio
from holdfast.model.book.pods import (
    Observation,
    PodSighting,
    changes_with_time,
    lacking,
    reconcile,
    take_in,
    without_retired,
)
from holdfast.model.devices import DeviceKind, Inventory
from holdfast.model.groups import grouped
from holdfast.model.ids import DeviceName, PodUid, ResourceName
from holdfast.model.kubelet import KubeletView
from holdfast.model.node.readiness import ReadinessCheck, check_openly, check_result, longest_wait
from holdfast.model.use.free import (
    FormerPod,
    Freedom,
    KernelFacts,
    OnVfio,
    ReleaseFacts,
    Verdict,
    in_use,
    judge_release,
    kept_only_by,
)
from holdfast.reclaim.evidence import UncountedPods
from holdfast.reclaim.reclaimer import Reclaimer
from holdfast.reclaim.resetter import Resetter
from holdfast.reclaim.sightings import Endings, PodSightings
from holdfast.reclaim.users import Users
from holdfast.runtime.clock import Clock, Turns
from holdfast.runtime.kept import keep_only
from holdfast.runtime.problem import LogLimit, Problem
from holdfast.runtime.watched import Changes, Nudges, Watched
from holdfast.settings.sections import ReclaimSettings

_ENABLE_AT_ONCE = 64
"""Of how many devices `enable` is read in a beat: the kernel announces no change of it."""
_ACT_AT_ONCE = 16
"""On what so many pods have left is acted in a beat: more could not be judged while one answer of
kubelet's is new."""
_COMPARE_AGAIN = 60.0
"""Seconds after which book and observations are compared again although neither has changed."""

log = structlog.get_logger(__name__)

Sightings = Mapping[PodUid, PodSighting]


class _SettledBook(Struct, frozen=True, kw_only=True):
    """A book in which what was observed at a moment, in monotonic seconds, changes nothing."""

    book: Book
    observed: Observation
    at: float


@dataclass(kw_only=True, eq=False)
class Watcher:
    """Moves locks towards FREE, one beat after the other.

    Each beat compares the book with kubelet's checkpoint, the pods' cgroups and the kernel, writes
    down what follows, and sleeps until something changes. In the steady state it reads `enable` of
    some devices and a few cgroups, each in its turn, so that a beat costs the same on every node.

    It has `reclaimer` act on what is not free, and `resetter` check what was forced. `is_retired`
    tells which resources kubelet hears nothing of by its device plugins. What is seen to keep a
    device that is not HELD from its next pod is published in `obstacles`, and which pods have
    processes are noted in `emptied`.
    """

    ledger: Ledger
    inventory: Watched[Inventory]
    reader: KubeletReader
    use: DeviceUse
    pods: PodSightings
    reclaimer: Reclaimer
    resetter: Resetter
    clock: Clock
    settings: Watched[ReclaimSettings]
    pending_timeout: Watched[float]
    is_retired: Callable[[ResourceName], bool]
    obstacles: Watched[Mapping[DeviceName, BlockReason]]
    emptied: EmptyPods
    nudges: Nudges
    """Change when something on the node has, such as the processes of a pod: it looks again now."""

    def __post_init__(self) -> None:
        self._endings = Endings(self.clock)
        self._exits = self.use.exits.value
        self._uncounted = UncountedPods(self.clock)
        self._users = Users(
            ledger=self.ledger, inventory=self.inventory, use=self.use, clock=self.clock
        )
        self._turns: Turns[DeviceName] = Turns(self.clock, at_most=_ENABLE_AT_ONCE)
        self._pod_turns: Turns[PodUid | None] = Turns(self.clock, at_most=_ACT_AT_ONCE)
        self._agreed: _SettledBook | None = None
        self._not_free: dict[DeviceName, Verdict] = {}
        """What was last seen to keep the device of each lock in release from its next pod."""
        self._unrecorded: dict[DeviceName, Verdict] = {}
        self._said: dict[DeviceName, tuple[PodUid | None, str]] = {}
        """With which former pod and reason the log last said that a device is not free."""
        self._limit = LogLimit(self.clock)
        self.looked = asyncio.Event()
        """Set after the first full look at the node."""
        self.problem = Problem(log, "cannot reconcile locks")
        self.compared_at: float | None = None
        """When book, kubelet and kernel were last compared, in monotonic seconds."""

    def checks(self) -> Iterator[ReadinessCheck]:
        """Yield whether all processes were scanned once, and locks were compared recently.

        No container passes the gate before the one, and nothing becomes free without the other.
        """
        unseen = "" if self.looked.is_set() else "the first scan of all processes has not finished"
        yield check_openly("first process scan", unseen)
        within, now = longest_wait(self.settings.value.poll), self.clock.monotonic()
        name, at = "lock reconciliation", self.compared_at
        yield check_result(name, self.problem.text, at=at, now=now, within=within)

    def obstacle(self, device: DeviceName) -> BlockReason | None:
        """Return what was last seen to keep *device* from its next pod; None: nothing was."""
        holders = self.use.holders_of(device)
        seen = self._not_free.get(device, _NOTHING)
        if not holders and not seen.reason:
            return None
        lock = self.ledger.book.value.locks.get(device) if holders else None
        return BlockReason(
            device=device,
            holders=holders,
            reason=seen.reason,
            brief=seen.brief,
            ends_after=None if lock is None else self.reclaimer.ends_after(lock),
        )

    async def catch_up(self) -> None:
        """Bring the book in line with kubelet's checkpoint, before anything is offered.

        Where that cannot be recorded, nobody gets a place in the queue before it is.
        """
        sightings = await self._sight()
        await self._reconcile(sightings)
        if self.ledger.failing_since is not None:
            observed = lacking(self.ledger.book.value, self._observed(sightings))
            self.ledger.owe("catch up", partial(take_in, observed=observed))

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            changes = Changes(
                [
                    self.ledger.book,
                    self.reader.view,
                    self.inventory,
                    self.nudges,
                    self.use.exits,
                    self.settings,
                    self.pending_timeout,
                ]
            )
            # Degraded, not dead: locks stay as they are until the node can be looked at again.
            with self.problem.noting(HoldfastError, OSError):
                await self._beat()
                self.compared_at = self.clock.monotonic()
            await changes.wait(self._pause())

    async def _beat(self) -> None:
        if self._exits != self.use.exits.value:
            self._exits = self.use.exits.value
            self._endings.holder_exited()
        registrations = self.emptied.registrations
        sightings = await self._sight()
        # At once: kubelet soon gives on what an ended pod has.
        self.emptied.note({pod: each.populated for pod, each in sightings.items()}, registrations)
        self.emptied.keep(self.ledger.book.value.pods.keys())
        await self._reconcile(sightings)
        if self._endings.is_question_due(self.ledger.book.value, sightings):
            self.reader.ask("a pod seems to have ended")
        devices = self.inventory.value.devices
        if self.looked.is_set():
            turns = frozenset(self._turns.next([each.name for each in devices]))
            devices = tuple(each for each in devices if each.name in turns)
        enabled = await self.use.look.enabled(devices)
        await self._users.look_at_free(enabled, at_all=not self.looked.is_set())
        held = [each for each in self._locks() if each.state is LockState.HELD]
        await self._users.look_at_held(held, sightings, enabled)
        trouble = await self._release(sightings)
        found = {each: self.obstacle(each) for each in self._not_free}
        self.obstacles.set({device: each for device, each in found.items() if each is not None})
        self.looked.set()
        if trouble is not None:
            raise trouble

    async def _sight(self) -> dict[PodUid, PodSighting]:
        book, view = self.ledger.book.value, self.reader.view.value
        resources = set(self.inventory.value.resources)
        wanted = set(book.pods)
        wanted |= {entry.pod for entry in view.entries if entry.resource in resources}
        ending = {
            lock.pod
            for lock in book.locks.values()
            if lock.pod is not None and lock.state is not LockState.HELD
        }
        return await self.pods.sight(sorted(wanted), again=ending)

    def _observed(self, sightings: Sightings) -> Observation:
        return Observation(
            view=self._view(sightings),
            inventory=self.inventory.value,
            boot=self.ledger.boot,
            sightings=sightings,
            pending_timeout=self.pending_timeout.value,
        )

    async def _reconcile(self, sightings: Sightings) -> None:
        observed = self._observed(sightings)
        book, now, agreed = self.ledger.book.value, self.clock.monotonic(), self._agreed
        if (
            agreed is not None
            and agreed.book is book
            and agreed.observed == observed
            and now - agreed.at < _COMPARE_AGAIN
            and not changes_with_time(book)
        ):
            return
        changed = False
        if self.ledger.failing_since is not None:
            # A full disk takes no new Allocation, and with one nothing of what has ended either.
            ends = replace(observed, adopts=False)
            changed = await self.ledger.apply_if_changing(lambda draft: reconcile(draft, ends))
        if not changed:
            changed = await self.ledger.apply_if_changing(lambda draft: reconcile(draft, observed))
        self._agreed = None if changed else _SettledBook(book=book, observed=observed, at=now)

    async def _release(self, sightings: Sightings) -> BaseException | None:
        """Free what is free; only then act on the rest, for which kubelet may have to be asked.

        Return a failure of that: it must keep neither what others left nor the first look.
        """
        book = self.ledger.book.value
        ending = [lock for lock in self._locks() if _waits_to_be_free(lock)]
        before = self._not_free
        self._not_free = {lock.device: before.get(lock.device, _NOTHING) for lock in ending}
        keep_only(self._not_free, self._unrecorded)
        # Of a claim's pods each has its turn, and the time for which none is counted runs for all.
        pods = {pod for lock in ending for pod in book.pods_of(lock)}
        self._uncounted.keep(pods)
        holders = {lock.pod for lock in book.locks.values() if lock.state is LockState.HELD}
        self.reclaimer.keep(pods - holders, book.locks.keys())
        for lock in ending:
            if lock.claim is not None:
                for pod in book.pods_of(lock):
                    self._uncounted.seconds(pod, counted=False)
        detained = {
            lock.device: in_use(reason)
            for lock in ending
            if (reason := await self.resetter.detains(lock))
        }
        self._not_free |= detained
        free: list[tuple[DeviceLock, ReleaseFacts, str]] = []
        rest: list[tuple[DeviceLock, ReleaseFacts]] = []
        left = [lock for lock in ending if lock.device not in detained]
        for lock, facts in (await self._facts(left, book, sightings)).items():
            verdict = judge_release(facts)
            if verdict.freedom is Freedom.FREE:
                # What may keep it from now on is that its release cannot be recorded: see _free.
                self._not_free[lock.device] = self._unrecorded.pop(lock.device, _NOTHING)
                free.append((lock, facts, verdict.reason))
                continue
            self._not_free[lock.device] = verdict
            self._unrecorded.pop(lock.device, None)
            # Processes that cannot all be listed cannot be judged: each is judged by the others.
            listed = facts.pod is None or not facts.pod.unlisted
            if lock.state in ENDING and listed:
                rest.append((lock, facts))
        await self._free(free, book, sightings)
        self._log_not_free([lock for lock, _ in rest])
        # At once: each may wait for kubelet's answer, which is then the same, and keeps the beat.
        pods_left = grouped((lock.pod, (lock, facts)) for lock, facts in rest)
        acts = [self._act_on(pods_left[pod], book) for pod in self._pod_turns.next(pods_left)]
        failed = filter(None, await asyncio.gather(*acts, return_exceptions=True))
        # What is no trouble of the node's ends the daemon: it must not hide behind what is.
        return min(failed, key=lambda each: isinstance(each, HoldfastError | OSError), default=None)

    async def _act_on(self, left: Iterable[tuple[DeviceLock, ReleaseFacts]], book: Book) -> None:
        """Do what is due for the locks of one pod: they share what comes of it.

        Or wait for the next pod of a lock's claim, whose turn it is: what a pod has left is ended
        under its own lock alone.
        """
        for lock, facts in left:
            await asyncio.sleep(0)  # there may be hundreds, and others have their turn
            reason, later = self._not_free[lock.device].reason, following(book, lock)
            if kept_only_by(facts, later):
                evidence = f"{book.pod(lock.pod)} is over; {reason}"
                pass_on = partial(Draft.pass_on, lock=lock, pod=min(later), evidence=evidence)
                await self.ledger.if_unmoved(lock, pass_on)
            else:
                await self.reclaimer.step(lock, facts, reason)

    def _log_not_free(self, locks: Iterable[DeviceLock]) -> None:
        """Log why devices are not free, once: a line for all of a pod that share a reason.

        A reason names processes, and of some pods they are others at each look.
        """
        lines = grouped(
            ((lock.pod, self._not_free[lock.device].reason), lock.device) for lock in locks
        )
        before = {device: said for device, said in self._said.items() if device in self._not_free}
        known = frozenset(before.values())
        for said, devices in lines.items():
            if said not in known:
                pod, reason = said
                if not self._limit.allows(pod or devices[0]):
                    continue
                names = [str(each) for each in devices]
                log.info("devices not free yet", devices=names, pod=pod, reason=reason)
            before.update(dict.fromkeys(devices, said))
        self._said = before

    def _over_as_well(
        self, lock: DeviceLock, facts: ReleaseFacts, book: Book, sightings: Sightings
    ) -> frozenset[PodUid]:
        """Return which other pods of *lock*'s claim are over: a beat for each could take minutes.

        *facts* freed the device of the lock's own pod.
        """
        return frozenset(
            pod
            for pod in following(book, lock)
            if judge_release(
                replace(facts, pod=self._former_pod(replace(lock, pod=pod), book, sightings))
            ).freedom
            is Freedom.FREE
        )

    async def _free(
        self,
        free: Iterable[tuple[DeviceLock, ReleaseFacts, str]],
        book: Book,
        sightings: Sightings,
    ) -> None:
        """Write down in one commit what is free, and why: each makes all the standings again."""
        releases: dict[DeviceLock, Callable[[Draft], None]] = {}
        for lock, facts, reason in free:
            device = self.inventory.value.get(lock.device)
            cleared = self.resetter.clears(lock, device, facts.kernel)
            if cleared is None:
                continue
            self.use.forget(lock.device)
            evidence = "; ".join(filter(None, (reason, cleared)))
            over = self._over_as_well(lock, facts, book, sightings)
            releases[lock] = partial(release, lock=lock, evidence=evidence, over=over)

        def decide(draft: Draft) -> None:
            for lock, record in releases.items():
                if draft.is_as(lock):  # else it moved while we looked: the next beat judges it
                    record(draft)

        def failed(reason: str) -> None:
            kept = in_use(f"its release cannot be recorded: {reason}")
            self._not_free |= {lock.device: kept for lock in releases}
            self._unrecorded |= {lock.device: kept for lock in releases}

        if releases:
            await self.ledger.apply_or_log(decide, failed=failed)

    async def _facts(
        self, locks: Sequence[DeviceLock], book: Book, sightings: Sightings
    ) -> dict[DeviceLock, ReleaseFacts]:
        pods = {lock.device: self._former_pod(lock, book, sightings) for lock in locks}
        kernel = await self._kernel_facts(locks, book, pods)
        return {
            lock: ReleaseFacts(
                kernel=kernel[lock.device],
                pod=pods[lock.device],
                unseen_grace=self.settings.value.unseen_grace,
                nobodys=lock.pod is None and (lock.state is LockState.FOREIGN or not lock.started),
                heir=_heir(lock, book),
            )
            for lock in locks
        }

    async def _kernel_facts(
        self,
        locks: Iterable[DeviceLock],
        book: Book,
        pods: Mapping[DeviceName, FormerPod | None],
    ) -> dict[DeviceName, KernelFacts]:
        inventory, found, devices = self.inventory.value, dict[DeviceName, KernelFacts](), []
        for lock in locks:
            device = inventory.get(lock.device)
            moved = on_vfio(lock.keys, book, inventory)
            if moved:  # whether or not its driver can be asked
                sight = OnVfio(functions=moved)
                found[lock.device] = KernelFacts(kind=DeviceKind.DRIVER, holders=(), sight=sight)
            elif device is not None:
                devices.append(device)
            elif inventory.may_have(lock.device.resource):
                found[lock.device] = KernelFacts()
            else:  # unplugged: nothing is left that anybody could hold
                found[lock.device] = KernelFacts(holders=())
        if devices:
            found |= await self.use.known(
                devices,
                book.locks,
                enabled=await self.use.look.enabled(devices),
                pids={name: pod.processes or () for name, pod in pods.items() if pod is not None},
                to_free={name for name, pod in pods.items() if not _may_live(pod)},
            )
        return found

    def _former_pod(self, lock: DeviceLock, book: Book, sightings: Sightings) -> FormerPod | None:
        if lock.pod is None:
            return None
        view, record = self._view(sightings), book.pods.get(lock.pod)
        sighting, boot = sightings.get(lock.pod), self.ledger.boot
        rebooted = record is not None and record.boot != boot
        if record is not None and sighting is not None and record.is_former(sighting.inode, boot):
            sighting = None  # another cgroup has its place
        counted = view.counts(lock.pod) if view.readable else None
        unreadable = view.unreadable
        if lock.claim is not None:  # kubelet has unprepared it, and the checkpoint says nothing
            counted, unreadable = False, False
        return FormerPod(
            counted=counted,
            unreadable=unreadable,
            populated=False if sighting is None else sighting.populated,
            processes=None if sighting is None else sighting.processes,
            unlisted="" if sighting is None else sighting.unlisted,
            cgroup_seen=record is not None and (record.cgroup is not None or rebooted),
            uncounted_for=self._uncounted.seconds(
                lock.pod, counted=False if unreadable else counted
            ),
        )

    def _view(self, sightings: Sightings) -> KubeletView:
        """Return kubelet's view, without pods that it names for good: see `without_retired`."""
        view, book = self.reader.view.value, self.ledger.book.value
        # Of other resources the pods' cgroups were not looked at.
        retired = frozenset(filter(self.is_retired, self.inventory.value.resources))
        return without_retired(
            view, book, sightings, self.ledger.boot, is_retired=retired.__contains__
        )

    def _locks(self) -> tuple[DeviceLock, ...]:
        return tuple(self.ledger.book.value.locks.values())

    def _pause(self) -> float:
        ending = any(map(_waits_to_be_free, self._locks()))
        settings = self.settings.value
        poll = settings.release_poll if ending else settings.poll
        return min(poll, self._endings.pause())


_NOTHING = in_use("")
"""Of a lock in release that was not looked at yet."""


def _waits_to_be_free(lock: DeviceLock) -> bool:
    return lock.state in ENDING or lock.state is LockState.FOREIGN


def _may_live(pod: FormerPod | None) -> bool:
    """Tell whether kubelet counts the pod, or a process of it lives or may live."""
    if pod is None:
        return False
    counted = pod.counted is not False and not pod.unreadable
    return counted or pod.populated is not False


def _heir(lock: DeviceLock, book: Book) -> PodUid | None:
    """Return the pod whose Allocation is the oldest that waits for the lock."""
    waiting = sorted(book.holdings.on(lock.keys), key=book.holdings.rank)
    return next((each.pod for each in waiting if each.id != lock.allocation), None)
