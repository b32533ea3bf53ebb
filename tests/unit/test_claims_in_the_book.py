"""Claims in the book: they queue with the pods of the device plugin, and end by kubelet's word."""

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from fakes.books import (
    BOOT,
    EPOCH,
    HALF,
    KUBELET,
    NOW,
    UPTIME,
    WHOLE,
    X,
    Y,
    Z,
    allocated,
    book_of,
    drafted,
    entry,
    inventory,
    keys,
    lock_of,
    seen,
    silicon,
    unreadable,
)
from fakes.claimbooks import CLAIM, REF, prepared_book, unprepared_book, wish_of
from fakes.doors import why_claim_waits, why_wait
from holdfast.errors import ClaimRefusedError
from holdfast.model.book.book import Book, ClaimRecord, LockState, Phase
from holdfast.model.book.claims import (
    REMEMBERED,
    ClaimPhase,
    end_claim,
    enlist,
    locks_of,
    part,
    phase_of,
    pods_of_claims,
    release,
    share,
    why_not_free,
)
from holdfast.model.book.draft import Draft
from holdfast.model.book.marks import Asker, Mark, Marks
from holdfast.model.book.pods import Observation, PodSighting, reconcile
from holdfast.model.book.queue import settle
from holdfast.model.dra.passage import enter
from holdfast.model.gate.gate import Caller, Passage
from holdfast.model.ids import BootId, DeviceId, PodUid


def _observed(*, sightings: Mapping[PodUid, PodSighting] | None = None) -> Observation:
    return Observation(
        view=seen(),
        inventory=inventory({WHOLE: silicon(d0="ab")}),
        boot=BOOT,
        sightings=sightings or {},
        pending_timeout=60.0,
    )


def test_a_claim_gets_what_is_free_and_its_pods_are_named() -> None:
    draft = drafted()
    assert enlist(draft, wish_of()) is None
    lock = lock_of(draft.book, "d0")
    assert (lock.state, lock.claim, lock.pod, lock.started) == (LockState.HELD, CLAIM, X, False)
    assert draft.book.holder(lock) == "pod team/name-of-pod-x (pod-x) by claim team/two-chips"
    assert [each.phase for each in draft.holdings.allocations.values()] == [Phase.PENDING]


@pytest.mark.parametrize("active", [False, True])
def test_a_claim_waits_behind_a_pod_of_the_device_plugin(active: bool) -> None:
    draft = drafted(book_of(allocated(silicon(h0="a"), resource=HALF, pod=X, active=active)))
    assert enlist(draft, wish_of()) is None
    assert why_claim_waits(draft.book, CLAIM, keys("a", "b")) == (
        f"{HALF}/h0 is held by pod team/name-of-pod-x (pod-x)"
    )


def test_a_pod_of_the_device_plugin_waits_behind_a_claim_that_is_its_own() -> None:
    draft = drafted(prepared_book())
    draft.allocate(WHOLE, silicon(d0="ab"), pod=X)
    settle(draft)
    passage = Passage(resource=WHOLE, asked=frozenset({DeviceId("d0")}), devices=silicon(d0="ab"))
    assert why_wait(passage, Caller(pods=(X,)), draft.book) == (
        f"{WHOLE}/d0 is held by pod team/name-of-pod-x (pod-x) by claim team/two-chips"
    )


def test_what_is_prepared_again_stays_as_it_is_and_takes_in_more_pods() -> None:
    before = prepared_book(X)
    draft = drafted(before)
    assert enter(draft, wish_of(X, Y), "free") is None
    assert len(draft.holdings.allocations) == 1
    assert draft.book.claims[CLAIM].pods == {X, Y}


def test_hardware_that_joins_a_device_of_a_claim_is_the_claims_as_well() -> None:
    draft = drafted(prepared_book())
    assert enter(draft, wish_of(devices={WHOLE: silicon(d0="abc")}), "free") is None
    assert lock_of(draft.book, "d0").keys == keys("a", "b", "c")
    end_claim(draft, CLAIM, "kubelet unprepared it")
    assert lock_of(draft.book, "d0").state is LockState.RELEASING


def test_each_resource_of_a_claim_is_written_down_also_where_it_has_the_same_hardware() -> None:
    draft = drafted(prepared_book())
    enlist(draft, wish_of(devices={WHOLE: silicon(d0="ab"), HALF: silicon(h0="a")}))
    mine = draft.holdings.of_claim(CLAIM)
    assert {(each.resource, *each.ids) for each in mine} == {(WHOLE, "d0"), (HALF, "h0")}


