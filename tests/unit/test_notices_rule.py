"""Who is told what by an Event, how often, and what the node's condition says."""

from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from fakes.books import BOOT, HALF, NOW, WHOLE, X, Y, device_lock, inventory, keys, name, silicon
from fakes.standings import standings_of
from holdfast.model.book.book import Book, DeviceLock, LockState, Move, PodRecord
from holdfast.model.book.marks import Asker, Mark, Marks, Quarantine
from holdfast.model.book.messages import BlockReason
from holdfast.model.events import (
    REMEMBERED,
    Condition,
    History,
    KeptDevice,
    Notice,
    Reason,
    Reclaims,
    condition_of,
    due,
    is_due,
    kept_devices,
    noted,
    notices,
    reclaims_in,
)
from holdfast.model.gate.gate import WaitReport
from holdfast.model.ids import PodUid

NODE = inventory({WHOLE: silicon(d0="a", d1="b")})
D0, D1 = name("d0"), name("d1")
PATIENCE = 30.0
AT = 5000.0
"""When the first event was written."""


def lock(state: LockState, *, evidence: str = "it is so", **changes: Any) -> DeviceLock:
    made = device_lock(D0, "a", state=state, pod=X)
    return replace(made, evidence=evidence, **changes)


def named(uid: PodUid) -> PodRecord:
    return PodRecord(uid=uid, boot=BOOT, namespace="team", name=f"name-of-{uid}")


def book(*locks: DeviceLock, **changes: Any) -> Book:
    return Book(
        locks={each.device: each for each in locks}, pods={X: named(X), Y: named(Y)}, **changes
    )


def kept(one: Book, age: float) -> tuple[KeptDevice, ...]:
    blocked = {D0: BlockReason(device=D0, reason="pid 4711 has it")}
    found = standings_of(one, NODE, obstacles=blocked, now=AT - age)
    return kept_devices(found, one.marks, patience=PATIENCE, now=AT)


def marked(*devices: str) -> Marks:
    mark = Mark(asker=Asker(uid=0, pid=1), at=NOW, reason="smells of smoke")
    return Marks(
        quarantines={
            name(each): Quarantine(device=name(each), keys=keys(each), mark=mark)
            for each in devices
        }
    )


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (LockState.RELEASING, ": pid 4711 has it; "),
        (LockState.RECLAIMING, ": pid 4711 has it; "),
        (LockState.FOREIGN, " is used by a program that it was not given to; "),
    ],
)
def test_a_device_that_is_not_free_counts_once_it_has_lasted(state: LockState, text: str) -> None:
    assert kept(book(lock(state)), PATIENCE - 0.1) == ()
    (found,) = kept(book(lock(state)), PATIENCE)
    assert (found.device, found.quarantined) == (D0, False)
    assert text in found.text


def test_a_device_is_told_once_by_the_name_that_its_lock_has() -> None:
    node = inventory({WHOLE: silicon(d0="a"), HALF: silicon(h0="a")})
    one = book(lock(LockState.RELEASING))
    found = standings_of(one, node, now=AT - PATIENCE)
    assert {each.lock for each in found} == {one.locks[D0]}
    told = kept_devices(found, one.marks, patience=PATIENCE, now=AT)
    assert [each.device for each in told] == [D0]


def test_a_device_that_a_living_pod_has_is_not_kept_from_anybody() -> None:
    assert kept(book(lock(LockState.HELD)), 1e6) == ()


def test_a_device_that_was_given_up_counts_at_once() -> None:
    (found,) = kept(book(lock(LockState.QUARANTINED)), 0.0)
    assert found.quarantined
    assert "team/name-of-pod-x" in found.text


def test_a_quarantine_by_hand_counts_at_once_and_says_why() -> None:
    (found,) = kept(book(marks=marked("d1")), 0.0)
    assert (found.device, found.quarantined) == (D1, True)
    assert "smells of smoke" in found.text
    (both,) = kept(book(lock(LockState.RELEASING), marks=marked("d0")), 1e6)
    assert "smells of smoke" in both.text


def waits(*pods: PodUid, seconds: float = 2.0) -> WaitReport:
    return WaitReport(pods=frozenset(pods), why="in use", seconds=seconds)


def told(*waiting: WaitReport, found: Book | None = None) -> tuple[Notice, ...]:
    return notices(found or book(), waiting, (), ())


def test_each_pod_that_waits_for_some_time_is_told_for_what_and_why() -> None:
    assert told(waits(X, seconds=1.9)) == ()
    one, other = told(waits(Y, X))
    assert (one.pod, other.pod) == (named(X), named(Y))
    assert one.text == "in use"
    assert (one.reason, one.device, one.is_warning) == (Reason.WAITING, None, True)


def test_a_pod_without_a_name_cannot_be_told() -> None:
    nameless = PodRecord(uid=X, boot=BOOT)
    assert told(waits(X), found=replace(book(), pods={X: nameless})) == ()
    assert told(waits(X), found=replace(book(), pods={})) == ()


def test_the_node_is_told_of_a_configuration_that_cannot_be_used() -> None:
    (found,) = notices(book(), (), (), (), "gate.wiat: there is no such key")
    assert (found.reason, found.pod, found.device) == (Reason.CONFIGURATION, None, None)
    assert found.is_warning
    assert found.text.endswith("stays in use: gate.wiat: there is no such key")


