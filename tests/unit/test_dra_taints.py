"""Which taint keeps new claims from a device."""

import pytest

from holdfast.model.book.locks import LockState
from holdfast.model.devices import Fault, FaultKind
from holdfast.model.dra.resourceslice import Taint
from holdfast.model.dra.taints import TaintFacts, taints, together

DRIVER = "holdfast.dev"
ILL = Fault(kind=FaultKind.ILL, text="hot")
GONE = Fault(kind=FaultKind.GONE, text="lost")


def held(value: str) -> Taint:
    return Taint(key="holdfast.dev/held", value=value, effect="NoSchedule")


def unhealthy(value: str, effect: str = "NoSchedule") -> Taint:
    return Taint(key="holdfast.dev/unhealthy", value=value, effect=effect)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (TaintFacts(), ()),
        (TaintFacts(lock=LockState.HELD), ()),
        (TaintFacts(lock=LockState.HELD, for_claim=False), (held("held"),)),
        (TaintFacts(lock=LockState.RELEASING), (held("releasing"),)),
        (TaintFacts(lock=LockState.RELEASING, for_claim=False), (held("releasing"),)),
        (TaintFacts(lock=LockState.RECLAIMING), (held("reclaiming"),)),
        (TaintFacts(lock=LockState.QUARANTINED), (held("quarantined"),)),
        (TaintFacts(lock=LockState.FOREIGN), (held("foreign"),)),
        (TaintFacts(lock=LockState.RELEASING, brief=True), ()),
        (TaintFacts(lock=LockState.RELEASING, brief=True, drained=True), (held("drain"),)),
        (TaintFacts(drained=True), (held("drain"),)),
        (TaintFacts(lock=LockState.HELD, drained=True), (held("drain"),)),
        (TaintFacts(lock=LockState.HELD, leaving=True), (held("leaving"),)),
        (TaintFacts(lock=LockState.RELEASING, leaving=True), (held("releasing"),)),
        (TaintFacts(quarantined=True, drained=True), (held("quarantined"),)),
        (
            TaintFacts(lock=LockState.RELEASING, brief=True, quarantined=True),
            (held("quarantined"),),
        ),
        (TaintFacts(uncommitted=True), (held("uncommitted"),)),
        (TaintFacts(faults=(ILL,)), (unhealthy("ill"),)),
        (TaintFacts(faults=(ILL, GONE)), (unhealthy("gone"),)),
        (TaintFacts(faults=(ILL,), lock=LockState.FOREIGN), (held("foreign"), unhealthy("ill"))),
    ],
)
def test_a_device_is_withheld_for_its_state_and_its_health(
    facts: TaintFacts, expected: tuple[Taint, ...]
) -> None:
    assert taints(DRIVER, facts) == expected


@pytest.mark.parametrize("state", [*LockState])
def test_a_lock_of_the_other_api_is_told_in_every_state_but_free(state: LockState) -> None:
    expected = () if state is LockState.FREE else (held(state.value),)

    assert taints(DRIVER, TaintFacts(lock=state, for_claim=False)) == expected


@pytest.mark.parametrize(
    ("fault", "effect"), [(GONE, "NoExecute"), (ILL, "NoSchedule")], ids=["gone", "ill"]
)
def test_only_hardware_that_is_gone_ends_its_pods_and_only_if_configured(
    fault: Fault, effect: str
) -> None:
    facts = TaintFacts(faults=(fault,))

    assert [each.effect for each in taints(DRIVER, facts)] == ["NoSchedule"]
    assert [each.effect for each in taints(DRIVER, facts, evict_lost=True)] == [effect]


def test_devices_that_are_given_together_have_the_worst_taint_of_each_key() -> None:
    gone = unhealthy("gone", "NoExecute")

    assert together([(held("foreign"),), (), (held("releasing"), gone)]) == (held("foreign"), gone)
    assert together([(unhealthy("ill"),), (gone,)]) == (gone,)
    assert together([(gone,), (unhealthy("ill"),)]) == (gone,)
    assert together([(gone,), (unhealthy("unplugged", "NoExecute"),)]) == (gone,)
