"""What a rule takes away, and what is shared by fewer, goes to no further pod; stories of it."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fakes.books import (
    NAMES,
    WHOLE,
    X,
    Y,
    Z,
    allocated,
    book_of,
    device_of,
    entry,
    inventory,
    keys,
    seen,
)
from fakes.books import (
    name as named,
)
from fakes.standings import standings_of
from holdfast.ledger.standings import EmptyPods
from holdfast.model.book.book import Book
from holdfast.model.book.offers import names_had
from holdfast.model.book.standing import FreeFor, NodeFacts, Standing, Standings, standings
from holdfast.model.cards import card_key, replica_key
from holdfast.model.devicerules import DeviceRule, assigned
from holdfast.model.devices import Device, DeviceKind, Identity, Inventory
from holdfast.model.ids import ClaimUid, DeviceId, DeviceName, HardwareKey, PodUid, ResourceName
from holdfast.model.kubelet import KubeletView

GPU = ResourceName("nvidia.com/gpu")
LEAVING = "a rule leaves it out"


def _keys(id_: str) -> frozenset[HardwareKey]:
    card, _, number = id_.partition("::")
    return frozenset({replica_key(card, number) if number else card_key(card)})


def _gpu(id_: str) -> Device:
    return device_of(
        named(id_, GPU),
        *_keys(id_),
        kind=DeviceKind.DRIVER,
        identity=Identity(uuids=(id_.partition("::")[0],)),
    )


def _shared(*cards: str, by: int) -> Inventory:
    """Return a node whose cards are shared by so many; 0: each is whole."""
    names = [each for card in cards for each in ([f"{card}::{n}" for n in range(by)] or [card])]
    found = tuple(map(_gpu, names))
    return Inventory(resources=(GPU,), devices=found, names=NAMES)


def _with(*had: str) -> Book:
    """Return the book when each of these replicas or cards has a pod, which is called like it."""
    steps = [
        allocated({DeviceId(id_): _keys(id_)}, resource=GPU, pod=PodUid(id_), active=True)
        for id_ in had
    ]
    return book_of(*steps)


def _counting(*had: str) -> KubeletView:
    return seen(*(entry(PodUid(id_), id_, resource=GPU) for id_ in had))


def _healthy(found: Standings) -> set[str]:
    return {each.name.id for each in found if (each.listed or each.named) and each.offered}


def _refused(found: Standings, *ids: str) -> set[str]:
    return {each for each in ids if found.refusal(DeviceName(GPU, DeviceId(each)))}


BOOK = book_of(allocated({DeviceId("d0"): keys("a")}, pod=X, active=True))
WAITS = book_of(allocated({DeviceId("d0"): keys("a")}))
VIEW = seen(entry(X, "d0"))


def _d0(
    *emptied: PodUid, leaving: str = LEAVING, view: KubeletView = VIEW, book: Book = BOOK
) -> Standing:
    """Return the standing of a device that is to leave, when *emptied* have no process left."""
    (device,) = inventory({WHOLE: {DeviceId("d0"): keys("a")}}).devices
    node = Inventory(resources=(WHOLE,), devices=(replace(device, leaving=leaving),))
    found = standings_of(book, node, view=view, emptied=frozenset(emptied))
    return found.by_name[named("d0")]


def test_what_leaves_is_healthy_until_the_last_process_of_its_pod_has_ended() -> None:
    assert _d0().offered
    assert not _d0(X).offered
    assert _d0(Y).offered


def test_what_stays_is_healthy_between_two_pods() -> None:
    assert _d0(X, leaving="").offered


def test_each_pod_that_kubelet_counts_must_have_lost_its_processes() -> None:
    both = seen(entry(X, "d0"), entry(Y, "d0"))
    assert _d0(X, view=both).offered
    assert not _d0(X, Y, view=both).offered


def test_a_pod_that_is_not_known_yet_may_have_processes() -> None:
    assert _d0(X, book=WAITS).offered
    assert _d0(X, book=WAITS, view=seen()).offered


def test_without_kubelets_checkpoint_the_pods_of_the_book_count() -> None:
    unread = replace(seen(), readable=False)
    assert _d0(view=unread).offered
    assert not _d0(X, view=unread).offered


@pytest.mark.parametrize("leaving", ["", LEAVING])
def test_of_what_is_gone_new_pods_are_refused_what_was_to_leave(leaving: str) -> None:
    (device,) = inventory({WHOLE: {DeviceId("d0"): keys("a")}}).devices
    node = Inventory(resources=(WHOLE,), devices=(replace(device, leaving=leaving),))
    before = standings_of(Book(), node)
    gone = standings(NodeFacts(book=Book(), inventory=Inventory(resources=(WHOLE,))), before)
    assert bool(gone.refusal(named("d0"))) is bool(leaving)


def test_a_shared_card_is_known_as_a_whole_but_not_listed() -> None:
    found = standings_of(Book(), _shared("G", by=2))
    assert [each.name.id for each in found] == ["G::0", "G::1", "G"]
    assert [each.name.id for each in found.listed] == ["G::0", "G::1"]
    assert [each.name.id for each in standings_of(_with("G"), _shared("G", by=2))].count(
        DeviceId("G")
    ) == 1


@pytest.mark.parametrize("leaving", ["", LEAVING])
def test_what_is_shared_in_another_way_now_says_so_unless_it_leaves_anyway(leaving: str) -> None:
    node = _shared("G", by=2)
    node = replace(node, devices=tuple(replace(each, leaving=leaving) for each in node.devices))
    found = standings_of(_with("G"), node)
    assert found.by_name[DeviceName(GPU, DeviceId("G"))].leaving == (
        leaving or "the settings share its hardware in another way now"
    )


@pytest.mark.parametrize("emptied", [(), (X,)])
def test_allocate_refuses_what_leaves_to_every_pod_but_one_that_is_just_admitted(
    emptied: tuple[PodUid, ...],
) -> None:
    assert _d0(*emptied).refusal == LEAVING
    assert _d0(*emptied, leaving="").refusal == ""
    assert _d0(*emptied, book=WAITS).refusal == ""


class TestEmptied:
    """Who has lost the last process, and since when that counts."""

    def test_a_pod_is_told_of_when_it_had_processes_and_has_none(self) -> None:
        found = EmptyPods()
        found.note({X: True, Y: False}, 0)
        assert found.pods.value == frozenset()
        found.note({X: False}, 0)
        assert found.pods.value == {X}
        found.note({X: True}, 0)
        assert found.pods.value == frozenset()
        found.note({}, 0)
        assert found.pods.value == {X}, "its cgroup is gone"

    def test_what_cannot_be_seen_has_not_ended(self) -> None:
        found = EmptyPods()
        found.note({X: True}, 0)
        found.note({X: None}, 0)
        assert found.pods.value == frozenset()
        found.note({X: False}, 0)
        assert found.pods.value == {X}

    def test_a_registration_begins_anew_for_those_that_had_processes_before_it_too(self) -> None:
        found = EmptyPods()
        found.note({X: True, Y: True}, 0)
        found.note({X: False, Y: True}, 0)
        found.registered()
        assert found.pods.value == frozenset()
        found.note({X: False, Y: False}, 1)
        assert found.pods.value == frozenset()

    def test_a_look_from_before_a_registration_says_nothing(self) -> None:
        found = EmptyPods()
        found.registered()
        found.note({X: True}, 0)
        found.note({X: False}, 1)
        assert found.pods.value == frozenset()

    def test_who_is_in_no_book_any_more_is_forgotten(self) -> None:
        found = EmptyPods()
        found.note({X: True, Y: True}, 0)
        found.note({}, 0)
        found.keep({Y, Z})
        assert found.pods.value == {Y}


HIGH = ("gpu::0", "gpu::1", "gpu::2", "gpu::3")
"""Four pods share the card; then fewer may."""


@pytest.mark.parametrize(
    ("by", "had", "healthy", "refused"),
    [
        (4, HIGH, HIGH, ()),
        (4, (), HIGH, ()),
        # Those that pods have are theirs; nobody comes in the place of one that ends.
        (2, HIGH, HIGH, HIGH),
        (2, HIGH[1:], HIGH[1:], HIGH),
        (2, HIGH[2:], HIGH[2:], HIGH),
        # As many of the lower ones are given as are missing to the number, the first ones.
        (2, HIGH[3:], ("gpu::0", "gpu::3"), ("gpu::1", "gpu::3")),
        (3, HIGH[3:], ("gpu::0", "gpu::1", "gpu::3"), ("gpu::2", "gpu::3")),
        # And of those that pods have, each may have another pod while the others leave room.
        (2, ("gpu::1", "gpu::3"), ("gpu::1", "gpu::3"), ("gpu::0", "gpu::3")),
        (2, HIGH[:2], HIGH[:2], ()),
        (2, HIGH[:1], HIGH[:2], ()),
        # Whole cards: the replicas that pods have are all that leaves.
        (0, HIGH[:1], HIGH[:1], HIGH[:1]),
    ],
)
def test_no_pod_comes_to_a_card_that_more_share_than_may(
    by: int, had: tuple[str, ...], healthy: tuple[str, ...], refused: tuple[str, ...]
) -> None:
    found = standings_of(_with(*had), _shared("gpu", by=by), view=_counting(*had))
    assert _healthy(found) == set(healthy)
    assert _refused(found, *HIGH) == set(refused)


def test_a_replica_is_not_given_on_while_its_card_is_shared_by_too_many() -> None:
    had = HIGH[1:]
    ended = standings_of(
        _with(*had),
        _shared("gpu", by=2),
        view=_counting(*had),
        emptied=frozenset({PodUid("gpu::1")}),
    )
    assert _healthy(ended) == {"gpu::2", "gpu::3"}


def test_cards_do_not_count_for_one_another_and_all_are_told_why() -> None:
    found = standings_of(_with(*HIGH[2:]), _shared("gpu", "other", by=2), view=_counting(*HIGH[2:]))
    assert _healthy(found) == {"gpu::2", "gpu::3", "other::0", "other::1"}
    low = found.by_name[DeviceName(GPU, DeviceId("gpu::0"))]
    assert low.free_for is FreeFor.NONE
    assert low.leaving == "2 shares of the same hardware are in use, and the settings allow 2"
    assert low.until == "a pod on another share of the same hardware has ended"
    assert low.withheld_as == "leaving"


def test_a_share_counts_while_a_pod_waits_for_it_and_until_it_is_free() -> None:
    waiting = _with("gpu", "gpu::3")
    assert DeviceName(GPU, DeviceId("gpu::3")) not in waiting.locks
    ending = Book(locks=_with("gpu::3").locks)
    for found in (waiting, ending):
        told = standings_of(found, _shared("gpu", by=2), view=seen())
        assert [each.name.id for each in told.listed if each.crowded] == ["gpu::1"]


def test_a_claim_is_no_pod_that_kubelet_counts() -> None:
    for view in (seen(), replace(seen(), readable=False)):
        (of_it,) = BOOK.allocations.values()
        by_claim = replace(of_it, claim=ClaimUid("claim"))
        assert _d0(view=view, book=Book(allocations={1: of_it})).needed is not view.readable
        assert not _d0(view=view, book=Book(allocations={1: by_claim})).needed


def test_the_shares_of_claims_are_counted_by_the_scheduler() -> None:
    node, book = _shared("gpu", by=2), _with(*HIGH[2:])
    assert not any(each.crowded for each in standings_of(book, node, by_claims=frozenset({GPU})))
    assert any(each.crowded for each in standings_of(book, node))


def test_a_share_that_its_last_pod_let_go_of_is_given_to_nobody_until_it_is_listed_again() -> None:
    def at(node: Inventory, book: Book, before: Standings) -> Standings:
        return standings(NodeFacts(book=book, inventory=node), before)

    had = at(_shared("gpu", by=0), _with("gpu::1"), Standings())
    gone = at(_shared("gpu", by=0), Book(), had)
    assert gone.get(DeviceName(GPU, DeviceId("gpu::1"))) is None
    assert _refused(gone, "gpu::1", "gpu::2") == {"gpu::1"}
    assert _refused(at(_shared("gpu", by=0), Book(), gone), "gpu::1") == {"gpu::1"}
    assert not _refused(at(_shared("gpu", by=2), Book(), gone), "gpu::1")


@dataclass
class _Pod:
    """A pod of a story: whether it has processes, and whether kubelet counts it."""

    id: str
    uid: PodUid
    runs: bool = True
    counted: bool = True


@dataclass
class _Node:
    """A kubelet that reads lists late, and holdfast's own rules, which are told things late."""

    by: int = 4
    excluded: bool = False
    heard: set[str] = field(default_factory=set)
    pods: list[_Pod] = field(default_factory=list)
    known: list[_Pod] = field(default_factory=list)
    """The pods that holdfast has in its book, in the order in which they came."""
    view: KubeletView = field(default_factory=seen)
    emptied: EmptyPods = field(default_factory=EmptyPods)
    found: Standings = field(default_factory=Standings)
    count: int = 0
    came: int = 0

    def look(self) -> None:
        """Derive everything from what is known now."""
        steps = [
            allocated({DeviceId(each.id): _keys(each.id)}, resource=GPU, pod=each.uid, active=True)
            for each in self.known
        ]
        book = book_of(*steps)
        rules = [DeviceRule(place="devices[0]", uuid="gpu", exclude=True)] * self.excluded
        had = names_had(book, self.view.entries)
        self.node = assigned(_shared("gpu", "other", by=self.by), rules, had)
        facts = NodeFacts(
            book=book, inventory=self.node, view=self.view, emptied=self.emptied.pods.value
        )
        self.found = standings(facts, self.found)

    def kubelet_writes(self) -> None:
        counted = [each for each in self.pods if each.counted]
        self.view = seen(*(entry(each.uid, each.id, resource=GPU) for each in counted))

    def share(self, number: int) -> None:
        """Have so many share a card: the daemon starts anew, and registers."""
        self.by = (0, 2, 3, 4)[number % 4]
        self.emptied, self.found = EmptyPods(), Standings()
        self.look()
        self.hear(0)

    def exclude(self, number: int) -> None:
        self.excluded = bool(number % 2)
        self.look()

    def hear(self, _number: int) -> None:
        self.heard = _healthy(self.found)

    def see(self, _number: int) -> None:
        """Have holdfast see whose processes have ended."""
        self.emptied.note({each.uid: each.runs for each in self.known}, 0)
        self.look()

    def ask(self, _number: int) -> None:
        """Have holdfast ask kubelet, and free what is over."""
        self.kubelet_writes()
        self.look()
        self.known = [each for each in self.known if each.counted or each.runs]
        self.look()

    def end(self, number: int) -> None:
        for each in self.pods[number % len(self.pods) :][:1] if self.pods else ():
            each.runs = False

    def drop(self, number: int) -> None:
        """Have kubelet count a pod no more, that runs on if it was deleted by force."""
        for each in self.pods[number % len(self.pods) :][:1] if self.pods else ():
            each.counted = False
            self.pods = [pod for pod in self.pods if pod.counted or pod.runs]

    def come(self, number: int) -> None:
        """Admit another pod, as kubelet does: with what it has last heard, and believes free."""
        taken = {each.id for each in self.pods if each.counted}
        free = sorted(self.heard - taken)
        if not free:
            return
        id_ = free[number % len(free)]
        device = self.node.find(GPU, DeviceId(id_))
        if device is None or self.found.refusal(device.name):
            return
        self.came += 1
        card, _, share = id_.partition("::")
        there = {each.id for each in self.pods if each.id.partition("::")[0] == card}
        assert not (self.excluded and card == "gpu"), f"{id_} is excluded"
        assert bool(share) is bool(self.by), f"{id_} is shared otherwise"
        if share:
            assert int(share) < self.by, f"{id_} is above {self.by}"
            assert len(there | {id_}) <= self.by, f"{sorted(there)} are in use, and {id_} is given"
        self.count += 1
        new = _Pod(id=id_, uid=PodUid(f"pod-{self.count}"))
        self.pods.append(new)
        self.known.append(new)
        self.kubelet_writes()
        self.look()


_DEEDS = ("share", "exclude", "hear", "see", "ask", "end", "drop", "come", "come", "come")


@pytest.mark.slow
@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from(_DEEDS), st.integers(0, 11)), max_size=40))
def test_no_pod_that_comes_after_a_change_gets_what_is_to_leave(
    story: list[tuple[str, int]],
) -> None:
    """Nor do more pods than may share a card by what was given to any of them since the change."""
    node = _Node()
    node.share(3)
    for deed, number in story:
        getattr(node, deed)(number)


def test_pods_come_in_such_stories() -> None:
    node = _Node()
    node.share(3)
    for _ in range(9):
        node.come(0)
    assert node.came == 8
    node.share(1)
    node.end(7)
    node.see(0)
    node.hear(0)
    node.come(0)
    assert node.came == 8
