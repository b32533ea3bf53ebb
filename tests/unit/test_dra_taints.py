"""Which taint keeps new claims from a device."""

import pytest
from msgspec.structs import replace

from fakes.books import NOW, WHOLE, X, device_lock, inventory, keys, name, silicon
from fakes.standings import standing_after
from holdfast.model.book.book import Book, LockState
from holdfast.model.book.marks import Asker, Mark, Marks, Quarantine
from holdfast.model.book.standing import Standing
from holdfast.model.devices import Fault, FaultKind
from holdfast.model.dra.health import taints, worst_taints
from holdfast.model.dra.resourceslice import Taint
from holdfast.model.ids import ClaimUid

DRIVER = "holdfast.dev"
NODE = inventory({WHOLE: silicon(d0="a")})
MARK = Mark(asker=Asker(uid=0, pid=1), at=NOW, reason="ECC errors")
ILL = Fault(kind=FaultKind.ILL, text="hot")
GONE = Fault(kind=FaultKind.GONE, text="lost")


def held(value: str) -> Taint:
    return Taint(key="holdfast.dev/held", value=value, effect="NoSchedule")


def unhealthy(value: str, effect: str = "NoSchedule") -> Taint:
    return Taint(key="holdfast.dev/unhealthy", value=value, effect=effect)


D0 = name("d0")
QUARANTINE, DRAIN = (
    Marks(quarantines={D0: Quarantine(device=D0, keys=keys("a"), mark=MARK)}),
    Marks(drain=MARK),
)
BRIEF, LONG = 1.0, 60.0


def standing(
    state: LockState = LockState.FREE,
    *,
    claim: bool = True,
    seconds: float = LONG,
    marks: Marks | None = None,
    leaving: str = "",
    faults: tuple[Fault, ...] = (),
    uncommitted_for: float = 0.0,
) -> Standing:
    """Return the standing of a device that claims are given, when it has been so for *seconds*."""
    lock = device_lock(D0, "a", state=state, pod=X, claim=ClaimUid("claim-1") if claim else None)
    device = replace(NODE.devices[0], leaving=leaving, faults=faults)
    return standing_after(
        Book(locks={} if state is LockState.FREE else {D0: lock}, marks=marks or Marks()),
        replace(NODE, devices=(device,)),
        D0,
        seconds=seconds,
        by_claims=frozenset({WHOLE}),
        uncommitted_for=uncommitted_for,
    )


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (standing(), ()),
        (standing(LockState.HELD), ()),
        (standing(LockState.RELEASING), (held("releasing"),)),
        (standing(LockState.RECLAIMING), (held("reclaiming"),)),
        (standing(LockState.QUARANTINED), (held("quarantined"),)),
        (standing(LockState.FOREIGN), (held("foreign"),)),
        (standing(LockState.RELEASING, seconds=BRIEF), ()),
        (standing(LockState.RELEASING, seconds=BRIEF, marks=DRAIN), (held("drain"),)),
        (standing(marks=DRAIN), (held("drain"),)),
        (standing(LockState.HELD, marks=DRAIN), (held("drain"),)),
        (standing(LockState.HELD, leaving="a rule"), (held("leaving"),)),
        (standing(LockState.RELEASING, leaving="a rule"), (held("releasing"),)),
        (
            standing(marks=replace(QUARANTINE, drain=MARK)),
            (held("quarantined"),),
        ),
        (standing(LockState.RELEASING, seconds=BRIEF, marks=QUARANTINE), (held("quarantined"),)),
        (standing(uncommitted_for=4.0), (held("uncommitted"),)),
        (standing(uncommitted_for=2.0), ()),
        (standing(faults=(ILL,)), (unhealthy("ill"),)),
        (standing(faults=(ILL, GONE)), (unhealthy("gone"),)),
        (standing(LockState.FOREIGN, faults=(ILL,)), (held("foreign"), unhealthy("ill"))),
    ],
)
def test_a_device_is_withheld_for_its_state_and_its_health(
    found: Standing, expected: tuple[Taint, ...]
) -> None:
    assert taints(DRIVER, found) == expected


def test_hardware_that_is_gone_has_the_taint_of_what_was_last_known() -> None:
    gone = replace(standing(LockState.RELEASING), device=None)
    assert taints(DRIVER, gone, evict_lost=True) == (held("releasing"),)


@pytest.mark.parametrize("state", [*LockState])
def test_a_lock_of_the_other_api_is_told_in_every_state_but_free(state: LockState) -> None:
    expected = () if state is LockState.FREE else (held(state.value),)

    assert taints(DRIVER, standing(state, claim=False)) == expected


@pytest.mark.parametrize(
    ("fault", "effect"), [(GONE, "NoExecute"), (ILL, "NoSchedule")], ids=["gone", "ill"]
)
def test_only_hardware_that_is_gone_ends_its_pods_and_only_if_configured(
    fault: Fault, effect: str
) -> None:
    found = standing(faults=(fault,))

    assert [each.effect for each in taints(DRIVER, found)] == ["NoSchedule"]
    assert [each.effect for each in taints(DRIVER, found, evict_lost=True)] == [effect]


def test_devices_that_are_given_together_have_the_worst_taint_of_each_key() -> None:
    gone = unhealthy("gone", "NoExecute")

    assert worst_taints([(held("foreign"),), (), (held("releasing"), gone)]) == (
        held("foreign"),
        gone,
    )
    assert worst_taints([(unhealthy("ill"),), (gone,)]) == (gone,)
    assert worst_taints([(gone,), (unhealthy("ill"),)]) == (gone,)
    assert worst_taints([(gone,), (unhealthy("unplugged", "NoExecute"),)]) == (gone,)
