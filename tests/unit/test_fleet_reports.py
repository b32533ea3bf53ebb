"""kubectl holdfast: which pods are asked, what counts as wrong, and what fits in 100 columns."""

import ast
import string
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
import kubectl_holdfast
from fakes.kubectl import daemon_pod
from kubectl_holdfast.daemons import Answer, Daemon, FleetError, find_daemons
from kubectl_holdfast.main import main
from kubectl_holdfast.reports import (
    VIEWS,
    State,
    complaints,
    document,
    exit_status,
    judged,
    lines,
    summary,
    totals,
)
from kubectl_holdfast.tables import WIDTH, Column, age, cut, table
from kubectl_holdfast.text import printable

_NOW = 1_800_000_000.0
_WAITING = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}}


def _status(**changes: Any) -> dict[str, Any]:
    resource = {
        "name": "google.com/tpu",
        "devices": 4,
        "healthy": 4,
        "offered": 4,
        "locked": 1,
        "waiting": 0,
    }
    return {
        "version": "0.1.0",
        "pid": 4711,
        "checks": [{"name": "ledger", "passes": True, "reason": ""}],
        "noDevices": False,
        "resources": [resource],
        "claims": [],
        "drift": [],
        "byHand": [],
        "rules": [],
        **changes,
    }


def _resource(**changes: Any) -> dict[str, Any]:
    return {"resources": [{**_status()["resources"][0], **changes}]}


def _lock(state: str = "held", **changes: Any) -> dict[str, Any]:
    return {
        "device": "google.com/tpu/0000:00:05.0",
        "state": state,
        "fence": 3,
        "pod": "b415820a-0597-40ac-92e6-e0bc86c701b7",
        "podName": "default/train-0",
        "claim": None,
        "since": _NOW - 3 * 3600,
        "reason": "allocated",
        "until": None,
        **changes,
    }


def _device(lock: str | None = "free", health: str = "Healthy", *reasons: str) -> dict[str, Any]:
    return {"id": "0000:00:05.0", "lock": lock, "health": health, "reasons": list(reasons)}


def _answer(node: str, content: Any = None, **rest: str) -> Answer:
    daemon = Daemon(node=node, namespace="holdfast", pod=f"holdfast-{node}")
    return Answer(daemon=daemon, content=content, **rest)


def _state(question: str, content: Any) -> State:
    (report,) = judged([_answer("n", content)], VIEWS[question], _NOW)
    return report.state


_MARK = {"device": "google.com/tpu/0000:00:05.0", "reason": "loose cable", "state": "quarantined"}
_DRAIN = {"device": None, "reason": "", "state": "draining"}
_FAILED = {"name": "ledger", "passes": False, "reason": "the disk is full"}
_DRIFT = {"kind": "not-our-list", "subject": "google.com/tpu"}


@pytest.mark.parametrize(
    ("question", "content", "state"),
    [
        ("status", _status(), State.WELL),
        ("status", _status(checks=[_FAILED]), State.WRONG),
        ("status", _status(drift=[_DRIFT]), State.WRONG),
        ("status", _status(**_resource(healthy=3)), State.WRONG),
        ("status", _status(byHand=[_MARK]), State.NOTABLE),
        ("status", _status(**_resource(healthy=3), byHand=[_MARK]), State.WRONG),
        ("status", _status(byHand=[_DRAIN]), State.NOTABLE),
        ("status", _status(**_resource(healthy=3), byHand=[_DRAIN]), State.WRONG),
        ("status", _status(**_resource(waiting=1)), State.NOTABLE),
        ("status", _status(noDevices=True, resources=[]), State.NOTABLE),
        ("status", _status(claims=[{"claim": "a/b", "waits": "for a chip"}]), State.NOTABLE),
        ("status", _status(claims=[{"claim": "a/b", "waits": None}]), State.WELL),
        ("status", _status(**_resource(devices=None, healthy=None), pid=None), State.WELL),
        ("locks", [], State.WELL),
        ("locks", [_lock()], State.WELL),
        ("locks", [_lock("admin", since=None)], State.WELL),
        ("locks", [_lock(), _lock("queued")], State.NOTABLE),
        ("locks", [_lock("releasing")], State.NOTABLE),
        ("locks", [_lock("reclaiming")], State.NOTABLE),
        ("locks", [_lock("foreign", pod=None, podName=None)], State.WRONG),
        ("locks", [_lock("quarantined"), _lock()], State.WRONG),
        ("doctor", {"findings": []}, State.WELL),
        ("devices", [], State.WELL),
        ("devices", [_device(), _device("held"), _device(None, "LeftOut")], State.WELL),
        ("devices", [_device("releasing")], State.NOTABLE),
        ("devices", [_device("free", "unknown")], State.NOTABLE),
        ("devices", [_device("free", "Unhealthy", "it fell off the bus")], State.WRONG),
        ("devices", [_device("quarantined", "Unhealthy")], State.WRONG),
        ("devices", [_device("held", "Unhealthy")], State.WELL),
    ],
)
def test_what_counts_as_wrong(question: str, content: Any, state: State) -> None:
    assert _state(question, content) is state


