"""Bringing the book in line with kubelet's checkpoint, order of events by order of events."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from fakes.books import (
    AFTER,
    BEFORE,
    BOOT,
    HALF,
    KUBELET,
    NAMES,
    NOW,
    UPTIME,
    WHOLE,
    X,
    Y,
    allocated,
    book_of,
    breaches,
    drafted,
    entry,
    inventory,
    keys,
    lock_of,
    name,
    seen,
    silicon,
    unlocked,
    unreadable,
)
from holdfast.model.book.book import Book, ClaimRecord, LockState, Phase, PodRecord
from holdfast.model.book.draft import Draft
from holdfast.model.book.pods import (
    LONGEST_START,
    Observation,
    PodSighting,
    changes_with_time,
    lacking,
    reconcile,
    without_retired,
)
from holdfast.model.book.queue import settle
from holdfast.model.cards import card_key, part_key, replica_of
from holdfast.model.devices import Inventory
from holdfast.model.ids import (
    NO_CHECKPOINT,
    BootId,
    CheckpointId,
    ClaimRef,
    ClaimUid,
    DeviceId,
    HardwareKey,
    PodUid,
    ProcessId,
    ResourceName,
)
from holdfast.model.kubelet import KubeletView, ListedPod

_D0 = silicon(d0="a")
_NODE = replace(
    inventory({WHOLE: silicon(d0="a", d1="b"), HALF: silicon(h0="a", h1="b")}), names=NAMES
)
_LIVING = PodSighting(cgroup="/kubepods/pod", inode=7, populated=True, processes=(41,))
_EMPTY = PodSighting(cgroup="/kubepods/pod", inode=7, populated=False)


def _after(
    book: Book,
    view: KubeletView,
    *,
    node: Inventory = _NODE,
    sightings: dict[PodUid, PodSighting] | None = None,
    now: float = NOW,
    boot: BootId = BOOT,
    adopts: bool = True,
) -> Book:
    draft = drafted(book, now=now, boot=boot)
    reconcile(
        draft,
        Observation(
            pending_timeout=60.0,
            view=view,
            inventory=node,
            boot=boot,
            sightings=sightings or {},
            adopts=adopts,
        ),
    )
    assert not breaches(draft.book)
    assert not unlocked(draft.book)
    return draft.book


@pytest.mark.parametrize(
    ("pod", "active", "waits"),
    [(None, False, True), (None, True, False), (X, False, False), (X, True, False)],
)
def test_time_alone_ends_only_what_no_pod_is_named_for(
    pod: PodUid | None, active: bool, waits: bool
) -> None:
    book = book_of(allocated(_D0, pod=pod, active=active))
    assert changes_with_time(book) is waits
    view = seen() if pod is None else seen(entry(pod, "d0"))
    soon = _after(book, view, now=NOW + 1)
    assert (_after(soon, view, now=NOW + 1e6) != soon) is waits


@pytest.mark.parametrize(("over_at", "waits"), [(None, False), (UPTIME, True)])
def test_time_makes_a_claim_that_is_over_forgotten(over_at: float | None, waits: bool) -> None:
    ref = ClaimRef("team", ClaimUid("claim-1"), "chip")
    record = ClaimRecord(ref=ref, pods=frozenset({X}), boot=BOOT, over_at=over_at)
    assert changes_with_time(Book(claims={ref.uid: record})) is waits


# Whose an Allocation is.


@pytest.mark.parametrize(
    "view",
    [
        KubeletView(),
        seen(entry(X, "d0"), file=NO_CHECKPOINT),
        seen(entry(X, "d0"), read_at=UPTIME),
        seen(entry(X, "d0"), entry(Y, "d0")),
        seen(entry(X, "d0", "d1")),
    ],
    ids=["never read", "not written since", "read before", "two pods", "other devices"],
)
def test_an_allocation_stays_unknown_while_the_books_do_not_tell(view: KubeletView) -> None:
    assert _after(book_of(allocated(_D0)), view).allocations[1].pod is None


# When it is over.


def test_a_kubelet_that_restarts_without_its_api_server_releases_nothing() -> None:
    """Its checkpoint is as it was, or cannot be read, or it does not answer."""
    book = book_of(allocated(_D0, pod=X, active=True), allocated(silicon(d1="b")))
    old = seen(file=NO_CHECKPOINT)
    for view in (KubeletView(), unreadable(), old, seen(entry(X, "d0"), answered=False)):
        after = _after(book, view, sightings={X: _LIVING}, now=NOW + 10)
        assert [lock.state for lock in after.locks.values()] == [LockState.HELD] * 2


def test_the_lock_of_a_pod_refused_after_our_allocate_ends_and_the_next_pod_gets_it() -> None:
    """A second resource was refused: nobody ever starts on the first one's device."""
    book = book_of(allocated(_D0))
    assert _after(book, seen(), now=NOW + 59).locks == book.locks
    after = _after(book, seen(), now=NOW + 60)
    assert lock_of(after, "d0").state is LockState.RELEASING
    draft = drafted(after)
    draft.allocate(WHOLE, _D0)
    draft.move(name("d0"), LockState.FREE, "not enabled")
    settle(draft)
    assert lock_of(draft.book, "d0").allocation == 2


