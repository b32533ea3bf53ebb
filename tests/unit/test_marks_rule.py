"""What is withheld by hand: from whom, at the gate, in the queue, and in what kubelet is told."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from fakes.books import (
    WHOLE,
    X,
    Y,
    allocated,
    book_of,
    drafted,
    entry,
    ids,
    inventory,
    keys,
    lock_of,
    name,
    seen,
    silicon,
)
from fakes.doors import why_wait
from fakes.standings import standings_of
from holdfast.model.book.book import Book, LockState
from holdfast.model.book.draft import Draft
from holdfast.model.book.marks import Asker, Mark, Marks, Quarantine
from holdfast.model.book.messages import FilledMessage, Message
from holdfast.model.book.offers import kept_back
from holdfast.model.book.queue import settle
from holdfast.model.book.standing import why_withheld
from holdfast.model.devices import Fault, FaultKind
from holdfast.model.gate.gate import Caller, Passage, enter, rights_of_start, who_calls, why_not_yet

_D0 = silicon(d0="a")
_BOTH = silicon(d0="a", d1="b")
_NODE = inventory({WHOLE: _BOTH})
_MARK = Mark(asker=Asker(uid=1000, pid=77), at=0.0, reason="ECC errors")
_TOLD = "ECC errors (asked by uid 1000, pid 77 at 1970-01-01 00:00:00 UTC)"
_BY_HAND = Quarantine(device=name("d0"), keys=keys("a"), mark=_MARK)
_BAD = Marks(quarantines={name("d0"): _BY_HAND})
_DRAIN = Marks(drain=_MARK)
_BAD_TEXT = f"google.com/tpu/d0 is quarantined by hand: {_TOLD}"
_DRAIN_TEXT = f"holdfast is draining: {_TOLD}"
_START = Passage(resource=WHOLE, asked=ids("d0"), devices=_D0)

_Step = Callable[[Draft], object]


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        (Marks(), None),
        (_BAD, Message.QUARANTINED.filled(name("d0"), reason=str(_MARK))),
        (_DRAIN, Message.DRAINING.filled(reason=str(_MARK))),
    ],
    ids=["no mark", "quarantined", "draining"],
)
def test_who_waits_for_a_person_is_told_what_was_marked(
    marks: Marks, expected: FilledMessage | None
) -> None:
    assert why_withheld(Book(marks=marks), keys("a")) == expected


def _marked(marks: Marks, *steps: _Step) -> Book:
    draft = drafted(book_of(*steps))
    draft.mark(marks)
    settle(draft)
    return draft.book


@pytest.mark.parametrize("marks", [_BAD, _DRAIN], ids=["quarantined", "draining"])
@pytest.mark.parametrize(
    ("steps", "caller", "waits"),
    [
        ((), Caller(pods=(X,)), True),
        ((allocated(_D0),), Caller(pods=(X,)), True),
        ((allocated(_D0, pod=X),), Caller(pods=(X,)), True),
        ((allocated(_D0, pod=X, active=True),), Caller(pods=(X,)), False),
        ((allocated(_D0, active=True),), Caller(), False),
        ((allocated(_D0, active=True),), Caller(allocation=1), False),
        ((allocated(_D0),), Caller(), True),
        ((allocated(_D0, pod=Y, active=True),), Caller(pods=(X,)), True),
    ],
    ids=[
        "a pod nobody knows of",
        "allocated",
        "allocated and known",
        "running",
        "running, its pod not known",
        "running, the only one of these ids",
        "allocated, its pod not known",
        "another pod runs",
    ],
)
def test_only_a_pod_that_has_started_passes_the_gate_of_what_is_withheld(
    marks: Marks, steps: tuple[_Step, ...], caller: Caller, waits: bool
) -> None:
    book = _marked(marks, *steps)
    obstacle = why_not_yet(rights_of_start(_START, caller, book), book)
    assert (obstacle is not None) is waits
    if obstacle is not None:
        assert obstacle.text in {_BAD_TEXT, _DRAIN_TEXT}
        assert obstacle.withheld
    assert enter(drafted(book), _START, caller, "gate passed") == obstacle, "the commit agrees"


def test_an_unknown_start_does_not_pass_in_the_name_of_a_known_pod_that_runs() -> None:
    book = _marked(_DRAIN, allocated(_D0, pod=Y, active=True))
    assert why_wait(_START, who_calls(_START, seen(), book), book) == _DRAIN_TEXT


@pytest.mark.parametrize("state", list(LockState))
@pytest.mark.parametrize("marks", [_BAD, _DRAIN], ids=["quarantined", "draining"])
@pytest.mark.parametrize(
    ("healthy", "needed", "expected"),
    [(True, False, False), (True, True, True), (False, True, False)],
    ids=["nobody has it", "a counted pod has or awaits it", "broken"],
)
def test_kubelet_is_told_that_a_withheld_device_is_unhealthy_unless_a_counted_pod_has_it(
    state: LockState, marks: Marks, healthy: bool, needed: bool, expected: bool
) -> None:
    lock = replace(lock_of(book_of(allocated(_D0, pod=X)), "d0"), state=state)
    book = Book(marks=marks, locks={} if state is LockState.FREE else {lock.device: lock})
    faults = () if healthy else (Fault(kind=FaultKind.ILL, text="hot"),)
    node = replace(_NODE, devices=tuple(replace(each, faults=faults) for each in _NODE.devices))
    view = seen(entry(Y, "d0")) if needed else seen()
    assert standings_of(book, node, view=view).by_name[name("d0")].offered is expected


@pytest.mark.parametrize("marks", [_BAD, _DRAIN], ids=["quarantined", "draining"])
def test_what_a_person_withholds_is_no_drift_of_kubelets(marks: Marks) -> None:
    assert kept_back(ids("d1"), standings_of(Book(), _NODE).of(WHOLE)) == ids("d0")
    assert kept_back(ids("d1"), standings_of(_marked(marks), _NODE).of(WHOLE)) == ids()
