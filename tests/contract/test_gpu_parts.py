"""From what a driver tells of MIG to devices: the real pynvml on the stub, in a process of its own.

One NVML stays open while the GPUs are divided anew: nothing of it needs a restart.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from simulated.nvml import CONTROL, Card, Node, Slice, cards, uuid, write

GPU_IS_LOST = 15

_PROGRAM = """
import json, sys
from pathlib import Path
from holdfast.model.nvidia.devices import GpuFacts, gpu_devices, gpu_topology
from holdfast.host.nvidia.nvml import Nvml
from holdfast.model.devices import DeviceNode
from holdfast.model.nvidia.gpu import DriverState, GpuReading
from holdfast.model.gate.placement import Choice
from holdfast.model.nvidia.placement import GpuBoard
from holdfast.model.nvidia.mig import MigStrategy, lay_out, with_known

library, strategy = sys.argv[1:]
nvml, before = Nvml(Path(library)), GpuReading()
nvml.open()
while True:
    before = with_known(nvml.read(), before)
    layout = lay_out(before, MigStrategy(strategy))
    minors = {gpu.minor for gpu in before.gpus if gpu.minor is not None}
    nodes = {minor: DeviceNode(path=f"/dev/nvidia{minor}", rdev=minor) for minor in minors}
    devices = gpu_devices(GpuFacts(state=DriverState.READY, layout=layout, nodes=nodes))
    links = nvml.links([gpu.uuid for gpu in before.gpus])
    ids = [device.name.id for device in devices]
    print(json.dumps({
        "devices": {str(device.name): sorted(device.keys) for device in devices},
        "index": [part.index for part in layout.parts],
        "nodes": sorted({node.path for device in devices for node in device.nodes}),
        "models": sorted({device.model for device in devices}),
        "faulty": [device.name.id for device in devices if not device.healthy],
        "problems": layout.problems,
        "preferred": GpuBoard.of(devices, gpu_topology(layout, links)).preferred(
            Choice(available=ids, size=2)
        ),
    }), flush=True)
    if not sys.stdin.readline():
        break
"""


@dataclass
class Driver:
    library: Path
    control: Path

    def tell(self, strategy: str, *nodes: tuple[Card, ...]) -> list[dict[str, Any]]:
        """Return what is advertised as the driver shows one of *nodes* after the other."""
        write(self.control, Node(cards=nodes[0]))
        told = []
        with subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(self.library), strategy],
            env={**os.environ, CONTROL: str(self.control)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            for after in (*nodes[1:], None):
                told.append(json.loads(process.stdout.readline()))
                if after is not None:
                    write(self.control, Node(cards=after))
                    process.stdin.write("\n")
                    process.stdin.flush()
            process.stdin.close()
        return told


@pytest.fixture
def driver(library: Path, tmp_path: Path) -> Driver:
    return Driver(library, tmp_path / "node")


def _divided(card: Card, *profiles: str) -> Card:
    slices = tuple(
        Slice(
            f"MIG-{card.minor}-{place}-{profile[0]}",
            gi=place + 1,
            profile=profile,
            slices=(int(profile[0]), int(profile[0])),
        )
        for place, profile in enumerate(profiles)
    )
    return replace(card, mig=1, slices=slices)


def test_each_profile_has_its_name_and_whole_gpus_stay_what_they_are(driver: Driver) -> None:
    one, two = cards(2)
    (told,) = driver.tell("mixed", (one, _divided(two, "3g.40gb", "1g.10gb+me")))
    assert told["devices"] == {
        f"nvidia.com/gpu/{uuid(0)}": [f"card/{uuid(0)}"],
        "nvidia.com/mig-3g.40gb/MIG-1-0-3": [f"part/{uuid(1)}/1/MIG-1-0-3"],
        "nvidia.com/mig-1g.10gb.me/MIG-1-1-1": [f"part/{uuid(1)}/2/MIG-1-1-1"],
    }
    assert told["index"] == ["0", "1:0", "1:1"]
    assert told["nodes"] == ["/dev/nvidia0", "/dev/nvidia1"]
    assert "NVIDIA H100 80GB HBM3 MIG 3g.40gb" in told["models"]
    assert told["problems"] == []


def test_a_gpu_that_is_advertised_whole_has_the_keys_of_its_slices(driver: Driver) -> None:
    (card,) = cards(1)
    (told,) = driver.tell("none", (_divided(card, "3g.40gb", "3g.40gb"),))
    assert told["devices"] == {
        f"nvidia.com/gpu/{uuid(0)}": [
            f"card/{uuid(0)}",
            f"part/{uuid(0)}/1/MIG-0-0-3",
            f"part/{uuid(0)}/2/MIG-0-1-3",
        ]
    }


def test_a_gpu_that_is_divided_anew_is_advertised_anew_without_a_restart(driver: Driver) -> None:
    one, two = cards(2)
    halves = (one, _divided(two, "3g.40gb", "3g.40gb"))
    small = (one, _divided(two, "1g.10gb"))
    first, second, whole = driver.tell("mixed", halves, small, (one, two))
    assert [name.split("/")[1] for name in first["devices"]] == ["gpu", *["mig-3g.40gb"] * 2]
    assert [name.split("/")[1] for name in second["devices"]] == ["gpu", "mig-1g.10gb"]
    assert [name.split("/")[1] for name in whole["devices"]] == ["gpu", "gpu"]


def test_the_slices_of_a_lost_gpu_are_unhealthy_and_the_others_go_on(driver: Driver) -> None:
    alike = tuple(_divided(card, "3g.40gb", "3g.40gb") for card in cards(2))
    lost = (alike[0], replace(alike[1], errors={"*": GPU_IS_LOST}))
    before, after, back = driver.tell("single", alike, lost, alike)
    assert before["devices"] == after["devices"] == back["devices"]
    assert after["faulty"] == ["MIG-1-0-3", "MIG-1-1-3"]
    assert (before["faulty"], back["faulty"]) == ([], [])
    assert after["preferred"] == ["MIG-0-0-3", "MIG-0-1-3"]


def test_a_node_that_single_cannot_express_is_named_and_most_of_it_goes_on(driver: Driver) -> None:
    one, two, three = cards(3)
    node = (one, _divided(two, "3g.40gb"), _divided(three, "3g.40gb"))
    (told,) = driver.tell("single", node)
    assert list(told["devices"]) == ["nvidia.com/gpu/MIG-1-0-3", "nvidia.com/gpu/MIG-2-0-3"]
    (problem,) = told["problems"]
    assert uuid(0) in problem
    assert "gpu.migStrategy" in problem