def test_a_pod_has_no_better_place_in_the_queue_by_what_a_refused_pod_was_allocated() -> None:
    """Else it could get what an older pod waits for, which has what it waits for itself."""
    book = book_of(
        allocated(_D0),  # nobody's: its pod was refused
        allocated(silicon(h1="b"), resource=HALF, pod=Y, active=True),
        allocated(silicon(h0="a"), resource=HALF, pod=Y),
        allocated(_D0),
    )
    view = seen(
        entry(Y, "h1", resource=HALF),
        entry(Y, "h0", resource=HALF, container="second"),
        entry(X, "d0"),
    )
    after = _after(book, view)
    assert lock_of(after, "h0", HALF).pod == Y
    assert [each.id for each in after.allocations.values() if each.pod == X] == [4]


def test_a_start_of_nobody_known_is_the_pods_whose_devices_they_are() -> None:
    """It has passed the gate, so it is no Allocation of a pod that was refused."""
    book = book_of(allocated(_D0, active=True), allocated(_D0))
    after = _after(book, seen(entry(X, "d0")))
    assert {each.id: each.pod for each in after.allocations.values()} == {1: X, 2: X}
    assert lock_of(after, "d0").pod == X


def test_a_younger_allocation_with_other_devices_ends_what_kubelet_gave_away_again() -> None:
    book = book_of(allocated(silicon(d0="a", d1="b")), allocated(_D0))
    after = _after(book, seen(entry(Y, "d0")))
    assert list(after.allocations) == [2]
    assert lock_of(after, "d0").state is LockState.RELEASING


def test_an_entry_from_before_the_younger_allocate_ends_nothing() -> None:
    """The checkpoint may still speak of a pod that had the device before both."""
    draft = drafted()
    draft.allocate(WHOLE, silicon(d0="a", d1="b"), checkpoint=BEFORE, answered_at=UPTIME - 10)
    draft.allocate(WHOLE, _D0, checkpoint=AFTER)
    settle(draft)
    view = seen(entry(Y, "d0"), file=AFTER)
    assert list(_after(draft.book, view).allocations) == [1, 2]
    later = replace(view, file=CheckpointId("written later"))
    assert list(_after(draft.book, later).allocations) == [2]


def test_an_image_may_be_pulled_for_ten_minutes_between_allocate_and_start() -> None:
    book = book_of(allocated(_D0))
    for seconds in (1, 60, 600):
        book = _after(book, seen(entry(X, "d0"), read_at=UPTIME + seconds), now=NOW + seconds)
    assert lock_of(book, "d0").pod == X
    assert lock_of(book, "d0").state is LockState.HELD


def test_a_pod_over_before_its_main_container_started_leaves_no_lock_held() -> None:
    """Its init container used the device, and a process of it keeps the cgroup."""
    book = book_of(allocated(_D0, pod=X, active=True), allocated(_D0, pod=X))
    after = _after(book, seen(), sightings={X: _LIVING})
    assert after.allocations == {}
    assert lock_of(after, "d0").state is LockState.RELEASING


# Pods from before our time.


@pytest.mark.parametrize("sightings", [{}, {X: _EMPTY}])
def test_an_adopted_pod_without_a_process_has_not_started(
    sightings: dict[PodUid, PodSighting],
) -> None:
    book = _after(Book(), seen(entry(X, "d0")), sightings=sightings)
    assert book.allocations[1].phase is Phase.PENDING


