"""Tables for people: at most 100 columns wide, with names, ages and what happens next."""

import re
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.cli.tables import WIDTH, Column, Names, Row, Rows, _width, aged, short_table
from holdfast.cli.views import (
    device_lines,
    history_lines,
    holder_lines,
    lock_lines,
    next_step,
    status_lines,
    with_durations,
)

_LABEL = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
_NAME = st.lists(_LABEL, min_size=1, max_size=4).map(lambda labels: ".".join(labels)[:253])
_UID = st.uuids().map(str)
_ANY = st.text(max_size=300)


@st.composite
def _answers(draw: st.DrawFn) -> dict[str, Any]:
    """Return rows as the daemon answers them, for 1 to 64 devices, and the UIDs whose name it knows."""
    resource = draw(st.sampled_from(["google.com/tpu", "nvidia.com/gpu", f"e.io/{'r' * 63}"]))
    pods = draw(st.lists(st.tuples(_UID, _LABEL, _NAME, st.booleans()), min_size=1, max_size=6))
    evidence, command = draw(_ANY), draw(_ANY)
    since = time.time() - draw(st.floats(-100, 1e9))
    rows, known = [], set()
    for number in range(draw(st.integers(1, 64))):
        uid, namespace, name, claimed = pods[number % len(pods)]
        claim = f"{namespace}/claim-{name}"
        claim_uid = uid[::-1]
        known |= {uid, claim_uid} if claimed else {uid}
        owner = f"pod {namespace}/{name} ({uid})"
        rows.append(
            {
                "resource": resource,
                "id": f"GPU-{number:08x}-1234-5678-9abc-0123456789ab",
                "device": f"{resource}/GPU-{number:08x}-1234-5678-9abc-0123456789ab",
                "model": command[:40],
                "health": "Healthy",
                "offered": True,
                "lock": "held",
                "reasons": [f"{owner} has it", evidence],
                "state": ("held", "queued", "releasing")[number % 3],
                "pid": number,
                "command": command,
                "access": ["node open", "mapped"],
                "cause": f"left by {owner}: {evidence}",
                "headroom": number << 30,
                "pod": uid,
                "podName": f"{namespace}/{name}",
                "claim": f"{claim} ({claim_uid})" if claimed else None,
                "claimUid": claim_uid if claimed else None,
                "claimPods": [f"{namespace}/{name} ({uid})"] if claimed else None,
                "since": since,
                "at": since + number,
                "from": "held",
                "to": "releasing",
                "reason": f"it is held by {owner}",
                "evidence": f"kubelet no longer counts {owner}; {uid}: {evidence}",
                "until": f"what {owner}{f' by claim {claim}' if claimed else ''} left has ended",
                "phase": "prepared",
                "pods": [f"{namespace}/{name} ({uid})"],
                "devices": [f"{resource}/GPU-{number:08x}"],
                "adminDevices": [],
                "waits": f"it is held by {owner}",
            }
        )
    return {"rows": rows, "known": known}


@pytest.mark.parametrize("lines_of", [device_lines, lock_lines, holder_lines, history_lines])
@settings(max_examples=20)
@given(answer=_answers())
def test_no_table_is_wider_than_100_columns_or_names_the_uid_of_a_known_pod(
    lines_of: Any, answer: dict[str, Any]
) -> None:
    lines = lines_of(answer["rows"])

    assert len(lines) == len(answer["rows"]) + 1
    assert max(map(_width, lines)) <= WIDTH
    assert not [uid for uid in answer["known"] if any(uid in line for line in lines)]


@settings(max_examples=20)
@given(answer=_answers())
def test_the_status_has_tables_of_at_most_100_columns(answer: dict[str, Any]) -> None:
    resource = {
        "name": "r" * 300,
        "devices": 64,
        "healthy": 64,
        "offered": 64,
        "locked": 64,
        "waiting": 64,
    }
    report = {
        **dict.fromkeys(("checks", "byHand", "drift", "rules"), ()),
        "version": "1.0",
        "pid": 7,
        "noDevices": False,
        "resources": [resource],
        "claims": answer["rows"],
    }
    assert max(map(_width, status_lines(report))) <= WIDTH


