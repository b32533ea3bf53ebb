"""Claims by the real daemon: prepared when the kernel shows the devices free, over when it does."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.claimstage import DRIVER, ClaimStage, begin, claim_stage
from holdfast.model.ids import PciAddress

_BOTH_DOORS: dict[str, Any] = {
    "kind": "claimed",
    "tpu": {"enabled": False},
    "pools": [
        {"resourceName": "a.b/claimed", "addresses": ["0000:00:05.0"], "api": "dra"},
        {"resourceName": "a.b/chip", "addresses": ["0000:00:06.0"]},
    ],
}
"""The first chip comes by claims, the second one by the device plugin."""


_AT_ONCE = dict.fromkeys(("letGoGrace", "orphanGrace", "termGrace", "killGrace"), "100ms")
"""What is left of a pod is ended as soon as every guard agrees."""


@pytest.fixture
async def at(short_path: Path) -> AsyncIterator[ClaimStage]:
    async with claim_stage(short_path) as made:
        yield made


async def test_a_claim_is_prepared_used_and_free_for_the_next(at: ClaimStage) -> None:
    first = at.allocate("first", 0)
    (name,) = await at.prepared(first)
    assert name == f"holdfast.dev/claim={first.uid}-{at.label(0)}"
    (device,) = at.spec(first)["devices"]
    nodes = {each["path"]: each for each in device["containerEdits"]["deviceNodes"]}
    group = next(path for path in nodes if path != "/dev/vfio/vfio")
    assert nodes[group].keys() >= {"major", "minor", "type", "fileMode"}
    assert await at.node.locks() == {"0000:00:05.0": "held"}

    await at.be_patient()
    assert await at.unprepare(first) == {"first": ""}
    assert await at.node.locks() == {}
    assert not at.spec_file(first).exists()
    second = at.allocate("second", 0)
    await at.prepared(second)


async def test_a_container_with_the_whole_claim_is_told_of_the_devices_of_every_request(
    short_path: Path,
) -> None:
    addresses = ["0000:00:05.0", "0000:00:06.0"]
    pool = {"resourceName": "a.b/claimed", "addresses": addresses, "api": "dra"}
    async with claim_stage(short_path, kind="claimed", tpu={"enabled": False}, pools=[pool]) as at:
        two = at.allocate("two", 0, more=[{"request": "others", "device": at.label(1)}])
        names = await at.prepared(two)
        envs = [each["containerEdits"]["env"] for each in at.spec(two)["devices"]]
        values = [env[0].partition("=")[2] for env in envs]
        assert values == [*addresses, ",".join(addresses)]
        assert names[-1] == f"holdfast.dev/claim={two.uid}-all.requests"


async def test_a_claim_that_comes_before_the_end_of_the_former_one_waits_for_what_is_left(
    at: ClaimStage,
) -> None:
    """A pod and its claim are force-deleted: the scheduler hands the chip on at once."""
    first, second = at.allocate("first", 0), at.allocate("second", 0)
    await at.prepared(first)
    held = at.opens(first.pods[0], 0)

    preparing = asyncio.create_task(at.prepared(second))
    await at.node.until(at.node.queued, "the second claim to wait")
    ending = asyncio.create_task(at.unprepare(first))
    await at.node.until(at.node.all_releasing, "the first claim to be over")
    assert not preparing.done()
    held.end()
    assert await ending == {"first": ""}
    assert await preparing
    assert any(f"unprepared claim team/first ({first.uid})" in each for each in await at.history(0))


async def test_what_is_prepared_stays_so_when_the_daemon_is_killed(at: ClaimStage) -> None:
    first, second = at.allocate("first", 0), at.allocate("second", 0)
    names = await at.prepared(first)
    at.node.kill()
    await begin(at)
    assert await at.node.locks() == {"0000:00:05.0": "held"}
    assert at.spec_file(first).exists()
    assert await at.prepared(first) == names
    preparing = asyncio.create_task(at.prepare(second))
    await at.node.until(at.node.queued, "the second claim to wait")
    await at.unprepare(first)
    assert not (await preparing)["second"].error


async def test_kubelets_device_plugins_hear_nothing_of_hardware_behind_claims(
    at: ClaimStage,
) -> None:
    await at.prepared(at.allocate("first", 0))
    assert at.node.heard() == 0
    assert not list(at.node.kubelet.folder.glob("holdfast*.sock"))


async def test_claims_are_refused_by_the_daemon_with_a_text(at: ClaimStage) -> None:
    wrong = [
        at.allocate("admin", 0, adminAccess=True),
        at.allocate("renamed", device="tpu-gone"),
        at.allocate("others", 0, driver="other.example.com"),
    ]
    answers = await at.prepare(*wrong)
    assert "adminAccess" in answers["admin"].error
    assert "no device tpu-gone any more" in answers["renamed"].error
    assert "no device of driver holdfast.dev" in answers["others"].error
    assert await at.node.locks() == {}


async def test_people_are_told_of_claims_and_who_waits_for_whom(at: ClaimStage) -> None:
    first, second = at.allocate("first", 0), at.allocate("second", 0)
    await at.prepared(first)
    at.opens(first.pods[0], 0)
    preparing = asyncio.create_task(at.prepare(second))
    await at.node.until(at.node.queued, "the second claim to wait")

    status = await at.node.asked("status")
    assert status is not None
    told = {each["claim"]: each for each in status["claims"]}
    one, two = (f"team/{each.name} ({each.uid})" for each in (first, second))
    assert {name: each["phase"] for name, each in told.items()} == {
        one: "prepared",
        two: "preparing",
    }
    assert "is held by team/pod-of-first-0 by claim team/first; " in told[two]["waits"]
    pod = f"pod team/pod-of-first-0 ({first.pods[0]}) by claim team/first"
    locks = {each["claim"]: each for each in await at.node.asked("locks") or ()}
    assert locks[one]["claimPods"] == [f"team/pod-of-first-0 ({first.pods[0]})"]
    assert pod in locks[two]["reason"]
    holder = next(iter(await at.node.asked("holders") or ()))
    assert (holder["claim"], holder["claimPhase"]) == (one, "prepared")
    device = next(each for each in await at.node.asked("devices") or () if each["claim"])
    assert device["claim"] == one
    debug = await at.node.asked("debug")
    assert debug is not None
    assert debug["claims"] == status["claims"]
    assert debug["dra"]["driver"] == DRIVER
    assert debug["dra"]["slices"]["problem"] == ""
    await at.unprepare(second)
    assert (await preparing)["second"].error
    moves = await at.node.asked("history", limit=100) or ()
    assert {each["claim"] for each in moves} == {one}


async def test_both_doors_serve_one_node_each_its_own_hardware(short_path: Path) -> None:
    async with claim_stage(short_path, **_BOTH_DOORS) as at:
        await at.node.until(
            lambda: at.node.healthy("a.b/chip") == {"0000:00:06.0"}, "the second chip to be offered"
        )
        assert not at.node.kubelet.messages.get("a.b/claimed")
        await at.prepared(at.allocate("first", 0))
        other = await at.prepare(at.allocate("second", 1))
        assert "this node has no device claimed-0000-00-06-0" in other["second"].error
        assert await at.node.locks() == {"0000:00:05.0": "held"}


async def test_what_kubelet_has_prepared_is_held_although_the_ledger_was_lost(
    at: ClaimStage,
) -> None:
    first = at.allocate("first", 0)
    await at.prepared(first)
    at.record(first)
    at.node.kill()
    shutil.rmtree(at.node.state)
    await begin(at)
    await at.node.until(lambda: _held(at), "the chip to be held again")
    assert "claim taken over from kubelet's record" in at.node.log


async def test_a_chip_that_a_claim_has_is_offered_again_at_its_end(short_path: Path) -> None:
    async with claim_stage(short_path) as at:
        first = at.allocate("first", 0)
        await at.prepared(first)
        await at.node.stop()
        at.node.settings["tpu"] = {"api": "device-plugin"}
        await begin(at)
        await at.node.until(
            lambda: at.node.healthy() == {"0000:00:06.0"}, "the other chip to be offered"
        )
        assert "this node has no device" in (await at.prepare(at.allocate("late", 1)))["late"].error
        await at.prepared(first)  # kubelet asks again for each new sandbox of its pod
        assert await at.unprepare(first) == {"first": ""}
        await at.node.until(lambda: len(at.node.healthy()) == 2, "both chips to be offered")
        assert at.node.ever_unhealthy() == {"0000:00:05.0"}


async def _held(at: ClaimStage) -> bool:
    return await at.node.locks() == {"0000:00:05.0": "held"}


@pytest.mark.parametrize("both_doors", [True, False])
async def test_what_a_claims_pod_left_behind_is_ended_while_its_end_waits(
    short_path: Path, both_doors: bool
) -> None:
    """Also where kubelet has no device plugin of ours, and so no checkpoint to ask it for."""
    async with claim_stage(
        short_path,
        unprepare_wait="60s",
        reclaim=_AT_ONCE,
        **(_BOTH_DOORS if both_doors else {}),
    ) as at:
        first = at.allocate("first", 0)
        await at.prepared(first)
        orphan = await at.leaves_behind(first.pods[0], 0)
        assert await at.unprepare(first) == {"first": ""}
        await at.node.until(lambda: not orphan(), "the orphan to be gone")
        assert await at.node.locks() == {}
        assert any("ending pid" in each for each in await at.history(0))


async def test_a_pod_with_another_claim_is_not_over(short_path: Path) -> None:
    """Older kubelets unprepare a claim whose pod goes on (kubernetes#140212)."""
    async with claim_stage(short_path, unprepare_wait="2s", reclaim=_AT_ONCE) as at:
        first = at.allocate("first", 0)
        second = at.allocate("second", 1, pods=first.pods)
        await at.prepare(first, second)
        lives = await at.leaves_behind(first.pods[0], 0)
        assert await at.unprepare(first) == {"first": ""}
        assert "kubelet counts its pod" in at.node.log
        by_hand = await at.node.asked("releasable", device="google.com/tpu/0000:00:05.0")
        assert by_hand is not None
        assert "kubelet counts pod" in by_hand["refusal"]
        assert lives()
        assert await at.unprepare(second) == {"second": ""}
        await at.node.until(lambda: not lives(), "the orphan to be ended")


@pytest.mark.parametrize("another", ["0", "z"])
async def test_what_a_pod_left_behind_is_ended_though_another_uses_a_claim_of_its(
    short_path: Path, another: str
) -> None:
    """Kubelet makes no call for a pod that leaves a claim which others use."""
    async with claim_stage(short_path, unprepare_wait="2s", reclaim=_AT_ONCE) as at:
        own = at.allocate("own", 0)
        shared = at.allocate("shared", 1, pods=(*own.pods, another))
        at.record(shared, device=at.label(1))
        await at.prepare(own, shared)
        lives = await at.leaves_behind(own.pods[0], 0)
        assert await at.unprepare(own) == {"own": ""}
        assert lives()
        at.record(shared, [another], device=at.label(1))
        await at.node.until(lambda: not lives(), "the orphan to be ended")
        await at.node.until_locks({"0000:00:06.0": "held"})


def test_without_hardware_behind_claims_and_events_nothing_of_them_is_loaded() -> None:
    code = (
        "import sys, holdfast.app.daemon\n"
        "rooms = ('holdfast.dra', 'holdfast.apiserver', 'holdfast.app.wiring.dra',\n"
        " 'holdfast.app.wiring.events', 'holdfast.app.watches.notices', 'holdfast.model.events')\n"
        "print([name for name in sys.modules if name.startswith(rooms)])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


async def test_a_daemon_whose_token_comes_late_begins_with_claims_then(short_path: Path) -> None:
    async with claim_stage(short_path, start=False) as at:
        token = at.plane.account / "token"
        later = token.rename(token.with_name("later"))
        await begin(at)
        missing = f"there is no {token}; set automountServiceAccountToken to true"
        assert "cannot prepare claims yet" in at.node.log
        await at.node.until_problem("ResourceSlices", missing)
        first = at.allocate("first", 0)
        waiting = asyncio.create_task(at.prepare(first))
        await at.node.until(
            lambda: at.plane.server.requests == [] and not waiting.done(), "it to wait"
        )
        assert await at.unprepare(at.allocate("never prepared", 1)) == {"never prepared": ""}
        later.rename(token)
        (answer,) = (await waiting).values()
        assert answer.error == ""
        await at.node.until(at.plane.slices, "the slices to be published")


async def test_claims_that_are_left_stop_no_daemon_that_has_no_service_account(
    at: ClaimStage,
) -> None:
    await at.prepared(at.allocate("first", 0))
    await at.node.stop()
    at.node.settings["tpu"] = {"api": "device-plugin"}
    (at.plane.account / "token").unlink()
    at.node.start()
    await at.node.until(
        lambda: at.node.healthy() == {"0000:00:06.0"}, "the other chip to be offered"
    )
    assert "cannot serve the claims that are left" in at.node.log
    assert await at.node.locks() == {"0000:00:05.0": "held"}


async def test_without_a_claim_that_is_left_nothing_of_dra_is_needed_to_be_ready(
    at: ClaimStage,
) -> None:
    """A claim that is over is remembered for ten minutes, and the chart's mounts go at once."""
    first = at.allocate("first", 0)
    await at.prepared(first)
    await at.node.stop()
    at.node.settings["tpu"] = {"api": "device-plugin"}
    await begin(at)
    assert "registered holdfast.dev" in await _checks(at)
    assert await at.unprepare(first) == {"first": ""}
    await at.node.until_free()
    assert "registered holdfast.dev" not in await _checks(at)
    await at.node.stop()
    for each in ("plugins", "plugins_registry"):
        shutil.rmtree(at.root / each)
    at.node.start()
    await at.node.until(lambda: len(at.node.healthy()) == 2, "both chips to be offered")
    assert {"registered holdfast.dev", "ResourceSlices"}.isdisjoint(await _checks(at))


async def _checks(at: ClaimStage) -> set[str]:
    return {each["name"] for each in (await at.node.asked("status") or {})["checks"]}


@pytest.mark.parametrize("rules", [[], [{"match": {"pci": "0000:00:06.0"}, "exclude": True}]])
async def test_no_spec_leads_to_a_chip_of_another_after_groups_were_numbered_anew(
    at: ClaimStage, rules: list[dict[str, object]]
) -> None:
    """As those of virtual functions are that are made anew; kubelet makes no call for a restart.

    The other may be left out by a rule: somebody else may have it.
    """
    at.node.configure(devices=rules)
    await at.node.asked("reload")
    first = at.allocate("first", 0)
    at.record(first)
    await at.prepared(first)
    groups = [int(at.path(chip).name) for chip in range(2)]
    at.node.node.tree.regroup(
        {PciAddress("0000:00:05.0"): groups[0] + 40, PciAddress("0000:00:06.0"): groups[0]}
    )
    await at.node.until(lambda: not at.spec_file(first).exists(), "its spec to be removed")
    assert await at.node.locks() == {"0000:00:05.0": "held"}
    # Kubelet asks again after a restart of its own.
    await at.prepared(first)
    (device,) = at.spec(first)["devices"]
    paths = [each["path"] for each in device["containerEdits"]["deviceNodes"]]
    assert f"/dev/vfio/{groups[0] + 40}" in paths
    assert f"/dev/vfio/{groups[0]}" not in paths


async def test_after_a_reboot_a_claim_is_prepared_anew_with_the_nodes_of_this_boot(
    at: ClaimStage,
) -> None:
    """Kubelet asks again; the folder of specs is empty, and groups have other numbers."""
    first = at.allocate("first", 0)
    names = await at.prepared(first)
    (before,) = at.spec(first)["devices"]
    at.node.kill()
    group = int(at.path(0).name)
    at.node.node.reboot(groups={group: group + 40})
    at.spec_file(first).unlink()
    await begin(at)
    assert await at.prepared(first) == names
    (after,) = at.spec(first)["devices"]
    paths = [
        {each["path"] for each in device["containerEdits"]["deviceNodes"]}
        for device in (before, after)
    ]
    assert f"/dev/vfio/{group}" in paths[0]
    assert f"/dev/vfio/{group + 40}" in paths[1]
    await at.be_patient()
    assert await at.unprepare(first) == {"first": ""}
    assert await at.node.locks() == {}