@pytest.mark.parametrize("old", ["a", "d0", "d0::1"])
def test_the_ids_of_a_former_plugin_are_translated(old: str) -> None:
    """The fake inventory's node of key a is /dev/vfio/a."""
    device = _NODE.find(WHOLE, DeviceId(old))
    assert device is not None
    assert device.name == name("d0")
    assert list(_after(Book(), seen(entry(X, old))).locks) == [name("d0")]


def _swapped() -> Inventory:
    """Return the node once each of its chips has the IOMMU group that the other had."""
    first, second = _NODE.of(WHOLE)
    chips = replace(first, nodes=second.nodes), replace(second, nodes=first.nodes)
    return replace(_NODE, devices=chips)


def test_pods_whose_old_ids_mean_each_others_devices_after_a_reboot_swap_them() -> None:
    """Each would wait for the other for ever."""
    others = entry(X, "zz", resource=ResourceName("example.com/nic"))
    view = seen(entry(X, "a"), others, entry(Y, "b"))
    book = _after(Book(), view, sightings={X: _LIVING, Y: _LIVING})
    assert (lock_of(book, "d0").pod, lock_of(book, "d1").pod) == (X, Y)
    assert _after(book, view, boot=BootId("boot-2")).locks == book.locks
    assert _after(book, view, node=_swapped()).locks == book.locks, "there was no reboot"
    after = _after(book, view, node=_swapped(), boot=BootId("boot-2"))
    assert (lock_of(after, "d0").pod, lock_of(after, "d1").pod) == (Y, X)
    assert {each.state for each in after.locks.values()} == {LockState.HELD}


@pytest.mark.parametrize("view", [seen(entry(X, "a", "zz")), unreadable(seen(entry(X, "a")))])
def test_what_means_nothing_yet_after_a_reboot_takes_nothing_from_a_pod(view: KubeletView) -> None:
    book = _after(Book(), seen(entry(X, "a")), sightings={X: _LIVING})
    after = _after(book, view, node=_swapped(), boot=BootId("boot-2"))
    assert (name("d0"), X) in {(each.device, each.pod) for each in after.locks.values()}


def test_what_the_book_has_for_the_very_pod_is_not_taken_in_late() -> None:
    view = seen(entry(X, "d0"), entry(Y, "d0"), entry(X, "d0", "d1"))
    observed = Observation(pending_timeout=60.0, view=view, inventory=_NODE, boot=BOOT)
    left = lacking(book_of(allocated(_D0, pod=X)), observed).view.entries
    assert left == (entry(Y, "d0"), entry(X, "d0", "d1"))


@pytest.mark.parametrize("odd", ["", "zz", "vfio", "/dev/vfio/a"])
def test_an_id_that_nobody_knows_is_nobodys_device(odd: str) -> None:
    assert _NODE.find(WHOLE, DeviceId(odd)) is None
    assert _after(Book(), seen(entry(X, odd))).allocations == {}


def test_a_pod_is_adopted_with_what_another_of_our_names_has_now() -> None:
    """A rule moved it, and the ledger that would tell is lost."""
    after = _after(Book(), seen(entry(X, "h0")), sightings={X: _LIVING})
    assert [(each.pod, each.keys) for each in after.locks.values()] == [(X, keys("a"))]


_CARD_1, _PART_1 = card_key("GPU-1"), part_key("GPU-1", "7/MIG-1")


@pytest.mark.parametrize(
    ("had", "key"),
    [
        ("GPU-1", _CARD_1),
        ("GPU-1::2", replica_of(_CARD_1, 2)),
        ("MIG-1", _PART_1),
        ("MIG-1::2", replica_of(_PART_1, 2)),
    ],
)
@pytest.mark.parametrize("there", [_PART_1, replica_of(_PART_1, 0), _CARD_1])
def test_a_pod_is_adopted_with_a_card_or_part_that_is_offered_in_another_way(
    had: str, key: HardwareKey, there: HardwareKey
) -> None:
    """The settings changed, and the ledger that would tell is lost."""
    now = {there, _PART_1} if there == _CARD_1 else {there}
    node = inventory({WHOLE: {}, HALF: {DeviceId("now"): frozenset(now)}})
    node = replace(node, names=NAMES)
    after = _after(Book(), seen(entry(X, had)), node=node, sightings={X: _LIVING})
    assert [(each.pod, each.keys) for each in after.locks.values()] == [(X, frozenset({key}))]


