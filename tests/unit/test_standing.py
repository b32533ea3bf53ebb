"""The standing of a device: what kubelet is told, for whom it is free, why not, and until when."""

from typing import Any

import pytest
from msgspec.structs import replace

from fakes.books import (
    BOOT,
    HALF,
    NAMES,
    NOW,
    WHOLE,
    X,
    Y,
    allocated,
    book_of,
    device_lock,
    drafted,
    entry,
    inventory,
    keys,
    name,
    seen,
    silicon,
    unreadable,
)
from fakes.standings import SETTLE_AFTER, WITHHOLD_AFTER, standing_after, standings_of
from holdfast.model.book.book import Book, ClaimRecord, DeviceLock, LockState
from holdfast.model.book.claims import Wish, enlist
from holdfast.model.book.marks import Asker, Mark, Marks, Quarantine
from holdfast.model.book.messages import BlockReason
from holdfast.model.book.offers import OfferedDevice, Offers
from holdfast.model.book.proof import call_foreign, unlocked
from holdfast.model.book.standing import (
    FreeFor,
    NodeFacts,
    Standing,
    Standings,
    belongs_to,
    standings,
)
from holdfast.model.cards import card_key, replica_key
from holdfast.model.devices import Device, Fault, FaultKind, Inventory
from holdfast.model.ids import ClaimRef, ClaimUid, DeviceId, DeviceName, HardwareKey
from holdfast.model.kubelet import KubeletView

D0, D1, H0 = name("d0"), name("d1"), name("h0", HALF)
NODE = inventory({WHOLE: silicon(d0="a", d1="b")})
ILL = Fault(kind=FaultKind.ILL, text="too hot")
LOCKED = [state for state in LockState if state is not LockState.FREE]
ASKER = Asker(uid=0, pid=1)
MARK = Mark(asker=ASKER, at=NOW, reason="ECC errors")
DRAIN = Marks(drain=MARK)
QUARANTINE = Marks(quarantines={D0: Quarantine(device=D0, keys=keys("a"), mark=MARK)})
CLAIM = ClaimUid("claim-1")
_REF = ClaimRef(namespace="team", name="first", uid=CLAIM)


def lock(state: LockState, device: DeviceName = D0, **changes: Any) -> DeviceLock:
    made = device_lock(device, "a", state=state, pod=X)
    return replace(made, evidence="pid 7 has it", **changes)


def book(*locks: DeviceLock, **changes: Any) -> Book:
    return Book(locks={each.device: each for each in locks}, **changes)


def node(**changes: Any) -> Inventory:
    def of(device: Device) -> Device:
        return replace(device, **changes) if device.name == D0 else device

    return replace(NODE, devices=tuple(map(of, NODE.devices)))


def of_d0(found: Book, **facts: Any) -> Standing:
    return standings_of(found, facts.pop("inventory", NODE), **facts).by_name[D0]


def locked(state: LockState, **changes: Any) -> Book:
    return book() if state is LockState.FREE else book(lock(state, **changes))


NEEDED = seen(entry(Y, "d0"))


@pytest.mark.parametrize("view", [seen(), NEEDED])
@pytest.mark.parametrize("state", list(LockState))
def test_unhealthy_hardware_is_unhealthy_whoever_has_it(
    state: LockState, view: KubeletView
) -> None:
    found = of_d0(locked(state), inventory=node(faults=(ILL,)), view=view)
    assert not found.offered
    assert (found.fault, found.free_for) == ("too hot", FreeFor.NONE)


@pytest.mark.parametrize("device", [D0, H0])
@pytest.mark.parametrize("state", LOCKED)
def test_a_device_that_a_counted_pod_has_or_awaits_is_healthy_whatever_its_lock(
    state: LockState, device: DeviceName
) -> None:
    """Neither a long release nor a ledger that fails may spoil a pod's re-admission."""
    found = book(lock(state, device))
    late = standing_after(found, NODE, D0, seconds=1e6, view=NEEDED, uncommitted_for=1e6)
    assert late.offered


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
    assert of_d0(locked(state), view=seen()).offered is healthy


