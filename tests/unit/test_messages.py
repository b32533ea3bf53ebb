"""The one sentence for who waits: what is in it, how long it is, and when it is the same."""

import re
import string
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fakes.books import (
    BOOT,
    NOW,
    WHOLE,
    X,
    Y,
    Z,
    allocated,
    book_of,
    device_lock,
    drafted,
    inventory,
    keys,
    name,
    silicon,
)
from fakes.standings import standings_of
from holdfast.model.book.book import Book, ClaimRecord, DeviceLock, LockState, PodRecord
from holdfast.model.book.marks import Asker, Mark, Marks, Quarantine
from holdfast.model.book.messages import (
    LONGEST,
    BlockReason,
    Demand,
    FilledMessage,
    Message,
    ending,
    of_blocked,
    of_lock,
    of_verdict,
    refusal,
    sentence,
    together,
)
from holdfast.model.devices import Fault, FaultKind
from holdfast.model.dra.advertised import AdvertisedDevice
from holdfast.model.dra.health import healths
from holdfast.model.events import kept_devices
from holdfast.model.gate.gate import Obstacle, Rights, said_of, why_not_yet
from holdfast.model.ids import (
    ClaimRef,
    ClaimUid,
    DeviceId,
    DeviceName,
    HardwareKey,
    PodUid,
    ProcessId,
    ResourceName,
)
from holdfast.model.use.free import Freedom, Verdict
from holdfast.model.use.holders import DeviceAccess, Holder, Sandbox

_REPOSITORY = Path(__file__).parents[2]
_DAEMON = _REPOSITORY / "daemon/holdfast"
D0 = name("0000:00:05.0")
FOUR = tuple(name(f"0000:00:0{number}.0") for number in (5, 6, 7, 8))
ASKED = Demand(what="google.com/tpu 0000:00:05.0", devices=(D0,))
RECORDS = {
    X: PodRecord(uid=X, boot=BOOT, namespace="default", name="pod-a"),
    Y: PodRecord(uid=Y, boot=BOOT, namespace="team", name="other"),
}
CLAIM = ClaimUid("claim-uid")
ENDS = (60.0, 900.0)


def lock(state: LockState, **changes: object) -> DeviceLock:
    made = device_lock(D0, "a", state=state, pod=X)
    return replace(made, evidence=f"kubelet no longer counts pod {X}", **changes)


def holder(
    pid: int, pod: PodUid | None = X, command: str = "python", sandbox: Sandbox | None = None
) -> Holder:
    return Holder(
        process=ProcessId(pid, 1),
        command=command,
        access=frozenset({DeviceAccess.NODE if sandbox is None else DeviceAccess.DEVICE_FD}),
        pod=pod,
        sandbox=sandbox,
    )


def told(
    state: LockState,
    *holders: Holder,
    reason: str = "",
    ends: tuple[float, float] | None = ENDS,
    asked: Demand | None = ASKED,
    seen: bool = True,
    **changes: object,
) -> str:
    blocked = BlockReason(device=D0, holders=holders, reason=reason, ends_after=ends)
    return sentence(said(state, blocked if seen else None, **changes), asked)


def said(state: LockState, blocked: BlockReason | None, **changes: object) -> FilledMessage:
    claims = {
        CLAIM: ClaimRecord(
            ref=ClaimRef("ns", CLAIM, "shared"), pods=frozenset({X, Y, Z}), boot=BOOT
        )
    }
    one = lock(state, **changes)
    return of_lock(D0, one, blocked, Book(locks={D0: one}, pods=RECORDS, claims=claims))


def test_who_waits_for_a_living_pod_is_told_which() -> None:
    assert told(LockState.HELD, asked=replace(ASKED, devices=FOUR, kept=1)) == (
        "waiting for 1 of 4 google.com/tpu: 0000:00:05.0 is held by default/pod-a; kubelet asks "
        "again until that has ended (holdfast locks)"
    )


def test_who_waits_for_what_an_ended_pod_left_is_told_when_it_is_ended() -> None:
    assert told(LockState.RELEASING, holder(3077)) == (
        "waiting for google.com/tpu: 0000:00:05.0 is still open in python (pid 3077) of "
        "default/pod-a, which has ended; holdfast ends it after 60 s unless it is somebody's work "
        "(holdfast holders)"
    )


