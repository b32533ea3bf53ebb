"""What the daemon has loaded once it has started, on a node whose only hardware are TPU chips."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

from fakes.http import served
from ports import free_port
from simulated.node import SimulatedNode
from simulated.runtime import Runtime
from simulated.stage import Stage, running

_TPU = "google.com/tpu"

_UNNEEDED = {
    "holdfast.doctor": "finds what is wrong with a node, and is a command of its own",
    "holdfast.cli.byhand": "asks a daemon",
    "holdfast.cli.commands": "asks a daemon",
    "holdfast.cli.doctor": "runs the doctor",
    "holdfast.cli.picture": "writes the picture of a history",
    "holdfast.cli.plot": "draws the picture of a history",
    "holdfast.ledger.examine": "looks at the ledger for the doctor",
    "holdfast.apiserver": "is for claims, Events and the node's label, which are all off",
    "holdfast.dra": "is for claims",
    "holdfast.model.dra.claims": "is for claims",
    "holdfast.model.events": "is for Events",
    "holdfast._pb.dra": "is for claims",
    "holdfast._pb.drahealth": "is for claims",
    "holdfast._pb.pluginregistration": "is for claims",
    "holdfast.host.nvidia": "is for GPUs, and there is no driver",
    "holdfast.model.nvidia.gpu": "is for GPUs",
    "holdfast.vendors.nvidia.gpus": "is for GPUs",
    "pynvml": "is NVIDIA's library",
    "difflib": "is for a key that is wrong",
    "jsonschema": "checks values of the chart, in tests",
    "http.cookies": "has no use here",
    "importlib.metadata": "tells versions, when somebody asks for them",
    "importlib.resources": "finds files of packages",
    "multiprocessing": "starts processes",
    "unittest": "is for tests",
    "zipfile": "reads archives",
}
"""Modules, each with all within it, and what they are for."""

_OF_NVIDIA = {
    "holdfast.cli.nvidia": "reads the flags of NVIDIA's plugin",
    "holdfast.model.nvidia": "how the ledger's names of shared cards are read",
    "holdfast.settings.nvidia_plugin": "the names that NVIDIA's plugin gives to settings",
    "holdfast.vendors.nvidia": "the package",
    "holdfast.vendors.nvidia.adapter": "reads the settings",
    "holdfast.vendors.nvidia.withoutdriver": "looks for the driver",
}
"""All that is loaded of NVIDIA's where there is no driver, and what for."""


async def test_the_daemon_of_a_node_with_tpus_loads_nothing_that_it_does_not_use(
    short_path: Path,
) -> None:
    node, port = SimulatedNode(short_path / "node", chips=4), free_port()
    made = Stage(
        short_path,
        node,
        Runtime(node),
        settings={
            "http": {"address": "127.0.0.1", "port": port},
            "log": {"format": "json"},
            "gpu": {"look": "20ms", "rescan": "20ms"},
        },
        environment={"PYTHONPROFILEIMPORTTIME": "1"},  # Python writes a line for each import
    )
    async with running(made) as stage:
        stage.start()
        await stage.until(lambda: len(stage.healthy(_TPU)) == 4, "kubelet to have every chip")
        for _ in range(3):  # and some looks for a driver go by meanwhile
            assert await stage.asked("status")
            await asyncio.sleep(0.1)
        _, shown = await asyncio.to_thread(served, port, "/metrics")
        assert "holdfast_devices" in shown

    loaded = set(_imported(stage.log))
    assert {"asyncio", "grpc", "holdfast.app.daemon", "holdfast.vendors.tpu.adapter"} <= loaded
    assert {each: why for each, why in _UNNEEDED.items() if _has(loaded, each)} == {}
    assert {each for each in loaded if "nvidia" in each} == _OF_NVIDIA.keys()
    assert [*stage.kubelet.devices.endpoints] == [_TPU]


def _imported(log: str) -> Iterator[str]:
    for line in log.splitlines():
        if line.startswith("import time:"):
            yield line.rpartition("|")[2].strip()


def _has(loaded: set[str], module: str) -> bool:
    return any(each == module or each.startswith(f"{module}.") for each in loaded)