def test_a_claim_without_devices_is_not_called_prepared() -> None:
    record = ClaimRecord(ref=REF, pods=frozenset({X}), boot=BOOT)
    assert phase_of(Book(claims={CLAIM: record}), record) is ClaimPhase.PREPARING


def test_other_devices_than_it_has_are_refused() -> None:
    draft = drafted(prepared_book())
    with pytest.raises(ClaimRefusedError, match=r"given google.com/tpu/d0.*delete the pods"):
        enlist(draft, wish_of(devices={WHOLE: silicon(d1="c")}))


def test_a_claim_that_is_allocated_other_hardware_waits_no_more_for_what_it_never_had() -> None:
    """Its pod was force-deleted while it waited, and another one has joined the claim since."""
    draft = drafted(book_of(allocated(silicon(d0="a"), pod=Z, active=True)))
    assert enlist(draft, wish_of(X, devices={WHOLE: silicon(d0="a", d1="b", d2="c")})) is None
    draft.allocate(WHOLE, silicon(d2="c"), pod=Z)
    assert enter(draft, wish_of(Y, devices={WHOLE: silicon(d1="b", d3="d")}), "free") is None
    has = {lock.device.id: lock.pod for lock in draft.book.locks.values()}
    assert has == {"d0": Z, "d1": X, "d2": Z, "d3": X}
    end_claim(draft, CLAIM, "kubelet unprepared it")
    assert {lock.device.id for lock in locks_of(draft.book, CLAIM)} == {"d1", "d3"}


def test_what_was_prepared_is_free_only_after_each_of_its_pods() -> None:
    draft = drafted(unprepared_book(prepared_book(Y, X)))
    for pod in (X, Y):
        assert draft.locks, f"the end of {pod} was not waited for"
        lock = lock_of(draft.book, "d0")
        assert (lock.state, lock.pod, lock.allocation) == (LockState.RELEASING, pod, None)
        release(draft, lock, "nobody uses it")
    assert not draft.locks
    assert draft.moves[-1].evidence == "nobody uses it"


def test_pods_of_a_claim_that_are_over_are_gone_through_in_one_step() -> None:
    draft = drafted(unprepared_book(prepared_book(X, Y, Z)))
    release(draft, lock_of(draft.book, "d0"), "nobody uses it", over={Y})
    assert lock_of(draft.book, "d0").pod == Z
    draft = drafted(unprepared_book(prepared_book(X, Y, Z)))
    release(draft, lock_of(draft.book, "d0"), "nobody uses it", over={Y, Z})
    assert not draft.locks
    assert draft.moves[-1].evidence == "with 2 other pods of its claim; nobody uses it"


def test_a_pod_of_a_claim_that_nothing_is_left_of_is_forgotten_unless_a_lock_names_it() -> None:
    draft = drafted(prepared_book(X, Y))
    share(draft, CLAIM, [Z])
    share(draft, CLAIM, [X, Y], left=[Z])
    part(draft, CLAIM, {X, Z})
    assert draft.book.claims[CLAIM].pods == {X, Y}
    assert not draft.book.claims[CLAIM].let_go
    end_claim(draft, CLAIM, "kubelet unprepared it")
    part(draft, CLAIM, {Y})
    assert draft.book.claims[CLAIM].pods == {X, Y}, "the end of a claim waits for all of its pods"


def test_pods_that_joined_without_a_call_are_waited_for_as_well() -> None:
    draft = drafted(prepared_book(Y))
    share(draft, CLAIM, [X, Z])
    end_claim(draft, CLAIM, "kubelet unprepared it")
    share(draft, CLAIM, [PodUid("too-late")])
    assert lock_of(draft.book, "d0").pod == X
    assert draft.book.claims[CLAIM].pods == {X, Y, Z}


def test_the_next_in_the_queue_gets_what_a_claim_leaves() -> None:
    draft = drafted(prepared_book())
    draft.allocate(WHOLE, silicon(d0="ab"), pod=Y)
    end_claim(draft, CLAIM, "kubelet unprepared it")
    release(draft, lock_of(draft.book, "d0"), "nobody uses it")
    lock = lock_of(draft.book, "d0")
    assert (lock.pod, lock.claim) == (Y, None)


def test_a_claim_that_comes_back_waits_until_its_former_pods_are_over() -> None:
    draft = drafted(unprepared_book(prepared_book()))
    reason = enlist(draft, wish_of(Y))
    assert reason == lock_of(draft.book, "d0")
    told = why_not_free(draft.book, CLAIM) or ""
    assert "is not free of pod team/name-of-pod-x (pod-x) by claim team/two-chips yet" in told
    assert not draft.holdings.allocations


