"""Where the ledger and kubelet's record of claims part, and what looks like it and is nothing."""

import pytest
from msgspec.structs import replace

from fakes.books import BOOT, HALF, UPTIME, WHOLE, X, Y, drafted, name, silicon
from holdfast.model.book.book import Book
from holdfast.model.book.claims import Wish, end_claim, enlist
from holdfast.model.book.drift import (
    ClaimDriftFacts,
    Disagreement,
    Drift,
    DriftFacts,
    claim_disagreements,
    undecided,
)
from holdfast.model.book.offers import Offers
from holdfast.model.cards import replica_key
from holdfast.model.devices import Inventory
from holdfast.model.dra.passage import enter
from holdfast.model.ids import BootId, ClaimRef, ClaimUid, DeviceId, DeviceName, ResourceName
from holdfast.model.kubelet import ClaimEntry, KubeletView, RecordedDevice

_REF = ClaimRef("team", ClaimUid("claim-1"), "one")
_WISH = Wish(ref=_REF, pods={X: "train"}, devices={WHOLE: silicon(d0="a")})
_ENTRY = ClaimEntry(
    claim=_REF, pods=frozenset({X}), devices={"holdfast.dev": (RecordedDevice("node-1", "tpu-d0"),)}
)


def _book(*, prepared: bool = True, over: bool = False) -> Book:
    draft = drafted()
    assert (enter(draft, _WISH, "free") if prepared else enlist(draft, _WISH)) is None
    if over:
        end_claim(draft, _REF.uid, "kubelet unprepared it")
    return draft.book


_AGREED = ClaimDriftFacts(
    book=_book(),
    boot=BOOT,
    driver="holdfast.dev",
    pool="node-1",
    entries=(_ENTRY,),
    read_at=UPTIME + 1.0,
    devices={"tpu-d0": (name("d0"),), "tpu-d1": (name("d1"),), "2x1": (name("d0"), name("d1"))},
)
_OTHER = replace(_ENTRY, devices={"holdfast.dev": (RecordedDevice("node-1", "tpu-d1"),)})


def _kinds(facts: ClaimDriftFacts) -> list[str]:
    return [each.kind for each in claim_disagreements(facts)]


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"entries": ()}, Drift.CLAIM_NOT_RECORDED),
        ({"book": Book()}, Drift.CLAIM_UNKNOWN),
        ({"entries": (_OTHER,)}, Drift.CLAIM_OTHER_DEVICES),
        (
            {
                "entries": (
                    replace(_ENTRY, devices={"holdfast.dev": (RecordedDevice("node-1", "2x1"),)}),
                )
            },
            Drift.CLAIM_OTHER_DEVICES,
        ),
        ({"entries": (_OTHER,), "devices": {"tpu-d1": (name("d1"),)}}, Drift.CLAIM_OTHER_DEVICES),
        ({"entries": (), "read_at": 0.0, "boot": BootId("boot-2")}, Drift.CLAIM_NOT_RECORDED),
    ],
)
def test_each_disagreement_about_a_claim_is_found(changes: dict[str, object], kind: Drift) -> None:
    assert _kinds(replace(_AGREED, **changes)) == [kind.value]


_AGREEING = {
    "agreed": {},
    "unread": {"entries": None},
    "read before it was prepared": {"entries": (), "read_at": UPTIME},
    "not prepared yet": {"entries": (), "book": _book(prepared=False)},
    "over": {"entries": (), "book": _book(over=True)},
    "unprepared, and kubelet has not written that yet": {"book": _book(over=True)},
    "no answer yet": {"entries": (replace(_ENTRY, devices={}),)},
    "no device yet": {"entries": (replace(_ENTRY, devices={"holdfast.dev": ()}),)},
    "a device that has left the node": {"entries": (_OTHER,), "devices": {"tpu-d0": (name("d0"),)}},
    "no pod any more": {"book": Book(), "entries": (replace(_ENTRY, pods=frozenset()),)},
    "another driver's": {
        "book": Book(),
        "entries": (replace(_ENTRY, devices={"other.dev": (("p", "d"),)}),),
    },
    "another node's": {
        "book": Book(),
        "entries": (
            replace(_ENTRY, devices={"holdfast.dev": (RecordedDevice("node-2", "tpu-d0"),)}),
        ),
    },
    "shared by one pod more": {"entries": (replace(_ENTRY, pods=frozenset({X, Y})),)},
}