@pytest.mark.parametrize("state", LOCKED)
@pytest.mark.parametrize(
    "other", [{"device": H0}, {"claim": CLAIM}], ids=["another resource name", "a claim"]
)
def test_a_device_whose_hardware_is_locked_in_another_way_is_unhealthy(
    state: LockState, other: dict[str, Any]
) -> None:
    found = of_d0(book(lock(state, **other)), view=seen())
    assert not found.offered
    assert found.kept


def test_a_device_that_a_counted_pod_has_by_a_former_plugins_id_is_unhealthy() -> None:
    assert not of_d0(locked(LockState.HELD), view=seen(entry(X, "7"))).offered


@pytest.mark.parametrize(
    ("seconds", "healthy"),
    [(0, True), (WITHHOLD_AFTER, True), (WITHHOLD_AFTER + 0.1, False)],
)
def test_a_device_that_is_released_for_too_long_is_withheld(seconds: float, healthy: bool) -> None:
    found = standing_after(locked(LockState.RELEASING), NODE, D0, seconds=seconds, view=seen())
    assert found.offered is healthy


@pytest.mark.parametrize("state", [LockState.FREE, LockState.HELD, LockState.RELEASING])
@pytest.mark.parametrize(
    ("seconds", "healthy"), [(0, True), (WITHHOLD_AFTER, True), (WITHHOLD_AFTER + 1, False)]
)
def test_uncounted_devices_are_withheld_when_the_ledger_cannot_commit_for_as_long(
    state: LockState, seconds: float, healthy: bool
) -> None:
    assert of_d0(locked(state), view=seen(), uncommitted_for=seconds).offered is healthy


@pytest.mark.parametrize("state", [LockState.FREE, LockState.RELEASING])
def test_a_device_that_is_leaving_is_kept_for_the_pod_that_has_it_and_is_for_no_other(
    state: LockState,
) -> None:
    leaving = node(leaving="a rule leaves it out")
    assert not of_d0(locked(state), inventory=leaving, view=seen()).offered
    assert of_d0(locked(state), view=seen()).offered
    assert of_d0(locked(state), inventory=leaving, view=NEEDED).offered


@pytest.mark.parametrize("state", LOCKED)
def test_a_restarted_daemon_gives_kubelet_time_and_knows_that_the_scheduler_was_told(
    state: LockState,
) -> None:
    found = locked(state)
    kept = state is not LockState.HELD
    to_kubelet = of_d0(found, inherited=1)
    to_scheduler = of_d0(found, inherited=1, by_claims=frozenset({WHOLE}))
    assert (to_kubelet.inherited, to_kubelet.overdue) == (kept, False)
    # Of a pod that has the device by the device plugin the scheduler never knows by itself.
    assert (to_scheduler.inherited, to_scheduler.overdue) == (True, True)


def test_what_is_kept_stays_so_from_one_state_to_the_next() -> None:
    def at(now: float, found: Book, before: Standings) -> Standings:
        by_claims = frozenset({WHOLE})
        facts = NodeFacts(
            book=found,
            inventory=NODE,
            by_claims=by_claims,
            withhold_after=3.0,
            inherited=1,
            now=now,
        )
        return standings(facts, before)

    first = at(10.0, book(lock(LockState.RELEASING, fence=1)), Standings())
    second = at(11.0, book(lock(LockState.RECLAIMING, fence=2)), first)
    third = at(12.0, book(lock(LockState.FOREIGN, fence=3)), at(11.5, book(), second))
    assert first.by_name[D0].inherited
    assert second.by_name[D0].inherited
    assert (second.by_name[D0].kept_since, second.by_name[D0].since) == (10.0, 11.0)
    assert not third.by_name[D0].inherited
    assert third.by_name[D0].kept_since == 12.0


def test_the_scheduler_knows_by_itself_of_claims_alone_and_kubelet_of_its_pods() -> None:
    record = ClaimRecord(
        ref=ClaimRef(namespace="team", name="first", uid=CLAIM), pods=frozenset({X}), boot=BOOT
    )
    of_claim = book(lock(LockState.HELD, claim=CLAIM), claims={CLAIM: record})
    of_pod = locked(LockState.HELD)
    by_claims = frozenset({WHOLE})
    assert [of_d0(each).kept for each in (of_pod, of_claim)] == [False, True]
    assert [of_d0(each, by_claims=by_claims).kept for each in (of_pod, of_claim)] == [True, False]
    lost = book(lock(LockState.HELD, claim=CLAIM), claims={CLAIM: replace(record, forgotten=True)})
    assert of_d0(lost, by_claims=by_claims).kept, "kubelet has no record of it"
    gone = inventory({WHOLE: silicon(d1="b")})
    assert not of_d0(of_claim, by_claims=by_claims, inventory=gone).kept


