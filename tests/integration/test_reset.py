"""After a forced release a device is reset and checked before anybody else gets it."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.stage import TPU, Stage, pod, stage
from simulated.pods import Phase, Pod

_FORCE: dict[str, Any] = {
    "mode": "terminate",
    "letGoGrace": "0s",
    "orphanGrace": "0s",
    "termGrace": "100ms",
    "killGrace": "10s",
    "unseenGrace": "0s",
    "resetTimeout": "1s",
    "retry": {"first": "200ms", "last": "400ms"},
}
_RESET = {**_FORCE, "reset": "afterForcedRelease"}
_STUCK = "device resets"
_CHIPS = ("0000:00:05.0", "0000:00:06.0")


def _own_reset(node: Stage, *chips: str, methods: str = "flr bus") -> None:
    """Give the chips a reset of their own, and an answer."""
    for chip in chips:
        folder = node.node.tree.path(chip)
        (folder / "reset_method").write_text(f"{methods}\n")
        (folder / "reset").write_text("")
        (folder / "config").write_bytes(b"\xe0\x1a\x63\x00")


def _hang(node: Stage, chip: str) -> None:
    """Let the next reset of a chip not return: nobody reads what is written."""
    reset = node.node.tree.path(chip) / "reset"
    reset.unlink()
    os.mkfifo(reset)


@contextlib.contextmanager
def _returning(node: Stage, chip: str) -> Iterator[None]:
    """Let what hangs, and what would, return."""
    reader = os.open(node.node.tree.path(chip) / "reset", os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield
    finally:
        os.close(reader)


def _was_reset(node: Stage, chip: str) -> bool:
    return bool((node.node.tree.path(chip) / "reset").read_text())


async def _counted(node: Stage) -> Pod:
    """Run a pod that will leave an orphan, and return once it was seen in kubelet's checkpoint.

    Of a pod that kubelet was never seen to count, nothing is ever ended.
    """
    old = await node.run(pod("old", orphan=1))
    await node.questions()
    return old


async def _forced(node: Stage) -> tuple[Pod, str]:
    """Let a pod leave an orphan that the daemon has to end; return it, and its device."""
    old = await _counted(node)
    (chip,) = node.ids(old)
    await node.end(old)
    await node.until(lambda: not node.orphans(old), "the orphan to be ended")
    return old, chip


async def _counted_again(node: Stage, old: Pod) -> None:
    """Let kubelet count *old* again, with the one chip that it had; return when it has the lock."""
    node.kubelet.pods[old.uid] = Pod(spec=old.spec, phase=Phase.RUNNING)
    node.kubelet.devices.note(old.uid, TPU, _CHIPS[:1])
    node.kubelet.devices.write()
    await node.until_locks({_CHIPS[0]: "held"})


async def _evidence(node: Stage, state: str) -> str:
    """Return what was written down at the last move to *state*."""
    moves: list[dict[str, Any]] = []

    async def moved() -> bool:
        moves[:] = await node.ever(state)
        return bool(moves)

    await node.until(moved, f"a device to be {state}")
    return str(moves[-1]["evidence"])


async def test_what_was_forced_to_let_go_is_reset_and_checked_before_it_is_free(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1, reclaim=_RESET) as node:
        _own_reset(node, *_CHIPS[:1])
        _, chip = await _forced(node)
        await node.until_free()
        assert _was_reset(node, chip)
        evidence = await _evidence(node, "free")
        assert f"{chip} reset (flr)" in evidence
        assert f"{chip} checked" in evidence
        await node.until(lambda: len(node.healthy()) == 1, "all to be offered again")
        await node.run(pod("next"))


async def test_what_was_let_go_unforced_is_neither_reset_nor_checked(short_path: Path) -> None:
    async with stage(short_path, chips=1, reclaim=_RESET) as node:
        _own_reset(node, *_CHIPS[:1])
        old = await node.run(pod("old", runs_for=0.0))
        await node.until(lambda: old.stopped, "the pod to be over")
        await node.until_free()
        assert not _was_reset(node, _CHIPS[0])
        assert "checked" not in await _evidence(node, "free")


async def test_by_default_nothing_is_reset_but_what_was_forced_is_checked(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1, reclaim=_FORCE) as node:
        _own_reset(node, *_CHIPS[:1])
        _, chip = await _forced(node)
        await node.until_free()
        assert not _was_reset(node, chip)
        assert f"{chip} checked" in await _evidence(node, "free")


async def test_a_function_that_only_a_bus_reset_would_reset_is_left_alone_and_becomes_free(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1, reclaim=_RESET) as node:
        _own_reset(node, *_CHIPS[:1], methods="bus")
        _, chip = await _forced(node)
        await node.until_free()
        assert not _was_reset(node, chip)
        assert "has no reset of its own (only bus)" in await _evidence(node, "free")


async def test_a_reset_that_hangs_quarantines_that_device_alone_and_ends_when_it_returns(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=2, reclaim=_RESET) as node:
        _own_reset(node, *_CHIPS)
        for each in _CHIPS:
            _hang(node, each)
        _, chip = await _forced(node)
        evidence = await _evidence(node, "quarantined")
        assert "has not returned within 1 s" in evidence
        await node.until_problem(_STUCK, f"lane reset google.com/tpu/{chip} is stuck")

        other = await node.run(pod("other"))
        assert node.ids(other) == set(_CHIPS) - {chip}
        await node.end(other)
        await node.until_locks({chip: "quarantined"})

        with _returning(node, chip):
            await node.until_free()
        await node.until_problem(_STUCK, "")
        await node.until(lambda: node.healthy() == set(_CHIPS), "kubelet to hear that it is back")
        await node.run(pod("next", chips=2))


async def test_a_device_that_does_not_answer_is_quarantined_and_returns_when_it_does(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1, reclaim=_FORCE) as node:
        config = node.node.tree.path(_CHIPS[0]) / "config"
        config.write_bytes(b"\xff\xff\xff\xff")
        await _forced(node)
        assert "does not answer" in await _evidence(node, "quarantined")
        await node.for_some_beats()
        assert await node.ever("free") == []
        config.write_bytes(b"\xe0\x1a\x63\x00")
        await node.until_free()


async def test_a_device_that_cannot_even_be_looked_at_is_quarantined_alone(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=2, reclaim=_RESET) as node:
        odd = [node.node.tree.path(chip) / "reset" for chip in _CHIPS]
        for each in odd:
            each.symlink_to("x" * 300)  # the system has an error for that, other than absence
        await _forced(node)
        assert "cannot be checked" in await _evidence(node, "quarantined")
        await node.until(lambda: len(node.healthy()) == 1, "all to be offered again")
        await node.run(pod("next"))
        for each in odd:
            each.unlink()
        await node.until(lambda: node.ever("free"), "the device to return")


async def test_a_daemon_killed_while_a_reset_hangs_begins_anew_and_frees_nothing_before(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1, own_process=True, reclaim=_RESET) as node:
        _own_reset(node, _CHIPS[0])
        _hang(node, _CHIPS[0])
        await _forced(node)
        await node.until_locks({_CHIPS[0]: "reclaiming"})
        await node.kill_and_start()
        await node.until_locks({_CHIPS[0]: "quarantined"})
        await node.kill_and_start()
        await node.until_problem(_STUCK, "is stuck")
        assert await node.ever("free") == []
        with _returning(node, _CHIPS[0]):
            await node.until_free()


async def test_a_pod_that_comes_back_while_its_device_is_being_reset_waits_at_the_gate(
    short_path: Path,
) -> None:
    """The lock is its own again, and no process but our own has the group open."""
    async with stage(short_path, chips=1, reclaim={**_RESET, "resetTimeout": "1h"}) as node:
        _own_reset(node, _CHIPS[0])
        _hang(node, _CHIPS[0])
        old, _ = await _forced(node)
        await node.until(lambda: node.node.tree.in_use("/dev/vfio/10"), "the reset to be begun")
        await node.until_locks({_CHIPS[0]: "reclaiming"})
        await _counted_again(node, old)
        assert "being reset and checked" in await node.pre_start(_CHIPS[0])
        with _returning(node, _CHIPS[0]):
            await node.until(
                lambda: not node.node.tree.in_use("/dev/vfio/10"), "the reset to return"
            )
        assert await node.pre_start(_CHIPS[0]) == ""


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "{}"),
        # Whatever it is called.
        (
            {"pools": [{"resourceName": "example.com/chip", "devices": ["1ae0:*"]}]},
            "example.com/chip/{}",
        ),
    ],
)
async def test_what_is_quarantined_by_a_failed_check_is_tried_at_once_by_hand(
    short_path: Path, changes: dict[str, Any], name: str
) -> None:
    slow = {**_FORCE, "retry": {"first": "1h", "last": "1h"}}
    async with stage(short_path, chips=1, reclaim=slow, **changes) as node:
        config = node.node.tree.path(_CHIPS[0]) / "config"
        config.write_bytes(b"\xff\xff\xff\xff")
        _, chip = await _forced(node)
        await node.until_locks({chip: "quarantined"})
        config.write_bytes(b"\xe0\x1a\x63\x00")
        await node.for_some_beats()
        assert await node.ever("free") == []
        answer = await node.asked("unquarantine", device=name.format(chip))
        assert "reclaimed again now" in answer["text"]
        await node.until_free()


async def test_one_that_a_rescan_left_without_a_driver_is_bound_again_where_allowed(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1, reclaim={**_FORCE, "rebind": True}) as node:
        tree, probe = node.node.tree, node.node.root.sys / "bus/pci/drivers_probe"
        probe.write_text("")
        old = await _counted(node)
        (chip,) = node.ids(old)
        (tree.path(chip) / "driver_override").write_text("(null)\n")
        tree.unbind(chip)
        await node.end(old)
        await node.until(lambda: probe.read_text() == chip, "the function to be offered to VFIO")
        assert (tree.path(chip) / "driver_override").read_text() == "vfio-pci"
        await node.until_locks({chip: "quarantined"})
        tree.bind(chip, "vfio-pci")
        await node.until_free()


async def test_a_reset_that_returned_is_not_told_to_hang_though_its_pod_has_the_device_again(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1, reclaim=_RESET) as node:
        _own_reset(node, _CHIPS[0])
        _hang(node, _CHIPS[0])
        old, _ = await _forced(node)
        await node.until_problem(_STUCK, "stuck")
        await _counted_again(node, old)
        with _returning(node, _CHIPS[0]):
            opened = node.node.tree.in_use
            await node.until(lambda: not opened("/dev/vfio/10"), "the reset to return")
        assert await node.pre_start(_CHIPS[0]) == ""
        await node.until_problem(_STUCK, "")