@pytest.mark.parametrize("changes", _AGREEING.values(), ids=_AGREEING.keys())
def test_what_is_no_disagreement_is_not_called_one(changes: dict[str, object]) -> None:
    assert _kinds(replace(_AGREED, **changes)) == []


def test_a_claim_of_two_resources_counts_once_all_of_it_was_prepared_before_the_reading() -> None:
    draft = drafted()
    devices = {WHOLE: silicon(d0="a"), HALF: silicon(h0="b")}
    assert enter(draft, replace(_WISH, devices=devices), "free") is None
    first, last = draft.book.queue()
    late = replace(last, started_at=_AGREED.read_at + 1.0)
    book = replace(draft.book, allocations={first.id: first, late.id: late})
    assert _kinds(replace(_AGREED, entries=(), book=draft.book)) == ["claim-not-recorded"]
    assert _kinds(replace(_AGREED, entries=(), book=book)) == []


def test_both_sides_and_what_to_do_are_told() -> None:
    (found,) = claim_disagreements(replace(_AGREED, entries=(_OTHER,)))
    assert found == Disagreement(
        kind="claim-other-devices",
        subject="claim team/one (claim-1)",
        one=f"the ledger has {name('d0')} prepared for it",
        other=f"kubelet's record has {name('d1')}",
        advice="delete its pods; it is prepared again for the next ones",
    )


def test_a_record_that_cannot_be_read_ends_no_disagreement() -> None:
    (found,) = claim_disagreements(replace(_AGREED, entries=()))
    unread = DriftFacts(
        book=Book(),
        view=KubeletView(),
        inventory=Inventory(),
        offers=Offers(),
        lock_patience=60.0,
    )
    assert undecided(found, unread, replace(_AGREED, entries=None))
    assert not undecided(found, unread, _AGREED)
    assert not undecided(found, unread, None)
    other = replace(found, kind=Drift.HELD_BY_ANOTHER.value)
    assert not undecided(other, unread, replace(_AGREED, entries=None))


@pytest.mark.parametrize(
    ("shares", "kinds"),
    [
        (("s1", "s2"), []),
        (("s1", "s2", ""), []),
        (("s1",), [Drift.CLAIM_OTHER_DEVICES.value]),
        (("s1", "s2", "s3"), [Drift.CLAIM_OTHER_DEVICES.value]),
    ],
)
def test_shares_are_compared_by_how_many_there_are(
    shares: tuple[str, ...], kinds: list[str]
) -> None:
    """Kubelet knows neither which replicas they are nor what the claim has with adminAccess."""
    gpu = ResourceName("nvidia.com/gpu")
    replicas = {DeviceId(f"G::{n}"): frozenset({replica_key("G", n)}) for n in (0, 1, 2)}
    draft = drafted()
    two = {id_: keys for id_, keys in replicas.items() if id_ != "G::1"}
    assert enter(draft, replace(_WISH, devices={gpu: two}), "free") is None
    recorded = tuple(RecordedDevice("node-1", "gpu-g", share) for share in shares)
    facts = replace(
        _AGREED,
        book=draft.book,
        entries=(replace(_ENTRY, devices={"holdfast.dev": recorded}),),
        devices={"gpu-g": (DeviceName(gpu, DeviceId("G")),)},
    )
    assert _kinds(facts) == kinds
    renamed = drafted()
    shared = ResourceName("nvidia.com/gpu.shared")
    assert enter(renamed, replace(_WISH, devices={shared: two}), "free") is None
    assert _kinds(replace(facts, book=renamed.book)) == kinds
