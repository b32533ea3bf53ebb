"""Devices handed over by CDI name: a reboot that renumbers groups takes no pod its chip."""

import json
from pathlib import Path

from fakes.stage import PATIENT, TPU, Stage, pod, stage
from simulated.pods import Pod

SPEC = "holdfast_google.com_tpu.json"
SWAP = {10: 11, 11: 10}


async def test_by_name_a_pod_simply_starts_on_its_chip_after_groups_changed_places(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=2, deviceListStrategy="cdi", gate=PATIENT) as node:
        same = await node.run(pod("same"))
        (chip,) = node.ids(same)
        former = _group(node, chip)
        await node.reboot(groups=SWAP)
        await node.running(same)
        assert (same.starts, same.refusals) == (2, 0)
        assert _group(node, chip) == SWAP[former]
        assert _in_use(node) == {f"/dev/vfio/{SWAP[former]}"}
        assert await node.owners() == {chip: same.uid}


async def test_by_name_every_pod_of_a_full_node_gets_its_own_chip_back(short_path: Path) -> None:
    async with stage(short_path, chips=3, deviceListStrategy="cdi") as node:
        pods = [await node.run(pod(f"pod-{number}")) for number in range(3)]
        owners = await node.owners()
        await node.reboot(groups={10: 11, 11: 12, 12: 20})
        for each in pods:
            await node.running(each)
        assert await node.owners() == owners
        assert _in_use(node) == {"/dev/vfio/11", "/dev/vfio/12", "/dev/vfio/20"}


async def test_an_old_spec_on_disk_is_corrected_before_kubelet_hears_of_any_device(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=2, deviceListStrategy="cdi", gate=PATIENT) as node:
        same = await node.run(pod("same"))
        (chip,) = node.ids(same)
        await node.reboot(groups=SWAP, keeps_specs=True)
        await node.running(same)
        assert same.refusals == 0
        assert _in_use(node) == {f"/dev/vfio/{_group(node, chip)}"}


async def test_an_old_spec_that_cannot_be_corrected_lets_nobody_onto_anothers_chip(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=2, deviceListStrategy="cdi") as node:
        same = await node.run(pod("same"))
        (chip,) = node.ids(same)
        _freeze(node)
        await node.reboot(groups=SWAP, keeps_specs=True)
        await node.waiting(same, "by name", chip, "let holdfast write to")
        await node.until_problem("CDI specs", "cannot write")
        assert _in_use(node) == set()
        _thaw(node)
        await node.running(same)
        assert _in_use(node) == {f"/dev/vfio/{_group(node, chip)}"}


async def test_a_folder_that_cannot_be_written_costs_no_new_pod_its_start(
    short_path: Path,
) -> None:
    async with stage(
        short_path, chips=1, start=False, deviceListStrategy="cdi", gate=PATIENT
    ) as node:
        node.specs.rmdir()
        await node.start_and_register()
        first = await node.run(pod("first"))
        assert first.refusals == 0
        assert _answer(node, first) == ([], ["/dev/vfio/10", "/dev/vfio/vfio"])
        await node.until_problem("CDI specs", "make it on the host")
        node.specs.mkdir()
        await node.until_problem("CDI specs", "")
        await node.end(first)
        second = await node.run(pod("second"))
        (chip,) = node.ids(second)
        assert _answer(node, second) == ([f"{TPU}={chip}"], [])


async def test_pods_that_were_promised_names_keep_them_when_new_ones_get_paths(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=2, deviceListStrategy="cdi", gate=PATIENT) as node:
        named = await node.run(pod("named"))
        node.settings["deviceListStrategy"] = "device-nodes"
        await node.reboot(groups=SWAP)
        await node.running(named)
        assert named.refusals == 0
        after = await node.run(pod("after"))
        assert _answer(node, after)[0] == []


async def test_by_path_no_spec_is_written(short_path: Path) -> None:
    async with stage(short_path, chips=1) as node:
        await node.run(pod("plain"))
        assert list(node.specs.iterdir()) == []


async def test_the_spec_follows_the_hardware_and_is_written_anew_where_somebody_damages_it(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=2, deviceListStrategy="cdi") as node:
        first, second = sorted(node.healthy())
        assert _named(node) == [first, second]
        spec = node.specs / SPEC
        before = spec.read_text()
        spec.unlink()
        await node.until(lambda: spec.exists() and spec.read_text() == before, "a spec")
        spec.write_text("{")
        await node.until(lambda: spec.exists() and spec.read_text() == before, "a good spec")

        other = node.specs / "other.json"
        other.write_text(before)
        await node.until_problem("CDI specs", f"{other} describes it as well")
        unnamed = await node.run(pod("unnamed"))
        assert _answer(node, unnamed)[0] == [], "two files explain the name, so that none counts"
        await node.end(unnamed)
        await node.until_free()
        other.unlink()
        await node.until_problem("CDI specs", "")

        node.node.tree.unplug(second)
        node.node.tree.drop_group_node(11)
        await node.until(lambda: _named(node) == [first], "the spec to be rewritten")
        assert await node.run(pod("other"))


def _named(node: Stage) -> list[str]:
    return [each["name"] for each in json.loads((node.specs / SPEC).read_text())["devices"]]


def _group(node: Stage, chip: str) -> int:
    return int((node.node.tree.path(chip) / "iommu_group").resolve().name)


def _in_use(node: Stage) -> set[str]:
    """Return the group nodes that some program has open."""
    paths = [f"/dev/vfio/{each.name}" for each in (node.node.root.dev / "vfio").glob("[0-9]*")]
    return {path for path in paths if node.node.tree.in_use(path)}


def _answer(node: Stage, of: Pod) -> tuple[list[str], list[str]]:
    """Return the CDI names and the nodes of what kubelet was answered for a pod."""
    (answer,) = node.answers(of)
    return [each.name for each in answer.cdi_devices], [each.host_path for each in answer.devices]


def _freeze(node: Stage) -> None:
    """Let our spec be one that cannot be replaced, by anybody."""
    (node.specs / f"{SPEC}.tmp").mkdir()


def _thaw(node: Stage) -> None:
    (node.specs / f"{SPEC}.tmp").rmdir()
