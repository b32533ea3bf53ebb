"""`holdfast why`: everything that keeps a device, pod or claim, in order, from what was answered."""

from typing import Any

import pytest

from holdfast.cli.tables import Row
from holdfast.cli.why import Answers, why, why_lines
from holdfast.errors import HoldfastError

_A, _B = "r.io/x/0000:05", "r.io/x/0000:06"


def _device(device: str, **more: Any) -> Row:
    resource, _, id_ = device.rpartition("/")
    row: Row = {"resource": resource, "id": id_, "reasons": [], "faults": [], "obstacle": None}
    return {**row, "lock": "free", "lockDevice": None, "freeFor": "any", "until": None, **more}


def _lock(device: str, state: str, pod: str, **more: Any) -> Row:
    row: Row = {"device": device, "state": state, "pod": f"uid-{pod}", "podName": f"team/{pod}"}
    return {**row, "claim": None, "claimPods": None, "since": None, "reason": "seen", **more}


_BUSY = Answers(
    devices=[
        _device(
            _A,
            faults=["too hot"],
            reasons=["too hot", "it is quarantined by hand"],
            obstacle="in use by pid 7",
            lock="releasing",
            lockDevice=_A,
            freeFor="none",
            until="the device is healthy again",
        ),
        _device(
            _B, lock="held", lockDevice=_B, freeFor="owner", until="pod team/b (uid-b) has ended"
        ),
    ],
    locks=[
        _lock(_A, "releasing", "a", reason="kubelet no longer counts pod team/a (uid-a)"),
        _lock(
            _B, "held", "b", claim="team/c (uid-c)", claimPods=["team/b (uid-b)", "team/d (uid-d)"]
        ),
        _lock(
            _A, "queued", "b", reason="r.io/x/0000:05 is not free of pod team/a (uid-a)", since=0
        ),
    ],
    holders=[
        {"device": _A, "pid": 7, "command": "python", "access": ["node open"], "pod": "uid-a"}
        | {"podName": "team/a", "cause": "left behind"}
    ],
)


def test_what_keeps_a_device_is_told_in_the_order_in_which_it_has_to_end() -> None:
    report = why("0000:05", _BUSY)
    (device,) = report["devices"]
    assert [(keep["what"], keep["text"]) for keep in device["keeps"]] == [
        ("hardware", "too hot"),
        ("lock", "pod team/a (uid-a): kubelet no longer counts pod team/a (uid-a)"),
        ("seen", "in use by pid 7"),
        ("process", "pid 7 (python) of pod team/a (uid-a): node open; left behind"),
        ("rule", "it is quarantined by hand"),
    ]
    assert device["keeps"][3]["help"].startswith(f"`holdfast release {_A}` ")
    assert (device["state"], device["until"]) == ("releasing", "the device is healthy again")
    assert [row["podName"] for row in device["next"]] == ["team/b"]


def test_no_name_is_the_name_of_nothing() -> None:
    unnamed = Answers(devices=[], locks=[_lock(_A, "queued", "b", podName="")], holders=[])
    with pytest.raises(HoldfastError, match="cannot find"):
        why("", unnamed)


@pytest.mark.parametrize("name", ["team/b", "b", "uid-b"])
def test_a_pod_is_told_what_it_waits_for_and_what_keeps_that(name: str) -> None:
    report = why(name, _BUSY)
    assert (report["kind"], report["name"]) == ("pod", "team/b (uid-b)")
    assert [row["device"] for row in report["waits"]] == [_A]
    assert [row["device"] for row in report["has"]] == [_B]
    assert [row["device"] for row in report["devices"]] == [_A], "of what it has nothing keeps it"
    lines = why_lines(report, _BUSY, wide=False)
    assert lines[0].startswith(f"pod team/b waits for {_A}, for ")
    assert not any("uid-" in line for line in lines)
    assert any("uid-a" in line for line in why_lines(report, _BUSY, wide=True))


def test_a_claim_and_another_of_its_pods_are_known() -> None:
    assert why("team/c", _BUSY)["has"][0]["device"] == _B
    assert why("team/d", _BUSY)["has"][0]["device"] == _B


def test_a_device_that_nothing_keeps_is_free() -> None:
    answers = Answers(devices=[_device(_A)], locks=[], holders=[])
    assert why_lines(why(_A, answers), answers, wide=False) == [
        f"{_A}: free; the next pod can have it"
    ]


def test_nobody_is_said_to_hold_nothing_where_nobody_could_look() -> None:
    answers = Answers(devices=[_device(_A)], locks=[], holders=None)
    (keep,) = why(_A, answers)["devices"][0]["keeps"]
    assert keep["text"].startswith("unknown: ")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("nothing", "cannot find nothing: "),
        ("r.io/x/0", f"cannot tell what .*{_A} and device {_B}"),
    ],
)
def test_a_name_of_nothing_or_of_several_is_refused(name: str, complaint: str) -> None:
    with pytest.raises(HoldfastError, match=complaint):
        why(name, _BUSY)


def test_no_line_is_wider_than_100_columns_whatever_the_names_are() -> None:
    long = _lock(_A, "releasing", "p" * 317, reason="\x1b[2J\n" + "why " * 200)
    answers = Answers(devices=[_device(_A, lockDevice=_A)], locks=[long], holders=[])
    lines = why_lines(why(_A, answers), answers, wide=False)
    assert max(map(len, lines)) <= 100
    assert r"\x1b[2J\n" in "".join(lines)
