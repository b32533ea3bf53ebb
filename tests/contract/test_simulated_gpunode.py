"""The simulated GPU node: what its NVML tells is what its processes do."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast._pb.deviceplugin.v1beta1 import api_pb2 as dp
from simulated.gpunode import VISIBLE, GpuNode
from simulated.nvml import CONTROL, uuid
from simulated.pods import Container, Pod, PodSpec, Workload
from simulated.runtime import Runtime
from waiting import beside, until

# A process keeps the library that it loaded, so each node is asked by one of its own.
_ASK = """
import json, sys
from pathlib import Path
from holdfast.errors import HostError
from holdfast.host.nvidia.nvml import Nvml
nvml = Nvml(Path(sys.argv[1]))
try:
    nvml.open()
except HostError as error:
    print(json.dumps(str(error)))
else:
    found = {}
    for gpu in nvml.read().gpus:
        use = nvml.use(gpu.uuid)
        found[gpu.uuid] = [[each.pid for each in use.processes], nvml.condition(gpu.uuid).lost]
    print(json.dumps(found))
"""


@contextmanager
def _node(folder: Path, library: Path) -> Iterator[GpuNode]:
    node = GpuNode(folder / "node", library=library)
    try:
        yield node
    finally:
        node.close()


def _asked(node: GpuNode, library: Path) -> Any:
    said = subprocess.run(
        [sys.executable, "-c", _ASK, str(library)],
        env={**os.environ, CONTROL: str(node.control)},
        capture_output=True,
        check=True,
        text=True,
    )
    return json.loads(said.stdout)


def test_a_driver_that_is_not_loaded_is_what_nvml_says_and_what_proc_shows(
    tmp_path: Path, library: Path
) -> None:
    with _node(tmp_path, library) as node:
        assert "DRIVER_NOT_LOADED" in _asked(node, library)
        assert not (node.root.proc / "driver/nvidia").exists()

        node.load_driver()

        assert list(_asked(node, library)) == [uuid(index) for index in range(8)]
        assert (node.root.proc / "driver/nvidia/version").exists()


async def test_nvml_names_the_process_that_has_a_gpus_node_open_and_no_other(
    tmp_path: Path, library: Path
) -> None:
    with _node(tmp_path, library) as node:
        node.load_driver()
        async with beside(node.run()):
            runtime = Runtime(node, toolkit=node.visible)
            container = Container(workload=Workload())
            pod = Pod(spec=PodSpec(name="a", containers=(container,)))
            grant = dp.ContainerAllocateResponse(envs={VISIBLE: f"{uuid(3)},{uuid(5)}"})

            await runtime.start(pod, container, grant)
            (pid,) = node.members(pod.uid)
            await until(lambda: node.users(3) == (pid,), what="the program to have its GPU open")
            await asyncio.sleep(0)
            asked = await asyncio.to_thread(_asked, node, library)

            assert {each for each, (pids, _) in asked.items() if pids == [pid]} == {
                uuid(3),
                uuid(5),
            }
            assert {each for each, (pids, _) in asked.items() if not pids} == {
                uuid(index) for index in (0, 1, 2, 4, 6, 7)
            }
            await runtime.stop(pod, 0.0)


def test_a_gpu_that_fell_off_the_bus_answers_that_it_is_lost_until_it_is_reset(
    tmp_path: Path, library: Path
) -> None:
    with _node(tmp_path, library) as node:
        node.load_driver()
        node.fall_off(2)

        # By its UUID nothing of it can be found, as with a real one.
        assert uuid(2) not in _asked(node, library)
        assert len(node.uuids) == 8

        node.reset(2)

        assert _asked(node, library)[uuid(2)] == [[], ""]
