"""The ledger's documents: what is written is read again, what nobody knows is refused and kept."""

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fakes.books import BOOT, NOW, UPTIME, WHOLE, X, Y, allocated, drafted, keys, name, silicon
from fakes.ledgers import committed, ledger_in, moves_in, stored
from holdfast.errors import LedgerError, LedgerUnusableError
from holdfast.ledger import rows
from holdfast.ledger.disk import FILE
from holdfast.ledger.examine import examine
from holdfast.ledger.store import Store
from holdfast.ledger.topic import LedgerTopic
from holdfast.model.book.book import Book, ClaimRecord, PodRecord
from holdfast.model.book.draft import Draft
from holdfast.model.book.marks import Asker, Mark, Marks, Quarantine
from holdfast.model.book.queue import settle
from holdfast.model.ids import ClaimRef, ClaimUid, HardwareKey, ProcessId
from holdfast.model.nvidia.free import IdleMemory

_MARK = Mark(asker=Asker(uid=1000, pid=77), at=NOW, reason="ECC errors")
_QUARANTINE = Quarantine(device=name("d0"), keys=keys("a", "b"), mark=_MARK)
_ALL = Marks(quarantines={name("d0"): _QUARANTINE}, drain=replace(_MARK, reason=""))


def _set(store: Store, marks: Marks) -> Book:
    return committed(store, lambda draft: draft.mark(marks))


def _everything(folder: Path) -> Book:
    """Write a ledger with a thing of each kind, and a lock of each of a pod and a claim."""
    claim = ClaimRecord(
        ref=ClaimRef("default", ClaimUid("uid-1"), "claim-1"),
        pods=frozenset({Y}),
        boot=BOOT,
        admin={name("d9"): keys("z")},
    )
    pod = PodRecord(
        uid=X, boot=BOOT, cgroup="/x", inode=7, counted_by=ProcessId(700, 70), let_go_at=UPTIME
    )
    with closing(Store(folder)) as store:
        draft = drafted(store.book)
        draft.note_pod(pod)
        draft.note_claim(claim)
        draft.allocate(WHOLE, silicon(d0="ab"), pod=X)
        draft.allocate(WHOLE, silicon(d1="c"), pod=Y, claim=claim.ref.uid)
        settle(draft)
        draft.mark(_ALL)
        draft.keep("acme/heat", {"A": "1"})
        store.write(draft.book, draft.moves)
        assert stored(store) == draft.book == stored(folder)
    return draft.book


def _documents(folder: Path) -> dict[tuple[str, str], Any]:
    with closing(sqlite3.connect(folder / FILE)) as db:
        rows = db.execute("SELECT kind, name, document FROM things").fetchall()
    return {(kind, thing): json.loads(document) for kind, thing, document in rows}


def _write(folder: Path, kind: str, thing: str, document: object) -> None:
    with closing(sqlite3.connect(folder / FILE, isolation_level=None)) as db:
        db.execute(
            "UPDATE things SET document = ? WHERE kind = ? AND name = ?",
            (json.dumps(document), kind, thing),
        )
        _seal(db)


def _seal(db: sqlite3.Connection) -> None:
    """Write the checksum of what is there, as the holdfast that wrote it did."""
    stamp, (fence, last) = (
        rows.read_stamp(db),
        db.execute("SELECT fence, last_allocation FROM counters").fetchone(),
    )
    book = Book(fence=fence, last_allocation=last)
    rows.write_stamp(db, book, stamp, rows.total(rows.read_prints(db)), commits=stamp.commits)


def _refused(folder: Path, reason: str) -> None:
    """See that nobody takes the ledger in *folder* for a whole one, nor changes it."""
    before = (folder / FILE).read_bytes()
    with pytest.raises(LedgerUnusableError, match=reason):
        Store(folder)
    with pytest.raises(LedgerUnusableError, match=reason):
        examine(folder, in_use=False)
    with pytest.raises(LedgerError, match=reason):
        stored(folder)
    assert (folder / FILE).read_bytes() == before


# One holder, by the file itself.


