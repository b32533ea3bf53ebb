"""The picture of a history: who had which device when, as SVG."""

import os
import re
import stat
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import main
from holdfast.cli.picture import draw
from holdfast.cli.plot import PASSED, NodeRecords, Row, Span, merged, plot, spans
from holdfast.errors import HoldfastError

_A = "google.com/tpu/0000:00:05.0"
_HOSTILE = '</title><script>alert("x")</script>&\x1b[2J\ud800\u202e'


def _row(at: float, change: str, pod: str | None = None, evidence: str = "", **more: Any) -> Row:
    before, _, after = change.partition(" ")
    row: Row = {"at": at, "device": _A, "from": before, "to": after, "pod": pod}
    return {**row, "podName": pod and f"team/{pod}", "claim": None, "evidence": evidence, **more}


_ONE_POD = (
    _row(10, "free held", evidence="allocated"),
    _row(20, "held held", "a", "gate passed: no process has it open"),
    _row(50, "held releasing", "a", "kubelet no longer counts pod a"),
    _row(60, "releasing reclaiming", "a", "ending pid 7 (python)"),
    _row(70, "reclaiming free", "a", "no process has it open"),
)


def _told(rows: tuple[Row, ...], begin: float = 0, end: float = 100) -> list[str]:
    return [
        f"{each.begin:g}-{each.end:g} {each.kind} {each.who}".strip()
        for each in spans(rows, begin, end)
    ]


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (
            _ONE_POD,
            [
                *("0-10 unknown", "10-20 waits a", "20-50 held a", "50-60 releasing a"),
                *("60-70 reclaiming a", "70-100 free"),
            ],
        ),
        # A restart of a container and a note of a person begin nothing.
        (
            (
                *_ONE_POD[:2],
                _row(30, "held held", "a", "gate passed"),
                _row(40, "held held", "a", "quarantined by uid 0"),
            ),
            ["0-10 unknown", "10-20 waits a", "20-100 held a"],
        ),
        # What a person noted does not end a wait.
        (
            (_ONE_POD[0], _row(15, "held held", "a", "quarantined by uid 0"), *_ONE_POD[1:2]),
            ["0-10 unknown", "10-15 waits", "15-20 waits a", "20-100 held a"],
        ),
        # Only the start says whose the wait was: an older Allocation may have taken the lock.
        (
            (_ONE_POD[0], _row(30, "held held", "b", "the older Allocation goes first")),
            ["0-10 unknown", "10-30 waits", "30-100 waits b"],
        ),
        # Kubelet counted it when the ledger was lost: nobody can say that it waits.
        ((_row(10, "free held", "a", "kubelet counts the pod"),), ["0-10 unknown", "10-100 held a"]),
        # Two pods at once have it one after the other.
        (
            (_row(10, "releasing free", "a"), _row(10, "free held", "b", "allocated")),
            ["0-10 unknown", "10-100 waits b"],
        ),
        # The time of day was set back.
        (
            (_row(50, "free foreign"), _row(40, "foreign free"), _row(60, "free foreign")),
            ["0-50 unknown", "50-60 free", "60-100 foreign"],
        ),
        ((_row(10, "free held", "a", claim="team/c (uid)"),), ["0-10 unknown", "10-100 held team/c (uid)"]),
        ((_row(10, "reclaiming quarantined", "a"),), ["0-10 unknown", "10-100 quarantined a"]),
        ((_row(10, "free dozing", "a"),), ["0-10 unknown", "10-100 foreign a"]),
    ],
)  # fmt: skip
def test_the_states_of_a_device_follow_each_other_without_a_gap(
    rows: tuple[Row, ...], told: list[str]
) -> None:
    assert _told(rows) == told


def test_a_device_that_one_pod_has_all_week_is_held_in_a_period_without_a_record() -> None:
    assert _told(_ONE_POD[:2], begin=30) == ["30-100 held a"]
    assert "team/a held" in plot([NodeRecords(rows=_ONE_POD[:2])], 30, 100)


def test_what_is_shorter_than_a_pixel_is_merged_and_the_worst_of_it_shows() -> None:
    times = (0, 5, 5.4, 5.5, 5.8, 6.4, 8, 8.5, 20)
    kinds = ("held", "releasing", "reclaiming", "free", "waits", "held", "free", "held")
    row = [
        Span(begin=begin, end=end, kind=kind)
        for begin, end, kind in zip(times, times[1:], kinds, strict=False)
    ]
    assert [(each.begin, each.end, each.kind, each.changes) for each in merged(row, 1)] == [
        (0, 5, "held", 1),
        (5, 6.4, "reclaiming", 4),
        (6.4, 8, "held", 1),
        (8, 8.5, "free", 1),
        (8.5, 20, "held", 1),
    ]
    assert merged([], 1) == []


