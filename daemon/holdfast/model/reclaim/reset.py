"""Whether a function may be reset after a forced release, and whether it answers afterwards."""

from enum import Enum

from msgspec import Struct

from holdfast.model.book.book import LockState
from holdfast.model.devices import Device
from holdfast.model.ids import PciAddress
from holdfast.model.vfio import is_vfio_driver

NO_ANSWER = 0xFFFF
"""The vendor id that the bus reads where no function answers."""

# In the order of the kernel's list it goes on to the next method where one is not supported after
# all. That these are is known from the function's own registers, so none after them is tried.
_CERTAIN = frozenset({"flr", "af_flr", "pm"})
_OWN = frozenset({"device_specific"})
"""Of this one function as well, but it may hand on to the next in the list."""


class ResetPolicy(Enum):
    """When functions are reset."""

    NEVER = "never"
    AFTER_FORCED_RELEASE = "afterForcedRelease"


class FunctionState(Struct, frozen=True, kw_only=True):
    """What sysfs shows of one function now.

    `methods` is None where the kernel does not say how it would reset it. `vendor` is read from the
    function itself; None: it cannot be read. `override` is the driver it was meant for, empty where
    a rescan cleared it.
    """

    address: PciAddress
    present: bool = True
    driver: str | None = None
    enable: int | None = None
    vendor: int | None = None
    methods: tuple[str, ...] | None = None
    override: str = ""


def reset_method(methods: tuple[str, ...] | None) -> str | None:
    """Return the method that the kernel would use, if it stays within the function; else None.

    A bus or slot reset, and what the firmware does (acpi), may reach other functions.
    """
    told = methods or ()
    for method in told:
        if method in _CERTAIN:
            return told[0]
        if method not in _OWN:
            return None
    return told[-1] if told else None


def why_not_reset(
    policy: ResetPolicy, look: FunctionState, *, idle: bool, guarded: bool
) -> str | None:
    """Return why a function is not to be reset, or None when it may be.

    *idle*: it was just proven that nobody uses it. *guarded*: this daemon has its groups open, so
    that no process can begin to use it. The kernel also resets a function that is in use.
    """
    if policy is ResetPolicy.NEVER:
        return "reclaim.reset is never"
    if not is_vfio_driver(look.driver):
        return f"{look.address} is not bound to vfio-pci"
    if look.methods is None:
        return f"the kernel does not say how it would reset {look.address}"
    if not look.methods:
        return f"{look.address} has no reset"
    if reset_method(look.methods) is None:
        return f"{look.address} has no reset of its own (only {' '.join(look.methods)})"
    if look.enable != 0:
        return f"{look.address} is enabled, or cannot be read"
    if not idle:
        return "it is not proven that nobody uses it"
    if not guarded:
        return "its group cannot be opened here, so others could open it meanwhile"
    return None


def why_dead(look: FunctionState) -> str | None:
    """Return why a function cannot be given to the next pod, or None when it answers.

    One that is unplugged is none of this rule's business: the inventory shows that it is gone. A
    vendor id that cannot be read proves nothing.
    """
    if not look.present:
        return None
    if not is_vfio_driver(look.driver):
        bound = f"bound to {look.driver}" if look.driver else "bound to no driver"
        return f"{look.address} is {bound}, not to vfio-pci; bind it to vfio-pci"
    if look.vendor == NO_ANSWER:
        return (
            f"{look.address} does not answer (its vendor id reads ffff); "
            "remove and rescan it, or reboot the node"
        )
    return None


def may_rebind(look: FunctionState, *, allowed: bool) -> bool:
    """Tell whether a function that is ours may be bound to vfio-pci again.

    Only where a rescan left it without a driver and without a driver override: a driver that
    has it, or that somebody chose for it, is not overruled.
    """
    return allowed and look.present and look.driver is None and not look.override


def needed_functions(device: Device) -> tuple[PciAddress, ...]:
    """Return the functions that a pod needs on VFIO: those that are, and those that it is.

    A rescan takes a function off VFIO; others of its group may be without a driver all the time.
    """
    return tuple(sorted({*device.functions, *device.addresses}))


class TrialState(Enum):
    """How far the reset and check of a device are; NONE: not begun, or forgotten."""

    NONE = "none"
    RUNNING = "running"
    OVERDUE = "overdue"
    PASSED = "passed"
    FAILED = "failed"


class TrialStep(Enum):
    """What to do next about a device that the kernel shows free."""

    BEGIN = "begin"
    WAIT = "wait"
    QUARANTINE = "quarantine"
    RETRY = "retry"
    CLEAR = "clear"


FORCED = frozenset({LockState.RECLAIMING, LockState.QUARANTINED})
"""The states of a lock whose holder we ended, or had begun to."""


def next_trial_step(state: LockState, trial: TrialState, *, retry_due: bool = False) -> TrialStep:
    """Return what is due for a lock in *state*; *retry_due*: the pause after a failure is over.

    What is at work is waited for in any case, since it cannot be recalled; but no release begins a
    trial that was not forced. After a restart the trial is forgotten and begins again: an
    idle function can be reset twice.
    """
    if trial in {TrialState.RUNNING, TrialState.OVERDUE}:
        late = trial is TrialState.OVERDUE and state is LockState.RECLAIMING
        return TrialStep.QUARANTINE if late else TrialStep.WAIT
    if state not in FORCED or trial is TrialState.PASSED:
        return TrialStep.CLEAR
    if trial is TrialState.NONE:
        return TrialStep.BEGIN
    if retry_due:
        return TrialStep.RETRY
    return TrialStep.QUARANTINE if state is LockState.RECLAIMING else TrialStep.WAIT