SENTRY = holder(9, command="exe", sandbox=Sandbox.SENTRY)
MACHINE = holder(9, pod=None, command="qemu-kvm", sandbox=Sandbox.MACHINE)


@pytest.mark.parametrize(
    ("state", "holders", "expected"),
    [
        (LockState.RELEASING, (holder(8), holder(7)), " in python (pid 7) and 1 more of default/"),
        (LockState.RELEASING, (SENTRY,), "; holdfast ends it after 60 to 900 s unless it is "),
        (LockState.RELEASING, (SENTRY,), " is still open in exe (pid 9, gvisor#11545) of default"),
        (
            LockState.RELEASING,
            (holder(9, Y, sandbox=Sandbox.MACHINE),),
            "(pid 9) of team/other, which it was not given to",
        ),
        (LockState.RELEASING, (SENTRY, holder(12)), "; holdfast ends it after 60 to 900 s unless"),
        (LockState.RELEASING, (holder(7, Y), holder(8)), " is still open in python (pid 8) of def"),
        (LockState.RELEASING, (holder(7, Y),), "python (pid 7) of team/other, which it was not gi"),
        (LockState.RELEASING, (holder(7, Z),), " of pod pod-z, which it was not given to; holdfas"),
        (LockState.RELEASING, (holder(7, None),), "(pid 7) outside any pod, which it was not give"),
        (LockState.RELEASING, (MACHINE,), "qemu-kvm (pid 9) outside any pod; if that is this pod"),
        (LockState.RECLAIMING, (holder(7),), "of default/pod-a, which has ended; holdfast is endi"),
        (LockState.QUARANTINED, (holder(7),), "of default/pod-a, which could not be ended; it is "),
        (LockState.FOREIGN, (holder(7),), " is open in python (pid 7) of default/pod-a, which it "),
        (LockState.FOREIGN, (), " is used by a program that it was not given to; holdfast ends "),
        (LockState.RELEASING, (), " is not free of default/pod-a yet, which has ended; it is giv"),
        (LockState.QUARANTINED, (), "default/pod-a: what it left behind has not ended; it is tr"),
    ],
)
def test_each_state_says_who_has_the_device_and_what_comes_next(
    state: LockState, holders: Sequence[Holder], expected: str
) -> None:
    assert expected in told(state, *holders)
    if not holders:
        assert told(state) == told(state, seen=False)


@pytest.mark.parametrize(
    ("state", "holders", "expected"),
    [
        (LockState.HELD, (holder(7),), "default/pod-a has ended"),
        (LockState.RELEASING, (), "the kernel shows that nobody has it any more"),
        (
            LockState.RELEASING,
            (holder(7), holder(8)),
            (
                "python (pid 7) and 1 more end; after 60 s holdfast ends it unless it is "
                "somebody's work"
            ),
        ),
        (
            LockState.RELEASING,
            (holder(7, Y),),
            "python (pid 7) ends; holdfast ends no such program",
        ),
        (LockState.RELEASING, (MACHINE,), "qemu-kvm (pid 9) ends"),
        (LockState.RECLAIMING, (holder(7),), "python (pid 7) ends; holdfast is ending it"),
        (
            LockState.QUARANTINED,
            (holder(7),),
            "python (pid 7) ends; it is tried again, and at once by `holdfast unquarantine`",
        ),
        (
            LockState.QUARANTINED,
            (),
            (
                "what default/pod-a left behind has ended; it is tried again, and at once by "
                "`holdfast unquarantine`"
            ),
        ),
        (LockState.FOREIGN, (), "that program has let go of it; holdfast ends no such program"),
    ],
)
def test_of_each_state_it_is_said_what_ends_it_and_when(
    state: LockState, holders: Sequence[Holder], expected: str
) -> None:
    blocked = BlockReason(device=D0, holders=tuple(holders), ends_after=ENDS)
    assert ending(said(state, blocked), "default/pod-a") == expected


@pytest.mark.parametrize("state", [each for each in LockState if each is not LockState.FREE])
@pytest.mark.parametrize("holders", [(), (holder(7),), (holder(7, Y),)])
def test_each_state_has_words_for_what_ends_it(
    state: LockState, holders: tuple[Holder, ...]
) -> None:
    assert ending(
        said(state, BlockReason(device=D0, holders=holders, ends_after=ENDS)), "default/x"
    )


