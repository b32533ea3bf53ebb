"""The time of day is set forward and back: nothing is lost, nobody is refused, nobody is ended."""

from pathlib import Path
from typing import Any

import pytest

from fakes.stage import Stage, end, pod, stage

_HOUR = 3600.0
# All graces are shorter than the step, and longer than the test: only the step could end them.
_RECLAIM = {
    "mode": "terminate",
    "letGoGrace": "20m",
    "orphanGrace": "20m",
}
_QUICK: dict[str, Any] = {
    "drift": {"settle": "20m"},
    "withholdAfter": "20m",
    "allocate": {"pendingTimeout": "20m"},
}


async def _noticed(node: Stage) -> None:
    """Return when the daemon has had time to draw wrong conclusions."""
    await node.questions(2)
    await node.for_some_beats()


@pytest.mark.parametrize("again", [False, True], ids=["the daemon goes on", "the daemon restarts"])
@pytest.mark.parametrize("off", [_HOUR, -_HOUR], ids=["forward and back", "back and forward"])
async def test_pods_in_every_state_keep_what_they_have_and_the_next_ones_get_it(
    short_path: Path, off: float, again: bool
) -> None:
    async with stage(short_path, chips=3, reclaim=_RECLAIM, **_QUICK) as node:
        everything = node.healthy()
        runs = await node.run(pod("runs"))
        pulls = await node.submit(pod("pulls", pull=_HOUR))
        leaves, left = await node.left_behind("leaves")
        states = {
            **dict.fromkeys(node.ids(runs) | node.ids(pulls), "held"),
            **dict.fromkeys(everything - node.ids(runs) - node.ids(pulls), "releasing"),
        }
        await node.until_locks(states)

        node.set_clock(off)
        if again:
            await node.stop()
            await node.start_and_register()
        await _noticed(node)
        assert await node.locks() == states
        waits = await node.submit(pod("waits"))  # kubelet refuses it where a device is withheld
        await node.waiting(waits, leaves, f"pid {left}")

        node.set_clock(0.0)
        if again:
            await node.stop()
            await node.start_and_register()
        await _noticed(node)
        await node.waiting(waits, leaves, f"pid {left}")
        assert await node.locks() == states
        assert node.ever_unhealthy() == set()
        assert node.orphans(leaves) == (left,)
        assert len(node.orphans(runs)) == 1

        end(left)
        await node.running(waits)
        for each in (runs, pulls, waits):
            await node.end(each)
        await node.until_free()
        for name in ("a", "b", "c"):
            await node.run(pod(name))


@pytest.mark.parametrize("off", [_HOUR, -_HOUR], ids=["ahead", "behind"])
async def test_what_was_allocated_while_the_clock_was_wrong_is_given_back_once_it_is_right(
    short_path: Path, off: float
) -> None:
    """A machine's own clock may be hours off until the network tells the time."""
    async with stage(short_path, chips=2, start=False) as node:
        node.set_clock(off)
        node.kubelet.devices.write()
        await node.start_and_register()
        runs = await node.run(pod("runs"))
        pulls = await node.submit(pod("pulls", pull=_HOUR))
        node.set_clock(0.0)
        for each in (runs, pulls):
            await node.end(each)
        await node.until_free()