def test_a_pod_is_not_adopted_under_a_name_that_is_not_ours_any_more() -> None:
    """Its lock is still in the book, so that its hardware is known."""
    former = type(WHOLE)("example.com/former")
    book = book_of(allocated(_D0, resource=former, pod=X, active=True))
    draft = drafted(book)
    draft.end(book.allocations[1], "it is over")
    view = seen(entry(X, "d0", resource=former))
    assert _after(draft.book, view, sightings={X: _LIVING}).allocations == {}


def test_where_no_pod_is_to_be_adopted_what_is_over_ends_all_the_same() -> None:
    """A full disk takes no new Allocation, and with one nothing of what has ended either."""
    book = book_of(allocated(_D0, pod=X, active=True))
    after = _after(book, seen(entry(Y, "d1")), sightings={Y: _LIVING}, adopts=False)
    assert after.allocations == {}
    assert lock_of(after, "d0").state is LockState.RELEASING


def test_a_pod_that_has_more_than_the_book_says_is_adopted_with_all_of_it() -> None:
    book = book_of(allocated(_D0, pod=X, active=True))
    after = _after(book, seen(entry(X, "d0", "d1")), sightings={X: _LIVING})
    assert (lock_of(after, "d0").pod, lock_of(after, "d1").pod) == (X, X)


def test_what_a_pod_has_started_on_itself_keeps_no_adopted_container_of_it_from_having_started() -> (
    None
):
    book = book_of(allocated(_D0, pod=X, active=True))
    view = seen(entry(X, "d0"), entry(X, "h0", resource=HALF, container="second"))
    after = _after(book, view, sightings={X: _LIVING})
    assert [each.phase for each in after.allocations.values()] == [Phase.ACTIVE, Phase.ACTIVE]


def test_of_two_pods_that_kubelet_gave_one_device_one_alone_gets_the_lock() -> None:
    view = seen(entry(X, "d0"), entry(Y, "d0"))
    after = _after(Book(), view, sightings={X: _LIVING, Y: _LIVING})
    assert lock_of(after, "d0").pod == X
    assert [each.phase for each in after.allocations.values()] == [Phase.ACTIVE, Phase.PENDING]


# Pods that come back.


def _released() -> Book:
    return _after(book_of(allocated(_D0, pod=X, active=True)), seen(), sightings={X: _LIVING})


def test_a_pod_that_allocates_again_while_a_process_of_it_lives_is_not_overtaken_either() -> None:
    draft = drafted(_released())
    draft.allocate(HALF, silicon(h0="a"), pod=Y)
    draft.allocate(WHOLE, _D0)
    settle(draft)
    view = seen(entry(X, "d0"), entry(Y, "h0", resource=HALF))
    book = _after(draft.book, view, sightings={X: _LIVING})
    book = _after(book, view, sightings={X: _LIVING})
    assert lock_of(book, "d0").pod == X
    assert lock_of(book, "d0").state is LockState.HELD


def test_a_pod_that_comes_back_without_a_process_has_not_started_again() -> None:
    draft = drafted(_released())
    draft.allocate(WHOLE, _D0, pod=X)
    settle(draft)
    after = _after(draft.book, seen(entry(X, "d0")), sightings={X: _EMPTY})
    assert lock_of(after, "d0").state is LockState.HELD
    assert [each.phase for each in after.allocations.values()] == [Phase.PENDING]


def test_a_pod_that_comes_back_has_not_started_on_what_another_is_still_to_let_go_of() -> None:
    draft = drafted(
        book_of(allocated(silicon(d1="b"), pod=Y, active=True), allocated(_D0, pod=X, active=True))
    )
    for each in list(draft.holdings.allocations.values()):
        draft.end(each, "kubelet no longer counts it")
    draft.allocate(WHOLE, silicon(d0="a", d1="b"), pod=X)
    settle(draft)
    after = _after(draft.book, seen(entry(X, "d0", "d1")), sightings={X: _LIVING})
    assert (lock_of(after, "d0").state, lock_of(after, "d1").pod) == (LockState.HELD, Y)
    assert [each.phase for each in after.allocations.values()] == [Phase.PENDING]


