"""Cards and the PCI functions that they are: nobody has one while another has the other."""

from collections.abc import Callable

import pytest

from fakes.books import (
    HALF,
    WHOLE,
    Silicon,
    X,
    Y,
    allocated,
    book_of,
    breaches,
    device_of,
    drafted,
    keys,
    name,
    seen,
)
from fakes.doors import why_wait
from holdfast.errors import LedgerError
from holdfast.model.book.book import CARDS, Book, LockState
from holdfast.model.book.byhand import Target, quarantine, unquarantine
from holdfast.model.book.draft import Draft
from holdfast.model.book.marks import Asker, Mark
from holdfast.model.book.places import on_vfio, place
from holdfast.model.book.pods import Observation, reconcile, take_in
from holdfast.model.book.queue import settle
from holdfast.model.book.standing import why_withheld
from holdfast.model.cards import clash, same_functions
from holdfast.model.devices import Device, DeviceKind, Identity, Inventory, places_of
from holdfast.model.gate.gate import Caller, Passage, why_queued
from holdfast.model.ids import BootId, DeviceId, DeviceName, HardwareKey, PciAddress, ResourceName
from holdfast.model.use.free import Freedom, OnVfio

VFIO = ResourceName("example.com/gpu-vm")
AT, ELSEWHERE = PciAddress("0000:3b:00.0"), PciAddress("0000:5e:00.0")
HERE = {"G": AT}
# A function for sound is in the same IOMMU group.
FUNCTION: Silicon = {DeviceId(AT): keys(f"pci/{AT}", "pci/0000:3b:00.1")}
CARD: Silicon = {DeviceId("G"): keys("card/G")}
SLICE: Silicon = {DeviceId("M"): keys("part/G/1/M")}
REPLICA: Silicon = {DeviceId("G::0"): keys("replica/G/0")}
OTHER: Silicon = {DeviceId("G::1"): keys("replica/G/1")}
MARK = Mark(asker=Asker(uid=0, pid=1), at=0.0)
WAYS = [(CARD, WHOLE), (SLICE, HALF), (REPLICA, WHOLE)]

CLASHES = [
    (keys("card/G"), keys(f"pci/{AT}"), True),
    (keys("part/G/1/M"), keys(f"pci/{AT}"), True),
    (keys("replica/G/0"), keys(f"pci/{AT}"), True),
    (keys("card/G"), keys(f"pci/{AT}", "pci/0000:3b:00.1"), True),
    # A function of the card for sound, or a virtual function, in a group of its own.
    (keys("card/G"), keys("pci/0000:3b:00.1"), False),
    (keys("card/G"), keys(f"pci/{ELSEWHERE}"), False),
    (keys("card/H"), keys(f"pci/{AT}"), False),
    (keys("replica/G/0"), keys("replica/G/1"), False),
    (keys("card/G"), keys("part/G/1/M"), False),
    (keys(f"pci/{AT}"), keys("pci/0000:3b:00.1"), False),
]


def at(*addresses: PciAddress) -> Draft:
    """Return the draft of a book that knows where the card G is, or is not."""
    draft = drafted()
    place(draft, dict.fromkeys("G", addresses[0]) if addresses else {})
    return draft


def withheld(draft: Draft, devices: Silicon) -> bool:
    (of_it,) = devices.values()
    return why_withheld(draft.book, of_it) is not None


def where(draft: Draft) -> dict[str, str]:
    return dict(draft.book.kept.get(CARDS, {}))


def passage(devices: Silicon, resource: ResourceName) -> Passage:
    return Passage(resource=resource, asked=frozenset(devices), devices=devices)


@pytest.mark.parametrize(("one", "other", "expected"), CLASHES)
def test_a_card_and_its_function_exclude_each_other(
    one: frozenset[HardwareKey], other: frozenset[HardwareKey], expected: bool
) -> None:
    places = places_of(HERE)
    assert clash(one, other, places) is expected
    assert clash(other, one, places) is expected


