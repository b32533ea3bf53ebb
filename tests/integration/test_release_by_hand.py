"""holdfast release: through the command line, against a real daemon that would rather wait."""

import asyncio
import os
import subprocess
from pathlib import Path

from fakes.opener import stranger
from fakes.stage import TPU, Stage, asks, pod, stage
from holdfast.control import ask
from holdfast.errors import HoldfastError
from simulated.pods import Container, Pod, PodSpec

# In none of these stories would the daemon end anything by itself.
_PATIENT = {"letGoGrace": "1h", "orphanGrace": "1h"}
_OBSERVE = {"mode": "observe", **_PATIENT}
_QUICK = {**_OBSERVE, "termGrace": "300ms", "killGrace": "5s"}


async def _orphaned(node: Stage) -> tuple[Pod, int]:
    """Leave one process, which ignores SIGTERM, of a pod that is over."""
    old, left = await node.left_behind()
    await node.until(node.all_releasing, "its device to be released")
    return old, left


async def _opened(node: Stage, device: str) -> None:
    """Return when the daemon sees somebody hold *device*: a program opens it after it started."""

    async def so() -> bool:
        return bool((await node.asked("releasable", device=device))["holders"])

    await node.until(so, "the device to be opened")


async def test_an_orphan_is_ended_at_once_and_in_observe_mode_because_a_person_asks(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1, reclaim=_QUICK) as node:
        (only,) = node.healthy()
        old, left = await _orphaned(node)
        waits = await node.submit(pod("waits"))
        await node.waiting(waits, f"pid {left}")
        asked = await node.command("release", only)
        assert (asked.returncode, "give --yes" in asked.stderr) == (1, True)
        assert f"pid {left} (python) of pod {old.uid}" in asked.stdout, "it is shown first"
        await node.for_some_beats()
        assert node.orphans(old) == (left,), "who does not agree ends nothing"

        done = await node.command("release", only, "--yes")
        assert done.returncode == 0, done.stderr + done.stdout
        assert "is free of pod" in done.stdout
        await node.running(waits)
        moves = await node.asked("history", limit=1000)
        (told,) = [each for each in moves if "to be released" in each["evidence"]]
        assert f"(asked by uid {os.getuid()}, pid " in told["evidence"]
        steps = [each["to"] for each in moves if each["fence"] > told["fence"]]
        assert steps[:2] == ["reclaiming", "free"]


async def test_a_device_is_never_free_because_somebody_said_so(short_path: Path) -> None:
    async with stage(short_path, chips=1, reclaim=_QUICK) as node:
        (only,) = node.healthy()
        old, left = await _orphaned(node)
        with stranger(node.node, "/dev/vfio/10") as other:
            done = await node.command("release", only, "--yes")
            assert done.returncode == 1
            assert "is not free yet: the kernel still shows it in use" in done.stderr
            assert left not in node.orphans(old), "what was the pod's is ended"
            assert other.lives, "what was not is not"
            assert (await node.locks())[only] != "free"
            assert node.healthy() == set()
        await node.until_free()


async def test_what_holdfast_granted_to_nobody_is_not_ended_by_any_word(short_path: Path) -> None:
    async with stage(short_path, chips=1, reclaim=_QUICK) as node:
        (only,) = node.healthy()
        with stranger(node.node, "/dev/vfio/10") as other:
            await node.until_locks({only: "foreign"})
            for words in (["--yes"], ["--force", "--pod", "old"]):
                done = await node.command("release", only, *words)
                assert done.returncode == 1
                assert "end that yourself" in done.stderr
                assert f"pid {other.pid}" in done.stdout
            assert other.lives
        await node.until_free()
        done = await node.command("release", only, "--yes")
        assert (done.returncode, f"{only} is free" in done.stderr) == (1, True)