def test_books_that_cannot_be_read_hand_nothing_back() -> None:
    """What was read last has the pod; it may have been a moment before kubelet let go of it."""
    draft = drafted(_released())
    draft.allocate(WHOLE, _D0, pod=X)
    settle(draft)
    after = _after(draft.book, unreadable(seen(entry(X, "d0"))), sightings={X: _LIVING})
    assert lock_of(after, "d0").state is LockState.RELEASING


def test_a_pod_whose_hardware_is_gone_has_its_lock_back_as_any_other() -> None:
    draft = drafted(book_of(allocated(silicon(gone="z"), pod=X, active=True)))
    draft.end(draft.holdings.allocations[1], "kubelet no longer counts it")
    after = _after(draft.book, seen(entry(X, "gone")), sightings={X: _LIVING})
    assert lock_of(after, "gone").state is LockState.HELD
    assert [each.pod for each in after.allocations.values()] == [X]


def test_a_pod_has_its_name_from_an_answer_to_a_whole_question_alone() -> None:
    """The devices of a List and those of a checkpoint that was written later may differ."""
    book = book_of(allocated(_D0, pod=X, active=True))
    listed = ListedPod(namespace="default", name="train", devices=frozenset({name("d0")}))
    half = replace(seen(entry(X, "d0"), answered=False), pods=(listed,))
    assert _after(book, half).pods[X].name == ""
    named = _after(book, replace(half, answered=True))
    assert named.pods[X].name == "train"
    renamed = replace(half, answered=True, pods=(replace(listed, name="another"),))
    assert _after(named, renamed).pods[X].name == "train"


def test_a_pod_has_no_name_where_two_pods_may_be_meant() -> None:
    book = book_of(allocated(silicon(d0="a", d1="b"), pod=X, active=True))
    view = seen(entry(X, "d0", "d1"), entry(Y, "h0", resource=HALF))
    idle = ListedPod(namespace="default", name="idle", devices=frozenset())
    other = replace(idle, name="other", devices=frozenset({name("d1"), name("h0", HALF)}))
    one = replace(idle, name="one", devices=frozenset({name("d0")}))
    two = replace(idle, name="two", devices=frozenset({name("d1")}))
    assert _after(book, replace(view, pods=(idle, other, one))).pods[X].name == "one"
    assert _after(book, replace(view, pods=(one, two))).pods[X].name == ""


def test_a_pod_that_kubelet_does_not_count_has_no_lock_back() -> None:
    """It waits to start, and its sandbox stands; what it had is on the way to be free."""
    draft = drafted(book_of(allocated(_D0, pod=X)))
    draft.move(name("d0"), LockState.RELEASING, "the process scan shows that it is held by another")
    after = _after(draft.book, seen(), sightings={X: _LIVING})
    assert lock_of(after, "d0").state is LockState.RELEASING
    assert after.allocations


def test_a_statefulset_pod_that_comes_back_by_another_uid_waits_for_its_former_self() -> None:
    draft = drafted(_released())
    draft.allocate(WHOLE, _D0)
    settle(draft)
    after = _after(draft.book, seen(entry(Y, "d0")), sightings={X: _LIVING})
    assert lock_of(after, "d0").pod == X
    assert lock_of(after, "d0").state is LockState.RELEASING
    assert [each.pod for each in after.allocations.values()] == [Y]


def test_after_a_reboot_locks_are_held_until_the_checkpoint_says_otherwise() -> None:
    book = book_of(allocated(_D0, pod=X, active=True))
    boot = BootId("boot-2")
    for view in (KubeletView(), seen(entry(X, "d0"))):
        after = _after(book, view, boot=boot)
        assert lock_of(after, "d0").state is LockState.HELD
    assert lock_of(_after(book, seen(), boot=boot), "d0").state is (LockState.RELEASING)


# What is known of pods.


def _record(book: Book, **facts: object) -> Book:
    return replace(book, pods={X: replace(book.pods[X], **facts)})


def test_a_living_pods_record_follows_its_cgroup() -> None:
    """A rebooted pod gets another inode."""
    book = _record(book_of(allocated(_D0, pod=X)), cgroup="/kubepods/pod", inode=3)
    assert _after(book, seen(entry(X, "d0")), sightings={X: _LIVING}).pods[X].inode == 7


def test_a_pods_cgroup_is_written_down_also_when_it_is_seen_first_after_its_end() -> None:
    draft = drafted(book_of(allocated(_D0, pod=X, active=True)))
    draft.end(draft.holdings.allocations[1], "kubelet no longer counts it")
    after = _after(draft.book, seen(), sightings={X: _LIVING})
    assert (after.pods[X].cgroup, after.pods[X].inode) == (_LIVING.cgroup, _LIVING.inode)


