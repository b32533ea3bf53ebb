"""Devices that the settings leave out or move: a pod that has one keeps it, nobody else gets it."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from fakes.claimstage import DRIVER, ClaimStage, claim_stage
from fakes.gpustage import GPU
from fakes.stage import CHIPS, TPU, Stage, asks, pod, stage
from simulated.nvml import uuid
from simulated.pods import Container, PodSpec

_DEBUG = "example.com/debug"
_RULES = ({"exclude": True}, {"resource": _DEBUG})
_AT_REST = {"rescan": "1h"}
"""What a rule does is not to wait for the next look at all hardware."""


def _rule(chip: str, **action: Any) -> dict[str, Any]:
    return {"match": {"pci": chip}, **action}


async def _killed(node: Stage, *rules: dict[str, Any]) -> None:
    """Kill the daemon, and start one with *rules*."""
    node.kill()
    node.configure(devices=list(rules))
    node.start()


async def _hung_up(node: Stage, *rules: dict[str, Any]) -> None:
    """Have the daemon read *rules* anew."""
    node.configure(devices=list(rules))
    node.process.send_signal(signal.SIGHUP)


_TURNS = (_killed, _hung_up)
_LEAVING = "once no pod has it under this name"


async def _with_rules(node: Stage, turn: Any, *rules: dict[str, Any]) -> None:
    """Return when a daemon with *rules*, which take a device from a pod, is registered."""
    await turn(node, *rules)

    async def leaving() -> bool:
        status = await node.asked("status") or {"rules": (), "checks": ()}
        # Kubelet does not register the driver of claims here.
        checks = [each for each in status["checks"] if each["name"] != f"registered {DRIVER}"]
        ready = all(each["passes"] for each in checks)
        return ready and any(_LEAVING in rule["reason"] for rule in status["rules"])

    await node.until(leaving, "a device to be leaving")


async def _of(node: Stage, chip: str) -> dict[str, Any]:
    (row,) = [row for row in await node.asked("devices") if row["id"] == chip]
    return dict(row)


def _offered(node: Stage, chip: str) -> list[str]:
    """Return the resources under which kubelet would grant *chip*."""
    return [each for each in (TPU, _DEBUG) if chip in node.healthy(each)]


def _wants(name: str) -> PodSpec:
    return PodSpec(name=name, containers=(asks(_DEBUG, 1),))


async def test_a_new_rule_counts_at_once_and_not_with_the_next_look(short_path: Path) -> None:
    async with stage(short_path, chips=2, own_process=True, discovery=_AT_REST) as node:
        one, other = CHIPS[:2]
        await node.until(lambda: node.healthy() == {one, other}, "both chips")
        await node.reload(devices=[_rule(one, exclude=True)])
        await node.until(lambda: node.healthy() == {other}, "the rule to count")


@pytest.mark.parametrize("turn", _TURNS)
@pytest.mark.parametrize("action", _RULES)
async def test_a_pod_keeps_a_device_that_a_new_rule_takes_away_and_nobody_else_gets_it(
    short_path: Path, action: dict[str, Any], turn: Any
) -> None:
    async with stage(short_path, chips=2, own_process=True, discovery=_AT_REST) as node:
        # As a pod's sandbox does, another process of it lives on while its container starts again.
        sandbox = Container(name="sandbox", restartable=True)
        holder = await node.run(pod("holder", restart="Always", runs_for=0.5, init=(sandbox,)))
        (chip,) = node.ids(holder)
        (other,) = node.healthy() - {chip}
        await node.until_locks({chip: "held"})

        await _with_rules(node, turn, _rule(chip, **action))
        await node.for_some_beats()

        # The lock survives, and so does the name by which kubelet counts the pod.
        assert await node.locks() == {chip: "held"}
        assert (await node.owners())[chip] == holder.uid
        assert _offered(node, chip) == [TPU]
        said = await _of(node, chip)
        assert any(_LEAVING in each for each in said["reasons"])
        (lock,) = await node.asked("locks")
        assert _LEAVING in lock["reason"]

        # Its program may end and start again on what it has.
        starts = holder.starts
        await node.until(lambda: holder.starts > starts, "the holder to start again")
        assert node.ids(holder) == {chip}
        assert chip not in node.ever_unhealthy()

        # When it is over the device leaves, and no second pod has had it under its old name.
        heard = len(node.told_healthy(_DEBUG))
        await node.end(holder)
        await node.until(lambda: chip not in node.healthy(TPU), f"{chip} to leave")
        await node.until_free()
        second = await node.run(pod("second"))
        assert node.ids(second) == {other}
        if "resource" in action:
            await node.until(lambda: _offered(node, chip) == [_DEBUG], "its new name to be told")
            third = await node.run(_wants("third"))
            assert node.ids(third, _DEBUG) == {chip}
        else:
            await node.until(lambda: not _offered(node, chip), "it to be under no name")

            # The list to kubelet is changed at once; the next scan says so to people.
            async def left_out() -> bool:
                return bool((await _of(node, chip))["health"] == "LeftOut")

            await node.until(left_out, "it to be told as left out")
        assert heard == 0, "it was told of under its new name while a pod had the old one"


@pytest.mark.parametrize("turn", _TURNS)
async def test_a_rule_that_is_taken_back_lets_the_pod_go_first_too(
    short_path: Path, turn: Any
) -> None:
    async with stage(short_path, chips=1, own_process=True, discovery=_AT_REST) as node:
        (chip,) = node.healthy()
        await turn(node, _rule(chip, resource=_DEBUG))
        await node.until(lambda: _offered(node, chip) == [_DEBUG], "the chip to be moved")
        holder = await node.run(_wants("holder"))
        await node.until_locks({chip: "held"})

        await _with_rules(node, turn)
        await node.for_some_beats()

        assert await node.locks() == {chip: "held"}
        assert (await node.owners())[chip] == holder.uid
        assert _offered(node, chip) == [_DEBUG]

        await node.end(holder)
        await node.until(lambda: _offered(node, chip) == [TPU], "its own name to be told")
        assert node.ids(await node.run(pod("next"))) == {chip}


async def test_what_a_former_pods_process_has_open_is_under_neither_name_before_it_ends(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1, own_process=True, reclaim={"mode": "observe"}) as node:
        (chip,) = node.healthy()
        holder = await node.run(pod("holder", runs_for=1.0, orphan=1))
        await _with_rules(node, _killed, _rule(chip, resource=_DEBUG))
        orphan = await node.orphan(holder)
        await node.until(lambda: not _offered(node, chip), "the chip to be withheld")
        await node.for_some_beats(beats=10)

        assert not _offered(node, chip)
        assert chip in await node.locks()

        os.kill(orphan, signal.SIGKILL)
        await node.until(lambda: _offered(node, chip) == [_DEBUG], "its new name to be told")


async def test_a_pod_that_keeps_a_moved_device_is_admitted_anew_after_a_reboot(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1, own_process=True) as node:
        (chip,) = node.healthy()
        holder = await node.run(pod("holder", restart="Always"))
        await _with_rules(node, _killed, _rule(chip, resource=_DEBUG))

        await node.reboot()
        await node.until(lambda: holder.starts > 1, "the holder to run again")

        assert (await node.owners())[chip] == holder.uid
        assert _offered(node, chip) == [TPU]


async def test_a_gpu_and_its_slices_are_left_out_and_moved_like_any_device(gpu_stage: Any) -> None:
    rules = [
        {"match": {"uuid": uuid(0)}, "exclude": True},
        {"match": {"index": 1}, "resource": _DEBUG},
    ]
    async with gpu_stage(chips=0, others={"devices": rules}) as node:
        node.gpus.arrive(3)
        await node.until_healthy(2)
        await node.stage.until(
            lambda: node.stage.healthy(_DEBUG) == {uuid(1)}, "the moved GPU to be offered"
        )
        made = await node.stage.run(_wants("debugger"))

        assert node.stage.ids(made, _DEBUG) == {uuid(1)}
        assert set(node.stage.kubelet.devices.endpoints) == {GPU, _DEBUG}
        rows = {row["id"]: row for row in await node.stage.asked("devices")}
        assert rows[uuid(0)]["reasons"] == [f"devices[0] (uuid {uuid(0)}) leaves it out"]
        status = await node.stage.asked("status")
        assert [rule["device"] for rule in status["rules"]] == [f"{GPU}/{uuid(0)}"]


async def test_a_rule_that_matches_nothing_is_told_and_all_else_works(short_path: Path) -> None:
    async with stage(short_path, chips=1, devices=[_rule("0000:ff:*", exclude=True)]) as node:
        text = "devices[0] (pci 0000:ff:*) does nothing: it matches no device that was seen"
        await node.until_problem("devices", text)
        await node.run(pod("one"))

        status = await node.asked("status")
        assert status["rules"] == [{"device": None, "reason": await node.problem("devices")}]


def _published(at: ClaimStage) -> dict[str, Any]:
    """Return the devices in the node's ResourceSlices, by name."""
    slices = [each["spec"] for each in at.plane.slices().values()]
    return {each["name"]: each for one in slices for each in one.get("devices", ())}