@pytest.mark.parametrize(("had", "kept"), [(card_key("G"), False), (replica_key("G", 0), True)])
def test_the_scheduler_knows_of_a_claim_on_a_card_as_it_is_offered_now(
    had: HardwareKey, kept: bool
) -> None:
    ref = ClaimRef(namespace="team", name="first", uid=CLAIM)
    record = ClaimRecord(ref=ref, pods=frozenset({X}), boot=BOOT)
    of_claim = lock(LockState.HELD, name("other"), claim=CLAIM, keys=frozenset({had}))
    whole = inventory({WHOLE: {DeviceId("d0"): frozenset({card_key("G")})}})
    found = of_d0(
        book(of_claim, claims={CLAIM: record}), by_claims=frozenset({WHOLE}), inventory=whole
    )
    assert found.lock == of_claim
    assert found.kept is kept


def test_what_was_last_seen_to_be_in_the_way_is_that_of_the_lock_on_the_device() -> None:
    seen_so = BlockReason(device=D0, reason="it is reset")
    assert of_d0(locked(LockState.RELEASING), obstacles={D0: seen_so}).obstacle == seen_so
    assert of_d0(Book(), obstacles={D0: seen_so}).obstacle is None


def test_a_device_is_told_after_the_patience_of_those_who_hand_it_out() -> None:
    found = locked(LockState.RELEASING)

    def overdue(seconds: float, **facts: Any) -> bool:
        return standing_after(found, NODE, D0, seconds=seconds, **facts).overdue

    assert not overdue(SETTLE_AFTER, by_claims=frozenset({WHOLE}))
    assert overdue(SETTLE_AFTER + 0.1, by_claims=frozenset({WHOLE}))
    assert not overdue(SETTLE_AFTER + 0.1)


def test_what_has_not_changed_is_the_same_standing() -> None:
    facts = NodeFacts(book=locked(LockState.RELEASING), inventory=NODE, now=5.0)
    before = standings(facts, Standings())
    after = standings(
        replace(facts, book=book(lock(LockState.RELEASING), marks=QUARANTINE), now=6.0), before
    )
    assert after.by_name[D1] is before.by_name[D1]
    assert after.by_name[D0] != before.by_name[D0]
    assert after.by_name[D0].since == before.by_name[D0].since == 5.0


_SHARES = {DeviceId(f"G::{n}"): frozenset({replica_key("G", n)}) for n in (0, 1)}
_SHARED = replace(inventory({WHOLE: _SHARES}), names=NAMES)
_MOMENTS = [
    NodeFacts(book=book(), inventory=NODE),
    NodeFacts(book=locked(LockState.RELEASING), inventory=NODE),
    NodeFacts(book=book(lock(LockState.HELD, H0)), inventory=NODE),
    NodeFacts(book=book(lock(LockState.HELD, keys=keys("z"))), inventory=NODE),
    NodeFacts(book=book_of(allocated(silicon(d0="z"), pod=X)), inventory=NODE),
    NodeFacts(book=book(), inventory=NODE, view=NEEDED),
    NodeFacts(book=book(marks=QUARANTINE), inventory=NODE),
    NodeFacts(book=book(marks=DRAIN), inventory=NODE),
    NodeFacts(book=book(), inventory=NODE, uncommitted_for=9.0),
    NodeFacts(book=book(), inventory=NODE, by_claims=frozenset({WHOLE})),
    NodeFacts(book=book(), inventory=node(faults=(ILL,))),
    NodeFacts(book=book(), inventory=replace(NODE, devices=NODE.devices[1:])),
    NodeFacts(book=book(), inventory=replace(_SHARED, devices=_SHARED.shared_cards)),
    NodeFacts(book=book(), inventory=_SHARED),
    *(
        NodeFacts(
            book=book_of(allocated({DeviceId("was"): frozenset({key})}, pod=X)),
            inventory=_SHARED,
        )
        for key in (card_key("G"), replica_key("G", 7))
    ),
]