def _titles(drawn: str) -> list[str]:
    return [each.text or "" for each in ET.fromstring(drawn).iterfind(".//{*}path/{*}title")]


def test_each_block_says_who_had_the_device_in_which_state_from_when_and_how_long() -> None:
    drawn = plot([NodeRecords(rows=_ONE_POD)], None, 100)

    assert _titles(drawn) == [
        "team/a waits to start 01-01 00:00:10, 10 s",
        "team/a held 01-01 00:00:20, 30 s",
        "team/a releasing: waits to be free 01-01 00:00:50, 10 s",
        "team/a reclaiming 01-01 00:01:00, 10 s",
    ]
    assert re.findall(r'<text x="[\d.]+" y="12">(.*?)</text>', drawn) == ["team/a", "team/a"]


def test_a_moment_in_a_week_can_be_seen() -> None:
    week = 7 * 86400
    drawn = plot([NodeRecords(rows=_ONE_POD)], 0, week)
    (block,) = re.findall(r'<path class="c" d="M[\d.]+ 0h([\d.]+)', drawn.partition("<g ")[2])

    assert float(block) == 1
    assert _titles(drawn) == ["team/a 4 changes; the worst: reclaiming 01-01 00:00:10, 60 s"]


def test_a_hostile_name_does_not_break_out() -> None:
    rows = [
        {**row, "device": f"{_HOSTILE}/{_HOSTILE}/{_HOSTILE}", "podName": _HOSTILE, "pod": _HOSTILE}
        for row in _ONE_POD
    ]
    drawn = plot(
        [NodeRecords(name=_HOSTILE, rows=rows), NodeRecords(name="b", problem=_HOSTILE)], None, 100
    )
    tree = ET.fromstring(drawn.encode())

    assert {each.tag.rpartition("}")[2] for each in tree.iter()} <= {
        *("svg", "title", "desc", "style", "defs", "pattern", "path", "rect", "text", "g")
    }
    assert "\x1b" not in drawn
    shown = "".join(tree.itertext())
    assert r"\x1b[2J\ud800\u202e" in shown
    assert shown.count("<script>") >= 3


def test_it_needs_nothing_from_elsewhere_and_is_for_light_and_dark_pages() -> None:
    drawn = plot([NodeRecords(rows=_ONE_POD)], None, 100)
    without_namespace = drawn.replace('xmlns="http://www.w3.org/2000/svg"', "", 1)

    assert not re.search(r"://|url\((?!#)|href|@import|@font-face", without_namespace)
    light, _, dark = drawn.partition("prefers-color-scheme:dark")
    for code in ("h", "w1", "w2", "l1", "l2", "c1", "c2", "f1", "f2", "q1", "q2", "card", "m"):
        assert re.search(rf"\.{code}{{[^}}]*#", light), code
        assert re.search(rf"\.{code}{{[^}}]*#", dark), code
    assert re.findall(r"\.(\w){fill:url\(#(\w)\)}", light) == [(each, each) for each in "wlcfq"]


def test_a_screen_reader_is_told_what_it_is() -> None:
    tree = ET.fromstring(plot([NodeRecords(rows=_ONE_POD)], None, 100))
    named = {each.get("id"): each.text or "" for each in tree if each.get("id")}

    assert tree.get("role") == "img"
    assert (tree.get("aria-labelledby") or "").split() == ["title", "desc"]
    assert named["title"] == "Who had which device when"
    assert named["desc"].startswith(
        "1 device, 5 changes, 1970-01-01 00:00:10 to 1970-01-01 00:01:40"
    )


def test_each_state_has_a_pattern_of_its_own_and_its_name_in_the_legend() -> None:
    tree = ET.fromstring(plot([NodeRecords(rows=_ONE_POD)], None, 100))
    patterns = [pattern[1].get("d") for pattern in tree.iterfind(".//{*}pattern")]
    legend = [each.text for each in tree.iterfind("{*}text") if each.get("y") == "50"]

    assert len(set(patterns)) == len(patterns) == 5
    assert legend == [
        *("no record", "free", "held", "waits to start", "releasing: waits to be free"),
        *("reclaiming", "foreign", "quarantined"),
    ]


