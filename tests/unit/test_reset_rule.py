"""Which functions may be reset, which are fit for the next pod, and what a reset does next."""

import pytest

from fakes.books import device_of, name
from holdfast.model.book.book import LockState
from holdfast.model.devices import Device, Identity, pci_key
from holdfast.model.ids import PciAddress
from holdfast.model.reclaim.reset import (
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

_FORCED_ONLY = ResetPolicy.AFTER_FORCED_RELEASE
_CHIP = PciAddress("0000:00:05.0")
_WAIT, _BEGIN = TrialStep.WAIT, TrialStep.BEGIN
_CLEAR, _RETRY, _QUARANTINE = TrialStep.CLEAR, TrialStep.RETRY, TrialStep.QUARANTINE


def _look(
    *,
    driver: str | None = "vfio-pci",
    enable: int | None = 0,
    vendor: int | None = 0x1AE0,
    methods: tuple[str, ...] | None = ("flr", "bus"),
    present: bool = True,
    override: str = "vfio-pci",
) -> FunctionState:
    return FunctionState(
        address=_CHIP,
        present=present,
        driver=driver,
        enable=enable,
        vendor=vendor,
        methods=methods,
        override=override,
    )


@pytest.mark.parametrize(
    ("methods", "chosen"),
    [
        ("flr", "flr"),
        ("flr bus", "flr"),
        ("af_flr", "af_flr"),
        ("pm bus", "pm"),
        ("device_specific", "device_specific"),
        ("device_specific flr bus", "device_specific"),
        ("device_specific bus", None),
        ("bus", None),
        ("bus flr", None),
        ("cxl_bus", None),
        ("acpi flr", None),
        ("a_method_of_tomorrow flr", None),
        ("", None),
        (None, None),
    ],
)
def test_only_a_reset_that_cannot_reach_another_function_is_used(
    methods: str | None, chosen: str | None
) -> None:
    assert reset_method(None if methods is None else tuple(methods.split())) == chosen


@pytest.mark.parametrize(
    ("policy", "look", "idle", "reason"),
    [
        (_FORCED_ONLY, _look(), True, None),
        (_FORCED_ONLY, _look(vendor=0xFFFF), True, None),
        (_FORCED_ONLY, _look(driver="a-vendors-vfio-pci"), True, None),
        (ResetPolicy.NEVER, _look(), True, "reclaim.reset is never"),
        (_FORCED_ONLY, _look(), False, "not proven that nobody uses it"),
        (_FORCED_ONLY, _look(enable=1), True, "is enabled"),
        (_FORCED_ONLY, _look(enable=None), True, "cannot be read"),
        (_FORCED_ONLY, _look(driver="nvme"), True, "not bound to vfio-pci"),
        (_FORCED_ONLY, _look(driver=None), True, "not bound to vfio-pci"),
        (_FORCED_ONLY, _look(methods=None), True, "does not say how"),
        (_FORCED_ONLY, _look(methods=()), True, "has no reset"),
        (_FORCED_ONLY, _look(methods=("bus",)), True, "no reset of its own (only bus)"),
    ],
)
def test_a_function_is_reset_only_when_asked_for_idle_ours_and_alone(
    policy: ResetPolicy, look: FunctionState, *, idle: bool, reason: str | None
) -> None:
    found = why_not_reset(policy, look, idle=idle, guarded=True)
    assert found is None if reason is None else reason in (found or "")


def test_a_function_is_not_reset_while_others_could_open_it() -> None:
    found = why_not_reset(_FORCED_ONLY, _look(), idle=True, guarded=False)
    assert "its group cannot be opened here" in (found or "")


@pytest.mark.parametrize(
    ("look", "reason"),
    [
        (_look(), None),
        (_look(vendor=None), None),
        (_look(vendor=None, driver=None, present=False), None),
        (_look(vendor=0xFFFF), "does not answer"),
        (_look(driver=None), "bound to no driver"),
        (_look(driver="nvme"), "bound to nvme"),
    ],
)
def test_a_function_is_dead_that_does_not_answer_or_left_vfio(
    look: FunctionState, reason: str | None
) -> None:
    found = why_dead(look)
    assert found is None if reason is None else reason in (found or "")


@pytest.mark.parametrize(
    ("look", "allowed", "may"),
    [
        (_look(driver=None, override=""), True, True),
        (_look(driver=None, override=""), False, False),
        (_look(driver=None, override="pci-stub"), True, False),
        (_look(driver="nvme", override=""), True, False),
        (_look(driver="vfio-pci", override=""), True, False),
        (_look(driver=None, override="", present=False), True, False),
    ],
)
def test_a_function_is_bound_again_only_if_allowed_and_nobody_has_or_chose_a_driver(
    look: FunctionState, *, allowed: bool, may: bool
) -> None:
    assert may_rebind(look, allowed=allowed) is may


def _device(
    id_: str, *members: str, functions: tuple[str, ...] = (), own: tuple[str, ...] = ()
) -> Device:
    return device_of(
        name(id_),
        *(pci_key(PciAddress(each)) for each in members),
        functions=tuple(map(PciAddress, functions)),
        identity=Identity(addresses=tuple(map(PciAddress, own or members))),
    )


@pytest.mark.parametrize(
    ("device", "needed"),
    [
        (_device("0000:00:05.0", "0000:00:05.0", functions=("0000:00:05.0",)), ["0000:00:05.0"]),
        (_device("0000:00:05.0", "0000:00:05.0"), ["0000:00:05.0"]),
        (
            _device("0000:00:05.0", "0000:00:05.0", "0000:00:05.1", own=("0000:00:05.0",)),
            ["0000:00:05.0"],
        ),
        (
            _device("0000:c0:02", "0000:c0:02.0", "0000:c0:02.1", functions=("0000:c0:02.0",)),
            ["0000:c0:02.0", "0000:c0:02.1"],
        ),
    ],
)
def test_a_pod_needs_what_is_on_vfio_and_what_the_device_is(
    device: Device, needed: list[str]
) -> None:
    assert list(needed_functions(device)) == needed


@pytest.mark.parametrize(
    ("state", "trial", "due", "step"),
    [
        (LockState.RECLAIMING, TrialState.NONE, False, _BEGIN),
        (LockState.RECLAIMING, TrialState.RUNNING, False, _WAIT),
        (LockState.RECLAIMING, TrialState.OVERDUE, False, _QUARANTINE),
        (LockState.RECLAIMING, TrialState.FAILED, False, _QUARANTINE),
        (LockState.RECLAIMING, TrialState.FAILED, True, _RETRY),
        (LockState.RECLAIMING, TrialState.PASSED, False, _CLEAR),
        (LockState.QUARANTINED, TrialState.NONE, False, _BEGIN),
        (LockState.QUARANTINED, TrialState.RUNNING, False, _WAIT),
        (LockState.QUARANTINED, TrialState.OVERDUE, False, _WAIT),
        (LockState.QUARANTINED, TrialState.OVERDUE, True, _WAIT),
        (LockState.QUARANTINED, TrialState.FAILED, False, _WAIT),
        (LockState.QUARANTINED, TrialState.FAILED, True, _RETRY),
        (LockState.QUARANTINED, TrialState.PASSED, False, _CLEAR),
        (LockState.RELEASING, TrialState.NONE, False, _CLEAR),
        (LockState.RELEASING, TrialState.FAILED, False, _CLEAR),
        (LockState.RELEASING, TrialState.RUNNING, False, _WAIT),
        (LockState.RELEASING, TrialState.OVERDUE, False, _WAIT),
        (LockState.FOREIGN, TrialState.NONE, False, _CLEAR),
    ],
)
def test_each_step_follows_from_the_lock_and_how_far_the_trial_is(
    state: LockState, trial: TrialState, *, due: bool, step: TrialStep
) -> None:
    assert next_trial_step(state, trial, retry_due=due) is step


_STORY = [
    (LockState.RECLAIMING, TrialState.NONE),
    (LockState.RECLAIMING, TrialState.RUNNING),
    (LockState.RECLAIMING, TrialState.OVERDUE),
    (LockState.QUARANTINED, TrialState.OVERDUE),
    (LockState.QUARANTINED, TrialState.FAILED),
    (LockState.RECLAIMING, TrialState.FAILED),
    (LockState.RECLAIMING, TrialState.PASSED),
]


@pytest.mark.parametrize("done", range(len(_STORY)))
def test_a_daemon_that_dies_after_any_part_of_it_begins_the_trial_anew(done: int) -> None:
    """Only the lock is on disk: what was reset and seen is forgotten, and nothing is freed."""
    state, _ = _STORY[done]
    assert next_trial_step(state, TrialState.NONE) is TrialStep.BEGIN