def test_a_claim_that_is_allocated_other_hardware_waits_for_none_that_it_had() -> None:
    draft = drafted(unprepared_book(prepared_book(X)))
    assert enter(draft, wish_of(Y, devices={WHOLE: silicon(d1="c")}), "free") is None
    old, new = lock_of(draft.book, "d0"), lock_of(draft.book, "d1")
    assert (old.state, new.state) == (LockState.RELEASING, LockState.HELD)
    record = draft.book.claims[CLAIM]
    assert record.users(old) == {X}
    assert record.users(new) == {Y}
    assert draft.book.pods_of(old) == {X}
    assert pods_of_claims(draft.book, over=True) == {X, Y}
    assert "(pod-x)" in draft.book.holder(old)
    # Its new pod has nothing of the old device, and its end is not the old one's.
    assert why_not_free(draft.book, CLAIM) is None
    release(draft, old, "nobody uses it")
    assert [lock.device.id for lock in draft.book.locks.values()] == ["d1"]


def test_the_next_end_of_such_a_claim_is_not_kept_by_what_it_had_before() -> None:
    draft = drafted(unprepared_book(prepared_book(X)))
    assert enter(draft, wish_of(Y, devices={WHOLE: silicon(d1="c")}), "free") is None
    draft = drafted(unprepared_book(draft.book))
    assert [lock.device.id for lock in locks_of(draft.book, CLAIM)] == ["d1"]
    release(draft, lock_of(draft.book, "d1"), "nobody uses it")
    assert enlist(draft, wish_of(Z)) is not None, "that is d0 again"
    assert enlist(draft, wish_of(Z, devices={WHOLE: silicon(d1="c")})) is None
    assert draft.book.claims[CLAIM].former == {X, Y}
    release(draft, lock_of(draft.book, "d0"), "nobody uses it")
    assert lock_of(draft.book, "d0").pod == Y
    release(draft, lock_of(draft.book, "d0"), "nobody uses it")
    assert enlist(draft, wish_of(Z, devices={WHOLE: silicon(d1="c")})) is None
    assert not draft.book.claims[CLAIM].former


@pytest.mark.parametrize(("later", "boot"), [(REMEMBERED, BOOT), (0.0, BootId("the next boot"))])
def test_what_is_over_is_forgotten_in_time(later: float, boot: BootId) -> None:
    draft = drafted(unprepared_book(prepared_book()))
    release(draft, lock_of(draft.book, "d0"), "nobody uses it")
    after = Draft(draft.book, now=NOW, uptime=UPTIME + later, boot=boot)
    assert enlist(after, wish_of(X)) is None
    gone = Draft(draft.book, now=NOW, uptime=UPTIME + later, boot=boot)
    reconcile(gone, replace(_observed(), boot=boot))
    assert not gone.book.claims


def test_what_is_over_is_remembered_for_longer_than_kubelet_could_still_wait_for_it() -> None:
    """For 45 seconds in a call, again while a lane is stuck, and in calls of pods that come late."""
    draft = drafted(unprepared_book(prepared_book()))
    release(draft, lock_of(draft.book, "d0"), "nobody uses it")
    for later, known in ((0.0, True), (599.0, True), (600.0, False)):
        after = Draft(draft.book, now=NOW, uptime=UPTIME + later, boot=BOOT)
        reconcile(after, _observed())
        assert bool(after.book.claims) is known


def test_what_is_over_is_remembered_for_as_long_as_a_lock_is_left() -> None:
    after = Draft(
        unprepared_book(prepared_book()), now=NOW, uptime=UPTIME + 2 * REMEMBERED, boot=BOOT
    )
    reconcile(after, _observed())
    assert [*after.book.claims] == [CLAIM]


def test_kubelets_checkpoint_ends_no_claim_however_long_it_is_silent() -> None:
    later = drafted(prepared_book(), now=NOW + 5000)
    reconcile(later, replace(_observed(), view=seen(read_at=NOW - EPOCH + 5000)))
    assert lock_of(later.book, "d0").state is LockState.HELD
    assert later.book.claims[CLAIM].over_at is None


def test_what_kubelet_counts_a_pod_for_is_no_claim_of_that_pod() -> None:
    """The resource was served to the device plugin before: the pod is a holder of its own."""
    draft = drafted(prepared_book())
    reconcile(draft, replace(_observed(), view=seen(entry(X, "d0"))))
    of_pod = [each for each in draft.holdings.of_pod(X) if each.claim is None]
    assert [each.devices for each in of_pod] == [silicon(d0="ab")]
    assert lock_of(draft.book, "d0").claim == CLAIM


