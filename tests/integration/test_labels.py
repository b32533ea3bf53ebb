"""Node labels on a whole node: the real daemon writes what NVML and the kernel show to the file."""

import signal
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from fakes.gpustage import GpuStage, sharing
from fakes.labels import refused, told
from fakes.stage import Stage, stage
from fakes.vgpu import config_space
from simulated.nvml import Slice

LOST = 15
WANTED = {"enabled": True, "gkeKeys": True}
OURS = {
    "holdfast.dev/tpu.accelerator-type": "v5litepod-1",
    "holdfast.dev/tpu.count": "1",
    "holdfast.dev/tpu.generation": "v5e",
    "holdfast.dev/tpu.memory": "16384",
    "holdfast.dev/tpu.topology": "1x1",
}
TPUS = OURS | {
    "cloud.google.com/gke-accelerator-count": "1",
    "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
    "cloud.google.com/gke-tpu-topology": "1x1",
}


def labels(node: Stage) -> dict[str, str]:
    file = node.folder / "features.d/holdfast"
    return told(file.read_text()) if file.exists() else {}


async def until(node: GpuStage, **wanted: str | None) -> None:
    """Return when the labels nvidia.com/*wanted* have these values; None: when they are gone."""

    def so() -> bool:
        found = labels(node.stage)
        return all(found.get(f"nvidia.com/{key}") == value for key, value in wanted.items())

    await node.stage.until(so, lambda: f"labels to be {wanted}; they are {labels(node.stage)}")


async def test_labels_follow_the_gpus_their_slices_and_their_driver(
    gpu_stage: Any, short_path: Path
) -> None:
    (short_path / "features.d").mkdir()
    async with gpu_stage(migStrategy="mixed", others={"labels": {"enabled": True}}) as node:
        root = node.stage.node.root
        (root.sys / "class/dmi/id").mkdir(parents=True)
        (root.sys / "class/dmi/id/product_name").write_text("DGX H100\n")
        await node.stage.until(lambda: labels(node.stage) == OURS, "the labels of the chip")

        node.gpus.arrive(8, mig=0)
        await until(node, **{"gpu.count": "8", "gpu.product": "NVIDIA-H100-80GB-HBM3"})
        found = labels(node.stage)
        assert OURS.items() <= found.items()
        assert not TPUS.keys() - OURS.keys() & found.keys()
        await node.stage.reload(labels={**node.stage.settings["labels"], "gkeKeys": True})
        await node.stage.until(
            lambda: TPUS.items() <= labels(node.stage).items(), "the labels of GKE"
        )
        found = labels(node.stage)
        assert [pair for pair in found.items() if refused(*pair)] == []
        expected = {
            "nvidia.com/gpu.machine": "DGX-H100",
            "nvidia.com/gpu.memory": "81920",
            "nvidia.com/gpu.family": "hopper",
            "nvidia.com/mig.capable": "true",
            "nvidia.com/cuda.driver-version.full": node.gpus.stub.driver,
            "nvidia.com/cuda.runtime-version.full": "12.4",
        }
        assert expected.items() <= found.items()

        pieces = (Slice("MIG-a", gi=7), Slice("MIG-b", gi=8))
        node.gpus.change(1, lambda card: replace(card, mig=1, slices=pieces))
        await until(node, **{"mig-1g.10gb.count": "2", "mig-1g.10gb.multiprocessors": "16"})
        node.gpus.change(1, lambda card: replace(card, mig=0, slices=()))
        await until(node, **{"mig-1g.10gb.count": None})

        node.gpus.change(3, lambda card: replace(card, errors={"*": LOST}))
        await until(node, **{"gpu.count": "7"})
        node.gpus.change(3, lambda card: replace(card, errors={}))
        await until(node, **{"gpu.count": "8"})

        # Fabric manager may be later than the driver: nothing tells of it, so that it is looked at.
        whole = (3, 0, 9, "0d8a4c3e6f0b4a579a5231e6f4d7c9aa")
        node.gpus.change(0, lambda card: replace(card, fabric=whole))
        await until(node, **{"gpu.clique": "0d8a4c3e-6f0b-4a57-9a52-31e6f4d7c9aa.9"})
        node.gpus.change(0, lambda card: replace(card, fabric=None))
        node.gpus.leave()
        await until(node, **{"cuda.driver-version.full": None, "gpu.count": "8"})
        node.gpus.show(replace(node.gpus.stub, driver="580.65.06"))
        node.gpus.load()
        await until(node, **{"cuda.driver-version.major": "580", "gpu.clique": None})


async def test_gpus_that_are_shared_say_by_how_many_pods(gpu_stage: Any, short_path: Path) -> None:
    (short_path / "features.d").mkdir()
    rules = [{"match": {"index": 1}, "exclude": True}]
    others = {"labels": WANTED, "sharing": sharing(4), "devices": rules}
    async with gpu_stage(others=others) as node:
        node.gpus.arrive(3)
        await until(node, **{"gpu.count": "2", "gpu.replicas": "4"})
        found = labels(node.stage)
        assert found["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3-SHARED"
        assert found["nvidia.com/gpu.sharing-strategy"] == "time-slicing"


async def test_a_vgpu_says_what_drives_its_hypervisor(gpu_stage: Any, short_path: Path) -> None:
    (short_path / "features.d").mkdir()
    async with gpu_stage(others={"labels": WANTED}) as node:
        function = node.stage.node.root.sys / "bus/pci/devices/0000:10:00.0"
        function.mkdir()
        for name, text in (("vendor", "0x10de"), ("device", "0x25b6"), ("class", "0x030000")):
            (function / name).write_text(f"{text}\n")
        record = b"\0\x16" + b"550.54.16".ljust(10, b"\0") + b"r550_40".ljust(10, b"\0")
        (function / "config").write_bytes(config_space(record=record))
        node.gpus.arrive(1, virtualization=2)
        await until(
            node,
            **{
                "vgpu.present": "true",
                "vgpu.host-driver-version": "550.54.16",
                "vgpu.host-driver-branch": "r550_40",
            },
        )


async def test_chips_that_are_left_out_are_no_label_and_those_of_another_name_are(
    short_path: Path,
) -> None:
    (short_path / "features.d").mkdir()
    rules = [
        {"match": {"pci": "0000:00:05.0"}, "exclude": True},
        {"match": {"pci": "0000:00:06.0"}, "resource": "example.com/debug"},
    ]
    async with stage(short_path, chips=4, start=False, devices=rules, labels=WANTED) as node:
        await node.start_and_register()
        counted = {"holdfast.dev/tpu.count": "3", "holdfast.dev/tpu.topology": "2x2"}
        await node.until(
            lambda: counted.items() <= labels(node).items(),
            lambda: f"three chips of four to be counted; labels are {labels(node)}",
        )


async def test_a_folder_that_is_missing_is_told_and_nothing_else_is_worse(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1, labels={"enabled": True}) as node:
        await node.until_problem("node labels", "there is no such folder")
        assert node.healthy()


async def test_labels_that_are_switched_off_are_removed(short_path: Path) -> None:
    (short_path / "features.d").mkdir()
    async with stage(short_path, chips=1, own_process=True, labels=WANTED) as node:
        await node.until(lambda: labels(node) == TPUS, "the labels")
        node.configure(labels={"folder": str(short_path / "features.d")})
        node.process.send_signal(signal.SIGHUP)
        await node.until(lambda: not labels(node), "the labels to go")
        assert list((short_path / "features.d").iterdir()) == []
