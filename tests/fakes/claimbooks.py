"""Short ways to write books down in which pods have devices by a claim."""

from collections.abc import Mapping

from fakes.books import KUBELET, WHOLE, Silicon, X, drafted, silicon
from holdfast.model.book.book import Book
from holdfast.model.book.claims import Wish, end_claim
from holdfast.model.dra.passage import enter
from holdfast.model.ids import ClaimRef, ClaimUid, PodUid, ResourceName

CLAIM = ClaimUid("claim-1")
REF = ClaimRef("team", CLAIM, "two-chips")


def wish_of(
    *pods: PodUid, ref: ClaimRef = REF, devices: Mapping[ResourceName, Silicon] | None = None
) -> Wish:
    return Wish(
        ref=ref,
        pods={each: f"name-of-{each}" for each in pods or (X,)},
        devices=devices or {WHOLE: silicon(d0="ab")},
    )


def prepared_book(*pods: PodUid) -> Book:
    draft = drafted()
    assert enter(draft, wish_of(*pods), "free") is None
    return draft.book


def unprepared_book(book: Book) -> Book:
    draft = drafted(book)
    end_claim(draft, CLAIM, "kubelet unprepared it", kubelet=KUBELET)
    return draft.book
