"""What kubelet is told: every row of the Health table."""

import pytest

from fakes.books import BOOT, HALF, NOW, WHOLE, X, keys, name
from holdfast.model.ids import DeviceId, DeviceName
from holdfast.model.locks import DeviceLock, LockState
from holdfast.model.offers import OfferedDevice, OfferFacts, Offers, offered

_NAME = name("d0")
_LOCKED = [state for state in LockState if state is not LockState.FREE]


def _lock(state: LockState, device: DeviceName = _NAME) -> DeviceLock | None:
    if state is LockState.FREE:
        return None
    return DeviceLock(
        device=device, keys=keys("a"), state=state, fence=1, since=NOW, boot=BOOT, pod=X
    )


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("state", list(LockState))
def test_unhealthy_hardware_is_unhealthy_whoever_has_it(state: LockState, counted: bool) -> None:
    assert not offered(
        OfferFacts(
            healthy=False,
            name=_NAME,
            lock=_lock(state),
            has_or_awaits=counted,
            owner_counted=counted,
        )
    )


@pytest.mark.parametrize("under", [_NAME, name("h0", HALF)])
@pytest.mark.parametrize("state", list(LockState))
def test_a_device_that_a_counted_pod_has_or_awaits_is_healthy_whatever_its_lock(
    state: LockState, under: DeviceName
) -> None:
    """Neither a long release nor a ledger that fails may spoil a pod's re-admission."""
    assert offered(
        OfferFacts(
            healthy=True,
            name=_NAME,
            lock=_lock(state, under),
            has_or_awaits=True,
            owner_counted=True,
            releasing_for=1e6,
            uncommitted_for=1e6,
        )
    )


@pytest.mark.parametrize(
    ("state", "healthy"),
    [
        (LockState.FREE, True),
        (LockState.HELD, True),
        (LockState.RELEASING, True),
        (LockState.RECLAIMING, False),
        (LockState.QUARANTINED, False),
        (LockState.FOREIGN, False),
    ],
)
def test_a_device_without_a_counted_pod_is_healthy_while_it_is_free_or_nearly(
    state: LockState, healthy: bool
) -> None:
    assert offered(OfferFacts(healthy=True, name=_NAME, lock=_lock(state))) is healthy


@pytest.mark.parametrize("state", _LOCKED)
def test_a_device_whose_hardware_is_locked_under_another_resource_name_is_unhealthy(
    state: LockState,
) -> None:
    facts = OfferFacts(healthy=True, name=_NAME, lock=_lock(state, name("h0", HALF)))
    assert not offered(facts)


def test_a_device_that_a_counted_pod_has_by_a_former_plugins_id_is_unhealthy() -> None:
    facts = OfferFacts(healthy=True, name=_NAME, lock=_lock(LockState.HELD), owner_counted=True)
    assert not offered(facts)


@pytest.mark.parametrize(("seconds", "healthy"), [(0, True), (29, True), (30, True), (31, False)])
def test_a_device_that_is_released_for_too_long_is_withheld(seconds: float, healthy: bool) -> None:
    facts = OfferFacts(
        healthy=True, name=_NAME, lock=_lock(LockState.RELEASING), releasing_for=seconds
    )
    assert offered(facts) is healthy


@pytest.mark.parametrize("state", [LockState.FREE, LockState.HELD, LockState.RELEASING])
@pytest.mark.parametrize(("seconds", "healthy"), [(0, True), (30, True), (31, False)])
def test_uncounted_devices_are_withheld_when_the_ledger_cannot_commit_for_as_long(
    state: LockState, seconds: float, healthy: bool
) -> None:
    facts = OfferFacts(healthy=True, name=_NAME, lock=_lock(state), uncommitted_for=seconds)
    assert offered(facts) is healthy


def test_a_resource_that_is_not_advertised_offers_nothing() -> None:
    device = OfferedDevice(id=DeviceId("d0"), healthy=True)
    offers = Offers(devices={WHOLE: (device,)})
    assert offers.of(WHOLE) == (device,)
    assert offers.of(HALF) == ()