def test_where_nothing_is_ended_that_is_what_ends_it() -> None:
    observed = said(LockState.RELEASING, BlockReason(device=D0, holders=(holder(7),)))
    assert ending(observed, "default/pod-a") == "python (pid 7) ends; holdfast only observes here"


def test_a_sandbox_that_is_ended_as_soon_as_others_has_one_number_of_seconds() -> None:
    assert "; holdfast ends it after 60 s unless" in told(
        LockState.RELEASING, SENTRY, ends=(60.0, 60.0)
    )


def test_what_is_too_long_is_shortened_in_its_names_and_nothing_else() -> None:
    long = Demand(what="x" * 300, devices=())
    text = told(LockState.HELD, device=name("h" * 200, ResourceName("r" * 200)), asked=long)
    assert len(text) <= LONGEST
    assert text.endswith("; kubelet asks again until that has ended (holdfast locks)")
    assert text.startswith("waiting for xxx")
    fits = refusal("start", "r" * (LONGEST - len("cannot start: ")))
    assert len(fits) == LONGEST
    assert fits.endswith("r" * 100)
    assert "..." not in fits
    begin, end = refusal("start", "r" * 300).removeprefix("cannot start: ").split("...")
    assert abs(len(begin) - len(end)) <= 1
    left = told(LockState.RELEASING, holder(7), holder(8), device=D0, asked=long)
    assert " is still open in python (pid 7) and 1 more of " in left


def test_where_nothing_is_ended_a_person_is_told_to() -> None:
    text = told(LockState.RELEASING, holder(7), ends=None)
    assert "; holdfast only observes here: use holdfast release (holdfast holders)" in text
    assert "; holdfast is ending it" in told(LockState.RECLAIMING, holder(7), ends=None)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (LockState.RELEASING, "is not free of default/pod-a yet: it is reset; holdfast looks"),
        (LockState.RECLAIMING, "is not free of default/pod-a yet: it is reset; holdfast looks"),
        (LockState.QUARANTINED, "could not be freed of default/pod-a: it is reset; it is tried"),
    ],
)
def test_a_reason_that_is_no_process_is_told(state: LockState, expected: str) -> None:
    assert expected in told(state, reason="it is reset")


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (LockState.HELD, ": 0000:00:05.0 is held by a pod not yet known; "),
        (LockState.RELEASING, ": 0000:00:05.0 is not free of its former pod yet, which has ended"),
        (LockState.QUARANTINED, " could not be freed of its former pod: what it left behind has n"),
    ],
)
def test_a_pod_that_nobody_knows_may_be_known_only_while_it_lives(
    state: LockState, expected: str
) -> None:
    assert expected in told(state, pod=None)


def test_a_reason_in_few_words_is_preferred() -> None:
    one = lock(LockState.RELEASING)
    book = Book(locks={D0: one}, pods=RECORDS)
    blocked = BlockReason(device=D0, reason="in use: 5 MiB", brief="in use: its memory")
    assert " yet: in use: its memory; " in sentence(of_lock(D0, one, blocked, book))
    assert str(blocked) == f"{D0} is not free: in use: 5 MiB"
    assert str(replace(blocked, holders=(holder(7),))).startswith(f"{D0} is held by pid 7 (python)")


def test_the_same_hardware_under_another_name_is_told_with_both() -> None:
    other = name("h0", ResourceName("example.com/half"))
    text = told(LockState.HELD, device=other)
    assert "0000:00:05.0 is held by default/pod-a as example.com/half/h0;" in text


def test_a_claim_is_told_with_one_of_its_pods_and_how_many_more() -> None:
    text = told(LockState.HELD, claim=CLAIM)
    assert " is held by default/pod-a and 2 more by claim ns/shared; " in text


def test_of_the_device_itself_it_is_said_with_its_whole_name() -> None:
    assert told(LockState.HELD, asked=None).startswith("google.com/tpu/0000:00:05.0 is held by ")