def _taints(at: ClaimStage, name: str) -> list[str]:
    return [each["value"] for each in _published(at).get(name, {}).get("taints", ())]


# A daemon that starts with a resource of which it has no device yet gives that 30 s to be found
# before it publishes, so that what another turn or action adds is seen above, by the device plugin.
@pytest.mark.parametrize(
    ("turn", "action"),
    [(_hung_up, {"exclude": True}), (_killed, {"resource": _DEBUG, "api": "dra"})],
)
async def test_a_claim_keeps_a_device_that_a_new_rule_takes_away_and_no_new_one_is_given_it(
    short_path: Path, turn: Any, action: dict[str, Any]
) -> None:
    chip, old, new = CHIPS[0], "tpu-0000-00-05-0", "debug-0000-00-05-0"
    async with claim_stage(short_path, chips=2) as at:
        await at.node.until(lambda: old in _published(at), "the chips to be published")
        claim = at.allocate("holder", 0)
        await at.prepared(claim)

        await _with_rules(at.node, turn, _rule(chip, **action))
        await at.node.until(lambda: _taints(at, old) == ["leaving"], "the chip to be tainted")

        assert await at.node.locks() == {chip: "held"}
        assert new not in _published(at)
        # Kubelet prepares it once more after a restart of its own.
        await at.prepared(claim)

        assert await at.unprepare(claim) == {"holder": ""}
        await at.node.until(lambda: old not in _published(at), "the chip to leave")
        refused = (await at.prepare(at.allocate("late", 0)))["late"]
        assert "this node has no device" in refused.error
        await at.node.until_free()
        if "resource" in action:
            await at.node.until(lambda: new in _published(at), "its new name to be published")
            attributes = _published(at)[new]["attributes"]
            assert attributes["type"] == {"string": "debug"}
            assert attributes["resource"] == {"string": _DEBUG}
            await at.prepared(at.allocate("debugger", device=new))
            assert await at.node.locks() == {chip: "held"}


