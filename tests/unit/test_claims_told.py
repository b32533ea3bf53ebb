"""What people are told of claims: by the running daemon, and from its ledger while it is down."""

import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fakes.books import BOOT, HALF, KUBELET, WHOLE, X, Y, Z, drafted, keys, name, silicon
from holdfast.app.answers.reports import (
    claim_reports,
    history_reports,
    holder_reports,
    lock_reports,
)
from holdfast.cli import main
from holdfast.ledger.store import Store
from holdfast.model.book.book import Book, PodRecord
from holdfast.model.book.claims import Wish, end_claim, enlist
from holdfast.model.book.draft import Draft
from holdfast.model.book.messages import BlockReason
from holdfast.model.book.queue import settle
from holdfast.model.book.standing import Standings
from holdfast.model.dra.passage import enter
from holdfast.model.ids import ClaimRef, ClaimUid, PodUid, ProcessId
from holdfast.model.use.holders import DeviceAccess, Holder

_FIRST = ClaimRef("team", ClaimUid("uid-1"), "first")
_SECOND = ClaimRef("team", ClaimUid("uid-2"), "second")


def _wish(ref: ClaimRef, *pods: PodUid) -> Wish:
    return Wish(
        ref=ref,
        pods={pod: f"name-of-{pod}" for pod in pods},
        devices={WHOLE: silicon(d0="ab")},
    )


def _two_claims() -> Draft:
    """Two pods share the first claim, and the second waits for its chip."""
    draft = drafted()
    assert enter(draft, _wish(_FIRST, X, Y), "the kernel shows nobody") is None
    assert enlist(draft, _wish(_SECOND, Z)) is None
    return draft


def _ended(draft: Draft) -> Draft:
    end_claim(draft, _FIRST.uid, "kubelet unprepared it", kubelet=KUBELET)
    return draft


def _columns(text: str) -> list[str]:
    return text.splitlines()[0].split()


def test_a_claim_is_told_with_its_pods_its_devices_and_whom_it_waits_for() -> None:
    first, second = claim_reports(_two_claims().book)
    assert first == {
        "claim": "team/first (uid-1)",
        "claimUid": "uid-1",
        "phase": "prepared",
        "pods": ["team/name-of-pod-x (pod-x)", "team/name-of-pod-y (pod-y)"],
        "devices": [f"{WHOLE}/d0"],
        "adminDevices": [],
        "waits": None,
    }
    assert (second["phase"], second["devices"]) == ("preparing", [f"{WHOLE}/d0"])
    assert second["waits"] == (
        f"waiting for {WHOLE}: d0 is held by team/name-of-pod-x and 1 more by claim team/first; "
        "kubelet asks again until that has ended (holdfast locks)"
    )


def test_a_claim_that_is_over_is_told_until_its_devices_are_free() -> None:
    draft = _ended(_two_claims())
    first, second = claim_reports(draft.book)
    assert first["phase"] == "unpreparing"
    told = "is not free of team/name-of-pod-x by claim team/first yet, which has ended; it is given"
    assert first["waits"].startswith(f"{WHOLE}/d0 {told}")
    assert second["waits"].startswith(f"waiting for {WHOLE}: d0 {told}")
    busy = {name("d0"): BlockReason(device=name("d0"), reason="its functions are being reset")}
    for row in claim_reports(draft.book, busy):
        assert "yet: its functions are being reset; " in row["waits"]
    for ref in (_SECOND, _FIRST):
        end_claim(draft, ref.uid, "over")
    assert [each["claim"] for each in claim_reports(draft.book)] == ["team/first (uid-1)"]


def test_a_claim_whose_turn_has_not_come_is_told_behind_whom_it_is() -> None:
    draft = drafted()
    draft.activate(draft.allocate(WHOLE, silicon(d1="b"), pod=Y))
    settle(draft)
    assert enlist(draft, _wish(_FIRST, X)) is None
    draft.allocate(HALF, silicon(h0="a"), pod=Z)
    settle(draft)
    (waiting,) = [
        each for each in lock_reports(draft.book, Standings()) if each["device"] == f"{HALF}/h0"
    ]
    assert waiting["reason"] == (
        "a waits behind pod team/name-of-pod-x (pod-x) by claim team/first"
    )
    assert waiting["claim"] is None


def test_of_many_pods_that_share_a_claim_three_are_named() -> None:
    pods = [PodUid(f"pod-{n}") for n in range(5)]
    draft = drafted()
    assert enter(draft, _wish(_FIRST, *pods), "the kernel shows nobody") is None
    assert draft.book.holder(draft.locks[name("d0")]) == (
        "pod team/name-of-pod-0 (pod-0) and pod team/name-of-pod-1 (pod-1) and pod "
        "team/name-of-pod-2 (pod-2) and 2 more by claim team/first"
    )


def test_a_process_is_told_with_the_claim_that_its_pod_shares_and_no_other() -> None:
    holder = Holder(
        process=ProcessId(7, 1), command="python", access=frozenset({DeviceAccess.NODE}), pod=Y
    )
    held = {name("d0"): (holder, replace(holder, pod=Z, process=ProcessId(8, 1)))}
    rows = holder_reports(held, _two_claims().book)
    assert [row["claim"] for row in rows] == ["team/first (uid-1)", None]
    assert [row["podName"] for row in rows] == [f"team/name-of-{Y}", f"team/name-of-{Z}"]