@pytest.mark.parametrize(
    ("level", "state"), [("OK", State.WELL), ("WARN", State.NOTABLE), ("FAIL", State.WRONG)]
)
def test_a_finding_of_the_doctor_is_as_bad_as_its_level(level: str, state: State) -> None:
    finding = {"level": level, "area": "kubelet", "check": "socket", "reason": "r", "remedy": "m"}

    assert _state("doctor", {"findings": [finding]}) is state


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, State.WELL),
        ({"pod": None, "podName": None}, State.NOTABLE),
        ({"cause": "gvisor sandbox"}, State.NOTABLE),
    ],
)
def test_a_process_of_no_pod_is_worth_a_look(changes: dict[str, Any], state: State) -> None:
    holder = {
        "device": "d",
        "pid": 7,
        "command": "python",
        "pod": "u",
        "cause": "",
        "access": ["fd"],
    }

    assert _state("holders", [{**holder, **changes}]) is state


def test_what_is_wrong_comes_first_and_then_the_nodes_by_name() -> None:
    answers = [
        _answer("a", _status()),
        _answer("d", _status(checks=[_FAILED])),
        _answer("c", _status(checks=[_FAILED])),
        _answer("z", problem="no answer within 10 s"),
        _answer("b", _status(byHand=[_MARK])),
    ]
    reports = judged(answers, VIEWS["status"], _NOW)

    assert [each.daemon.node for each in reports] == ["z", "c", "d", "b", "a"]
    shown = lines(reports, VIEWS["status"])
    assert [line.split()[0] for line in shown] == ["NODE", "z", "c", "d", "b", "a"]
    assert shown[1].split(maxsplit=5)[1:3] == ["no", "answer"]
    assert shown[2].endswith("ledger: the disk is full")
    assert summary(reports) == "5 nodes: 1 no answer, 2 wrong, 1 notable, 1 well"
    assert complaints(reports) == ["cannot ask z: no answer within 10 s"]
    assert exit_status(reports) == 2
    assert exit_status(reports[1:]) == 1
    assert exit_status(reports[3:]) == 0
    assert (
        exit_status(judged([_answer("a", unknown="cannot find device x")], VIEWS["history"], 0))
        == 0
    )


def test_the_lines_of_all_nodes_are_one_list_by_what_is_wrong() -> None:
    answers = [
        _answer("b", [_lock(), _lock("queued")]),
        _answer("a", [_lock("quarantined"), _lock()]),
    ]
    shown = lines(judged(answers, VIEWS["locks"], _NOW), VIEWS["locks"])

    found = [(line.split()[0], line.split()[2]) for line in shown[1:]]
    assert found == [("a", "quarantined"), ("b", "queued"), ("a", "held"), ("b", "held")]
    assert shown[1].split()[3:] == ["3", "h", "default/train-0", "-"]


def test_what_happens_next_to_a_device_is_told() -> None:
    locks = [
        _lock("releasing", until="its pod has ended"),
        _lock("queued", reason="a"),
    ]
    shown = lines(judged([_answer("a", locks)], VIEWS["locks"], _NOW), VIEWS["locks"])

    assert shown[1].endswith("free when its pod has ended")
    assert shown[2].endswith("waits: a")


def test_a_uid_behind_a_name_is_in_the_wide_form_alone() -> None:
    until = "pod default/train-0 (b415820a-0597-40ac-92e6-e0bc86c701b7) has ended"
    reports = judged([_answer("a", [_lock(until=until)])], VIEWS["locks"], _NOW)

    assert lines(reports, VIEWS["locks"])[1].endswith(" free when pod default/train-0 has ended")
    assert until in lines(reports, VIEWS["locks"], wide=True)[1]


def test_the_history_is_told_in_ages_and_a_note_is_no_change() -> None:
    move = {
        "at": _NOW - 90,
        "device": "d",
        "from": "free",
        "to": "held",
        "pod": "u",
        "evidence": "e",
    }
    claimed = {
        **move,
        "podName": None,
        "pod": None,
        "claim": "default/train (4711-u)",
        "to": "free",
    }
    shown = lines(judged([_answer("a", [move, claimed])], VIEWS["history"], _NOW), VIEWS["history"])

    assert [line.split() for line in shown[1:]] == [
        ["a", "1", "min", "d", "free", "→", "held", "u", "e"],
        ["a", "1", "min", "d", "free,", "note", "default/train", "e"],
    ]