async def test_a_pod_that_lives_keeps_its_device_unless_its_own_name_is_typed(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=2, reclaim=_QUICK) as node:
        lives = await node.run(pod("lives", ignores_term=True))
        other = await node.run(pod("other"))
        await node.until_named(lives)
        (device,) = node.ids(lives)
        (pid,) = node.orphans(lives)
        await _opened(node, device)
        for words, complaint in (
            (["--yes"], "kubelet counts pod default/lives"),
            (["--yes", "--force"], "name the pod whose processes are ended"),
            (["--force"], "name the pod whose processes are ended"),
            (["--force", "--pod", "other"], "not to other"),
            (["--force", "--pod", "live"], "not to live\n"),
        ):
            done = await node.command("release", device, *words)
            assert done.returncode == 1, words
            assert complaint in done.stderr
        assert node.orphans(lives) == (pid,)
        history = await node.asked("history", limit=1000)
        assert not [each for each in history if "to be released" in each["evidence"]]

        done = await node.command("release", device, "--force", "--pod", "lives")
        assert done.returncode == 0, done.stderr
        assert f"ended pid {pid}." in done.stdout
        await node.until(lambda: pid not in node.orphans(lives), "its process to be ended")
        assert len(node.orphans(other)) == 1, "nobody else is"
        history = await node.asked("history", limit=1000)
        (told,) = [each for each in history if "to be released by force" in each["evidence"]]
        assert (told["from"], told["to"], told["pod"]) == ("held", "held", lives.uid)


async def test_its_name_stands_in_for_the_answer_of_a_kubelet_that_is_down(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1, reclaim=_QUICK) as node:
        (only,) = node.healthy()
        old, left = await _orphaned(node)
        await node.until_named(old)
        await node.kubelet.stop()
        done = await node.command("release", only, "--yes")
        assert (done.returncode, "kubelet gave no answer" in done.stderr) == (1, True)
        assert node.orphans(old) == (left,), "it may live"
        done = await node.command("release", only, "--force", "--pod", "old")
        assert done.returncode == 0, done.stderr
        await node.until(lambda: left not in node.orphans(old), "what is left to be ended")


async def test_of_a_pod_that_lives_only_who_holds_the_device_is_ended(short_path: Path) -> None:
    async with stage(short_path, chips=1, reclaim=_QUICK) as node:
        spec = PodSpec(name="lives", containers=(Container(name="beside"), asks(TPU, 1)))
        lives = await node.run(spec)
        await node.until_named(lives)
        await node.until(lambda: len(node.orphans(lives)) == 2, "both containers to run")
        (device,) = node.ids(lives)
        await _opened(node, device)
        shown = await node.asked("releasable", device=device)
        (holder,), others = shown["holders"], shown["others"]
        done = await node.command("release", device, "--force", "--pod", "default/lives")
        assert done.returncode == 0, done.stderr
        await node.until(lambda: len(node.orphans(lives)) == 1, "the holder to be ended")
        await node.for_some_beats()
        (left,) = node.orphans(lives)
        assert any(f"pid {left} (" in each for each in others)
        assert f"pid {left} (" not in holder
        assert "is granted to pod default/lives" in done.stdout
        again = await node.command("release", device, "--force", "--pod", "default/lives")
        assert "no process of pod default/lives" in again.stdout, again
        assert "delete the pod" in again.stdout


async def test_where_not_everybody_can_be_seen_no_word_ends_a_pod_that_lives(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1, reclaim=_QUICK) as node:
        lives = await node.run(pod("lives"))
        await node.until_named(lives)
        (device,) = node.ids(lives)
        await _opened(node, device)
        with subprocess.Popen(["sleep", "600"]) as unseen:
            node.node.add_process(unseen.pid, "/user.slice/session-1.scope")
            fds = node.node.root.proc / str(unseen.pid) / "fd"
            fds.unlink()
            fds.symlink_to("fd")
            done = await node.command("release", device, "--force", "--pod", "default/lives")
            unseen.kill()
        assert "not ended: pid" in done.stdout, done
        assert node.orphans(lives)


async def test_a_lock_that_has_moved_since_it_was_shown_is_not_released(short_path: Path) -> None:
    async with stage(short_path, chips=1, reclaim=_QUICK) as node:
        (only,) = node.healthy()
        old, left = await _orphaned(node)
        shown = await node.asked("releasable", device=only)
        for fence, complaint in (
            (shown["fence"] - 1, "has changed since it was shown"),
            (None, "say which lock you saw"),
            (str(shown["fence"]), "say which lock you saw"),
        ):
            told = ""
            try:
                await asyncio.to_thread(ask, node.state, "release", device=only, fence=fence)
            except HoldfastError as error:
                told = str(error)
            assert complaint in told
        await node.for_some_beats()
        assert node.orphans(old) == (left,)
