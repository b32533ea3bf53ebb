"""Kubelet hears the names of the hardware that the node has, and of no other."""

from pathlib import Path
from typing import Any

from fakes.gpustage import GPU
from fakes.stage import TPU, Stage, pod, stage
from simulated.nvml import Slice

_SLICE = "nvidia.com/mig-1g.10gb"


async def test_a_node_of_gpus_alone_has_no_tpus_registered(gpu_stage: Any) -> None:
    async with gpu_stage(chips=0) as node:
        await node.arrive(2)
        await node.stage.for_some_beats()

        assert set(node.stage.kubelet.devices.endpoints) == {GPU}


async def test_a_node_whose_gpus_are_all_divided_has_only_slices_registered(gpu_stage: Any) -> None:
    async with gpu_stage(chips=0, migStrategy="mixed") as node:
        node.gpus.arrive(2, mig=1, slices=(Slice("MIG-a", gi=7), Slice("MIG-b", gi=8)))
        await node.stage.until(lambda: node.stage.healthy(_SLICE), "the slices to be offered")
        await node.stage.for_some_beats()

        assert set(node.stage.kubelet.devices.endpoints) == {_SLICE}


async def test_a_node_without_our_hardware_asks_kubelet_nothing_when_others_allocate(
    short_path: Path,
) -> None:
    """Nothing of ours would make kubelet write its checkpoint, so no question could be answered."""
    async with stage(short_path, chips=0, own_process=True) as node:
        await node.until(lambda: _ready(node), "the daemon to be ready")
        node.kubelet.devices.note("other", "example.com/nic", ["a"])
        node.kubelet.devices.write()
        await node.for_some_beats(beats=20)

        assert "cannot ask kubelet for its pods" not in node.log
        assert not await node.problem("kubelet checkpoint")


async def _ready(node: Stage) -> bool:
    status = await node.asked("status") or {"checks": [{"passes": False}]}
    return all(check["passes"] for check in status["checks"])


async def test_the_first_chip_of_a_node_registers_the_name_and_the_last_leaves_it(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=0) as node:
        await node.until(lambda: _ready(node), "the daemon to be ready")
        assert not node.kubelet.devices.endpoints

        node.node.tree.tpu("0000:00:05.0", group=10, numa=0)
        await node.until(lambda: len(node.healthy()) == 1, "the chip to be offered")
        made = await node.run(pod("first"))
        (chip,) = node.ids(made)
        await node.end(made)
        await node.until_free()
        node.node.tree.unplug(chip)
        await node.until(lambda: not node.healthy(), "the chip to be gone")
        await node.until(lambda: _ready(node), "the daemon to be ready")

        assert set(node.kubelet.devices.endpoints) == {TPU}