@pytest.mark.parametrize("at", [1e30, float("inf"), float("nan"), "now", None])
def test_a_time_that_is_none_is_no_answer(at: object) -> None:
    move = {"at": at, "device": "d", "from": "free", "to": "held", "pod": "u", "evidence": "e"}

    assert _state("history", [move]) is State.NO_ANSWER


def test_a_device_has_its_id_alone_where_its_node_has_one_of_that_id() -> None:
    chip, pool = _lock(), _lock(device="example.com/chip/0000:00:05.0")
    reports = judged([_answer("a", [chip, pool]), _answer("b", [chip])], VIEWS["locks"], _NOW)

    assert [line.split()[1] for line in lines(reports, VIEWS["locks"])[1:]] == [
        chip["device"],
        pool["device"],
        "0000:00:05.0",
    ]
    assert lines(reports, VIEWS["locks"], wide=True)[3].split()[1] == chip["device"]


def test_an_answer_from_the_ledger_is_wrong_and_says_so() -> None:
    note = "cannot reach the daemon in /var/lib/holdfast: gone; reading its ledger file instead"
    (report,) = judged([_answer("a", [_lock()], note=note)], VIEWS["locks"], _NOW)

    assert report.state is State.WRONG
    assert complaints([report]) == [f"a: {note}"]


@pytest.mark.parametrize(
    "content", [None, 3, "text", [3], {"nodes": 1}, [{"device": "x"}], [[]], {"checks": [None]}]
)
@pytest.mark.parametrize("question", ["status", "locks", "holders", "history", "doctor", "devices"])
def test_an_answer_of_another_form_is_none(question: str, content: Any) -> None:
    (report,) = judged([_answer("a", content)], VIEWS[question], _NOW)

    assert report.state is State.NO_ANSWER
    assert "another form" in report.reason
    assert totals([report]) == "0 devices"


def test_the_devices_of_all_nodes_are_counted_by_state() -> None:
    answers = [
        _answer("a", [_device(), _device("held"), _device("held", "Unhealthy")]),
        _answer("b", [_device("free", "Unhealthy"), _device(None, "LeftOut")]),
        _answer("d", [_device() | {"freeFor": "none"}, _device() | {"freeFor": "any"}]),
        _answer("c", problem="gone"),
    ]

    told = totals(judged(answers, VIEWS["devices"], _NOW))
    assert told == "7 devices: 2 free, 2 held, 1 unhealthy, 1 left out, 1 withheld"


def test_programs_get_one_document_with_a_list_by_node() -> None:
    answers = [_answer("a", [_lock()]), _answer("b", problem="no answer within 10 s")]
    (first, second) = document(judged(answers, VIEWS["locks"], _NOW))["nodes"]

    assert first["node"] == "b"
    assert (first["state"], first["reason"]) == ("no answer", "no answer within 10 s")
    assert second == {
        "node": "a",
        "namespace": "holdfast",
        "pod": "holdfast-a",
        "state": "well",
        "reason": None,
        "answer": [_lock()],
    }


_names = st.text(string.ascii_lowercase + string.digits + "-./", min_size=1, max_size=317)


@given(
    st.lists(st.tuples(_names, _names, _names, st.text(max_size=500)), min_size=1, max_size=8),
    st.integers(40, 120),
)
def test_no_table_is_wider_than_asked(cells: list[tuple[str, str, str, str]], width: int) -> None:
    answers = [
        _answer(node, [_lock(device=device, podName=name, until=text, reason=text)])
        for node, device, name, text in cells
    ]
    shown = lines(judged(answers, VIEWS["locks"], _NOW), VIEWS["locks"], width=width)

    assert max(map(len, shown)) <= width
    assert all(line.isprintable() for line in shown)
    assert len(shown) == len(cells) + 1


@given(st.text(max_size=300), st.integers(0, 6))
def test_no_table_of_any_command_is_wider_than_100_columns(text: str, number: int) -> None:
    rows = [_lock(device=text, podName=text, until=text)] * number
    contents: dict[str, Any] = {
        "status": _status(checks=[{"name": text, "passes": False, "reason": text}]),
        "locks": rows,
        "holders": [
            {"device": text, "pid": 7, "command": text, "pod": text, "cause": text, "access": []}
        ],
        "history": [
            {
                "at": _NOW,
                "device": text,
                "from": "free",
                "to": "held",
                "podName": text,
                "evidence": text,
            }
        ],
        "doctor": {
            "findings": [
                {"level": "FAIL", "area": text, "check": text, "reason": text, "remedy": text}
            ]
        },
        "devices": [{"id": text, "lock": text, "health": "Unhealthy", "reasons": [text]}],
    }
    assert contents.keys() == VIEWS.keys() - {"why"}, "a text, which has its own width"
    for question, content in contents.items():
        reports = judged([_answer(text, content)], VIEWS[question], _NOW)
        shown = lines(reports, VIEWS[question])
        assert max(map(len, shown)) <= WIDTH
        wide = lines(reports, VIEWS[question], wide=True)
        assert printable(text) in "\n".join(wide) or not reports[0].lines