@pytest.mark.parametrize("holder", ["d0", "d1"])
def test_the_file_refuses_a_key_in_a_second_lock_whoever_writes_it(
    tmp_path: Path, holder: str
) -> None:
    """Of the lock of a pod's Allocation, and of a claim's."""
    lock = _everything(tmp_path).locks[name(holder)]
    assert (lock.claim is None) is (holder == "d0")
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as db:
        for key in lock.keys:
            with pytest.raises(sqlite3.IntegrityError, match="UNIQUE constraint failed"):
                db.execute("INSERT INTO lock_keys VALUES (?, 'example.com/other/d5')", (key,))


@pytest.mark.parametrize("holder", ["d0", "d1"])
def test_a_second_lock_on_the_same_hardware_is_not_committed(tmp_path: Path, holder: str) -> None:
    before = _everything(tmp_path)
    lock = before.locks[name(holder)]
    twice = replace(lock, device=name("other"), fence=before.fence + 1)
    after = replace(before, fence=twice.fence, locks={**before.locks, twice.device: twice})
    with closing(Store(tmp_path)) as store:
        with pytest.raises(LedgerError, match="UNIQUE constraint failed: lock_keys.key"):
            store.write(after, ())
        assert stored(store) == before


def test_a_key_changes_hands_in_one_commit(tmp_path: Path) -> None:
    before = _everything(tmp_path)
    former = before.locks[name("d0")]
    locks = {**before.locks, name("d7"): replace(former, device=name("d7"))}
    del locks[name("d0")]
    after = replace(before, locks=locks)
    with closing(Store(tmp_path)) as store:
        store.write(after, ())
        assert stored(store) == after
        store.write(before, ())
        assert stored(store) == before


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM lock_keys WHERE key = (SELECT min(key) FROM lock_keys)",
        "UPDATE lock_keys SET lock = 'example.com/other/d5'",
        "INSERT INTO lock_keys VALUES ('a key of no lock', 'example.com/other/d5')",
        "DELETE FROM things WHERE kind = 'lock'",
    ],
)
def test_a_ledger_whose_locks_do_not_keep_their_keys_is_refused(
    tmp_path: Path, change: str
) -> None:
    _everything(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as db:
        db.execute(change)
    _refused(tmp_path, "other keys than those that they keep from others")


# What nobody knows.


def _objects(document: object, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield where there is an object in *document*."""
    if isinstance(document, dict):
        yield at
    inner = document.items() if isinstance(document, dict) else ()
    for where, each in enumerate(document) if isinstance(document, list) else inner:
        yield from _objects(each, (*at, where))


_BY_NAME = {("allocation", "devices"), ("kept",)}
"""Objects that have what a book has by name, and no fields."""


def test_a_field_that_is_not_known_is_refused_wherever_it_is(tmp_path: Path) -> None:
    """Another holdfast wrote it: what it means would be lost with the next commit."""
    _everything(tmp_path)
    tried = set()
    for (kind, thing), document in _documents(tmp_path).items():
        for at in _objects(document):
            if (kind, *at) in _BY_NAME or (kind, *at) == ("claim", "record", "admin"):
                continue
            changed = json.loads(json.dumps(document))
            place = changed
            for step in at:
                place = place[step]
            place["unheard of"] = 1
            _write(tmp_path, kind, thing, changed)
            _refused(tmp_path, f"its {kind} {thing} makes no sense: .*unheard of")
            tried.add((kind, *at))
        _write(tmp_path, kind, thing, document)
    assert {kind for kind, *_ in tried} == {
        "allocation",
        "lock",
        "pod",
        "claim",
        "quarantine",
        "drain",
    }
    assert {("claim", "record", "ref"), ("pod", "counted_by"), ("drain", "asker")} <= tried
    with closing(Store(tmp_path)):
        pass


@pytest.mark.parametrize(
    ("kind", "thing", "document", "reason"),
    [
        ("lock", f"{WHOLE}/d0", {"state": "leased"}, "Invalid enum value 'leased'"),
        ("lock", f"{WHOLE}/d0", {"fence": "seven"}, "Expected `int`"),
        ("allocation", "1", {"boot": None}, "Expected `str`"),
        ("kept", "acme/heat", {"A": 1}, "Expected `str`"),
    ],
)
def test_a_document_that_makes_no_sense_is_refused_and_kept(
    tmp_path: Path, kind: str, thing: str, document: dict[str, object], reason: str
) -> None:
    _everything(tmp_path)
    _write(tmp_path, kind, thing, _documents(tmp_path)[kind, thing] | document)
    _refused(tmp_path, f"its {kind} {thing} makes no sense: {reason}")


def test_a_document_without_a_field_is_refused_and_so_is_one_that_is_no_json(
    tmp_path: Path,
) -> None:
    _everything(tmp_path)
    for document, reason in (("{}", "missing required field"), ("{", "truncated")):
        with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as db:
            db.execute("UPDATE things SET document = ? WHERE kind = 'pod'", (document,))
        _refused(tmp_path, f"its pod {X} makes no sense: .*{reason}")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("DELETE FROM counters", "its counters are gone"),
        ("DROP TABLE things", "no such table"),
    ],
)
def test_a_ledger_with_other_rows_or_tables_is_refused_and_kept(
    tmp_path: Path, change: str, reason: str
) -> None:
    _everything(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as db:
        db.executescript(change)
    _refused(tmp_path, reason)


def test_the_file_refuses_a_thing_of_another_kind(tmp_path: Path) -> None:
    """One that is not read would be there for ever."""
    _everything(tmp_path)
    with (
        closing(sqlite3.connect(tmp_path / FILE)) as db,
        pytest.raises(sqlite3.IntegrityError, match="CHECK constraint failed"),
    ):
        db.execute("INSERT INTO things VALUES ('wish', 'a', '{}')")


def test_a_damage_that_comes_while_it_is_open_is_an_error_as_well(tmp_path: Path) -> None:
    _everything(tmp_path)
    with closing(Store(tmp_path)) as store:
        _write(tmp_path, "drain", "node", {})
        with pytest.raises(LedgerError, match="cannot read the .*: its drain node makes no sense"):
            stored(store)


def test_a_move_that_makes_no_sense_is_an_error_of_the_history_alone(tmp_path: Path) -> None:
    book = _everything(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as db:
        db.execute("UPDATE history SET document = json_set(document, '$.after', 'leased')")
    with closing(Store(tmp_path)) as store:
        assert stored(store) == book
        with pytest.raises(LedgerError, match="cannot read the ledger .*leased"):
            moves_in(store, None, 10)
    with pytest.raises(LedgerError, match="cannot read the ledger .*leased"):
        moves_in(tmp_path, None, 10)


def test_a_field_with_a_default_needs_nothing_else_to_be_read_from_older_rows(
    tmp_path: Path,
) -> None:
    """So a field that is added to a struct, with its default, changes no other file."""
    book = _everything(tmp_path)
    for kind, thing, *at, field in (
        ("lock", f"{WHOLE}/d0", "started"),
        ("allocation", "1", "phase"),
        ("pod", X, "cgroup"),
        ("claim", "uid-1", "record", "over_at"),
        ("quarantine", f"{WHOLE}/d0", "mark", "reason"),
    ):
        document = place = _documents(tmp_path)[kind, thing]
        for step in at:
            place = place[step]
        del place[field]
        _write(tmp_path, kind, thing, document)
    with closing(Store(tmp_path)) as store:
        found = stored(store)
    lock = replace(book.locks[name("d0")], started=True)
    quarantine = replace(_QUARANTINE, mark=replace(_MARK, reason=""))
    assert found == replace(
        book,
        locks={**book.locks, lock.device: lock},
        pods={**book.pods, X: replace(book.pods[X], cgroup=None)},
        marks=book.marks.with_quarantine(quarantine),
    )


def test_the_commands_say_of_another_version_that_they_do_not_know_it(tmp_path: Path) -> None:
    _everything(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as db:
        db.execute("PRAGMA user_version = 8")
    _refused(tmp_path, "it has version 8, this holdfast knows 1")
    with pytest.raises(LedgerError, match="it has version 8, this holdfast knows 1"):
        moves_in(tmp_path, None, 10)


# What is written is read again.


@pytest.mark.parametrize(
    "marks",
    [
        _ALL,
        Marks(drain=_MARK),
        Marks(quarantines=_ALL.quarantines),
        _ALL.with_quarantine(Quarantine(device=name("d1"), keys=keys("c"), mark=_MARK)),
        _ALL.without(name("d0")),
        Marks(),
    ],
)
def test_marks_are_read_as_they_were_written_whatever_was_there_before(
    tmp_path: Path, marks: Marks
) -> None:
    with closing(Store(tmp_path)) as store:
        for before in (Marks(), _ALL):
            _set(store, before)
            assert _set(store, marks).marks == marks
            assert stored(store).marks == marks
    with closing(Store(tmp_path)) as store:
        assert stored(store).marks == marks
    assert stored(tmp_path).marks == marks


@pytest.mark.parametrize(
    "kept",
    [
        {"acme/heat": {"A": "1", "B": "2"}},
        {"acme/heat": {"B": "1"}, "other/thing": {"A": "3"}},
        {"acme/heat": {}},
        {},
    ],
)
def test_what_vendors_keep_is_read_as_it_was_written_whatever_was_there_before(
    tmp_path: Path, kept: dict[str, dict[str, str]]
) -> None:
    with closing(Store(tmp_path)) as store:
        for wanted in ({"acme/heat": {"A": "0", "B": "2"}}, kept):
            before = stored(store)
            draft = drafted(before)
            for topic in before.kept.keys() | wanted.keys():
                draft.keep(topic, wanted.get(topic, {}))
            store.write(draft.book, draft.moves)
            written = {topic: each for topic, each in wanted.items() if each}
            assert stored(store).kept == draft.book.kept == written
    assert stored(tmp_path).kept == {topic: each for topic, each in kept.items() if each}


def test_claims_and_who_has_what_by_them_are_read_as_they_were_written(tmp_path: Path) -> None:
    first, second = (
        ClaimRecord(
            ref=ClaimRef("default", ClaimUid(f"uid-{n}"), f"claim-{n}"),
            pods=frozenset({X, Y}) if n else frozenset({X}),
            boot=BOOT,
        )
        for n in range(2)
    )
    with closing(Store(tmp_path)) as store:

        def write(step: Callable[[Draft], object]) -> None:
            before = stored(store)
            draft = drafted(before)
            step(draft)
            store.write(draft.book, draft.moves)
            assert stored(store) == draft.book == stored(tmp_path)

        def take(draft: Draft) -> None:
            for record, devices in ((first, silicon(d0="a")), (second, silicon(d1="b"))):
                draft.note_claim(record)
                draft.allocate(WHOLE, devices, pod=X, claim=record.ref.uid)
            settle(draft)

        write(take)
        assert stored(store).locks[name("d1")].claim == second.ref.uid
        write(lambda draft: draft.note_claim(replace(second, pods=frozenset({Y}), over_at=7.5)))
        write(lambda draft: draft.forget_claim(first.ref.uid))
        assert [*stored(store).claims] == [second.ref.uid]


async def test_what_an_adapter_cannot_read_is_an_error_and_nothing_to_forget(
    tmp_path: Path,
) -> None:
    with closing(Store(tmp_path)) as store:
        draft = drafted(stored(store))
        draft.keep("nvidia/idle", {"GPU-1": '{"load": 7}'})
        store.write(draft.book, draft.moves)
    async with ledger_in(tmp_path) as ledger:
        with pytest.raises(LedgerUnusableError, match="nvidia/idle makes no sense"):
            assert LedgerTopic(ledger, "nvidia/idle", IdleMemory).value


def _allocate(draft: Draft) -> None:
    allocated(silicon(d1="c"), pod=Y)(draft)
    settle(draft)


def _unmark(draft: Draft) -> None:
    draft.mark(Marks())


@pytest.mark.parametrize("step", [_allocate, _unmark])
def test_a_mark_and_its_line_of_history_are_one_commit(
    tmp_path: Path, step: Callable[[Draft], None]
) -> None:
    with closing(Store(tmp_path)) as store:
        before = _set(store, _ALL)
        draft = drafted(before)
        step(draft)
        draft.tell(name("d0"), frozenset({HardwareKey("a")}), "told")
        store.write(draft.book, draft.moves)
        assert stored(store) == draft.book
        assert moves_in(store, name("d0"), 1)[0].evidence == "told"