def test_the_node_is_told_by_reason() -> None:
    held, given_up = (
        KeptDevice(device=each, quarantined=each == D1, text=f"{each} is kept") for each in (D0, D1)
    )
    reclaimed = reclaimed_by([LockState.RECLAIMING, LockState.FREE])
    found = notices(book(), (), (held, given_up), reclaimed.done.values())
    assert [(each.reason, each.device, each.is_warning) for each in found] == [
        (Reason.HELD, D0, True),
        (Reason.QUARANTINED, D1, True),
        (Reason.RECLAIMED, D0, False),
    ]
    assert all(each.pod is None for each in found)


def notice(number: int = 0, text: str = "held") -> Notice:
    return Notice(reason=Reason.HELD, text=text, device=name(f"d{number}"))


def written(*found: Notice, at: float = AT, failed: bool = False) -> History:
    history: History = {}
    for each in found:
        history = noted(history, each, at, failed=failed)
    return history


def test_one_event_a_minute_about_the_same_and_half_an_hour_where_it_says_the_same() -> None:
    history = written(notice())
    assert due([notice()], {}, AT) == (notice(),)
    assert due([notice(text="other")], history, AT + 59.9) == ()
    assert due([notice(text="other")], history, AT + 60.0) == (notice(text="other"),)
    assert due([notice()], history, AT + 1799.9) == ()
    assert due([notice()], history, AT + 1800.0) == (notice(),)


def test_what_was_never_tried_comes_first_then_what_was_tried_longest_ago() -> None:
    history = noted(written(notice(1), failed=True), notice(0), AT + 1.0, failed=True)
    found = due([notice(0), notice(1), notice(2)], history, AT + 100.0)
    assert found == (notice(2), notice(1), notice(0))


def test_a_node_writes_no_more_than_thirty_in_a_minute() -> None:
    many = [notice(number) for number in range(40)]
    first = due(many, {}, AT)
    assert len(first) == 30
    assert due(many, written(*first), AT + 59.9) == ()
    assert due(many, written(*first), AT + 60.0) == tuple(many[30:])


def test_what_is_old_is_forgotten() -> None:
    history = noted(written(notice(0)), notice(1), AT + 1800.0, failed=False)
    assert [about[1] for about in history] == [D1]


def moves(states: Iterable[LockState], *, evidence: str) -> list[Move]:
    before, found = LockState.RELEASING, []
    for fence, after in enumerate(states):
        text = evidence if after is LockState.RECLAIMING and not fence else after.value
        found.append(
            Move(
                at=NOW,
                device=D0,
                fence=fence,
                before=before,
                after=after,
                pod=X,
                evidence=text,
            )
        )
        before = after
    return found


def reclaimed_by(states: Iterable[LockState], begun: Reclaims | None = None) -> Reclaims:
    steps = moves(states, evidence="ending pid 4711 (python)")
    return (begun or Reclaims()).followed(steps, book(), 100.0)


def test_a_device_that_is_free_after_a_reclaim_is_told_with_what_was_ended() -> None:
    found = reclaimed_by(
        [LockState.RECLAIMING, LockState.QUARANTINED, LockState.RECLAIMING, LockState.FREE]
    )
    assert found.begun == {}
    assert found.done[D0].text == (
        "google.com/tpu/d0 is free again after ending pid 4711 (python), left over from pod "
        "team/name-of-pod-x (pod-x): free"
    )


def test_a_device_that_became_free_by_itself_or_went_back_to_its_pod_is_not_told() -> None:
    assert reclaimed_by([LockState.FREE]) == Reclaims()
    assert reclaimed_by([LockState.RECLAIMING, LockState.HELD]) == Reclaims()


def test_a_reclaim_that_began_before_a_restart_is_told_too() -> None:
    before = reclaims_in(book(lock(LockState.RECLAIMING, evidence="ending pid 9 (x)")))
    assert "after ending pid 9 (x), left" in reclaimed_by([LockState.FREE], before).done[D0].text
    assert reclaims_in(book(lock(LockState.RELEASING))) == Reclaims()


def test_a_reclaim_is_remembered_for_a_while() -> None:
    found = reclaimed_by([LockState.RECLAIMING, LockState.FREE])
    assert found.lately(100.0 + REMEMBERED - 0.1) == found
    assert found.lately(100.0 + REMEMBERED).done == {}


def some_kept(count: int, *, quarantined: bool = False) -> list[KeptDevice]:
    return [
        KeptDevice(
            device=name(f"d{each}"), quarantined=quarantined and each == 0, text=f"text{each}"
        )
        for each in range(count)
    ]


def test_the_condition_names_what_is_kept() -> None:
    assert condition_of([]) == Condition(
        status=False, reason="NoDeviceHeld", message="no device is kept from its next pod"
    )
    assert condition_of(some_kept(2)) == Condition(
        status=True, reason="DeviceHeld", message="text0; text1"
    )
    assert condition_of(some_kept(2, quarantined=True)).reason == "DeviceQuarantined"
    assert condition_of(some_kept(3)).message == "text0; text1; text2"
    assert condition_of(some_kept(4)).message == "text0; text1; text2; and 1 more"
    assert condition_of(some_kept(5)).message == "text0; text1; text2; and 2 more"


HELD, FREE = condition_of(some_kept(1)), condition_of([])


@pytest.mark.parametrize(
    ("stored", "seconds"),
    [
        (FREE, 5.0),
        (replace(HELD, reason="DeviceQuarantined"), 5.0),
        (None, 5.0),
        (replace(HELD, message="another"), 120.0),
        (HELD, 1800.0),
    ],
    ids=["status", "reason", "none there", "message", "the same"],
)
def test_the_condition_is_written_when_it_changed_and_rarely_else(
    stored: Condition | None, seconds: float
) -> None:
    assert is_due(HELD, stored, seconds)
    assert not is_due(HELD, stored, seconds - 0.1)