@pytest.mark.parametrize("after", _MOMENTS)
@pytest.mark.parametrize("first", _MOMENTS)
def test_a_standing_that_is_kept_is_the_one_that_would_be_made(
    first: NodeFacts, after: NodeFacts
) -> None:
    before = standings(replace(first, now=5.0), Standings())
    unsure = {name: replace(each) for name, each in before.by_name.items()}
    for each in unsure.values():
        each.__dict__["idle"] = False
    later = replace(after, now=6.0)
    made = standings(later, replace(before, by_name=unsure))
    assert standings(later, before) == made


_TOLD_OF_D0 = {
    "free": (book(), {}, FreeFor.ANY, "", ""),
    "held": (
        locked(LockState.HELD),
        {},
        FreeFor.OWNER,
        "google.com/tpu/d0 is held by pod pod-x",
        "pod pod-x has ended",
    ),
    "releasing": (
        locked(LockState.RELEASING),
        {"obstacles": {D0: BlockReason(device=D0, reason="its cgroup is populated")}},
        FreeFor.NONE,
        "google.com/tpu/d0 is not free of pod pod-x yet: its cgroup is populated; holdfast looks again by itself (holdfast locks)",
        "the kernel shows that nobody has it any more",
    ),
    "reclaiming": (
        locked(LockState.RECLAIMING),
        {},
        FreeFor.NONE,
        "google.com/tpu/d0 is not free of pod pod-x yet, which has ended; it is given on when the kernel shows nobody on it (holdfast locks)",
        "the kernel shows that nobody has it any more",
    ),
    "quarantined": (
        locked(LockState.QUARANTINED),
        {},
        FreeFor.NONE,
        "google.com/tpu/d0 could not be freed of pod pod-x: what it left behind has not ended; it is tried again; holdfast unquarantine tries now (holdfast locks)",
        "what pod pod-x left behind has ended; it is tried again, and at once by `holdfast unquarantine`",
    ),
    "foreign": (
        locked(LockState.FOREIGN),
        {},
        FreeFor.NONE,
        "google.com/tpu/d0 is used by a program that it was not given to; holdfast ends no such program: end it if nobody needs it (holdfast holders)",
        "that program has let go of it; holdfast ends no such program",
    ),
    "by hand": (
        book(marks=QUARANTINE),
        {},
        FreeFor.NONE,
        f"google.com/tpu/d0 is quarantined by hand: {MARK}; it is given again after holdfast unquarantine",
        "a person runs `holdfast unquarantine google.com/tpu/d0`",
    ),
    "by hand under another name": (
        book(marks=Marks(quarantines={H0: replace(QUARANTINE.quarantines[D0], device=H0)})),
        {},
        FreeFor.NONE,
        f"example.com/half/h0 is quarantined by hand: {MARK}; it is given again after holdfast unquarantine",
        "a person runs `holdfast unquarantine example.com/half/h0`",
    ),
    "draining": (
        book(marks=DRAIN),
        {},
        FreeFor.NONE,
        f"holdfast is draining: {MARK}; pods start again after holdfast undrain",
        "a person runs `holdfast undrain`",
    ),
    "leaving": (
        book(),
        {"inventory": node(leaving="a rule leaves it out")},
        FreeFor.NONE,
        "a rule leaves it out",
        "the settings keep the device under this name",
    ),
    "uncommitted": (
        book(),
        {"uncommitted_for": 31.0},
        FreeFor.NONE,
        "",
        "the ledger can be written again",
    ),
    "ill": (
        locked(LockState.HELD),
        {"inventory": node(faults=(ILL,))},
        FreeFor.NONE,
        "too hot",
        "the device is healthy again",
    ),
    "gone": (
        locked(LockState.HELD),
        {"inventory": replace(NODE, devices=NODE.devices[1:])},
        FreeFor.NONE,
        "google.com/tpu/d0 is not there any more",
        "the hardware is there again",
    ),
}