def test_a_pod_and_its_claim_are_two_holders_and_the_pod_waits_for_the_claim() -> None:
    draft = _two_claims()
    draft.allocate(WHOLE, silicon(d0="ab"), pod=X)
    settle(draft)
    waiting = [each for each in lock_reports(draft.book, Standings()) if each["state"] == "queued"]
    assert {each["pod"]: each["claim"] for each in waiting} == {
        X: None,
        Z: "team/second (uid-2)",
    }


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    with closing(Store(tmp_path)) as store:
        draft = _ended(_two_claims())
        store.write(draft.book, draft.moves)
    return tmp_path


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    main([*arguments, "--output", "json"])
    return json.loads(capsys.readouterr().out)


def test_while_the_daemon_is_down_its_ledger_tells_of_claims(
    ledger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ("--state-dir", str(ledger))
    lock, queued = _json(capsys, "locks", *folder)
    assert lock | {"claim": "team/first (uid-1)", "claimPhase": "unpreparing"} == lock
    assert lock["claimPods"] == ["team/name-of-pod-x (pod-x)", "team/name-of-pod-y (pod-y)"]
    assert (queued["claim"], queued["claimPhase"]) == ("team/second (uid-2)", "preparing")
    assert "by claim team/first" in queued["reason"]

    (device,) = _json(capsys, "devices", *folder)
    assert (device["claim"], device["claimPhase"]) == ("team/first (uid-1)", "unpreparing")

    status = _json(capsys, "status", *folder)
    assert [each["phase"] for each in status["claims"]] == ["unpreparing", "preparing"]

    story = _json(capsys, "history", *folder)
    assert {move["claim"] for move in story} == {"team/first (uid-1)"}
    assert {move["podName"] for move in story} == {f"team/name-of-{X}"}
    assert {lock.keys() == queued.keys(), device["podName"]} == {True, f"team/name-of-{X}"}


def test_the_history_is_told_since_a_time_and_by_the_pods_names(
    ledger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ("--state-dir", str(ledger))
    story = _json(capsys, "history", *folder)
    latest = max(move["at"] for move in story)
    assert (story[0]["lasted"], story[-1]["lasted"] is None) == (None, False)
    passed = time.time() - latest
    assert _json(capsys, "history", "--since", "1s", *folder) == []
    assert _json(capsys, "history", "--since", f"{passed + 3600:.0f}s", *folder) == story
    main(["history", *folder])
    told = capsys.readouterr().out
    assert f"team/name-of-{X}" in told
    assert "(uid-1)" not in told
    assert main(["history", "--since", "soon", *folder]) == 2
    assert "expected a duration such as 30s" in capsys.readouterr().err


def test_tables_have_columns_of_claims_where_there_are_claims(
    ledger: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    none = tmp_path / "none"
    none.mkdir()
    with closing(Store(none)) as store:
        draft = drafted()
        draft.allocate(WHOLE, silicon(d0="ab"), pod=X)
        settle(draft)
        store.write(draft.book, draft.moves)
    for command in ("locks", "devices", "history"):
        main([command, "--state-dir", str(ledger)])
        assert "CLAIM" in _columns(capsys.readouterr().out)
        main([command, "--state-dir", str(none)])
        assert "CLAIM" not in _columns(capsys.readouterr().out)

    main(["status", "--state-dir", str(ledger)])
    told = capsys.readouterr().out
    headings = ["CLAIM", "PHASE", "PODS", "DEVICES", "WAITS"]
    assert headings in [line.split() for line in told.splitlines()]
    assert "team/second" in told
    assert "uid-2" not in told
    main(["status", "-o", "wide", "--state-dir", str(ledger)])
    assert "team/second (uid-2)" in capsys.readouterr().out
    main(["status", "--state-dir", str(none)])
    assert "CLAIM" not in capsys.readouterr().out


def test_the_history_keeps_the_name_of_a_pod_that_the_book_has_forgotten() -> None:
    draft = drafted()
    draft.note_pod(PodRecord(uid=X, boot=BOOT, namespace="team", name="train"))
    draft.note_pod(PodRecord(uid=Y, boot=BOOT))
    draft.allocate(WHOLE, silicon(d0="a"), pod=X)
    draft.allocate(WHOLE, silicon(d1="b"), pod=Y)
    settle(draft)
    draft.tell(name("d0"), keys("a"), "quarantined by hand")
    draft.tell(name("d9"), keys("z"), "quarantined by hand")
    told = [(row["device"], row["podName"]) for row in history_reports(draft.moves, Book())]
    assert told == [
        (f"{WHOLE}/d0", "team/train"),
        (f"{WHOLE}/d1", None),
        (f"{WHOLE}/d0", "team/train"),
        (f"{WHOLE}/d9", None),
    ]
    known = Book(pods={Y: PodRecord(uid=Y, boot=BOOT, namespace="team", name="late")})
    assert history_reports(draft.moves, known)[1]["podName"] == "team/late"