def test_a_pod_that_has_nothing_any_more_is_forgotten() -> None:
    draft = drafted(_released())
    draft.move(name("d0"), LockState.FREE, "free")
    assert _after(draft.book, seen()).pods == {}


_OTHER_KUBELET = ProcessId(KUBELET.pid, KUBELET.start_ticks + 1)
_COUNTED = PodRecord(uid=X, boot=BOOT, counted_by=KUBELET, counted_boot=BOOT)
_LET_GO = replace(_COUNTED, let_go_at=UPTIME - 100)
_BEFORE_BOOT = replace(_LET_GO, counted_boot=BootId("boot-0"))


@pytest.mark.parametrize(
    ("record", "view", "expected"),
    [
        (PodRecord(uid=X, boot=BOOT), seen(entry(X, "d0")), (KUBELET, None)),
        (PodRecord(uid=X, boot=BOOT), seen(), (None, None)),
        (_COUNTED, seen(), (KUBELET, UPTIME)),
        (_LET_GO, seen(), (KUBELET, UPTIME - 100)),
        (_BEFORE_BOOT, seen(), (None, None)),
        (_BEFORE_BOOT, seen(entry(X, "d0")), (KUBELET, None)),
        (_LET_GO, seen(entry(X, "d0")), (KUBELET, None)),
        (_LET_GO, seen(entry(X, "d0"), answered=False), (KUBELET, None)),
        (_LET_GO, seen(entry(X), answered=False), (KUBELET, None)),
        (_LET_GO, seen(kubelet=_OTHER_KUBELET), (KUBELET, None)),
        (_LET_GO, seen(entry(X, "d0"), kubelet=_OTHER_KUBELET), (_OTHER_KUBELET, None)),
        (replace(_LET_GO, let_go_at=None), seen(answered=False), (KUBELET, None)),
        (replace(_LET_GO, let_go_at=None), seen(kubelet=None), (KUBELET, None)),
        (replace(_LET_GO, let_go_at=None), KubeletView(), (KUBELET, None)),
        (_LET_GO, KubeletView(), (KUBELET, UPTIME - 100)),
        (_LET_GO, unreadable(seen(entry(X, "d0"))), (KUBELET, UPTIME - 100)),
        (_COUNTED, unreadable(seen()), (KUBELET, None)),
        (PodRecord(uid=X, boot=BOOT), seen(kubelet=None), (None, None)),
        (_LET_GO, seen(entry(X, "d0"), kubelet=None), (KUBELET, None)),
        (
            PodRecord(uid=X, boot=BOOT),
            seen(entry(X, "d0"), answered=False),
            (None, None),
        ),
    ],
    ids=[
        "counted: written down by whom",
        "never counted before our eyes",
        "let go of, now",
        "let go of, the first time stands",
        "let go of before a reboot: pid and moment are another boot's",
        "counted again after a reboot",
        "counted again: it starts over",
        "counted again between two questions: it starts over",
        "counted again without devices: it starts over",
        "another kubelet: it starts over",
        "counted by another kubelet",
        "absent, but not in answer to a question",
        "absent, nobody knows which kubelet wrote",
        "the checkpoint cannot be read",
        "the checkpoint cannot be read, and what was known stands",
        "the checkpoint cannot be read, and what it said before does not count",
        "the checkpoint cannot be read, so that nothing is absent",
        "absent, and nobody knows whose word that is",
        "counted, and nobody knows by which kubelet",
        "counted, but not in answer to a question",
    ],
)
def test_the_evidence_that_kubelet_let_go_of_a_pod(
    record: PodRecord, view: KubeletView, expected: tuple[ProcessId | None, float | None]
) -> None:
    draft = drafted(_released())
    draft.note_pod(record)
    after = _after(draft.book, view, sightings={X: _LIVING})
    assert (after.pods[X].counted_by, after.pods[X].let_go_at) == expected


def test_a_device_called_foreign_goes_to_no_pod_that_has_not_started() -> None:
    draft = drafted()
    draft.call_foreign(name("d0"), keys("a"), "held by pid 7 (dd) outside any pod [node open]")
    draft.allocate(WHOLE, _D0, pod=X)
    after = _after(draft.book, seen(entry(X, "d0")), sightings={X: _EMPTY})
    assert lock_of(after, "d0").state is LockState.FOREIGN