@pytest.mark.parametrize(("devices", "resource"), WAYS)
@pytest.mark.parametrize("function_first", [False, True])
def test_who_asks_for_the_same_hardware_by_the_other_driver_waits_until_it_is_free(
    devices: Silicon, resource: ResourceName, function_first: bool
) -> None:
    asked = [(devices, resource), (FUNCTION, VFIO)]
    (one, its), (other, of_other) = reversed(asked) if function_first else asked
    draft = at(AT)
    first = allocated(one, resource=its, pod=X, active=True)(draft)
    second = allocated(other, resource=of_other, pod=Y)(draft)
    settle(draft)
    assert {each.pod for each in draft.locks.values()} == {X}
    lock = next(iter(draft.locks.values()))
    told = why_wait(passage(other, of_other), Caller(pods=(Y,)), draft.book)
    assert told == f"{lock.device} (the same hardware: {AT}) is held by pod {X}"
    assert why_queued(draft.book, second, second.keys) == told
    draft.end(first, "over")
    settle(draft)
    told = why_wait(passage(other, of_other), Caller(pods=(Y,)), draft.book) or ""
    assert told.startswith(f"{lock.device} (the same hardware: {AT}) is not free of pod {X} yet")
    draft.move(lock.device, LockState.FREE, "free")
    settle(draft)
    assert {each.pod for each in draft.locks.values()} == {Y}
    assert not breaches(draft.book)


def test_a_lock_is_refused_on_what_another_has_by_another_driver() -> None:
    draft = at(AT)
    allocated(REPLICA, pod=X)(draft)
    settle(draft)
    second = allocated(FUNCTION, resource=VFIO, pod=Y)(draft)
    with pytest.raises(LedgerError, match=r"G::0 has the same hardware"):
        draft.lock(name(AT, VFIO), FUNCTION[DeviceId(AT)], second, "taken")
    with pytest.raises(LedgerError, match=r"G::0 has the same hardware"):
        draft.call_foreign(name(AT, VFIO), FUNCTION[DeviceId(AT)], "pid 1")


def test_a_pod_may_have_a_card_and_a_function_and_keeps_both_from_others() -> None:
    draft = at(AT)
    allocated(CARD, pod=X, active=True)(draft)
    allocated(FUNCTION, resource=VFIO, pod=X)(draft)
    allocated(REPLICA, pod=Y)(draft)
    settle(draft)
    assert [lock.pod for lock in draft.locks.values()] == [X, X]
    assert not breaches(draft.book)


def test_a_card_that_no_driver_tells_of_any_more_stays_where_it_was() -> None:
    draft = at(AT)
    place(draft, {})
    place(draft, {"H": ELSEWHERE})
    assert where(draft) == {"G": AT, "H": ELSEWHERE}
    allocated(CARD, pod=X, active=True)(draft)
    allocated(FUNCTION, resource=VFIO, pod=Y)(draft)
    settle(draft)
    assert {lock.pod for lock in draft.locks.values()} == {X}


def test_a_card_is_not_where_another_card_is_now() -> None:
    draft = at(AT)
    allocated(CARD, pod=X, active=True)(draft)
    settle(draft)
    place(draft, {"H": AT})
    assert where(draft) == {"H": AT}


def test_what_others_have_elsewhere_leaves_a_card_where_it_is_found() -> None:
    draft = drafted()
    allocated({DeviceId("H"): keys("card/H")}, pod=X, active=True)(draft)
    allocated(FUNCTION, resource=VFIO, pod=Y, active=True)(draft)
    settle(draft)
    place(draft, {"G": AT, "H": ELSEWHERE})
    assert where(draft) == {"G": AT, "H": ELSEWHERE}


def test_a_card_that_moved_to_where_another_has_its_function_is_nowhere_until_that_is_over() -> (
    None
):
    draft = drafted()
    place(draft, {"G": ELSEWHERE})
    allocated(CARD, pod=X, active=True)(draft)
    second = allocated(FUNCTION, resource=VFIO, pod=Y, active=True)(draft)
    settle(draft)
    place(draft, HERE)
    assert not where(draft)
    draft.end(second, "over")
    place(draft, HERE)
    assert not where(draft)
    draft.move(name(AT, VFIO), LockState.FREE, "free")
    place(draft, HERE)
    assert where(draft) == HERE


@pytest.mark.parametrize("compare", [reconcile, take_in])
def test_the_locks_of_a_former_version_exclude_as_soon_as_the_card_is_found(
    compare: Callable[[Draft, Observation], None],
) -> None:
    book = book_of(allocated(CARD, pod=X, active=True))
    draft = drafted(book)
    compare(
        draft,
        Observation(
            view=seen(),
            inventory=node(card()),
            boot=BootId("boot-1"),
            sightings={},
            pending_timeout=60.0,
        ),
    )
    assert where(draft) == HERE
    allocated(FUNCTION, resource=VFIO, pod=Y)(draft)
    settle(draft)
    assert {lock.pod for lock in draft.locks.values()} == {X}