@pytest.mark.parametrize(
    ("found", "facts", "free_for", "why", "until"), _TOLD_OF_D0.values(), ids=_TOLD_OF_D0.keys()
)
def test_a_standing_says_for_whom_a_device_is_free_why_not_and_until_when(
    found: Book, facts: dict[str, Any], free_for: FreeFor, why: str, until: str
) -> None:
    standing = of_d0(found, **facts)
    told = (standing.fault, standing.kept_by, standing.withheld, standing.leaving)
    assert next(filter(None, told), "") == why
    assert (standing.free_for, standing.until) == (free_for, until)
    kept = any(told) or standing.uncommitted
    assert (standing.free_for is FreeFor.ANY) == (not kept) == (not until)


@pytest.mark.parametrize("state", list(LockState))
def test_each_lock_state_has_words_for_what_ends_it(state: LockState) -> None:
    standing = of_d0(locked(state))
    assert bool(standing.until) is (state is not LockState.FREE)


def test_of_several_locks_the_one_that_is_not_held_counts() -> None:
    wide = inventory({WHOLE: silicon(d0="ab")})
    first = lock(LockState.HELD)
    ending = standings_of(book(first, _on_b(LockState.RELEASING)), wide).by_name[D0]
    both_held = standings_of(book(first, _on_b(LockState.HELD)), wide).by_name[D0]
    assert ending.state is LockState.RELEASING
    assert both_held.lock == first


def _on_b(state: LockState) -> DeviceLock:
    return replace(lock(state, D1, fence=2, pod=Y), keys=keys("b"))


def test_what_pods_have_that_the_node_does_not_list_has_a_standing_too() -> None:
    found = standings_of(
        book_of(allocated(silicon(d9="z"), pod=X), allocated(silicon(h0="a"), resource=HALF)), NODE
    )
    assert [each.name for each in found] == [D0, D1, H0, name("d9")]
    assert [each.name for each in found.listed] == [D0, D1]
    gone = found.by_name[name("d9")]
    assert (gone.device, gone.named, gone.granted, gone.healthy) == (None, True, True, False)
    # The same hardware under the other name is kept by it.
    assert found.by_name[D0].lock == found.by_name[H0].lock


def test_of_a_device_that_is_free_there_is_nothing_to_say() -> None:
    free = of_d0(Book())
    told = (free.fault, free.kept_by, free.withheld, free.leaving)
    said = (free.owner, free.crowded, *told, free.until)
    assert said == ("",) * len(said)


def test_what_a_pod_waits_for_that_is_gone_has_a_standing_without_a_lock() -> None:
    waits = allocated(silicon(h0="a"), resource=HALF)
    found = standings_of(book_of(allocated(_D0, pod=X), waits), inventory({WHOLE: _D0}))
    gone = found.by_name[H0]
    assert (gone.device, gone.lock, gone.named, gone.granted) == (None, None, True, True)


def test_what_a_claim_waits_for_that_is_gone_has_no_standing() -> None:
    """The scheduler, which hands it out, has it on no list that could have it as leaving."""
    waits = drafted(book_of(allocated(_D0, pod=X)))
    wish = Wish(ref=_REF, pods={Y: ""}, devices={HALF: silicon(h0="a")})
    assert enlist(waits, wish) is None
    assert H0 not in standings_of(waits.book, inventory({WHOLE: _D0})).by_name


def test_a_card_by_a_name_that_no_pod_has_is_refused_only_where_it_was_left() -> None:
    """Kubelet may not have heard yet that it is offered in another way."""
    card = replace(of_d0(Book(), inventory=node(leaving="a rule")), listed=False)
    assert (card.named, bool(card.refusal)) == (False, True)
    found = Standings(by_name={D0: card})
    assert found.refusal(D0) == ""
    assert (
        replace(found, left=frozenset({D0})).refusal(D0)
        == "the settings share its hardware in another way now"
    )


def test_why_a_foreign_lock_keeps_others_from_its_device_names_nobody() -> None:
    found = lock(LockState.FOREIGN, pod=None)
    told = f"{D0} is in use by something holdfast did not grant it to: pid 7 has it"
    assert belongs_to(found, book(found)) == told


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


