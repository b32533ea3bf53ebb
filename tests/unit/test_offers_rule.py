"""What kubelet is told: every row of the Health table."""

import pytest
from msgspec.structs import replace

from fakes.books import (
    BOOT,
    HALF,
    NOW,
    WHOLE,
    X,
    Y,
    allocated,
    book_of,
    entry,
    keys,
    name,
    seen,
    silicon,
    unreadable,
)
from holdfast.model.book.book import Book
from holdfast.model.book.locks import DeviceLock, LockState
from holdfast.model.book.offers import OfferedDevice, OfferFacts, Offers, has_or_awaits, offered
from holdfast.model.ids import DeviceId, DeviceName
from holdfast.model.kubelet import KubeletView

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
            withhold_after=30.0,
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
            withhold_after=30.0,
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
    assert (
        offered(OfferFacts(withhold_after=30.0, healthy=True, name=_NAME, lock=_lock(state)))
        is healthy
    )


@pytest.mark.parametrize("state", _LOCKED)
def test_a_device_whose_hardware_is_locked_under_another_resource_name_is_unhealthy(
    state: LockState,
) -> None:
    facts = OfferFacts(
        withhold_after=30.0, healthy=True, name=_NAME, lock=_lock(state, name("h0", HALF))
    )
    assert not offered(facts)


def test_a_device_that_a_counted_pod_has_by_a_former_plugins_id_is_unhealthy() -> None:
    facts = OfferFacts(
        withhold_after=30.0,
        healthy=True,
        name=_NAME,
        lock=_lock(LockState.HELD),
        owner_counted=True,
    )
    assert not offered(facts)


@pytest.mark.parametrize(("seconds", "healthy"), [(0, True), (29, True), (30, True), (31, False)])
def test_a_device_that_is_released_for_too_long_is_withheld(seconds: float, healthy: bool) -> None:
    facts = OfferFacts(
        withhold_after=30.0,
        healthy=True,
        name=_NAME,
        lock=_lock(LockState.RELEASING),
        releasing_for=seconds,
    )
    assert offered(facts) is healthy


@pytest.mark.parametrize("state", [LockState.FREE, LockState.HELD, LockState.RELEASING])
@pytest.mark.parametrize(("seconds", "healthy"), [(0, True), (30, True), (31, False)])
def test_uncounted_devices_are_withheld_when_the_ledger_cannot_commit_for_as_long(
    state: LockState, seconds: float, healthy: bool
) -> None:
    facts = OfferFacts(
        withhold_after=30.0, healthy=True, name=_NAME, lock=_lock(state), uncommitted_for=seconds
    )
    assert offered(facts) is healthy


def test_a_resource_that_is_not_advertised_offers_nothing() -> None:
    device = OfferedDevice(id=DeviceId("d0"), healthy=True)
    offers = Offers(devices={WHOLE: (device,)})
    assert offers.of(WHOLE) == (device,)
    assert offers.of(HALF) == ()


_D0 = silicon(d0="a")
_UNKNOWN = book_of(allocated(_D0))
_KNOWN = book_of(allocated(_D0, pod=X))
_RUNS = book_of(allocated(_D0, pod=X, active=True))
_OTHER_NAME = book_of(allocated(silicon(h0="a"), resource=HALF))
_OTHER_DEVICE = book_of(allocated(silicon(d1="b")))


@pytest.mark.parametrize(
    ("book", "view", "expected"),
    [
        (Book(), seen(), False),
        (Book(), seen(entry(Y, "d0")), True),
        (Book(), seen(entry(Y, "d1")), False),
        (Book(), seen(entry(Y, "d0", resource=HALF)), False),
        (_UNKNOWN, seen(), True),
        (_KNOWN, seen(), False),
        (_RUNS, seen(), False),
        (_KNOWN, seen(entry(X, "d0")), True),
        (_OTHER_NAME, seen(), False),
        (_OTHER_DEVICE, seen(), False),
        (Book(), unreadable(seen(entry(Y, "d0"))), False),
        (_UNKNOWN, unreadable(), True),
        (_KNOWN, unreadable(), True),
        (_RUNS, unreadable(), True),
        (_RUNS, KubeletView(), True),
        (_OTHER_NAME, unreadable(), False),
        (_OTHER_DEVICE, unreadable(), False),
    ],
    ids=[
        "nobody",
        "kubelet counts a pod with it",
        "kubelet counts a pod with another device",
        "kubelet counts a pod with that id of another resource",
        "it is allocated, and kubelet may be about to count its pod",
        "its pod is known, and kubelet does not count it",
        "the same of a pod that has started",
        "kubelet counts its pod",
        "the hardware is allocated under another name",
        "another device is allocated",
        "kubelet's checkpoint cannot be read: what it said last is old",
        "they cannot be read, and it is allocated",
        "they cannot be read, and it is a known pod's",
        "they cannot be read, and a pod has started on it",
        "they have not been read yet",
        "they cannot be read, and the hardware is another name's",
        "they cannot be read, and another device is allocated",
    ],
)
def test_who_has_or_awaits_a_device(book: Book, view: KubeletView, expected: bool) -> None:
    assert has_or_awaits(name("d0"), book, view) is expected


@pytest.mark.parametrize("state", [LockState.FREE, LockState.RELEASING])
def test_a_device_that_is_leaving_is_kept_for_the_pod_that_has_it_and_is_for_no_other(
    state: LockState,
) -> None:
    facts = OfferFacts(
        withhold_after=30.0, healthy=True, name=_NAME, lock=_lock(state), leaving=True
    )

    assert not offered(facts)
    assert offered(replace(facts, leaving=False))
    assert offered(replace(facts, has_or_awaits=True))