def card() -> Device:
    identity = Identity(addresses=(AT,))
    return device_of(name("G"), "card/G", kind=DeviceKind.DRIVER, identity=identity)


def function(*addresses: PciAddress) -> Device:
    return device_of(name(AT, VFIO), *FUNCTION[DeviceId(AT)], functions=addresses)


def node(*devices: Device) -> Inventory:
    return Inventory(resources=(WHOLE, VFIO), devices=devices)


def test_only_cards_are_looked_for_among_devices() -> None:
    chip = device_of(
        name("0"),
        "pci/0000:00:05.0",
        kind=DeviceKind.ACCEL,
        identity=Identity(addresses=(PciAddress("0000:00:05.0"),)),
    )
    silent = device_of(name("H"), "card/H", kind=DeviceKind.DRIVER)
    assert node(card(), function(AT), chip, silent).cards == HERE


def test_nobody_has_a_card_by_its_driver_when_its_function_is_on_vfio() -> None:
    book: Book = at(AT).book
    for mine in ("card/G", "part/G/1/M", "replica/G/0"):
        assert on_vfio(keys(mine), book, node(function(AT))) == (AT,)
    assert on_vfio(keys("card/G"), book, node(function())) == ()
    assert on_vfio(keys("card/G"), book, node()) == ()
    assert on_vfio(keys("card/G", "card/H"), book, node(function(AT))) == ()
    assert on_vfio(keys("card/H"), book, node(function(AT))) == ()
    draft = drafted()
    place(draft, {"G": AT, "H": ELSEWHERE})
    both, two = keys("card/G", "card/H"), draft.book
    assert on_vfio(both, two, node(function(AT))) == ()
    assert on_vfio(both, two, node(function(AT), function(ELSEWHERE))) == (AT, ELSEWHERE)
    assert on_vfio(FUNCTION[DeviceId(AT)], book, node(function(AT))) == ()
    verdict = OnVfio(functions=(AT,)).judge(looked=True, gaps=())
    assert verdict.freedom is Freedom.FREE
    assert verdict.reason == (
        f"{AT} is bound to a VFIO driver now, so nobody has it by its former one"
    )


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        (CARD, [(CARD, True), (FUNCTION, True), (REPLICA, True)]),
        (FUNCTION, [(CARD, True), (FUNCTION, True), (REPLICA, True)]),
        (SLICE, [(SLICE, True), (FUNCTION, True)]),
        (REPLICA, [(REPLICA, True), (FUNCTION, True), (OTHER, False)]),
        ({DeviceId(ELSEWHERE): keys(f"pci/{ELSEWHERE}")}, [(CARD, False), (FUNCTION, False)]),
        ({DeviceId("H"): keys("card/H")}, [(CARD, False), (FUNCTION, False)]),
    ],
)
def test_a_card_that_a_person_quarantined_stays_so_under_another_driver(
    named: Silicon, expected: list[tuple[Silicon, bool]]
) -> None:
    draft = at(AT)
    ((id_, had),) = named.items()
    what = Target(device=DeviceName(WHOLE, id_), keys=had)
    quarantine(draft, what, MARK)
    assert [withheld(draft, each) for each, _ in expected] == [told for _, told in expected]
    unquarantine(draft, what, MARK)
    assert not draft.marks


def test_only_what_one_has_as_a_card_and_the_other_as_a_function_is_named_as_the_same() -> None:
    places = places_of({"G": AT, "H": ELSEWHERE})
    card, other = keys("card/G", "card/H"), keys(f"pci/{AT}")
    assert same_functions(card, other, places) == same_functions(other, card, places) == [*other]
    assert same_functions(keys("card/H"), other, places) == []


def test_a_quarantined_card_stays_so_when_it_is_divided_and_a_slice_when_it_is_not_any_more() -> (
    None
):
    whole, divided = at(), at()
    quarantine(whole, Target(device=DeviceName(WHOLE, DeviceId("G")), keys=keys("card/G")), MARK)
    quarantine(
        divided, Target(device=DeviceName(HALF, DeviceId("M")), keys=SLICE[DeviceId("M")]), MARK
    )
    assert withheld(whole, SLICE)
    assert withheld(divided, CARD)
    assert not withheld(divided, {DeviceId("N"): keys("part/G/2/N")})
    assert not withheld(whole, {DeviceId("M"): keys("part/H/1/M")})