def test_a_table_is_cut_where_it_is_longest_and_wide_letters_count_twice() -> None:
    columns: list[Column] = [("A", lambda row: str(row["a"])), ("B", lambda row: str(row["b"]))]

    lines = short_table([{"a": "short", "b": "x" * 200}, {"a": "漢" * 4, "b": "y"}], columns)

    assert lines == ["A         B", f"short     {'x' * 89}…", "漢漢漢漢  y"]


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (-5, "0 s"),
        (4.9, "4 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7199, "119 min"),
        (7200, "2 h"),
        (172799, "47 h"),
        (172800, "2 d"),
    ],
)
def test_an_age_is_told_in_one_unit(seconds: float, told: str) -> None:
    assert aged(seconds) == told


def test_a_device_is_called_by_its_id_unless_two_have_the_same() -> None:
    rows: Rows = [{"device": "a.io/x/0"}, {"device": "a.io/y/0"}, {"device": "a.io/y/1"}]
    names = Names(rows)
    assert [names.device(row) for row in rows] == ["a.io/x/0", "a.io/y/0", "1"]
    same: Rows = [{"device": "a.io/x/0"}, {"device": "b.io/x/0"}]
    assert [Names(same).device(row) for row in same] == ["a.io/x/0", "b.io/x/0"]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (
            {"state": "held", "podName": "n/p", "until": "n/p has ended"},
            "free when its pod has ended",
        ),
        (
            {"state": "held", "podName": None, "until": "pod uid has ended"},
            "free when its pod has ended",
        ),
        (
            {
                "state": "held",
                "claim": "n/c (c-uid)",
                "until": "n/p and 4 more by claim n/c has ended",
            },
            "free when its claim has ended",
        ),
        ({"state": "held", "until": None}, "unknown: the daemon is down"),
        (
            {"state": "queued", "reason": "x is held by pod n/p (uid)"},
            "waits: x is held by pod n/p",
        ),
        ({"state": "admin", "reason": "it has adminAccess"}, ""),
    ],
)
def test_what_happens_next_is_told_of_each_lock(row: Row, told: str) -> None:
    row = {
        "device": "r.io/x/0",
        "pod": "uid",
        "podName": "n/p",
        "claimPods": ["n/q (uid-q)"],
        **row,
    }
    assert next_step(row, Names([row])) == told


def test_a_table_of_locks_says_when_what_a_pod_left_is_ended() -> None:
    until = "python3 (pid 4194303) ends; after 60 s holdfast ends it unless it is somebody's work"
    row = {
        "device": "google.com/tpu/0000:00:05.0",
        "state": "releasing",
        "since": 0.0,
        "pod": "uid",
        "podName": "default/pod-a",
        "until": until,
    }
    _, line = lock_lines([row])
    assert "free when python3 (pid 4194303) ends; after 60 s h" in line


def test_the_history_tells_how_long_the_former_state_lasted() -> None:
    def moved(after: float, before: str, now: str, device: str = "r.io/x/0") -> Row:
        at = time.time() - 7200 + after
        return {"at": at, "device": device, "from": before, "to": now, "evidence": "seen"}

    rows = [
        moved(0, "free", "held"),
        moved(60, "held", "held"),
        moved(300, "held", "releasing"),
        moved(304, "releasing", "free"),
    ]

    cells = [re.split(" {2,}", line) for line in history_lines(with_durations(rows))]
    assert cells == [
        ["AGO", "CHANGE", "AFTER", "POD", "WHY"],
        ["2 h", "free → held", "-", "-", "seen"],
        ["119 min", "held, note", "-", "-", "seen"],
        ["115 min", "held → releasing", "5 min", "-", "seen"],
        ["114 min", "releasing → free", "4 s", "-", "seen"],
    ]
    other = history_lines([*rows, moved(400, "free", "held", "r.io/x/1")])
    assert "DEVICE" in other[0]
    assert "DEVICE" not in history_lines(rows)[0]