def test_a_claim_that_waits_for_the_device_of_a_pod_does_not_show_that_the_pod_has_ended() -> None:
    """Kubelet allocates a device again only once its pod has ended; the scheduler knows no pods."""
    draft = drafted(book_of(allocated(silicon(d0="ab"), pod=X, active=True)))
    assert enlist(draft, wish_of(Y)) is None
    reconcile(draft, replace(_observed(), view=unreadable()))
    lock = lock_of(draft.book, "d0")
    assert (lock.state, lock.pod, lock.claim) == (LockState.HELD, X, None)


def _counted(book: Book) -> Book:
    """Return what becomes of *book* when kubelet's checkpoint names X for another device."""
    draft = drafted(book)
    view = seen(entry(X, "h9", resource=HALF))
    reconcile(draft, replace(_observed(), view=view))
    return draft.book


def test_a_claim_does_not_come_back_because_kubelet_counts_its_pod() -> None:
    """The pod may have asked the device plugin, too; its claim is over by kubelet's own word."""
    draft = drafted(unprepared_book(prepared_book()))
    draft.allocate(WHOLE, silicon(d0="ab"), pod=X)
    assert lock_of(_counted(draft.book), "d0").state is LockState.RELEASING


def test_what_a_pod_had_by_the_device_plugin_does_not_come_back_to_its_claim() -> None:
    draft = drafted(book_of(allocated(silicon(d0="ab"), pod=X, active=True)))
    draft.end(draft.holdings.allocations[1], "kubelet no longer counts it")
    assert enlist(draft, wish_of()) is None
    after = _counted(draft.book)
    assert lock_of(after, "d0").state is LockState.RELEASING
    assert [each.claim for each in after.allocations.values()] == [CLAIM]


def test_a_pod_with_a_claim_is_counted_and_let_go_by_its_end() -> None:
    draft = drafted(prepared_book(X, Y))
    reconcile(draft, _observed())
    for pod in (X, Y):
        record = draft.book.pods[pod]
        assert (record.counted_by, record.let_go_at) == (KUBELET, None)
    end_claim(draft, CLAIM, "kubelet unprepared it", kubelet=KUBELET)
    for pod in (X, Y):
        record = draft.book.pods[pod]
        assert (record.counted_by, record.let_go_at) == (KUBELET, UPTIME)


def test_a_pod_that_has_more_than_the_claim_is_not_let_go() -> None:
    draft = drafted(prepared_book(X))
    draft.allocate(HALF, silicon(h9="z"), pod=X)
    end_claim(draft, CLAIM, "kubelet unprepared it", kubelet=KUBELET)
    assert draft.book.pods[X].let_go_at is None


def test_the_cgroup_of_each_pod_is_followed_until_the_claim_is_over() -> None:
    """Another cgroup of its name belongs, from then on, to a later pod."""
    draft = drafted(prepared_book(X, Y))
    for inode, over in ((7, False), (8, False), (9, True)):
        if over:
            end_claim(draft, CLAIM, "kubelet unprepared it", kubelet=KUBELET)
        sighting = PodSighting(
            cgroup="/kubepods/pod-y", inode=inode, populated=True, processes=(1,)
        )
        reconcile(draft, _observed(sightings={Y: sighting}))
        assert draft.book.pods[Y].inode == min(inode, 8)
    assert draft.book.pods[Y].let_go_at == UPTIME


def test_a_pod_with_a_claim_is_not_let_go_also_while_the_checkpoint_cannot_be_read() -> None:
    draft = drafted(prepared_book(X))
    draft.note_pod(replace(draft.book.pods[X], let_go_at=UPTIME, counted_boot=BOOT))
    reconcile(draft, replace(_observed(), view=unreadable()))
    assert draft.book.pods[X].let_go_at is None


def test_a_start_of_nobody_known_waits_behind_a_claim_and_is_told_which() -> None:
    draft = drafted()
    draft.mark(Marks(drain=Mark(asker=Asker(uid=0, pid=1), at=NOW)))
    assert enlist(draft, wish_of()) is None
    draft.mark(Marks())
    passage = Passage(resource=WHOLE, asked=frozenset({DeviceId("d0")}), devices=silicon(d0="ab"))
    assert why_wait(passage, Caller(), draft.book) == (
        "it is not known whose container this is, and pod team/name-of-pod-x (pod-x) by claim "
        "team/two-chips waits for the same hardware"
    )