IN_USE = Verdict(freedom=Freedom.IN_USE, reason="in use: all of it is enabled")


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (IN_USE, "is in use: all of it is enabled; it starts when the kernel shows it free"),
        (
            replace(IN_USE, freedom=Freedom.UNKNOWN, reason="no NVML: error 3", brief="no NVML"),
            "google.com/tpu: it is unknown whether 0000:00:05.0 is free: no NVML; holdfast looks",
        ),
        (replace(IN_USE, brief="in use: enabled"), "is in use: enabled; it starts when the kern"),
        (
            replace(IN_USE, freedom=Freedom.UNKNOWN, reason="no NVML", final=True),
            "google.com/tpu: it is unknown whether 0000:00:05.0 is free: no NVML; holdfast looks",
        ),
        (replace(IN_USE, holders=(holder(7),)), "is still open in python (pid 7), of this pod its"),
        (replace(IN_USE, holders=(SENTRY,)), "leaked: exe (pid 9, gvisor#11545); delete the pod,"),
        (replace(IN_USE, holders=(holder(7), holder(8, Y))), "(pid 8) of team/other, which it was"),
        (replace(IN_USE, holders=(holder(8, Y),)), "(pid 8) of team/other, which it was not given"),
        (
            replace(IN_USE, holders=(MACHINE,)),
            "machine, set Kata's sandbox_cgroup_only = true (holdfast",
        ),
    ],
)
def test_what_the_kernel_shows_is_told_by_whose_it_is(verdict: Verdict, expected: str) -> None:
    said = of_verdict(D0, verdict, {X}, Book(pods=RECORDS))
    assert expected in sentence(said, ASKED)


def test_who_was_last_seen_is_told_by_the_lock_where_that_is_being_released() -> None:
    blocked = BlockReason(device=D0, holders=(holder(7),), ends_after=ENDS)
    for state, expected in [
        (LockState.RELEASING, "default/pod-a, which has ended; holdfast ends it after 60 s"),
        (LockState.HELD, "(pid 7), of this pod itself; "),
    ]:
        book = Book(locks={D0: lock(state)}, pods=RECORDS)
        assert expected in sentence(of_blocked(blocked, {X}, book))
    assert ", of this pod itself; " in sentence(of_blocked(blocked, {X}, Book(pods=RECORDS)))


@pytest.mark.parametrize(
    ("asked", "beginning"),
    [
        (ASKED, "waiting for google.com/tpu: "),
        (replace(ASKED, devices=FOUR), "waiting for 4 google.com/tpu: "),
        (replace(ASKED, devices=FOUR, kept=4), "waiting for 4 google.com/tpu: "),
        (replace(ASKED, devices=FOUR, kept=3), "waiting for 3 of 4 google.com/tpu: "),
        (replace(ASKED, devices=FOUR, kept=3, final=True), "cannot start on 4 google.com/tpu: "),
        (replace(ASKED, devices=(D0, name("x", ResourceName("a/b")))), "waiting for 2 devices: "),
        (replace(ASKED, devices=(), what="claim a/b"), "waiting for claim a/b: "),
    ],
)
def test_a_sentence_begins_with_what_is_wanted(asked: Demand, beginning: str) -> None:
    text = sentence(Message.PROMISE.filled(reason="it is so"), asked)
    assert text == f"{beginning}it is so"


def test_a_device_of_another_resource_has_its_whole_name() -> None:
    asked = replace(ASKED, devices=(D0, name("x", ResourceName("a/b"))))
    assert f": {D0} is held by " in told(LockState.HELD, asked=asked)


def test_a_refusal_says_what_cannot_be_done_and_keeps_the_end_of_a_long_reason() -> None:
    assert refusal("allocate google.com/tpu/d0", "it is gone") == (
        "cannot allocate google.com/tpu/d0: it is gone"
    )
    text = refusal("prepare claim a/b", f"{'x' * 500}; delete the pod")
    assert text.startswith("cannot prepare claim a/b: xxx")
    assert text.endswith("; delete the pod")
    assert 240 < len(text) <= LONGEST


def test_the_first_of_several_is_told_and_how_many_more_there_are() -> None:
    assert together([]) == together(["", ""]) == ""
    assert together(["a", "", "a"]) == "a"
    assert together(["a", "b", "c"]) == "a; and 2 more"
    assert len(together(["x" * 300, "y"])) == LONGEST


