"""What the daemon logs: a line for each change, not for each device, and nothing again and again."""

from collections import Counter
from pathlib import Path

from structlog.testing import capture_logs
from structlog.typing import EventDict

from fakes.opener import stranger
from fakes.stage import TPU, end, pod, stage

_PODS = 5
_CHIPS = 8
_A_DAY = 200
"""Pods that a busy node of eight chips starts in a day."""
_MOST = 2000


async def test_a_day_of_pods_makes_few_lines_and_each_is_about_all_devices_of_its_pod(
    short_path: Path,
) -> None:
    with capture_logs() as logs:
        async with stage(short_path, chips=_CHIPS) as at:
            await at.until(lambda: len(at.healthy(TPU)) == _CHIPS, "the chips to be offered")
            started = len(logs)
            for number in range(_PODS):
                await at.end(await at.run(pod(f"pod-{number}", chips=_CHIPS)))
                await at.until_free()
            over = len(logs)

    first, pods = Counter(_seen(logs[:started])), Counter(_seen(logs[started:over]))
    assert first["info", "devices found"] == 1
    assert first.total() + pods.total() / _PODS * _A_DAY <= _MOST
    # What keeps all devices of a pod may change once: its processes end, and then the kernel looks.
    assert max(pods.values()) <= 2 * _PODS, pods
    assert {level for level, _ in _seen(logs)} == {"info"}


async def test_what_keeps_all_devices_of_a_pod_is_one_line(short_path: Path) -> None:
    with capture_logs() as logs:
        async with stage(short_path, chips=_CHIPS, reclaim={"mode": "observe"}) as at:
            await at.until(lambda: len(at.healthy(TPU)) == _CHIPS, "the chips to be offered")
            _, left = await at.left_behind("leaves", chips=_CHIPS)
            await at.until(lambda: "holder not ended" in _events(logs), "the reason to be logged")
            await at.for_some_beats()
            end(left)
            await at.until_free()
    waits = [each for each in logs if each["event"] == "devices not free yet"]
    assert len({each["reason"] for each in waits}) == len(waits), waits
    # It has one of them open, and lives.
    named = [len(each["devices"]) for each in waits if f"pid {left}" in each["reason"]]
    assert sorted(named) == [1, _CHIPS - 1], waits
    assert [each["reason"] for each in logs if each["event"] == "holder not ended"] == [
        "reclaim.mode is observe"
    ]


async def test_a_start_that_waits_is_not_logged_at_each_look(short_path: Path) -> None:
    with capture_logs() as logs:
        async with stage(short_path, chips=1) as at:
            await at.until(lambda: len(at.healthy(TPU)) == 1, "the chips to be offered")
            with stranger(at.node, "/dev/vfio/10"):
                waits = await at.submit(pod("waits", chips=1))
                await at.until(lambda: waits.refusals > 5, "kubelet to have asked a few times")
                told = len(logs)
                await at.until(lambda: waits.refusals > 10, "kubelet to have asked some more")
                again = logs[told:]
            await at.until(lambda: waits.starts == 1, "the pod to start")
    assert not [*_seen(again)]


def _events(logs: list[EventDict]) -> set[str]:
    return {each["event"] for each in logs}


def _seen(logs: list[EventDict]) -> list[tuple[str, str]]:
    """Return level and event of each line that is not for debugging."""
    return [(entry["log_level"], entry["event"]) for entry in logs if entry["log_level"] != "debug"]
