"""What containers of claims are given of GPUs when they start again in their sandbox."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from fakes.claimstage import begin, claim_stage
from simulated.gpus import SimulatedGpus
from simulated.nvml import CONTROL, uuid


async def test_a_container_that_starts_again_is_not_given_the_gpu_that_has_its_node_now(
    short_path: Path, driver_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver counts again when it is loaded anew without a GPU."""
    control = short_path / "nvml"
    monkeypatch.setenv(CONTROL, str(control))
    often = {"look": "100ms", "rescan": "200ms"}
    gpu = {"driverRoot": str(driver_root), "api": "dra", "passDeviceSpecs": True, **often}
    async with claim_stage(short_path, start=False, tpu={"enabled": False}, gpu=gpu) as at:
        gpus = SimulatedGpus(at.node.node, control)
        gpus.arrive(3)
        await begin(at)
        led, safe = (at.allocate(f"gpu-{n}", device=uuid(n).lower()) for n in (1, 2))
        for claim in (led, safe):
            await at.prepared(claim)
        at.record(led, device=uuid(1).lower())
        _, *others = gpus.stub.cards
        counted = (replace(each, minor=number) for number, each in enumerate(others))
        gpus.show(replace(gpus.stub, cards=tuple(counted)))
        await at.node.until(
            lambda: not at.spec_file(led).exists(), "the spec that leads to another GPU to go"
        )
        assert at.spec_file(safe).exists(), "it leads to none"
