"""Ends a running pod's own leaking gVisor sandbox (`reclaim.leakedSandbox: restart`).

The sandbox keeps the device, so that the pod's next container cannot start on it.
"""

import signal
from collections.abc import Callable

import structlog
from msgspec.structs import replace

from holdfast.errors import HoldfastError
from holdfast.host.proc.pidfd import Pidfds
from holdfast.host.use.look import Look
from holdfast.kubelet.reader import KubeletReader
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.draft import Draft
from holdfast.model.devices import Inventory
from holdfast.model.ids import PodUid, ProcessId
from holdfast.model.reclaim.ending import Member
from holdfast.model.reclaim.leak import HeldUp, LeakFacts, why_keep
from holdfast.model.reclaim.plan import retry_pause
from holdfast.model.use.holders import Holder, leaking_pods
from holdfast.reclaim.pods import Outcome, Pods
from holdfast.runtime.changes import Changes
from holdfast.runtime.clock import Clock
from holdfast.runtime.watched import Watched
from holdfast.settings.sections import Reclaim

log = structlog.get_logger(__name__)

_LOOK = 1.0
"""Seconds between two looks while a start is held up."""
_IDLE = 3600.0


class LeakedSandboxes:
    """Follows the starts that are held up by their own pod, and ends what held them up.

    Kubelet then makes the pod a new sandbox. Nothing is ended on remembered evidence: with the
    pidfds open, everything is asked again.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        inventory: Watched[Inventory],
        reader: KubeletReader,
        starts: Watched[frozenset[HeldUp]],
        look: Look,
        pods: Pods,
        pidfds: Pidfds,
        clock: Clock,
        settings: Watched[Reclaim],
        mode_of: Callable[[PodUid], str] | None = None,
    ) -> None:
        """Act by *settings* on what *starts* says; `mode_of` as in Evidence."""
        self._ledger = ledger
        self._inventory = inventory
        self._reader = reader
        self._starts = starts
        self._look = look
        self._pods = pods
        self._pidfds = pidfds
        self._clock = clock
        self._settings = settings
        self._mode_of = mode_of or (lambda _pod: settings.value.mode)
        self._leaking_since: dict[PodUid, float] = {}
        self._ended: dict[PodUid, list[float]] = {}
        self._said: dict[PodUid, str] = {}
        self.observe: Callable[[str], None] = lambda _outcome: None

    async def run(self) -> None:
        """Follow the starts until cancelled."""
        while True:
            changes = Changes([self._starts, self._settings])
            starts = self._starts.value if self._may_restart else frozenset[HeldUp]()
            self._forget({start.pod for start in starts})
            for start in sorted(starts, key=lambda each: (each.pod, each.device)):
                try:
                    await self._consider(start)
                except (HoldfastError, OSError) as error:
                    self._say(start.pod, str(error))
            await changes.wait(
                min(_LOOK, self._settings.value.leak_grace or _LOOK) if starts else _IDLE
            )

    @property
    def _may_restart(self) -> bool:
        return self._settings.value.leaked_sandbox == "restart"

    def _forget(self, waiting: set[PodUid]) -> None:
        for pod in self._leaking_since.keys() - waiting:
            del self._leaking_since[pod]
        known = self._ledger.book.value.pods.keys()
        for pod in (self._ended.keys() | self._said.keys()) - known:
            self._ended.pop(pod, None)
            self._said.pop(pod, None)

    async def _consider(self, start: HeldUp) -> None:
        reason = why_keep(await self._facts(start))
        if reason is not None:
            self._say(start.pod, reason)
            return
        members = await self._pods.members(start.pod)
        with self._pidfds.holding(each.process for each in members) as opened:
            await self._end(start, opened)

    async def _end(self, start: HeldUp, opened: frozenset[ProcessId]) -> None:
        """End what is *opened*, if that is all of the pod and every guard still agrees."""
        names = ", ".join(f"pid {process}" for process in sorted(opened))
        # Written down first: after a crash the history says that we had begun to act.
        if not await self._note(start, f"ending the pod's own leaking sandbox: {names}"):
            return
        facts = await self._agreed(start, opened)
        record = None if facts is None else facts.record
        if facts is None or record is None or record.cgroup is None or record.inode is None:
            return
        how = await self._pods.kill(
            start.pod,
            path=record.cgroup,
            inode=record.inode,
            may_end=lambda members: why_keep(self._by_now(start, facts, members)) is None,
        )
        if how is Outcome.IMPOSSIBLE:
            if await self._agreed(start, opened) is None:  # trying took its time
                return
            for process in opened:
                self._pidfds.send(process, signal.SIGKILL)
        if how is Outcome.SPARED:
            return
        self._ended.setdefault(start.pod, []).append(self._clock.monotonic())
        done = "sent" if how is Outcome.IMPOSSIBLE else how.value
        self.observe(done)
        log.warning(
            "leaking sandbox killed",
            pod=start.pod,
            device=str(start.device),
            processes=names,
            how=done,
        )

    async def _agreed(self, start: HeldUp, opened: frozenset[ProcessId]) -> LeakFacts | None:
        """Ask everything again; return it where every guard agrees on ending just *opened*."""
        facts = await self._facts(start)
        reason = why_keep(facts)
        if reason is None and {each.process for each in facts.members} != opened:
            reason = "its processes change"
        if reason is not None:
            self._say(start.pod, reason)
            return None
        return facts

    def _by_now(self, start: HeldUp, facts: LeakFacts, members: tuple[Member, ...]) -> LeakFacts:
        """Return *facts* with what others publish as it is now; from any thread."""
        book, view = self._ledger.book.value, self._reader.view.value
        return replace(
            facts,
            members=members,
            record=book.pods.get(start.pod),
            lock=book.locks.get(start.device),
            held_up=start in self._starts.value,
            counted=view.readable and view.counts(start.pod),
        )

    async def _facts(self, start: HeldUp) -> LeakFacts:
        """Ask everything; last of all, for a look at all processes takes long, who is at work."""
        holders, complete = await self._holders(start.pod)
        members = await self._pods.members(start.pod)
        runtime = await self._pods.runtime_state(start.pod, members)
        book, view, now = self._ledger.book.value, self._reader.view.value, self._clock.monotonic()
        return LeakFacts(
            restart=self._may_restart,
            terminate=self._mode_of(start.pod) == "terminate",
            scan_complete=complete,
            pod=start.pod,
            record=book.pods.get(start.pod),
            lock=book.locks.get(start.device),
            held_up=start in self._starts.value,
            counted=view.readable and view.counts(start.pod),
            holders=holders,
            members=members,
            runtime=runtime,
            leaking_for=self._leaking_for(start.pod, holders, now),
            leak_grace=self._settings.value.leak_grace,
            pause=self._pause(start.pod, now),
        )

    async def _holders(self, pod: PodUid) -> tuple[tuple[Holder, ...], bool]:
        """Return who holds any device of *pod*, and whether nothing was hidden from the look."""
        locks = self._ledger.book.value.locks
        named = [
            self._inventory.value.get(each.device) for each in locks.values() if each.pod == pod
        ]
        found = await self._look.scan([each for each in named if each is not None], locks)
        holders = tuple(holder for facts in found.values() for holder in facts.holders or ())
        return holders, not any(facts.gaps for facts in found.values())

    def _leaking_for(self, pod: PodUid, holders: tuple[Holder, ...], now: float) -> float:
        if pod not in leaking_pods(holders):
            self._leaking_since.pop(pod, None)
            return 0.0
        return now - self._leaking_since.setdefault(pod, now)

    def _pause(self, pod: PodUid, now: float) -> float:
        ended = self._ended.get(pod)
        if not ended:
            return 0.0
        retry = self._settings.value.retry
        pause = retry_pause(len(ended), first=retry.first, last=retry.last)
        return max(0.0, ended[-1] + pause - now)

    async def _note(self, start: HeldUp, evidence: str) -> bool:
        def decide(draft: Draft) -> bool:
            lock = draft.book.locks.get(start.device)
            if lock is None or lock.pod != start.pod:
                return False
            draft.note(lock, evidence)
            return True

        return await self._ledger.apply(decide)

    def _say(self, pod: PodUid, reason: str) -> None:
        """Log why a sandbox that holds its own pod up is not ended, once for each reason."""
        if self._said.get(pod) != reason:
            self._said[pod] = reason
            log.info("leaking sandbox not killed", pod=pod, reason=reason)
