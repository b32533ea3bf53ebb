"""Where the truths part: each kind of disagreement, and what looks like one and is none."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from fakes.books import (
    BOOT,
    UPTIME,
    WHOLE,
    X,
    Y,
    Z,
    allocated,
    book_of,
    drafted,
    entry,
    ids,
    inventory,
    name,
    seen,
    silicon,
)
from fakes.standings import standings_of
from holdfast.model.book.book import Book, ClaimRecord, LockState, PodRecord
from holdfast.model.book.draft import Draft
from holdfast.model.book.drift import Drift, DriftFacts, disagreements
from holdfast.model.book.offers import OfferedDevice, Offers, kept_back
from holdfast.model.ids import BootId, ClaimRef, ClaimUid, DeviceId, PodUid, ProcessId, ResourceName
from holdfast.model.kubelet import KubeletView, ListedPod
from holdfast.model.use.holders import DeviceAccess, Holder

CHIPS = silicon(d0="a", d1="b")
NODE = inventory({WHOLE: CHIPS})
LATER = UPTIME + 61.0


def _named(uid: PodUid, called: str) -> Callable[[Draft], None]:
    record = PodRecord(uid=uid, boot=BootId("boot-1"), namespace="default", name=called)
    return lambda draft: draft.note_pod(record)


def _listed(called: str, *devices: str) -> ListedPod:
    return ListedPod(
        namespace="default", name=called, devices=frozenset(name(each) for each in devices)
    )


def _holder(pod: PodUid | None) -> Holder:
    return Holder(
        process=ProcessId(42, 1), command="python", access=frozenset({DeviceAccess.NODE}), pod=pod
    )


HELD_BY_X = book_of(allocated(silicon(d0="a"), pod=X, active=True), _named(X, "x"))
OF_X = seen(entry(X, "d0"), asked_at=LATER)
OFFERS = Offers(
    devices={WHOLE: tuple(OfferedDevice(id=id_, healthy=True) for id_ in sorted(CHIPS))}
)


def _kinds(book: Book, view: KubeletView, **more: object) -> list[str]:
    return [each.kind for each in disagreements(_facts(book, view, **more))]


def _facts(book: Book, view: KubeletView, **more: object) -> DriftFacts:
    locked_at = dict.fromkeys(book.locks, UPTIME)
    return DriftFacts(
        book=book,
        view=view,
        inventory=NODE,
        offers=OFFERS,
        locked_at=locked_at,
        lock_patience=60.0,
        **more,  # type: ignore[arg-type]
    )


def test_truths_that_agree_are_silent() -> None:
    view = replace(OF_X, pods=(_listed("x", "d0"),), registered={WHOLE: ids("d0", "d1")})
    assert _kinds(HELD_BY_X, view, holders={name("d0"): (_holder(X),)}) == []


def test_a_pod_that_kubelet_counts_and_does_not_list_is_stale_accounting() -> None:
    view = replace(OF_X, pods=(_listed("another"),))
    assert _kinds(HELD_BY_X, view) == [Drift.STALE_ACCOUNTING.value]


def test_a_pod_that_was_never_listed_by_name_may_have_init_containers_only() -> None:
    book = book_of(allocated(silicon(d0="a"), pod=X, active=True))
    assert _kinds(book, replace(OF_X, pods=(_listed("another"),))) == []


def test_a_device_that_nobody_has_and_kubelet_keeps_back_is_stale_accounting() -> None:
    assert _kinds(HELD_BY_X, OF_X, kept_back={WHOLE: ids("d1")}) == [Drift.STALE_ACCOUNTING.value]


def test_a_device_that_was_granted_since_is_not_kept_back() -> None:
    assert _kinds(HELD_BY_X, OF_X, kept_back={WHOLE: ids("d0")}) == []


def test_a_pod_that_kubelet_runs_without_the_devices_it_has_is_lost_books() -> None:
    view = replace(seen(), pods=(_listed("x"),))
    assert _kinds(HELD_BY_X, view) == [Drift.LOST_BOOKS.value]


@pytest.mark.parametrize(
    "pods",
    [(), (_listed("x", "d1"),), (_listed("another"),)],
    ids=["it is over", "its successor has others", "it is over and another runs"],
)
def test_a_pod_that_is_over_or_was_made_anew_is_no_lost_book(pods: tuple[ListedPod, ...]) -> None:
    assert _kinds(HELD_BY_X, replace(seen(), pods=pods)) == []


@pytest.mark.parametrize("state", [LockState.RECLAIMING, LockState.QUARANTINED])
def test_a_pod_of_the_same_name_as_one_whose_device_is_reclaimed_is_no_lost_book(
    state: LockState,
) -> None:
    """It asks for no device, so nothing else tells it from the one that had it."""
    draft = drafted(HELD_BY_X)
    for each in (LockState.RELEASING, LockState.RECLAIMING, state):
        if draft.locks[name("d0")].state is not each:
            draft.move(name("d0"), each, "held")
    assert _kinds(draft.book, replace(seen(), pods=(_listed("x"),))) == []


def test_a_device_that_this_node_does_not_have_was_never_granted() -> None:
    view = seen(entry(X, "d0"), entry(Y, "gpu-7"), asked_at=LATER)
    assert _kinds(HELD_BY_X, view) == [Drift.NEVER_GRANTED.value]


def test_devices_of_other_resources_are_not_ours_to_judge() -> None:
    other = entry(Y, "gpu-7", resource=ResourceName("nvidia.com/gpu"))
    assert _kinds(HELD_BY_X, seen(entry(X, "d0"), other, asked_at=LATER)) == []


def test_two_pods_with_one_device_are_counted_twice() -> None:
    view = seen(entry(X, "d0"), entry(Y, "d0"), asked_at=LATER)
    assert _kinds(HELD_BY_X, view) == [Drift.COUNTED_TWICE.value]


def test_a_lock_for_no_pod_of_kubelets_is_told_when_it_stays_so() -> None:
    assert _kinds(HELD_BY_X, seen(asked_at=LATER)) == [Drift.LOCK_WITHOUT_POD.value]
    assert _kinds(HELD_BY_X, seen(asked_at=UPTIME + 59.0)) == []


@pytest.mark.parametrize(
    ("pod", "advice"),
    [
        (X, "its cgroup is still there: look at `holdfast holders`"),
        (None, "it is released 10 min after its last start, if kubelet names no pod until then"),
    ],
)
def test_what_is_to_be_done_about_a_lock_without_a_pod_is_true_where_the_pod_is_not_known(
    pod: PodUid | None, advice: str
) -> None:
    book = book_of(allocated(silicon(d0="a"), pod=pod, active=True))
    (told,) = disagreements(_facts(book, seen(asked_at=LATER)))
    assert (told.kind, told.advice) == (Drift.LOCK_WITHOUT_POD.value, advice)


def test_of_a_claim_kubelets_checkpoint_says_nothing_and_its_pods_may_share_the_device() -> None:
    claim = ClaimRecord(
        ref=ClaimRef("team", ClaimUid("uid"), "claim"), pods=frozenset({X, Y}), boot=BOOT
    )

    def take(draft: Draft) -> None:
        draft.note_claim(claim)
        draft.activate(draft.allocate(WHOLE, silicon(d0="a"), pod=X, claim=claim.ref.uid))

    held = book_of(take, _named(X, "x"))
    view = seen(asked_at=LATER)
    both = {name("d0"): (_holder(X), _holder(Y))}
    assert _kinds(held, replace(view, pods=(_listed("x"),)), holders=both) == []
    others = {name("d0"): (_holder(Z),)}
    assert _kinds(held, view, holders=others) == [Drift.HELD_BY_ANOTHER.value]


@pytest.mark.parametrize("registered", [ids("d0"), ids("d0", "d1", "d9"), ids("0", "1"), ids()])
def test_other_devices_under_our_resource_are_another_plugins(
    registered: frozenset[DeviceId],
) -> None:
    assert _kinds(HELD_BY_X, replace(OF_X, registered={WHOLE: registered})) == [
        Drift.NOT_OUR_LIST.value
    ]


def test_a_foreign_holder_is_told_even_while_kubelet_does_not_answer() -> None:
    draft = drafted()
    draft.call_foreign(name("d1"), CHIPS[name("d1").id], "held by pid 42 (python) outside any pod")
    assert draft.book.locks[name("d1")].state is LockState.FOREIGN
    assert _kinds(draft.book, KubeletView(), holders={name("d1"): (_holder(None),)}) == [
        Drift.HELD_BY_ANOTHER.value
    ]


@pytest.mark.parametrize(
    "view", [replace(OF_X, answered=False, entries=()), replace(OF_X, readable=False, entries=())]
)
def test_kubelet_is_compared_by_a_complete_answer_alone(view: KubeletView) -> None:
    assert _kinds(HELD_BY_X, replace(view, pods=(_listed("x"),))) == []


def test_what_kubelet_keeps_back_is_healthy_unlocked_and_not_called_available() -> None:
    assert kept_back(ids("d0"), standings_of(Book(), NODE).of(WHOLE)) == ids("d1")
    assert kept_back(ids("d0", "d1"), standings_of(Book(), NODE).of(WHOLE)) == ids()
    assert kept_back(ids("d1"), standings_of(HELD_BY_X, NODE).of(WHOLE)) == ids()


def test_under_a_topology_policy_other_numa_nodes_are_not_kept_back() -> None:
    apart = replace(
        NODE,
        devices=tuple(replace(each, numa_node=place) for place, each in enumerate(NODE.devices)),
    )
    assert kept_back(ids("d0"), standings_of(Book(), apart).of(WHOLE)) == ids()
