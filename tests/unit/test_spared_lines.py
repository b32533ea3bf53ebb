"""What the log says of holders that are not ended: each reason once, and not one at each look."""

from types import SimpleNamespace
from typing import Any

from structlog.testing import capture_logs

from fakes.books import X, device_lock, name
from fakes.observers import Unobserved
from holdfast.model.book.book import LockState
from holdfast.reclaim.ending import Ending
from holdfast.runtime.watched import Watched
from holdfast.settings.sections import ReclaimSettings
from manual_clock import ManualClock

NOBODY: Any = SimpleNamespace()
LOCK = device_lock(name("d0"), state=LockState.RELEASING, since=0.0, pod=X)


def test_a_pod_whose_processes_are_others_each_time_does_not_fill_the_log() -> None:
    clock = ManualClock()
    ending = Ending(
        pods=NOBODY,
        clock=clock,
        settings=Watched(ReclaimSettings()),
        count=Unobserved().reclaimed,
    )

    with capture_logs() as logs:
        for pid in range(300):
            ending.spare(LOCK, f"pid {pid} of its pod has a parent that lives outside the pod")
            clock.shift(0.2)
        told = len(logs)
        clock.shift(30)
        ending.spare(LOCK, "it is kubelet")
        ending.spare(LOCK, "it is kubelet")

    assert told == 11, "ten at once, and then one each 30 s"
    assert [each["reason"] for each in logs[told:]] == ["it is kubelet"]
