"""One trial of a device on its own lane: reset what may be reset, then see if it answers."""

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import Struct

from holdfast.host.pci.reset import FunctionControl, Written
from holdfast.model.devices import Device
from holdfast.model.ids import PciAddress
from holdfast.model.reclaim.reset import (
    FunctionLook,
    ResetPolicy,
    may_rebind,
    needed_functions,
    reset_method,
    why_dead,
    why_not_reset,
)
from holdfast.model.use.free import Opened

FORBIDDEN = "forbidden"
"""The outcome of a write that this container may not make: /sys is read-only here."""

_OUTCOMES = {
    Written.DONE: "done",
    Written.FORBIDDEN: FORBIDDEN,
    Written.UNSUPPORTED: "skipped",
    Written.FAILED: "failed",
}


class Did(Struct, frozen=True, kw_only=True):
    """One thing that was done or left out; `step` and `outcome` are from closed sets."""

    step: str
    outcome: str
    text: str


@dataclass(slots=True, kw_only=True)
class Findings:
    """What a trial did and saw; `problem` is why the device may not be used, empty for nothing."""

    did: list[Did] = field(default_factory=list)
    problem: str = ""

    def note(self, step: str, outcome: str, text: str) -> None:
        """Add one thing that was done or left out."""
        self.did.append(Did(step=step, outcome=outcome, text=text))


class Trial(Struct, frozen=True, kw_only=True):
    """What to try. `idle`: it was just proven that nobody uses the device.

    `wanted` is asked on the lane before each reset: the lock may have moved since.
    """

    device: Device
    policy: ResetPolicy
    rebind: bool
    idle: bool
    wanted: Callable[[], bool]

    def run(self, control: FunctionControl) -> Findings:
        """Reset and check; this may block for ever."""
        findings = Findings()
        functions = needed_functions(self.device)
        if self.policy is not ResetPolicy.NEVER:
            self._reset_all(control, functions, findings)
        if not findings.problem:
            findings.problem = self._check(control, functions, findings)
        return findings

    def _reset_all(
        self, control: FunctionControl, functions: tuple[PciAddress, ...], findings: Findings
    ) -> None:
        looks = [control.look(address) for address in functions]
        with control.holding(self.device.nodes) as opened:
            if opened is Opened.BUSY:
                findings.problem = (
                    f"{self.device.name} cannot be reset: its group cannot be opened (busy); it is "
                    "tried again"
                )
                findings.note("reset", "failed", findings.problem)
                return
            for look in looks:
                self._reset(control, look, opened, findings)

    def _reset(
        self, control: FunctionControl, look: FunctionLook, opened: Opened, findings: Findings
    ) -> None:
        guarded = opened is Opened.SUCCEEDED
        # Asked for while it is guarded: from now on no pod can get past the gate.
        idle = self.idle and self.wanted()
        reason = why_not_reset(self.policy, look, idle=idle, guarded=guarded)
        if reason is not None:
            findings.note("reset", "skipped", f"not reset: {reason}")
            return
        answer = control.reset(look.address)
        text = f"{look.address} reset ({reset_method(look.methods)})"
        if answer.written is Written.FAILED:
            findings.problem = f"{look.address} cannot be reset: {answer.text}"
            text = findings.problem
        elif answer.written is not Written.DONE:
            text = f"not reset: {answer.text}"
        findings.note("reset", _OUTCOMES[answer.written], text)

    def _check(
        self, control: FunctionControl, functions: tuple[PciAddress, ...], findings: Findings
    ) -> str:
        for address in functions:
            look = control.look(address)
            if may_rebind(look, allowed=self.rebind) and self.wanted():
                answer = control.rebind(address)
                text = answer.text or f"{address} bound to vfio-pci again"
                findings.note("rebind", _OUTCOMES[answer.written], text)
                look = control.look(address)
            problem = why_dead(look)
            if problem is not None:
                findings.note("verify", "failed", problem)
                return problem
        findings.note("verify", "done", f"{' and '.join(functions)} checked")
        return ""