@pytest.mark.parametrize("message", list(Message), ids=lambda each: each.name)
def test_every_text_has_room_for_names_of_a_usual_length(message: Message) -> None:
    """Of a GPU too, in a pod of a Deployment: no name is cut then."""
    names = {
        "owner": "default/trainer-5d9c7b6f4d-x2x7k",
        "program": "python3 (pid 3077123)",
        "after": "60 s",
        "count": "2",
        "share": "gpu-1",
        "reason": "it is not so",
        "deed": "allocate nvidia.com/gpu",
    }
    device = DeviceName(
        ResourceName("nvidia.com/gpu"), DeviceId("GPU-6a9ca5b4-8f1e-4a8e-9c3f-2b8b8ac0a0c1")
    )
    eight = tuple(replace(device, id=DeviceId(f"{device.id}::{n}")) for n in range(7))
    asked = Demand(what="", devices=(device, *eight), kept=1)
    text = sentence(FilledMessage(message=message, device=device, names=names), asked)
    assert "..." not in text


def test_the_page_has_a_row_for_each_text_with_its_cause_and_what_to_do() -> None:
    page = (_REPOSITORY / "docs/messages.md").read_text("utf-8")
    _, _, table = page.partition("|---|---|---|\n")
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
    assert [row[0] for row in rows] == [
        re.sub(r"{(\w+)}", lambda field: field[1].upper(), each.value.template) for each in Message
    ], "docs/messages.md needs a row for each, in the order of the code"
    assert all(len(row) == 3 and all(row) for row in rows)
    assert f"at most {LONGEST} characters" in page


def _waits(
    locks: Sequence[DeviceLock],
    seen: dict[DeviceName, BlockReason],
    **changes: object,
) -> str:
    book = Book(locks={each.device: each for each in locks}, pods=RECORDS)
    rights = Rights(
        keys=keys(*(each.id for each in FOUR)),
        own=frozenset(),
        started=frozenset(),
        queued=(),
    )
    obstacle = why_not_yet(replace(rights, **changes), book)
    assert obstacle is not None
    asked = [(each, keys(each.id)) for each in FOUR]
    said, kept = said_of(obstacle, asked, seen.get, book)
    return sentence(said, Demand(what="", devices=FOUR, kept=kept))


def _of(device: DeviceName, state: LockState = LockState.RELEASING) -> DeviceLock:
    return lock(state, device=device, keys=keys(device.id))


def test_of_several_devices_that_are_kept_one_with_a_known_holder_is_told() -> None:
    locks = [_of(each) for each in FOUR[:3]]
    reasons = {each: BlockReason(device=each, reason="processes live") for each in FOUR[:3]}
    assert _waits(locks, reasons).startswith(
        "waiting for 3 of 4 google.com/tpu: 0000:00:05.0 is not free of default/pod-a yet: proc"
    )
    reasons[FOUR[1]] = BlockReason(device=FOUR[1], holders=(holder(7),), ends_after=ENDS)
    assert _waits(locks, reasons).startswith(
        "waiting for 3 of 4 google.com/tpu: 0000:00:06.0 is still open in python (pid 7) of "
    )


def test_what_is_its_own_is_not_counted() -> None:
    locks = [_of(FOUR[0], LockState.HELD), _of(FOUR[1]), _of(FOUR[2])]
    text = _waits(locks, {}, own=frozenset({FOUR[0]}))
    assert text.startswith("waiting for 2 of 4 google.com/tpu: 0000:00:06.0 is not free of ")


def test_hardware_that_nobody_locked_is_counted_where_it_is_not_granted_yet() -> None:
    assert _waits([_of(FOUR[0], LockState.HELD)], {}, own=frozenset({FOUR[0]})) == (
        "waiting for 3 of 4 google.com/tpu: 0000:00:06.0, 0000:00:07.0, 0000:00:08.0 is not granted "
        "to it yet; kubelet asks again (holdfast status)"
    )


