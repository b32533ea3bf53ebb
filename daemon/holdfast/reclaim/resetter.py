"""Holds a device between a forced release and FREE until its functions were reset and answer.

A trial resets what may be reset and then sees if the functions answer. Each runs on its own lane.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator

import structlog
from msgspec import Struct, field

from holdfast.errors import HoldfastError, LaneStuckError
from holdfast.host.pci.reset import FunctionControl, WriteOutcome
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.book import DeviceLock, LockState
from holdfast.model.devices import Device, DeviceKind
from holdfast.model.ids import DeviceName, HardwareKey, PciAddress
from holdfast.model.node.readiness import ReadinessCheck, check
from holdfast.model.reclaim.ending import retry_pause
from holdfast.model.reclaim.reset import (
    FORCED,
    FunctionState,
    ResetPolicy,
    TrialState,
    TrialStep,
    may_rebind,
    needed_functions,
    next_trial_step,
    reset_method,
    why_dead,
    why_not_reset,
)
from holdfast.model.use.free import Freedom, KernelFacts, OpenOutcome, judge_kernel
from holdfast.runtime.clock import Clock
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Nudges, Watched
from holdfast.settings.sections import ReclaimSettings

_AGAIN = "its functions are tried again"
_FRESH = 10.0
"""For how many seconds what a trial found holds, where the device cannot become FREE at once."""

log = structlog.get_logger(__name__)


class ResetAction(Struct, frozen=True, kw_only=True):
    """One thing that was done or left out; `step` and `outcome` are from closed sets."""

    step: str
    outcome: str
    text: str


class Findings(Struct, kw_only=True):
    """What a trial did and saw; `problem` is why the device may not be used, empty for nothing."""

    did: list[ResetAction] = field(default_factory=list)
    problem: str = ""

    def note(self, step: str, outcome: str, text: str) -> None:
        """Add one thing that was done or left out."""
        self.did.append(ResetAction(step=step, outcome=outcome, text=text))


class Trial(Struct, kw_only=True):
    """What to try, and what came of it. `idle`: it was just proven that nobody uses the device.

    `wanted` is asked on the lane before each reset: the lock may have moved since.
    """

    control: FunctionControl
    device: Device
    policy: ResetPolicy
    rebind: bool
    idle: bool
    wanted: Callable[[], bool]
    findings: Findings = field(default_factory=Findings)

    def run(self) -> Findings:
        """Reset and check; this may block without end."""
        functions = needed_functions(self.device)
        if self.policy is not ResetPolicy.NEVER:
            self._reset_all(functions)
        if not self.findings.problem:
            self._check(functions)
        return self.findings

    def _reset_all(self, functions: tuple[PciAddress, ...]) -> None:
        looks = [self.control.state_of(address) for address in functions]
        with self.control.holding(self.device.nodes) as opened:
            if opened is OpenOutcome.BUSY:
                self._fail(
                    "reset",
                    f"{self.device.name} cannot be reset: its group cannot be opened (busy); it is "
                    "tried again",
                )
                return
            for look in looks:
                self._reset(look, opened)

    def _reset(self, look: FunctionState, opened: OpenOutcome) -> None:
        guarded = opened is OpenOutcome.SUCCEEDED
        # Asked for while it is guarded: from now on no pod can get past the gate.
        idle = self.idle and self.wanted()
        reason = why_not_reset(self.policy, look, idle=idle, guarded=guarded)
        if reason is not None:
            self.findings.note("reset", "skipped", f"not reset: {reason}")
            return
        answer = self.control.reset(look.address)
        if answer.written is WriteOutcome.FAILED:
            self._fail("reset", f"{look.address} cannot be reset: {answer.text}")
            return
        text = f"{look.address} reset ({reset_method(look.methods)})"
        if answer.written is not WriteOutcome.DONE:
            text = f"not reset: {answer.text}"
        self.findings.note("reset", answer.written.value, text)

    def _check(self, functions: tuple[PciAddress, ...]) -> None:
        for address in functions:
            look = self.control.state_of(address)
            if may_rebind(look, allowed=self.rebind) and self.wanted():
                answer = self.control.rebind(address)
                text = answer.text or f"{address} bound to vfio-pci again"
                self.findings.note("rebind", answer.written.value, text)
                look = self.control.state_of(address)
            problem = why_dead(look)
            if problem is not None:
                self._fail("verify", problem)
                return
        self.findings.note("verify", "done", f"{' and '.join(functions)} checked")

    def _fail(self, step: str, problem: str) -> None:
        self.findings.note(step, "failed", problem)
        self.findings.problem = problem


class _RunningTrial(Struct, kw_only=True):
    """A trial that was begun for the lock with `fence`, and what came of it."""

    fence: int
    keys: frozenset[HardwareKey]
    lane: Lane
    began: float
    number: int
    answered: list[Findings] = field(default_factory=list)
    """Filled on the lane, even long after the deadline."""
    task: asyncio.Task[None] | None = None
    findings: Findings | None = None
    ended: float = 0.0


class Resetter(Struct, kw_only=True):
    """Each device has a lane of its own: one that hangs costs that device alone.

    Nothing ever waits for a lane; every method answers at once. It acts by `settings`; `nudges` say
    when there is something new to see, and `count` hears of each step and what came of it.
    """

    ledger: Ledger
    control: FunctionControl
    clock: Clock
    settings: Watched[ReclaimSettings]
    nudges: Nudges
    count: Callable[[str, str], None]
    _running: dict[DeviceName, _RunningTrial] = {}
    _numbers: dict[DeviceName, int] = {}
    _told_forbidden: bool = False

    @property
    def stuck(self) -> str:
        """Name each lane with a call that is overdue, and for how long; empty: there is none."""
        late = self.clock.monotonic() - self.settings.value.reset_timeout
        return "; ".join(
            f"lane {it.lane.name} is stuck for {late - it.began:.0f} s"
            for it in self._running.values()
            if self._state(it) is TrialState.OVERDUE
        )

    def checks(self) -> Iterator[ReadinessCheck]:
        """Yield whether no device's reset or check hangs."""
        yield check("device resets", self.stuck)

    def at_work(self, keys: frozenset[HardwareKey]) -> str:
        """Return what is being done to hardware with any of *keys*; empty: nothing."""
        for device, it in self._running.items():
            if it.keys & keys and not it.answered:
                return f"{device} may not be used yet: {self._reason(it)}"
        return ""

    def close(self) -> None:
        """Leave everything behind; a call that hangs ends with the process."""
        for it in self._running.values():
            it.lane.close()
            if it.task is not None:
                it.task.cancel()

    def retry(self, device: DeviceName) -> None:
        """Try again what failed, without the pause that is left; the lock calls it *device*."""
        self._numbers.pop(device, None)
        it = self._running.get(device)
        if it is not None and it.findings is not None:
            del self._running[device]

    async def detains(self, lock: DeviceLock) -> str:
        """Do what is due about a trial that was begun; return why *lock* is to be left alone.

        Empty: it is not. While a trial is at work we ourselves have the device open, so nothing
        that is seen of it would be true.
        """
        it = self._running.get(lock.device)
        if it is None:
            return ""
        self._take_in(lock.device, it)
        if it.findings is not None and it.fence != lock.fence:
            del self._running[lock.device]  # it was about another part of the lock's life
            return ""
        step = next_trial_step(lock.state, self._state(it), retry_due=self._retry_due(it))
        if step in {TrialStep.CLEAR, TrialStep.BEGIN}:
            return ""
        if step is TrialStep.RETRY:
            del self._running[lock.device]
            if lock.state is LockState.QUARANTINED:
                await self.ledger.move_if_unmoved(lock, LockState.RECLAIMING, _AGAIN)
            return _AGAIN
        reason = self._reason(it)
        if step is TrialStep.QUARANTINE:
            moved = await self.ledger.move_if_unmoved(lock, LockState.QUARANTINED, reason)
            if moved is not None:
                it.fence = moved.fence
                self.count("quarantine", "done")
        return reason

    def clears(self, lock: DeviceLock, device: Device | None, facts: KernelFacts) -> str | None:
        """Return what there is to say of a device that may become FREE, or None: it may not yet.

        *facts* are what the kernel showed of it just now.
        """
        it = self._running.get(lock.device)
        if it is None and (device is None or device.kind is not DeviceKind.VFIO):
            return ""
        state = TrialState.NONE if it is None else self._state(it)
        step = next_trial_step(lock.state, state)
        if step is TrialStep.CLEAR:
            self._numbers.pop(lock.device, None)
            it = self._running.pop(lock.device, None)
            return "; ".join(each.text for each in it.findings.did) if it and it.findings else ""
        if step is TrialStep.BEGIN and device is not None:
            self._begin(lock, device, facts)
        return None

    def _begin(self, lock: DeviceLock, device: Device, facts: KernelFacts) -> None:
        number = self._numbers[lock.device] = self._numbers.get(lock.device, 0) + 1
        trial = Trial(
            control=self.control,
            device=device,
            policy=ResetPolicy(device.own.reset or self.settings.value.reset),
            rebind=self.settings.value.rebind,
            idle=judge_kernel(facts).freedom is Freedom.FREE,
            wanted=lambda: self._still_forced(lock),
        )
        it = _RunningTrial(
            fence=lock.fence,
            keys=lock.keys,
            lane=Lane(f"reset {lock.device}", deadline=self.settings.value.reset_timeout),
            began=self.clock.monotonic(),
            number=number,
        )
        self._running[lock.device] = it
        it.task = asyncio.get_running_loop().create_task(self._run(it, trial))

    async def _run(self, it: _RunningTrial, trial: Trial) -> None:
        # Past the deadline the call goes on, and what it finds in the end is taken in then.
        with contextlib.suppress(LaneStuckError):
            await it.lane.run(lambda: it.answered.append(self._tried(trial)))
        self.nudges.nudge()

    def _tried(self, trial: Trial) -> Findings:
        """Try on the lane; what cannot even be looked at fails for this device alone."""
        try:
            return trial.run()
        except (HoldfastError, OSError) as error:
            return Findings(problem=f"{trial.device.name} cannot be checked: {error}")

    def _still_forced(self, lock: DeviceLock) -> bool:
        """Tell, from any thread, whether the lock is still one whose holder we ended."""
        now = self.ledger.book.value.locks.get(lock.device)
        return now is not None and now.state in FORCED and now.pod == lock.pod

    def _take_in(self, device: DeviceName, it: _RunningTrial) -> None:
        """Take in what the lane found, once it did; raise what it raised."""
        if it.findings is not None:
            return
        if it.task is not None and it.task.done():
            it.task.result()
        if not it.answered:
            return
        found = it.findings = it.answered[0]
        it.ended = self.clock.monotonic()
        it.lane.close()
        for each in found.did:
            self.count(each.step, each.outcome)
            if each.outcome == WriteOutcome.FORBIDDEN.value and not self._told_forbidden:
                self._told_forbidden = True  # the same for every device, until a restart
                log.warning("device reset not permitted", reason=each.text)
        did = [each.text for each in found.did]
        took = round(it.ended - it.began, 3)
        if found.problem:
            log.warning(
                "device reset or check failed", device=str(device), reason=found.problem, took=took
            )
        else:
            log.info("device checked", device=str(device), did=did, took=took)

    def _reason(self, it: _RunningTrial) -> str:
        if it.findings is not None and it.findings.problem:
            return it.findings.problem
        waited = self.settings.value.reset_timeout
        if self._state(it) is TrialState.OVERDUE:
            return (
                f"its reset or check has not returned within {waited:g} s (lane {it.lane.name}); "
                "it goes on if the kernel returns, otherwise reboot the node"
            )
        return "its functions are being reset and checked"

    def _state(self, it: _RunningTrial) -> TrialState:
        if it.findings is None:
            late = self.clock.monotonic() - it.began >= self.settings.value.reset_timeout
            # One that has returned is taken in once its lock ends again: its pod may have it back.
            overdue = late and not it.answered
            return TrialState.OVERDUE if overdue else TrialState.RUNNING
        if it.findings.problem:
            return TrialState.FAILED
        fresh = self.clock.monotonic() - it.ended < _FRESH
        return TrialState.PASSED if fresh else TrialState.NONE

    def _retry_due(self, it: _RunningTrial) -> bool:
        retry = self.settings.value.retry
        pause = retry_pause(it.number, first=retry.first, last=retry.last)
        return it.findings is not None and self.clock.monotonic() - it.ended >= pause