def test_a_lock_comes_back_to_the_allocation_that_a_container_started_on() -> None:
    """An init container's Allocation is older, and was never started on."""
    draft = drafted()
    draft.activate(draft.allocate(WHOLE, _D0, pod=X))
    settle(draft)
    draft.end(draft.holdings.allocations[1], "kubelet no longer counts its pod")
    draft.allocate(WHOLE, _D0, pod=X)
    draft.activate(draft.allocate(WHOLE, _D0, pod=X))
    after = _after(draft.book, seen(entry(X, "d0")), sightings={X: _EMPTY})
    lock = lock_of(after, "d0")
    assert (lock.state, lock.allocation) == (LockState.HELD, 3)


@pytest.mark.parametrize(
    ("changes", "ends"),
    [
        pytest.param({}, True, id="by the kubelet that answers"),
        pytest.param({"let_go_at": None}, False, id="it did not let go"),
        pytest.param({"counted_by": _OTHER_KUBELET}, False, id="another kubelet did"),
        pytest.param({"counted_by": None}, False, id="nobody knows which kubelet did"),
        pytest.param(
            {"counted_boot": BootId("boot-0")}, False, id="a kubelet of the boot before did"
        ),
        pytest.param({"counted_boot": None}, False, id="nobody knows in which boot"),
    ],
)
def test_a_pod_whose_sandbox_stands_is_given_up_by_the_very_kubelet_that_let_go_of_it(
    changes: dict[str, object], ends: bool
) -> None:
    record = replace(_LET_GO, **changes)
    book = book_of(allocated(_D0, pod=X), lambda draft: draft.note_pod(record))
    after = _after(book, seen(), sightings={X: _EMPTY})
    assert (after.allocations == {}) is ends


def test_a_start_of_an_unknown_pod_is_over_only_by_a_question_asked_long_after_it() -> None:
    def activate(draft: Draft) -> None:
        draft.activate(draft.holdings.allocations[1])

    book = book_of(allocated(_D0), activate)
    start = book.allocations[1].started_at
    assert start == UPTIME
    for asked, answered, over in (
        (start + LONGEST_START - 1, True, False),
        (start + LONGEST_START, False, False),
        (start + LONGEST_START, True, True),
    ):
        view = seen(asked_at=asked, answered=answered)
        assert (1 not in _after(book, view).allocations) is over


def test_an_allocation_of_a_former_boot_is_as_old_as_this_boot_at_least() -> None:
    draft = drafted(boot=BootId("boot-0"))
    draft.allocate(WHOLE, _D0, checkpoint=BEFORE, answered_at=UPTIME + 1e6)
    settle(draft)
    assert _after(draft.book, seen()).allocations == {}


def test_another_pods_start_on_the_same_hardware_is_not_this_ones() -> None:
    """Its sandbox stands: its image may still be pulled."""
    book = book_of(allocated(_D0, pod=Y, active=True), allocated(_D0, pod=X))
    after = _after(book, seen(entry(Y, "d0"), answered=False), sightings={X: _EMPTY, Y: _LIVING})
    assert {each.pod for each in after.allocations.values()} == {X, Y}


def test_a_kubelet_that_is_not_known_let_go_of_nobody() -> None:
    def note(draft: Draft) -> None:
        draft.note_pod(PodRecord(uid=X, boot=BOOT, let_go_at=UPTIME, counted_boot=BOOT))

    book = book_of(allocated(_D0, pod=X), note)
    after = _after(book, seen(kubelet=None), sightings={X: _LIVING})
    assert after.allocations == book.allocations


_SEEN_BEFORE = PodRecord(uid=X, boot=BOOT, cgroup="/kubepods/pod", inode=7)