def test_names_keep_their_end_and_texts_their_beginning() -> None:
    columns = [Column(key="node"), Column(key="what", text=True)]
    rows = [{"node": f"gke-train-{'x' * 60}-{each}", "what": "because " * 20} for each in "ab"]
    heading, *shown = table(columns, rows, 60)

    assert heading.split() == ["NODE", "WHAT"]
    assert [line.split()[0][-3:] for line in shown] == ["x-a", "x-b"]
    assert all(line.split()[1] == "because" for line in shown)
    assert [max(map(len, table(columns, rows, None)))] == [72 + 2 + 159 - 0]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0 s"), (0, "0 s"), (59.4, "59 s"), (60, "1 min"), (7199, "1 h"), (86400 * 3, "3 d")],
)
def test_an_age_is_told_in_its_largest_unit(seconds: float, text: str) -> None:
    assert age(seconds) == text


def test_a_text_of_a_node_cannot_control_the_terminal() -> None:
    assert printable("a\x1b[2Jb\u202ec\nd\ud800") == r"a\x1b[2Jb\u202ec\nd\ud800"
    assert cut("abcdef", 4) == "abc\u2026"
    assert cut("abcdef", 4, end=False) == "\u2026def"
    assert cut("abcd", 4) == "abcd"


def test_of_two_pods_on_a_node_the_one_that_can_be_asked_is() -> None:
    leaves = daemon_pod("n", name="a-leaves")
    leaves["metadata"]["deletionTimestamp"] = "2026-11-23T09:00:00Z"
    starts = daemon_pod("n", name="b-starts", state={"waiting": {"reason": "ContainerCreating"}})
    runs = daemon_pod("n", name="c-runs")

    assert [each.pod for each in find_daemons([leaves, starts, runs], None)] == ["c-runs"]
    assert [each.pod for each in find_daemons([leaves, starts], None)] == ["a-leaves"]
    (only,) = find_daemons([starts], None)
    assert only.problem == "its pod b-starts is Running: ContainerCreating"


def test_a_pod_that_no_command_can_run_in_is_named_with_the_reason() -> None:
    evicted = daemon_pod("a")
    evicted["status"] = {"phase": "Failed", "reason": "Evicted", "message": "low on disk"}
    pending = daemon_pod("")
    pending["status"] = {
        "phase": "Pending",
        "conditions": [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "no room",
            }
        ],
    }
    field = {"key": "metadata.name", "operator": "In", "values": ["b"]}
    pending["spec"]["affinity"] = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchFields": [field]}]
            }
        }
    }
    found = find_daemons([evicted, pending, daemon_pod("c", state=_WAITING)], None)

    assert [each.problem for each in found] == [
        "its pod holdfast-a is Failed: Evicted: low on disk",
        "its pod holdfast- is Pending: Unschedulable: no room",
        "its pod holdfast-c is Running: CrashLoopBackOff: back-off 5m0s",
    ]


def test_a_node_that_is_named_and_has_no_daemon_is_told() -> None:
    found = find_daemons([daemon_pod("a")], ["b", "a", "b"])

    assert [(each.node, each.problem) for each in found] == [
        ("b", "no pod of holdfast is on it"),
        ("a", ""),
    ]


def test_a_pod_of_another_namespace_does_not_answer_for_a_daemon() -> None:
    pods = [daemon_pod("a"), daemon_pod("a", namespace="tenant")]

    with pytest.raises(FleetError, match="in holdfast, tenant; name the namespace"):
        find_daemons(pods, None)


def test_a_pod_without_the_daemons_container_is_none() -> None:
    test = daemon_pod("a")
    test["spec"] = {"nodeName": "a", "containers": [{"name": "ask"}]}

    assert find_daemons([test], None) == []


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["unknown"],
        ["status", "--timeout", "0"],
        ["status", "--timeout", "inf"],
        ["status", "--parallel", "0"],
        ["status", "--unknown"],
        ["locks", "-o", "yaml"],
        ["drain"],
        ["drain", "--node", "a", "--node", "b"],
        ["undrain", "--selector", "pool=train"],
    ],
)
def test_wrong_usage_ends_with_a_status_of_its_own(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    assert ended.value.code == 3
    assert "usage: kubectl holdfast" in capsys.readouterr().err


def test_it_needs_the_standard_library_alone_and_has_the_daemons_version() -> None:
    imported: set[str] = set()
    for file in Path(kubectl_holdfast.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {each.name.partition(".")[0] for each in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.partition(".")[0])

    assert imported <= sys.stdlib_module_names | {"kubectl_holdfast"}
    assert kubectl_holdfast.__version__ == holdfast.__version__