def test_who_comes_later_is_told_behind_which_pod() -> None:
    book = book_of(
        allocated(silicon(d1="b"), pod=Z, active=True),
        allocated(silicon(w="ab"), resource=ResourceName("example.com/half"), pod=Y),
    )
    draft = drafted(replace(book, pods=RECORDS))
    late = draft.allocate(WHOLE, silicon(d0="a"), pod=X)
    rights = Rights(keys=keys("a"), own=frozenset(), started=frozenset(), queued=(late,))
    obstacle = why_not_yet(rights, draft.book)
    assert obstacle is not None
    said, kept = said_of(obstacle, [*late.names()], lambda _: None, draft.book)
    assert kept == 1
    assert sentence(said) == (
        "google.com/tpu/d0 is for team/other, which came first; kubelet asks again until that has "
        "had it (holdfast locks)"
    )


def test_a_lock_of_what_a_claim_had_before_is_told_by_its_own_name() -> None:
    other = _of(name("before"))
    said, kept = said_of(
        Obstacle(text="", locks=(other,)), [(D0, keys(D0.id))], lambda _: None, Book(pods=RECORDS)
    )
    assert kept == 0
    assert sentence(said).startswith("google.com/tpu/before is not free of default/pod-a yet, ")


def test_every_message_is_one_that_the_daemon_says() -> None:
    source = "".join(each.read_text("utf-8") for each in _DAEMON.rglob("*.py"))
    assert [each.name for each in Message if f"Message.{each.name}" not in source] == []


# The rest is for every book, holder and number of devices: names of any length and any character.

_NAMES = st.text(string.ascii_lowercase + "-", min_size=1, max_size=253)
_ANYTHING = st.text(max_size=300)
_UIDS = [PodUid(f"0c232ab0-5d51-4b0e-8f9f-00000000000{n}") for n in range(4)]
_STATES = st.sampled_from([each for each in LockState if each is not LockState.FREE])


@st.composite
def _holders(draw: st.DrawFn) -> tuple[Holder, ...]:
    made = st.builds(
        holder,
        st.integers(1, 4_194_304),
        st.sampled_from([None, *_UIDS]),
        st.text(min_size=1, max_size=15),
        st.sampled_from([None, *Sandbox]),
    )
    return tuple(draw(st.lists(made, max_size=5)))


@st.composite
def _scenes(draw: st.DrawFn) -> tuple[Book, dict[DeviceName, BlockReason], tuple[DeviceName, ...]]:
    """Return a book, what was seen on its devices, and which of these somebody asks for."""
    resource = ResourceName(f"{draw(_NAMES)}/{draw(_NAMES)}"[:316])
    ids = draw(st.lists(_NAMES, min_size=1, max_size=9, unique=True))
    devices = tuple(DeviceName(resource, DeviceId(each)) for each in ids)
    pods = {
        uid: PodRecord(uid=uid, boot=BOOT, namespace=draw(_NAMES)[:63], name=draw(_NAMES))
        for uid in _UIDS
    }
    claim = ClaimRecord(
        ref=ClaimRef(draw(_NAMES)[:63], CLAIM, draw(_NAMES)),
        pods=frozenset(draw(st.lists(st.sampled_from(_UIDS), min_size=1))),
        boot=BOOT,
        over_at=draw(st.sampled_from([None, 1.0])),
    )
    locks = {
        each: lock(
            draw(_STATES),
            device=each,
            keys=frozenset({HardwareKey(each.id)}),
            pod=draw(st.sampled_from(_UIDS)),
            claim=draw(st.sampled_from([None, CLAIM])),
        )
        for each in draw(st.lists(st.sampled_from(devices), unique=True))
    }
    seen = {
        each: BlockReason(
            device=each,
            holders=draw(_holders()),
            reason=draw(_ANYTHING),
            ends_after=draw(st.sampled_from([None, (60.0, 900.0), (0.25, 0.25)])),
        )
        for each in draw(st.lists(st.sampled_from(devices), unique=True))
    }
    mark = Mark(asker=Asker(uid=0, pid=1), at=NOW, reason=draw(_ANYTHING))
    quarantine = Quarantine(device=devices[0], keys=keys(devices[0].id), mark=mark)
    marks = draw(
        st.sampled_from([Marks(), Marks(drain=mark), Marks(quarantines={devices[0]: quarantine})])
    )
    book = Book(locks=locks, pods=pods, claims={CLAIM: claim}, marks=marks)
    return book, seen, devices


