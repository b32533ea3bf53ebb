"""What the daemon logs: a line for each change, not for each device, and nothing again and again."""

from collections import Counter
from pathlib import Path

from structlog.testing import capture_logs
from structlog.typing import EventDict

from fakes.opener import opener
from fakes.stage import TPU, pod, stage

_PODS = 5
_A_DAY = 200
"""Pods that a busy node of eight chips starts in a day."""
_MOST = 2000


async def test_a_day_of_pods_makes_few_lines_and_each_is_about_all_devices_of_its_pod(
    short_path: Path,
) -> None:
    with capture_logs() as logs:
        async with stage(short_path, chips=8) as at:
            await at.until(lambda: len(at.healthy(TPU)) == 8, "the chips to be offered")
            started = len(logs)
            for number in range(_PODS):
                await at.end(await at.run(pod(f"pod-{number}", chips=8)))
                await at.until_free()
            over = len(logs)

    first, pods = Counter(_seen(logs[:started])), Counter(_seen(logs[started:over]))
    assert first["info", "devices found"] == 1
    assert first.total() + pods.total() / _PODS * _A_DAY <= _MOST
    assert max(pods.values()) <= _PODS, pods
    assert {level for level, _ in _seen(logs)} == {"info"}


async def test_a_start_that_waits_is_not_logged_at_each_look(short_path: Path) -> None:
    with capture_logs() as logs:
        async with stage(short_path, chips=1) as at:
            await at.until(lambda: len(at.healthy(TPU)) == 1, "the chips to be offered")
            with opener(at.node.node("/dev/vfio/10")) as held:
                at.node.add_process(held.pid, "/user.slice")
                waits = await at.submit(pod("waits", chips=1))
                await at.until(lambda: waits.refusals > 5, "kubelet to have asked a few times")
                told = len(logs)
                await at.until(lambda: waits.refusals > 10, "kubelet to have asked some more")
                again = logs[told:]
            await at.until(lambda: waits.starts == 1, "the pod to start")
    assert not [*_seen(again)]


def _seen(logs: list[EventDict]) -> list[tuple[str, str]]:
    """Return level and event of each line that is not for debugging."""
    return [(entry["log_level"], entry["event"]) for entry in logs if entry["log_level"] != "debug"]
