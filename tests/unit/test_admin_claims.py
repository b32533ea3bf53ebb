"""Claims with adminAccess: they use devices beside whoever has them, and keep nobody from any."""

from contextlib import closing
from pathlib import Path

from fakes.books import KUBELET, WHOLE, X, Y, drafted, keys, lock_of, name, silicon
from fakes.ledgers import stored
from holdfast.app.answers.reports import claim_reports, lock_reports
from holdfast.ledger.store import Store
from holdfast.model.book.book import Book, LockState
from holdfast.model.book.claims import Wish, admins_on, adopt, end_claim, phase_of
from holdfast.model.book.draft import Draft
from holdfast.model.book.standing import Standings
from holdfast.model.dra.passage import enter
from holdfast.model.ids import ClaimRef, ClaimUid, PodUid

_ADMIN = ClaimRef("ops", ClaimUid("uid-of-admin"), "monitor")
_TEAM = ClaimRef("team", ClaimUid("uid-of-team"), "train")
_D0 = {name("d0"): keys("a", "b")}


def _admin(*pods: PodUid, d1: bool = False) -> Wish:
    """Return what asks for adminAccess to d0; *d1*: and for a device of its own."""
    devices = {WHOLE: silicon(d1="c")} if d1 else {}
    return Wish(ref=_ADMIN, pods=dict.fromkeys(pods, "agent"), devices=devices, admin=_D0)


def _team(*pods: PodUid) -> Wish:
    return Wish(ref=_TEAM, pods=dict.fromkeys(pods, ""), devices={WHOLE: silicon(d0="ab")})


def _both() -> Draft:
    """Return a book in which one claim has d0 and another has adminAccess to it."""
    draft = drafted()
    assert enter(draft, _team(X), "free") is None
    assert enter(draft, _admin(Y), "free") is None
    return draft


def _phase(book: Book) -> str:
    return phase_of(book, book.claims[_ADMIN.uid]).value


def test_it_is_prepared_on_what_another_has_and_takes_no_lock() -> None:
    book = _both().book
    assert [lock.claim for lock in book.locks.values()] == [_TEAM.uid]
    assert not book.holdings.of_claim(_ADMIN.uid)
    assert _phase(book) == "prepared"
    assert admins_on(book, keys("a")) == {Y}
    assert admins_on(book, keys("c")) == set()


def test_its_end_is_forgotten_but_for_its_name() -> None:
    draft = _both()
    end_claim(draft, _ADMIN.uid, "kubelet unprepared it", kubelet=KUBELET)
    assert admins_on(draft.book, keys("a", "b")) == set()
    assert _phase(draft.book) == "over"
    assert lock_of(draft.book, "d0").state is LockState.HELD


def test_it_is_remembered_over_a_restart(tmp_path: Path) -> None:
    draft = _both()
    with closing(Store(tmp_path)) as store:
        store.write(draft.book, draft.moves)
    with closing(Store(tmp_path)) as store:
        assert stored(store) == draft.book
        end = drafted(draft.book)
        end_claim(end, _ADMIN.uid, "over")
        store.write(end.book, end.moves)
        assert stored(store) == end.book


def test_people_are_told_that_it_is_an_administrators() -> None:
    book = _both().book
    monitor, _ = claim_reports(book)
    assert (monitor["devices"], monitor["adminDevices"]) == ([], [str(name("d0"))])
    held, admin = lock_reports(book, Standings())
    assert (held["state"], held["claim"]) == ("held", str(_TEAM))
    assert (admin["device"], admin["state"], admin["claim"]) == (
        str(name("d0")),
        "admin",
        str(_ADMIN),
    )
    assert admin["claimPods"] == [f"ops/agent ({Y})"]


def test_what_was_taken_over_as_its_own_is_used_beside_others_once_that_is_known() -> None:
    draft = drafted()
    own = {WHOLE: silicon(d0="ab", d1="c")}
    assert adopt(draft, Wish(ref=_ADMIN, pods={X: ""}, devices=own))
    assert enter(draft, _team(Y), "free") is not None
    assert enter(draft, _admin(X, d1=True), "free") is None
    assert _phase(draft.book) == "prepared"
    assert sorted((lock.device, lock.claim) for lock in draft.book.locks.values()) == [
        (name("d0"), _TEAM.uid),
        (name("d1"), _ADMIN.uid),
    ]
    assert draft.book.claims[_ADMIN.uid].admin == _D0