async def test_shapes_of_chips_are_those_of_the_whole_host_without_what_is_left_out(
    short_path: Path,
) -> None:
    async with claim_stage(
        short_path, chips=8, devices=[_rule("0000:00:06.0", exclude=True)]
    ) as at:
        half = "tpu-2x2-0000-00-09-0"
        await at.node.until(lambda: half in _published(at), "the other half to be published")

        published = _published(at)
        assert {name for name in published if "2x" in name} == {half}
        assert published["tpu-0000-00-07-0"]["attributes"]["y"] == {"int": 1}
        claim = at.allocate("half", device=half)
        await at.prepared(claim)
        assert len(await at.node.locks()) == 4


async def test_what_holds_an_observed_device_is_not_ended_until_the_rule_is_gone(
    short_path: Path,
) -> None:
    reclaim = {"letGoGrace": "0s", "orphanGrace": "100ms", "termGrace": "100ms"}
    rule = _rule(CHIPS[0], reclaimMode="observe")
    async with stage(
        short_path, chips=2, own_process=True, reclaim=reclaim, devices=[rule]
    ) as node:
        # It has both chips, and one of them is observed.
        both = await node.run(pod("both", chips=2, runs_for=0.5, orphan=2))
        orphan = await node.orphan(both)
        await node.until(lambda: "reclaim.mode is observe" in node.log, "it to be spared")
        await node.for_some_beats()
        assert node.orphans(both) == (orphan,)

        await _hung_up(node)

        await node.until(lambda: not node.orphans(both), "it to be ended")
        await node.until_free()
