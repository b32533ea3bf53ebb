"""A node without GPUs: the running daemon has nothing of NVIDIA's, and no resource of GPUs."""

import json
import subprocess
import sys
from pathlib import Path

# In a process of its own: this one has imported what its other tests needed.
_RUN = """
import asyncio, json, sys
from pathlib import Path
from fakes.stage import stage

async def main():
    async with stage(Path(sys.argv[1]), gpu={"look": "20ms", "rescan": "20ms"}) as node:
        for _ in range(3):  # and some looks for a driver go by meanwhile
            assert (await node.asked("status"))["resources"]
            await asyncio.sleep(0.1)
        names = [name for name in sys.modules if "nvidia" in name or "pynvml" in name]
        print(json.dumps([sorted(names), sorted(node.kubelet.devices.endpoints)]))

asyncio.run(main())
"""


_ALLOWED = [
    "holdfast.model.nvidia",  # how the ledger's names of shared cards are read
    "holdfast.settings.nvidia_plugin",  # the names that NVIDIA's plugin gives to settings
    "holdfast.vendors.nvidia",
    "holdfast.vendors.nvidia.adapter",
    "holdfast.vendors.nvidia.withoutdriver",
]
"""What looks for the driver, and what reads the settings."""


def test_a_daemon_that_runs_without_the_driver_has_imported_nothing_of_nvidias(
    short_path: Path,
) -> None:
    said = subprocess.run(
        [sys.executable, "-c", _RUN, str(short_path)],
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )

    (told,) = (line for line in said.stdout.splitlines() if line.startswith("[["))  # among logs
    assert json.loads(told) == [_ALLOWED, ["google.com/tpu"]]