def _check(text: str) -> None:
    assert len(text) < 250
    assert text.isprintable()
    assert not any(uid in text for uid in _UIDS)


def _at_a_door(
    book: Book, seen: dict[DeviceName, BlockReason], devices: tuple[DeviceName, ...]
) -> str:
    asked = [(each, keys(each.id)) for each in FOUR]
    rights = Rights(
        keys=frozenset().union(*(each for _, each in asked)),
        own=frozenset(),
        started=frozenset(),
        queued=None,
    )
    obstacle = why_not_yet(rights, book)
    if obstacle is None:
        return ""
    said, kept = said_of(obstacle, asked, seen.get, book)
    return sentence(said, Demand(what="", devices=devices, kept=kept))


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True)
@given(scene=_scenes(), later=st.floats(0.0, 1e6))
def test_whoever_waits_is_told_in_one_line_that_time_alone_does_not_change(
    scene: tuple[Book, dict[DeviceName, BlockReason], tuple[DeviceName, ...]], later: float
) -> None:
    book, seen, devices = scene
    moved = replace(
        book,
        locks={
            each.device: replace(each, since=each.since + later) for each in book.locks.values()
        },
    )
    text = _at_a_door(book, seen, devices)
    _check(text)
    assert _at_a_door(moved, seen, devices) == text

    node = inventory({devices[0].resource: {each.id: keys(each.id) for each in devices}})
    shown = [AdvertisedDevice(name="all", devices=devices)]
    first = standings_of(book, node, obstacles=seen, now=0.0)
    second = standings_of(moved, node, obstacles=seen, now=later)
    (one,), (other,) = healths(shown, first), healths(shown, second)
    _check(one.message)
    assert one.message == other.message
    for each in kept_devices(first, book.marks, patience=0.0, now=0.0):
        _check(each.text)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True)
@given(scene=_scenes(), holders=_holders(), reason=_ANYTHING, freedom=st.sampled_from(Freedom))
def test_what_the_kernel_shows_is_told_in_one_line_too(
    scene: tuple[Book, dict[DeviceName, BlockReason], tuple[DeviceName, ...]],
    holders: tuple[Holder, ...],
    reason: str,
    freedom: Freedom,
) -> None:
    book, seen, devices = scene
    verdict = Verdict(freedom=freedom, reason=reason, holders=holders)
    asked = Demand(what="", devices=devices, kept=1)
    text = sentence(of_verdict(devices[0], verdict, _UIDS[:2], book), asked)
    _check(text)
    reordered = replace(verdict, holders=tuple(reversed(holders)))
    if len({each.process for each in holders}) == len(holders):
        assert sentence(of_verdict(devices[0], reordered, _UIDS[:2], book), asked) == text
    for each in seen.values():
        if each.holders:
            _check(sentence(of_blocked(each, _UIDS[:2], book), asked))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(message=st.sampled_from(Message), texts=st.lists(_ANYTHING, min_size=8, max_size=8))
def test_no_text_of_others_makes_a_sentence_too_long(message: Message, texts: list[str]) -> None:
    fields = ("owner", "share", "reason", "deed")
    device = DeviceName(ResourceName(texts[6]), DeviceId(texts[7]))
    numbers = {"program": "p" * 60, "after": "60 to 900 s", "count": "1000"}
    names = {**dict(zip(fields, texts, strict=False)), **numbers}
    said = FilledMessage(message=message, device=device, names=names)
    for asked in (None, Demand(what=texts[0]), Demand(what="", devices=(device,) * 3, kept=2)):
        text = sentence(said, asked)
        assert len(text) <= LONGEST
        assert text.isprintable()
    assert len(refusal(texts[0], texts[1])) <= LONGEST


def test_a_fault_is_told_in_one_line_with_the_device() -> None:
    ill = Fault(kind=FaultKind.ILL, text="Xid 79: " + "x" * 400)
    node = inventory({WHOLE: {D0.id: keys("a")}})
    node = replace(node, devices=(replace(node.devices[0], faults=(ill,)),))
    (found,) = healths([AdvertisedDevice(name="d", devices=(D0,))], standings_of(Book(), node))
    _check(found.message)
    assert found.message.startswith(f"{D0}: Xid 79: xxx")
    assert found.message.endswith(" (holdfast devices)")
