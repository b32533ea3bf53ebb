"""The texts with which a container start is refused: true, the same while nothing changes."""

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from fakes.stage import Stage, end, pod, stage


async def test_a_release_that_cannot_be_recorded_is_not_told_as_a_device_in_use(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1, reclaim={"mode": "observe"}) as node:
        _, left = await node.left_behind()
        following = await node.submit(pod("next"))
        await node.waiting(following, f"pid {left}")
        with closing(sqlite3.connect(node.state / "ledger.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            end(left)
            told = await node.waiting(following, "its release cannot be recorded")
        assert "no process has it open" not in told
        await node.running(following)


async def test_each_refusal_is_logged_once_and_reads_the_same_as_the_one_before(
    short_path: Path,
) -> None:
    with capture_logs() as logged:
        async with stage(short_path, chips=1, reclaim={"mode": "observe"}) as node:
            following, left = await node.waits_for_orphan()
            await node.until(lambda: following.refusals >= 6, "it to be refused some times")
            await node.until(lambda: _queued_by_name(node), "it to be known by name")
            end(left)
            await node.running(following)
    told = [each["reason"] for each in _refusals(logged)]
    assert len(told) == following.refusals
    by_name = [each for each in told if f"pid {left}" in each and "default/old" in each]
    assert len(by_name) > 2
    assert len(set(by_name)) == 1


@pytest.mark.parametrize(
    ("reclaim", "expected"),
    [
        ({"mode": "observe"}, "holdfast only observes here: use holdfast release"),
        (
            {"mode": "terminate", "letGoGrace": "30m", "orphanGrace": "30m"},
            "holdfast ends it after 3600 s unless it is somebody's work",
        ),
    ],
    ids=["observe", "terminate"],
)
async def test_a_pod_is_told_what_happens_next_in_one_sentence_that_stays_the_same(
    short_path: Path, reclaim: dict[str, str], expected: str
) -> None:
    """Kubelet merges events only while their text is the same."""
    async with stage(short_path, chips=1, reclaim=reclaim) as node:
        following, left = await node.waits_for_orphan()
        await node.waiting(following, "which has ended; ")
        texts: Counter[str] = Counter()
        until = following.refusals + 4

        def refused() -> bool:
            texts[following.waiting.rpartition(" desc = ")[2]] += 1
            return following.refusals >= until

        await node.until(refused, "it to be refused some times")
        end(left)
        await node.running(following)
    (told,) = texts
    assert told == (
        f"waiting for google.com/tpu: 0000:00:05.0 is still open in python (pid {left}) of "
        f"default/old, which has ended; {expected} (holdfast holders)"
    )


async def test_kubelet_is_not_asked_again_and_again_for_a_start_that_waits_for_a_process(
    short_path: Path,
) -> None:
    rarely = {"idleInterval": "10m"}
    mode = {"mode": "observe"}
    async with stage(short_path, chips=1, question=rarely, reclaim=mode) as node:
        following, left = await node.waits_for_orphan()
        await node.until_locks({"0000:00:05.0": "releasing"})
        asked, sent, before = node.kubelet.pod_resources.lists, node.heard(), following.refusals
        await node.until(lambda: following.refusals >= before + 4, "it to be refused some times")
        # Each try of each start asked before; what is left are those about the pod that began.
        assert node.kubelet.pod_resources.lists <= asked + 3
        assert node.heard() <= sent + 3
        end(left)
        await node.running(following)


async def _queued_by_name(node: Stage) -> bool:
    rows = await node.asked("locks") or ()
    return [row["podName"] for row in rows if row["state"] == "queued"] == ["default/next"]


def _refusals(logged: list[Any]) -> list[Any]:
    """Return what was logged of refused starts, whoever logged it."""
    return [
        each
        for each in logged
        if each["event"] == "gate refused"
        or (each["event"] == "kubelet call refused" and each["call"] == "PreStartContainer")
    ]