_WAITING_FOR_D0 = {
    "nobody": (Book(), seen(), False),
    "kubelet counts a pod with it": (Book(), seen(entry(Y, "d0")), True),
    "kubelet counts a pod with another device": (Book(), seen(entry(Y, "d1")), False),
    "kubelet counts a pod with that id of another resource": (
        Book(),
        seen(entry(Y, "d0", resource=HALF)),
        False,
    ),
    "it is allocated, and kubelet may be about to count its pod": (_UNKNOWN, seen(), True),
    "its pod is known, and kubelet does not count it": (_KNOWN, seen(), False),
    "the same of a pod that has started": (_RUNS, seen(), False),
    "kubelet counts its pod": (_KNOWN, seen(entry(X, "d0")), True),
    "the hardware is allocated under another name": (_OTHER_NAME, seen(), False),
    "another device is allocated": (_OTHER_DEVICE, seen(), False),
    "kubelet's checkpoint cannot be read: what it said last is old": (
        Book(),
        unreadable(seen(entry(Y, "d0"))),
        False,
    ),
    "they cannot be read, and it is allocated": (_UNKNOWN, unreadable(), True),
    "they cannot be read, and it is a known pod's": (_KNOWN, unreadable(), True),
    "they cannot be read, and a pod has started on it": (_RUNS, unreadable(), True),
    "they have not been read yet": (_RUNS, KubeletView(), True),
    "they cannot be read, and the hardware is another name's": (_OTHER_NAME, unreadable(), False),
    "they cannot be read, and another device is allocated": (_OTHER_DEVICE, unreadable(), False),
}


@pytest.mark.parametrize(
    ("found", "view", "expected"), _WAITING_FOR_D0.values(), ids=_WAITING_FOR_D0.keys()
)
def test_who_has_or_awaits_a_device(found: Book, view: KubeletView, expected: bool) -> None:
    assert of_d0(found, view=view).needed is expected


def test_a_device_that_was_granted_meanwhile_is_not_called_foreign() -> None:
    device = NODE.devices[0]
    free, granted = drafted(), drafted(book_of(allocated(silicon(d0="a"), pod=X)))
    for draft in (free, granted):
        call_foreign(draft, device, "held by pid 42")
    assert free.book.locks[D0].state is LockState.FOREIGN
    assert granted.book.locks[D0].state is LockState.HELD
    assert unlocked(NODE.devices, granted.book) == NODE.devices[1:]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (book(), False),
        (book(lock(LockState.FOREIGN)), True),
        (book(lock(LockState.HELD, claim=CLAIM)), True),
        (book(lock(LockState.HELD, H0)), False),
        (_UNKNOWN, True),
        (book_of(allocated(silicon(d0="z"), pod=X), allocated(_D0, pod=Y)), True),
    ],
    ids=["nobody", "foreign", "a claim", "another name", "awaited and locked", "awaited"],
)
def test_pods_have_or_await_a_device_by_its_own_name_or_not(found: Book, expected: bool) -> None:
    assert of_d0(found).named is expected


@pytest.mark.parametrize(
    ("found", "granted", "unstarted"),
    [
        (book(), False, False),
        (book(lock(LockState.RELEASING)), True, False),
        (book(lock(LockState.FOREIGN)), False, False),
        (book(lock(LockState.HELD, claim=CLAIM)), False, False),
        (book(lock(LockState.HELD, H0)), False, False),
        (_KNOWN, True, True),
        (_RUNS, True, False),
        (book_of(allocated(_D0, pod=X, active=True), allocated(_D0, pod=Y)), True, True),
        (book_of(allocated(silicon(h0="a"), resource=HALF), allocated(_D0, pod=Y)), True, True),
    ],
    ids=[
        "nobody",
        "its lock is left",
        "foreign",
        "a claim",
        "another name",
        "a pod that has not started",
        "a pod that has",
        "one that has and one that waits",
        "one that waits, of another name's",
    ],
)
def test_what_kubelet_gave_to_pods_and_who_of_them_is_to_start(
    found: Book, granted: bool, unstarted: bool
) -> None:
    standing = of_d0(found)
    assert (standing.granted, standing.unstarted) == (granted, unstarted)
