"""By hand, through the command line and the control socket of a real daemon on a whole node."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

from fakes.commands import drain_for_removal
from fakes.stage import PATIENT, Stage, pod, stage


async def _do(node: Stage, *arguments: str) -> str:
    """Return what a command says that must succeed."""
    done = await node.command(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def _marks(node: Stage) -> list[dict[str, Any]]:
    done = await node.command("status", "--output", "json")
    marks: list[dict[str, Any]] = json.loads(done.stdout)["byHand"]
    return marks


async def _told(node: Stage, text: str) -> dict[str, Any]:
    """Return the one line of history with *text*."""
    moves = await node.asked("history", limit=1000)
    (found,) = [move for move in moves if text in move["evidence"]]
    return dict(found)


async def test_a_quarantined_device_is_withheld_until_a_person_lifts_that(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=2) as node:
        (one, other) = sorted(node.healthy())
        said = await _do(node, "quarantine", one, "--reason", "ECC errors")
        assert said == f"google.com/tpu/{one} is quarantined: no new pod gets it\n"
        await node.until(lambda: node.healthy() == {other}, "it to be withheld")

        (mark,) = await _marks(node)
        assert mark | {"state": "quarantined", "uid": os.getuid(), "reason": "ECC errors"} == mark
        move = await _told(node, "quarantined by hand: ECC errors")
        assert f"asked by uid {os.getuid()}, pid {mark['pid']} at " in move["evidence"]
        assert (move["device"], move["from"], move["to"]) == (
            f"google.com/tpu/{one}",
            "free",
            "free",
        )

        runs = await node.run(pod("runs"))
        assert node.ids(runs) == {other}
        said = await _do(node, "unquarantine", one)
        assert "not quarantined by hand any more" in said
        await node.until(lambda: node.healthy() == {one, other}, "it to be offered")
        assert await _marks(node) == []
        refused = await node.command("unquarantine", one)
        assert refused.returncode == 1
        assert "it is not quarantined (its lock is free)" in refused.stderr


async def test_a_pod_that_runs_on_a_quarantined_device_keeps_it_and_the_next_does_not_get_it(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1, gate=PATIENT) as node:
        (only,) = node.healthy()
        runs = await node.run(pod("runs", restart="Always", runs_for=0.3))
        assert "has it and keeps it" in await _do(node, "quarantine", only, "--reason", "hot")
        starts = runs.starts
        await node.until(lambda: runs.starts >= starts + 2, "its container to restart twice")
        assert runs.refusals == 0
        assert node.ever_unhealthy() == set()

        await node.end(runs)
        await node.until_free()
        await node.until(lambda: node.healthy() == set(), "it to be withheld")


async def test_a_pod_that_comes_before_kubelet_has_heard_of_the_quarantine_waits_for_its_end(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1) as node:
        (only,) = node.healthy()
        node.kubelet.hears.clear()
        await _do(node, "quarantine", only, "--reason", "hot")
        waits = await node.submit(pod("waits"))
        node.kubelet.hears.set()
        said = await node.waiting(waits, f"{only} is quarantined by hand: hot (asked by uid")
        assert "it is given again after holdfast unquarantine" in said
        assert await node.locks() == {}, "what is withheld is given to nobody"
        (row,) = await node.asked("locks")
        assert (row["state"], "quarantined by hand: hot" in row["reason"]) == ("queued", True)
        await _do(node, "unquarantine", only)
        await node.running(waits)


async def test_a_quarantine_outlives_the_daemon_and_the_node_from_the_first_message_on(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=2) as node:
        (one, other) = sorted(node.healthy())
        await _do(node, "quarantine", one, "--reason", "hot")
        await node.until(lambda: node.healthy() == {other}, "it to be withheld")
        before = await _marks(node)
        await node.stop()
        down = await node.command("status", "--output", "json")
        assert json.loads(down.stdout)["byHand"] == before, "also told by the ledger alone"
        heard = node.heard()
        await node.start_and_register()
        assert node.told_healthy()[heard] == {other}

        heard = node.heard()
        await node.reboot()
        assert all(one not in healthy for healthy in node.told_healthy()[heard:])
        assert await _marks(node) == before
        table = await node.command("status")
        assert f"QUARANTINED google.com/tpu/{one} by hand for " in table.stdout


async def test_no_retry_lifts_a_quarantine_by_hand(short_path: Path) -> None:
    async with stage(short_path, chips=1) as node:
        (only,) = node.healthy()
        _, left = await node.left_behind()
        await _do(node, "quarantine", only, "--reason", "hot")
        os.kill(left, signal.SIGKILL)
        await node.until_free()
        await node.for_some_beats()
        assert node.healthy() == set()
        assert len(await _marks(node)) == 1


async def test_unquarantine_has_an_automatic_quarantine_tried_again_at_once(
    short_path: Path,
) -> None:
    reclaim = {
        "mode": "terminate",
        "letGoGrace": "200ms",
        "orphanGrace": "200ms",
        "termGrace": "100ms",
        "killGrace": "100ms",
        "retry": {"first": "1h", "last": "1h"},
    }
    async with stage(short_path, chips=1, reclaim=reclaim) as node:
        (only,) = node.healthy()
        old = await node.run(pod("old", runs_for=0.0, orphan=1))
        # Held by another too, who is not of the pod: to end the pod's processes does not help.
        with node.held_open("/dev/vfio/10"):
            await node.until(lambda: old.stopped, "the pod to be over")
            await node.until_locks({only: "quarantined"})
            assert "reclaimed again now" in await _do(node, "unquarantine", only)

            # It may be quarantined again before anybody looks; the history has it all.
            async def retried() -> list[str]:
                moves = await node.asked("history", limit=1000)
                return [each["to"] for each in moves if each["from"] == "quarantined" != each["to"]]

            await node.until(retried, "it to be tried again")
            assert await retried() == ["reclaiming"]
            assert node.healthy() == set()
        await node.until_free()
        await node.until(lambda: node.healthy() == {only}, "kubelet to hear that it is back")
        await node.run(pod("next"))


async def test_a_reason_is_asked_for_and_shown_as_one_line(short_path: Path) -> None:
    async with stage(short_path, chips=1) as node:
        (only,) = node.healthy()
        usage = await node.command("quarantine", only)
        assert usage.returncode == 2
        assert "--reason" in usage.stderr
        empty = await node.command("quarantine", only, "--reason", " \n")
        assert empty.returncode == 1
        assert "give a reason (--reason)" in empty.stderr
        nobody = await node.command("quarantine", "gpu-7", "--reason", "hot")
        assert nobody.returncode == 1
        assert f"cannot find device gpu-7: this node has google.com/tpu/{only}" in nobody.stderr
        await _do(node, "quarantine", only, "--reason", "two\nlines\x1b[2J")
        (mark,) = await _marks(node)
        assert mark["reason"] == "two lines[2J"


async def test_a_drained_node_starts_nothing_new_and_stops_nothing_old(short_path: Path) -> None:
    async with stage(short_path, chips=2) as node:
        both = node.healthy()
        runs = await node.run(pod("runs", restart="Always", runs_for=0.3))
        (free,) = both - node.ids(runs)
        # Admitted before kubelet has heard of the drain.
        node.kubelet.hears.clear()
        said = await _do(node, "drain", "--reason", "new kernel")
        assert said == "holdfast is draining: no new pod starts on a device of this node\n"
        late = await node.submit(pod("late"))
        node.kubelet.hears.set()
        text = await node.waiting(late, "holdfast is draining: new kernel (asked by uid")
        assert "pods start again after holdfast undrain" in text
        starts = runs.starts
        await node.until(lambda: runs.starts >= starts + 2, "its container to restart twice")
        await node.until(lambda: free in node.healthy(), "what a counted pod awaits to be offered")

        await node.end(late)
        await node.until(lambda: free not in node.healthy(), "what nobody has to be withheld")
        assert node.ids(runs) <= node.healthy()
        await node.until_locks(dict.fromkeys(node.ids(runs), "held"))
        assert "holdfast is draining already: new kernel" in await _do(node, "drain")
        table = await node.command("status")
        assert "DRAINING for " in table.stdout
        assert ": new kernel\n" in table.stdout

        await node.stop()
        heard = node.heard()
        await node.start_and_register()
        assert node.told_healthy()[heard] == node.ids(runs), "the drain outlives the daemon"

        assert await _do(node, "undrain") == "holdfast is not draining any more\n"
        await node.until(lambda: node.healthy() == both, "everything to be offered again")
        assert await _marks(node) == []
        again = await node.command("undrain")
        assert (again.returncode, "holdfast is not draining" in again.stderr) == (1, True)
        moves = await node.asked("history", limit=1000)
        ended = {move["device"] for move in moves if "draining ended: asked by" in move["evidence"]}
        assert ended == {f"google.com/tpu/{each}" for each in both}


async def test_drain_for_removal_says_who_is_in_the_way_and_when_nobody_is(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=2) as node:
        runs = await node.run(pod("runs"))
        waits = await node.submit(pod("waits", pull=60.0))
        await node.until(lambda: len(node.ids(waits)) == 1, "the second pod to be admitted")
        with drain_for_removal(node.state) as asking:
            await node.until(lambda: _drained(node), "the drain to begin")
            assert asking.poll() is None
            await node.end(waits)
            await node.for_some_beats()
            assert asking.poll() is None, "a pod still runs"
            await node.end(runs)
            out, err = await asyncio.to_thread(asking.communicate, timeout=30)
        assert asking.returncode == 0, err
        assert f"is held by pod default/runs ({runs.uid})" in out or runs.uid in out
        assert out.splitlines()[-2].startswith("No pod has or waits for a device of this node. ")
        assert node.healthy() == set()


async def test_whose_checkpoint_cannot_be_read_can_not_be_removed_yet(short_path: Path) -> None:
    async with stage(short_path, chips=1) as node:
        node.kubelet.devices.later_version = True
        node.kubelet.devices.write()
        await node.until_problem("kubelet checkpoint", "of no known version")
        with drain_for_removal(node.state) as asking:
            assert asking.stdout is not None
            lines = [await asyncio.to_thread(asking.stdout.readline) for _ in range(3)]
            assert "kubelet's checkpoint cannot be read" in lines[2]
            node.kubelet.devices.later_version = False
            node.kubelet.devices.write()
            _, err = await asyncio.to_thread(asking.communicate, timeout=60)
        assert asking.returncode == 0, err


async def test_who_stops_waiting_for_the_removal_leaves_the_drain_as_it_is(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1) as node:
        await node.run(pod("runs"))
        with drain_for_removal(node.state) as asking:
            assert asking.stdout is not None
            lines = [await asyncio.to_thread(asking.stdout.readline) for _ in range(3)]
            assert lines[1] == "waiting:\n"
            assert "is held by pod" in lines[2]
            asking.send_signal(signal.SIGINT)
            _, err = await asyncio.to_thread(asking.communicate, timeout=30)
        assert asking.returncode == 130
        assert "still draining; `holdfast undrain` ends that" in err
        assert await _drained(node)


async def _drained(node: Stage) -> bool:
    status = await node.asked("status")
    return any(mark["state"] == "draining" for mark in status["byHand"])
