"""Ends a running pod's own leaking gVisor sandbox (`reclaim.leakedSandbox: restart`).

The sandbox keeps the device, so that the pod's next container cannot start on it.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import HoldfastError
from holdfast.inuse.deviceuse import DeviceUse
from holdfast.kubelet.reader import KubeletReader
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.book import PodRecord
from holdfast.model.book.draft import Draft
from holdfast.model.devices import Inventory
from holdfast.model.ids import PodUid, ProcessId
from holdfast.model.kubelet import KubeletView
from holdfast.model.reclaim.ending import (
    Grounds,
    Member,
    ReclaimStep,
    RuntimeState,
    Warrant,
    retry_pause,
)
from holdfast.model.reclaim.leak import LeakFacts, WaitingStart, why_keep
from holdfast.model.text import some
from holdfast.model.use.holders import MOST_NAMED, Holder, leaking_pods
from holdfast.reclaim.ending import Ending
from holdfast.runtime.clock import Clock
from holdfast.runtime.kept import keep_only
from holdfast.runtime.watched import Changes, Watched
from holdfast.settings.sections import ReclaimSettings

_LOOK = 1.0
"""Seconds between two looks while a start is held up."""


class LeakedSandboxes(Struct, frozen=True, kw_only=True):
    """Follows the starts that are held up by their own pod, and has ended what held them up.

    Kubelet then makes the pod a new sandbox. It acts by `settings` on what `starts` says, for pods
    of which `may_end` tells that anything is ended.
    """

    ledger: Ledger
    inventory: Watched[Inventory]
    reader: KubeletReader
    starts: Watched[frozenset[WaitingStart]]
    look: DeviceUse
    ending: Ending
    clock: Clock
    settings: Watched[ReclaimSettings]
    may_end: Callable[[PodUid], bool]
    _leaking_since: dict[PodUid, float] = {}
    _ended: dict[PodUid, list[float]] = {}
    _noted: dict[PodUid, frozenset[ProcessId]] = {}
    """Of which processes of a pod the history says that they are being ended."""

    async def run(self) -> None:
        """Follow the starts until cancelled."""
        while True:
            changes = Changes([self.starts, self.settings])
            starts = self.starts.value if self._may_restart else frozenset[WaitingStart]()
            self._forget({start.pod for start in starts})
            for start in sorted(starts, key=lambda each: (each.pod, each.device)):
                await self._consider(start)
            await changes.wait(
                min(_LOOK, self.settings.value.leak_grace or _LOOK) if starts else math.inf
            )

    async def ask(self) -> KubeletView:
        """Return what kubelet wrote last: a pod that it still counts needs no new answer."""
        return self.reader.view.value

    async def judge(
        self, warrant: Warrant, _asked_at: float, among: Sequence[Member] | None = None
    ) -> "SandboxJudge":
        """Ask everything; last of all, for a look at all processes takes long, who is at work.

        *among*: only these are looked at (None: all).
        """
        pod = warrant.pod
        holders, gap = await self._holders(pod, among)
        members = await self.ending.pods.members(pod)
        runtime = await self.ending.pods.runtime_state(pod, members)
        now = self.clock.monotonic()
        return SandboxJudge(
            leaks=self,
            warrant=warrant,
            record=self.ledger.book.value.pods.get(pod),
            members=members,
            holders=holders,
            gap=gap,
            runtime=runtime,
            leaking_for=self._leaking_for(pod, holders, now),
            pause=self._pause(pod, now),
        )

    def facts(self, judge: "SandboxJudge", members: Sequence[Member]) -> LeakFacts:
        """Return all that decides whether *members* may be ended; from any thread."""
        book, view = self.ledger.book.value, self.reader.view.value
        pod, device = judge.warrant.pod, judge.warrant.lock.device
        return LeakFacts(
            restart=self._may_restart,
            terminate=self.may_end(pod),
            scan_complete=not judge.gap,
            pod=pod,
            record=book.pods.get(pod),
            lock=book.locks.get(device),
            held_up=WaitingStart(pod=pod, device=device) in self.starts.value,
            counted=view.readable and view.counts(pod),
            holders=judge.holders,
            members=tuple(members),
            runtime=judge.runtime,
            leaking_for=judge.leaking_for,
            leak_grace=self.settings.value.leak_grace,
            pause=judge.pause,
        )

    @property
    def _may_restart(self) -> bool:
        return self.settings.value.leaked_sandbox == "restart"

    def _forget(self, waiting: set[PodUid]) -> None:
        keep_only(waiting, self._leaking_since)
        keep_only(self.ledger.book.value.pods, self._ended, self._noted)

    async def _consider(self, start: WaitingStart) -> None:
        lock = self.ledger.book.value.locks.get(start.device)
        if lock is None or lock.pod != start.pod:
            return  # what the start waits for is another's
        warrant = Warrant(grounds=Grounds.LEAK, lock=lock, pod=start.pod, gap="")
        try:
            await self._end(warrant)
        except (HoldfastError, OSError) as error:
            self.ending.spare(lock, str(error))

    async def _end(self, warrant: Warrant) -> None:
        # What its own processes show keeps most sandboxes, and a look at all takes much.
        judge = await self.judge(warrant, 0.0, await self.ending.pods.members(warrant.pod))
        if judge.why_void(judge.members) is None:
            judge = await self.judge(warrant, 0.0)
        reason = judge.why_void(judge.members)
        if reason is not None:
            self.ending.spare(warrant.lock, reason, gap=judge.gap)
            return
        meant = frozenset(each.process for each in judge.members)
        # Written down first: after a crash the history says that we had begun to act.
        if not await self._note(warrant, meant):
            return
        if await self.ending.end(replace(warrant, only=meant), ReclaimStep.KILL, self):
            self._ended.setdefault(warrant.pod, []).append(self.clock.monotonic())

    async def _holders(
        self, pod: PodUid, among: Sequence[Member] | None
    ) -> tuple[tuple[Holder, ...], str]:
        """Return who holds any device of *pod*, and what was hidden from the look, if anything."""
        locks = self.ledger.book.value.locks
        named = [
            self.inventory.value.get(each.device) for each in locks.values() if each.pod == pod
        ]
        devices = [each for each in named if each is not None]
        if among is None:
            found = await self.look.scan(devices, locks)
        else:  # which is not remembered: the waiting start goes by what a look at all showed
            pids = [each.process.pid for each in among]
            found = await self.look.look.scan(devices, locks, pids=pids)
        holders = tuple(holder for facts in found.values() for holder in facts.holders or ())
        # An own process that could not be seen may be at work.
        return holders, next((gap for each in found.values() if (gap := each.gap())), "")

    def _leaking_for(self, pod: PodUid, holders: tuple[Holder, ...], now: float) -> float:
        if pod not in leaking_pods(holders):
            self._leaking_since.pop(pod, None)
            return 0.0
        return now - self._leaking_since.setdefault(pod, now)

    def _pause(self, pod: PodUid, now: float) -> float:
        ended = self._ended.get(pod)
        if not ended:
            return 0.0
        retry = self.settings.value.retry
        pause = retry_pause(len(ended), first=retry.first, last=retry.last)
        return max(0.0, ended[-1] + pause - now)

    async def _note(self, warrant: Warrant, meant: frozenset[ProcessId]) -> bool:
        """Have the history say once that *meant* are being ended, however often it is tried.

        Return whether the lock is still the pod's.
        """
        names = some([f"pid {process}" for process in sorted(meant)], MOST_NAMED)
        known = meant <= self._noted.get(warrant.pod, frozenset())

        def decide(draft: Draft) -> bool:
            lock = draft.book.locks.get(warrant.lock.device)
            if lock is None or lock.pod != warrant.pod:
                return False
            if not known:
                draft.note(lock, f"ending the pod's own leaking sandbox: {names}")
            return True

        is_its = await self.ledger.apply(decide)
        if is_its:
            self._noted[warrant.pod] = meant
        return is_its


class SandboxJudge(Struct, frozen=True, kw_only=True):
    """Judges all of a pod at once, by one look at its processes and at who has its devices."""

    leaks: LeakedSandboxes
    warrant: Warrant
    record: PodRecord | None
    members: tuple[Member, ...]
    holders: tuple[Holder, ...]
    gap: str
    runtime: RuntimeState | None
    leaking_for: float
    pause: float

    @property
    def newest(self) -> float | None:
        """Return that a new process keeps no sandbox: only pause runs in it, whatever its age."""
        return math.inf

    def why_void(self, members: Sequence[Member]) -> str | None:
        """Return why nothing of the pod may be ended, or None; from any thread."""
        return why_keep(self.leaks.facts(self, members))

    def spared(self, _members: Sequence[Member]) -> Mapping[ProcessId, str]:
        """Return nobody: what is not part of an idle sandbox keeps all of the pod."""
        return {}