def test_a_history_without_a_record_gives_a_picture_that_says_so() -> None:
    drawn = plot([NodeRecords()], 0, 60)

    assert "no change of a lock in this period" in "".join(ET.fromstring(drawn).itertext())
    assert "no change" not in plot([NodeRecords(rows=_ONE_POD)], 0, 60)


def test_several_nodes_are_below_each_other_and_one_without_an_answer_is_named() -> None:
    nodes = [
        NodeRecords(name="node-1", rows=_ONE_POD),
        NodeRecords(name="node-2", problem="no answer within 3 s"),
        NodeRecords(name="node-3"),
        NodeRecords(name="node-4", rows=_ONE_POD[:1]),
    ]
    tree = ET.fromstring(plot(nodes, None, 100))
    lines = [(line.get("transform"), line[0].text) for line in tree.iterfind("{*}g")]

    assert [text for _, text in lines] == [
        *("node-1", "0000:00:05.0", "node-2: no answer within 3 s", "node-3: no change"),
        *("node-4", "0000:00:05.0"),
    ]
    assert len({place for place, _ in lines}) == len(lines)


def test_devices_with_the_same_id_are_called_in_full() -> None:
    other = "google.com/other/0000:00:05.0"
    drawn = plot(
        [NodeRecords(rows=[*_ONE_POD, *({**row, "device": other} for row in _ONE_POD)])], None, 99
    )

    assert f">{_A}<" in drawn
    assert f">{other}<" in drawn


@pytest.mark.parametrize("devices", [4, 100, 2000])
def test_ten_thousand_records_are_less_than_two_megabytes(devices: int) -> None:
    each = 10_000 // devices
    rows = [
        {**row, "at": row["at"] / 100 + number, "device": f"{_A}{device}", "pod": f"{number}"}
        | {"podName": f"{'n' * 63}/{_HOSTILE}{'x' * 200}-{number}"}
        for device in range(devices)
        for number in range(each // 5)
        for row in _ONE_POD
    ]
    assert len(rows) == 10_000
    assert len(plot([NodeRecords(rows=rows)], None, each // 5).encode()) < 2_000_000


@pytest.mark.parametrize(
    ("length", "ticks"),
    [
        (20, ["01-01 00:00:00", "00:00:02"]),
        (7200, ["01-01 00:00", "00:15"]),
        (7 * 86400, ["1970-01-01", "1970-01-02"]),
        (80 * 365 * 86400, ["1970-01-01", "1977-12-30"]),
    ],
)
def test_the_axis_has_round_times_and_at_most_eleven(length: float, ticks: list[str]) -> None:
    tree = ET.fromstring(plot([NodeRecords(rows=_ONE_POD[:1])], 0, length))
    told = [each.text for each in tree.iterfind("{*}text") if each.get("text-anchor") == "middle"]

    assert told[:2] == ticks
    assert len(told) <= 11


def test_a_period_that_is_longer_than_there_is_a_calendar_begins_in_1970() -> None:
    drawn = plot([NodeRecords(rows=_ONE_POD)], -1e15, 100)

    assert "1970-01-01 00:00:00 to 1970-01-01 00:01:40 UTC" in drawn


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "week.svg"
    file.write_text("former")
    with file.open() as reader:
        draw(file, list(map(dict, _ONE_POD)), None)
        assert reader.read() == "former", "who reads it meanwhile has the former one"

    assert ET.fromstring(file.read_text("utf-8")).tag.endswith("svg")
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gone/week.svg", "No such file or directory"),
        (".", "it is there and is not a regular file"),
        ("link", "it is there and is not a regular file"),
        ("pipe", "it is there and is not a regular file"),
        ("x" * 300, "File name too long"),
    ],
)
def test_a_file_that_cannot_be_written_is_named_with_the_reason(
    name: str, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to("other")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(
        HoldfastError, match=f"^cannot write {re.escape(str(tmp_path / name))}: {reason}; "
    ):
        draw(tmp_path / name, [], None)

    assert {each.name for each in tmp_path.iterdir()} == {"link", "pipe"}
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


@pytest.mark.parametrize("other", [["-o", "json"], ["--watch"]])
def test_a_picture_is_drawn_once_and_in_one_form(
    other: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["history", "--plot", "-", "--state-dir", str(tmp_path), *other]) == 2
    assert "--plot draws once: it does not go with --output or --watch" in capsys.readouterr().err


def test_what_ends_a_wait_is_what_the_daemon_writes(repository: Path) -> None:
    code = "".join(file.read_text() for file in (repository / "daemon/holdfast").rglob("*.py"))

    assert set(re.findall(r'\bpassed="([^"]+)"', code)) == set(PASSED)
