"""What a person asks for on a node whose chips come by claims, through the command line."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fakes.claimstage import Claim, ClaimStage, claim_stage
from waiting import beside

_CHIP = "0000:00:05.0"
_PATIENT = {"letGoGrace": "1h", "orphanGrace": "1h"}
_OBSERVE = {
    "mode": "observe",
    "termGrace": "300ms",
    "killGrace": "5s",
    **_PATIENT,
}
"""The daemon would end nothing by itself."""


@pytest.fixture
async def at(short_path: Path) -> AsyncIterator[ClaimStage]:
    # As the chart has it, on a node whose /var/lib/kubelet is a link to a larger disk.
    root = short_path / "seen/proc/1/root"
    root.parent.mkdir(parents=True)
    root.symlink_to(short_path)
    (short_path / "var").symlink_to("/kl")
    state = str(root / "var/dra_manager_state")
    async with claim_stage(
        short_path, reclaim=_OBSERVE, unprepare_wait="1h", claim_state=state
    ) as made:
        yield made


async def test_what_a_claim_has_is_not_released_before_kubelet_unprepares_it(
    at: ClaimStage,
) -> None:
    first = at.allocate("first", 0)
    await at.prepared(first)
    held = at.opens(first.pods[0], 0)
    for words in (["--force", "--pod", "pod-of-first-0"], ["--yes"]):
        done = await at.node.command("release", _CHIP, *words)
        assert held.lives
        assert done.returncode == 1
        assert f"by claim team/first ({first.uid})" in done.stdout
        assert "delete the pods that use the claim" in done.stderr
    assert await at.node.locks() == {_CHIP: "held"}


async def test_what_a_claim_left_is_ended_on_a_persons_word_and_its_end_waits_no_longer(
    at: ClaimStage,
) -> None:
    first = at.allocate("first", 0)
    await at.prepared(first)
    lives = await at.leaves_behind(first.pods[0], 0)
    ending = asyncio.create_task(at.unprepare(first))
    await at.node.until(at.node.all_releasing, "the claim to be over")
    assert lives()

    done = await at.node.command("release", _CHIP, "--yes")

    assert done.returncode == 0, done.stdout + done.stderr
    assert not lives()
    assert await ending == {"first": ""}
    assert await at.node.locks() == {}


async def test_a_pod_that_has_another_claim_lives_and_nothing_of_it_is_ended(
    at: ClaimStage,
) -> None:
    """Kubelet's checkpoint, which is asked about pods, has nothing of claims."""
    first = at.allocate("first", 0)
    second = at.allocate("second", 1, pods=first.pods)
    await at.prepared(first)
    await at.prepared(second)
    lives = await at.leaves_behind(first.pods[0], 0)
    async with beside(at.unprepare(first)):
        await at.node.until(lambda: _is_over(at, _CHIP), "the claim to be over")

        done = await at.node.command("release", _CHIP, "--yes")

        assert (done.returncode, lives()) == (1, True)
        assert "kubelet counts pod" in done.stderr


async def _is_over(at: ClaimStage, chip: str) -> bool:
    return (await at.node.locks())[chip] == "releasing"


async def test_a_holder_that_no_word_ends_keeps_the_chip_and_not_the_pod(at: ClaimStage) -> None:
    first, second = at.allocate("first", 0), at.allocate("second", 0)
    await at.prepared(first)
    lives = await at.leaves_behind(first.pods[0], 0)
    held = at.opens(second.pods[0], 0)  # of a pod that the chip was not granted to
    ending = asyncio.create_task(at.unprepare(first))
    await at.node.until(at.node.all_releasing, "the claim to be over")

    releasing = asyncio.create_task(at.node.command("release", _CHIP, "--yes"))

    assert await ending == {"first": ""}
    assert held.lives
    await at.node.until(lambda: not lives(), "what was left of the pod to be ended")
    assert await at.node.locks() != {}
    held.end()
    done = await releasing
    assert done.returncode == 0, done.stdout + done.stderr


async def test_a_drained_node_prepares_no_new_claim_and_leaves_after_the_last(
    at: ClaimStage,
) -> None:
    first, second = at.allocate("first", 0), at.allocate("second", 1)
    names = await at.prepared(first)
    at.record(first)
    assert "draining" in (await at.node.command("drain", "--reason", "new disk")).stdout
    preparing = asyncio.create_task(at.prepare(second))
    await at.node.until(lambda: _is_told(at, second, "new disk"), "the second claim to wait")
    assert await at.prepared(first) == names, "what is prepared stays so"

    await at.unprepare(second)
    assert (await preparing)["second"].error
    removable = await at.node.asked("removable") or []
    assert any(f"{_CHIP} is held by pod" in each for each in removable)
    await at.unprepare(first)

    async def only_kubelet() -> bool:
        found = await at.node.asked("removable") or []
        return [each for each in found if "kubelet has claim team/first" in each] == found != []

    await at.node.until(only_kubelet, "kubelet alone to need the driver")
    (at.root / "dra_manager_state").unlink()
    assert await at.node.asked("removable") == []


async def test_a_quarantined_chip_is_prepared_for_no_claim_until_that_is_lifted(
    at: ClaimStage,
) -> None:
    first = at.allocate("first", 0)
    await at.node.command("quarantine", _CHIP, "--reason", "ECC errors")
    preparing = asyncio.create_task(at.prepare(first))
    await at.node.until(lambda: _is_told(at, first, "ECC errors"), "the claim to wait")
    await at.node.until(lambda: _taints(at), "the scheduler to be told")
    assert await at.node.locks() == {}
    await at.node.command("unquarantine", _CHIP)
    assert not (await preparing)["first"].error
    await at.node.until(lambda: not _taints(at), "the scheduler to be told")


def _taints(at: ClaimStage) -> list[str]:
    devices = (
        device for each in at.plane.slices().values() for device in each["spec"].get("devices", ())
    )
    return [taint["value"] for each in devices for taint in each.get("taints", ())]


async def _is_told(at: ClaimStage, claim: Claim, reason: str) -> bool:
    status = await at.node.asked("status") or {}
    waits = {each["claimUid"]: each["waits"] for each in status["claims"]}
    return reason in (waits.get(claim.uid) or "")


async def test_a_claim_that_kubelet_forgot_is_ended_for_who_names_its_pod(at: ClaimStage) -> None:
    first = at.allocate("first", 0)
    await at.prepared(first)
    at.record(first, pods=())
    pod = ["--force", "--pod", "pod-of-first-0"]

    async def released() -> bool:
        return (await at.node.command("release", _CHIP, *pod)).returncode == 0

    await at.node.until(released, "the device to be released")
    await at.node.until_free()
    moves = await at.history(0)
    assert any("kubelet has no record of the claim" in each for each in moves)