@pytest.mark.parametrize(
    ("record", "sighting", "over"),
    [
        (_SEEN_BEFORE, None, True),
        (_SEEN_BEFORE, _EMPTY, False),
        (PodRecord(uid=X, boot=BOOT), None, False),
        (replace(_SEEN_BEFORE, boot=BootId("former")), None, True),
        (PodRecord(uid=X, boot=BootId("former")), None, True),
        (None, None, True),
        (None, _EMPTY, False),
    ],
)
def test_once_its_hardware_comes_by_claims_a_pod_without_a_cgroup_is_over(
    record: PodRecord | None, sighting: PodSighting | None, over: bool
) -> None:
    """Nothing makes kubelet write its checkpoint then, and it admits no pod with the resource."""
    book = Book(pods={} if record is None else {X: record})
    sightings = {} if sighting is None else {X: sighting}
    here, elsewhere = entry(X, "d0"), entry(X, "h0", resource=HALF)
    view = without_retired(
        seen(here, elsewhere), book, sightings, BOOT, is_retired=lambda each: each == WHOLE
    )
    assert view.entries == ((elsewhere,) if over else (here, elsewhere))
    assert view.retired == ({X} if over else set())
    # Most nodes have nothing retired: then nothing is copied, at any look.
    whole = seen(here)
    assert without_retired(whole, book, sightings, BOOT, is_retired=lambda _: False) is whole


def test_a_pod_that_is_left_keeps_its_entries_while_another_is_over() -> None:
    left, gone = entry(X, "d0"), entry(Y, "d1")
    view = without_retired(
        seen(left, gone), Book(), {X: _EMPTY}, BOOT, is_retired=lambda each: each == WHOLE
    )
    assert view.entries == (left,)
    assert view.retired == {Y}


def test_a_pod_of_the_former_api_is_over_by_what_is_left_of_it() -> None:
    book = book_of(allocated(_D0, pod=X, active=True))
    view = replace(seen(), retired=frozenset({X}))
    lock = _after(book, view).locks[name("d0")]
    assert lock.state is LockState.RELEASING
    assert lock.evidence == f"pod {X} has no cgroup, and the hardware comes by claims now"


# While kubelet's checkpoint cannot be read.


def test_a_pods_own_second_allocate_is_no_sign_that_its_first_is_over() -> None:
    """An init container passed the gate; the main container's Allocate came right after its own."""
    book = book_of(
        allocated(_D0, pod=X, active=True),
        allocated(silicon(h0="a"), resource=HALF, pod=Y),
        allocated(_D0, pod=X),
    )
    after = _after(book, unreadable(), sightings={X: _LIVING, Y: _LIVING})
    assert after.allocations[1].phase is Phase.ACTIVE
    assert lock_of(after, "d0").pod == X
    assert lock_of(after, "d0").state is LockState.HELD


def test_another_allocate_of_its_devices_ends_one_whose_pod_is_over() -> None:
    book = book_of(allocated(_D0, pod=X, active=True), allocated(_D0))
    after = _after(book, unreadable(), sightings={X: _LIVING})
    assert list(after.allocations) == [2]
    assert lock_of(after, "d0").state is LockState.RELEASING


def test_books_that_cannot_be_read_name_nobody() -> None:
    """What was read last may be of a pod that is gone."""
    view = unreadable(seen(entry(X, "d0")))
    after = _after(book_of(allocated(_D0)), view)
    assert after.allocations[1].pod is None


def test_books_that_cannot_be_read_adopt_nobody() -> None:
    assert _after(Book(), unreadable(seen(entry(X, "d0")))).allocations == {}


def _seen_before(boot: BootId = BOOT) -> Callable[[Draft], None]:
    """Return a step after which the cgroup of pod X has been seen to exist, in *boot*."""
    record = PodRecord(uid=X, boot=boot, cgroup="/kubepods/pod", inode=7)
    return lambda draft: draft.note_pod(record)


def test_a_pod_whose_cgroup_is_gone_is_over_and_one_whose_never_was_seen_is_not() -> None:
    seen_before = book_of(allocated(_D0, pod=X, active=True), _seen_before())
    after = _after(seen_before, unreadable())
    assert "the cgroup of pod pod-x is gone (unverified" in lock_of(after, "d0").evidence
    never = book_of(allocated(_D0, pod=X, active=True))
    assert _after(never, unreadable()).allocations == never.allocations
    former_boot = book_of(allocated(_D0, pod=X, active=True), _seen_before(BootId("boot-0")))
    assert _after(former_boot, unreadable()).allocations == former_boot.allocations


def test_a_pod_that_lives_in_its_cgroup_is_not_over() -> None:
    book = book_of(allocated(_D0, pod=X, active=True), _seen_before())
    assert _after(book, unreadable(), sightings={X: _LIVING}).allocations == book.allocations
