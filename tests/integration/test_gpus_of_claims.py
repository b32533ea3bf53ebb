"""What containers of claims are given of GPUs when they start again in their sandbox."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fakes.claimstage import ClaimStage, begin, claim_stage
from fakes.gpustage import GPU
from holdfast.model.nvidia.names import GPU_KIND
from simulated.gpus import SimulatedGpus
from simulated.nvml import CONTROL, uuid

_Stage = Callable[..., AbstractAsyncContextManager[tuple[ClaimStage, SimulatedGpus]]]


@pytest.fixture
def stage(short_path: Path, driver_root: Path, monkeypatch: pytest.MonkeyPatch) -> _Stage:
    """A node whose GPUs come by claims, with other settings as they are asked for."""
    control = short_path / "nvml"
    monkeypatch.setenv(CONTROL, str(control))
    often = {"look": "100ms", "rescan": "200ms"}

    @asynccontextmanager
    async def made(count: int, **gpu: Any) -> AsyncIterator[tuple[ClaimStage, SimulatedGpus]]:
        section = {"driverRoot": str(driver_root), "api": "dra", **often, **gpu}
        async with claim_stage(short_path, start=False, tpu={"enabled": False}, gpu=section) as at:
            gpus = SimulatedGpus(at.node.node, control)
            gpus.arrive(count)
            await begin(at)
            yield at, gpus

    return made


async def test_a_container_that_starts_again_is_not_given_the_gpu_that_has_its_node_now(
    stage: _Stage,
) -> None:
    """The driver counts again when it is loaded anew without a GPU."""
    async with stage(3, passDeviceSpecs=True) as (at, gpus):
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


async def test_a_claim_is_given_its_gpu_by_uuid_also_when_the_device_plugin_serves_gpus_now(
    stage: _Stage,
) -> None:
    """A kubelet that was started again has its claims prepared again."""
    async with stage(2, deviceIdStrategy="index") as (at, _):
        claim = at.allocate("gpu", device=uuid(1).lower())
        await at.prepared(claim)
        await at.node.stop()
        at.node.settings["gpu"]["api"] = "device-plugin"
        await begin(at)
        await at.node.until(
            lambda: bool(at.node.healthy(GPU)), "GPUs to be offered by the device plugin"
        )
        await at.prepared(claim)
        (device,) = at.spec(claim)["devices"]
        assert device["containerEdits"]["env"] == [f"NVIDIA_VISIBLE_DEVICES={uuid(1)}"]


async def test_what_has_a_gpu_by_a_cdi_name_with_adminaccess_finds_it_when_new_ones_get_no_names(
    stage: _Stage, driver_root: Path
) -> None:
    (driver_root / "usr/lib64/libcuda.so.550.54.15").touch()
    async with stage(1, deviceListStrategy=["cdi-cri"]) as (at, _):
        claim = at.allocate("admin", device=uuid(0).lower(), adminAccess=True)
        assert f"{GPU_KIND}={uuid(0)}" in await at.prepared(claim)
        await at.node.stop()
        at.node.settings["gpu"]["deviceListStrategy"] = ["envvar"]
        spec = at.node.specs / "k8s.device-plugin.nvidia.com-gpu.json"
        spec.write_text("{}")
        await begin(at)
        await at.node.until(lambda: uuid(0) in spec.read_text(), "the spec that a claim counts on")


async def test_claims_that_were_given_no_names_need_none_of_the_drivers_files(
    stage: _Stage, driver_root: Path, short_path: Path
) -> None:
    """NVIDIA's runtime finds the driver by itself, where holdfast may not look."""
    library = short_path / "driver/usr/lib64/libnvidia-ml.so.1"
    library.parent.mkdir(parents=True)
    library.write_bytes((driver_root / "usr/lib64" / library.name).read_bytes())
    async with stage(1, driverRoot=str(short_path / "driver")) as (at, _):
        await at.prepared(at.allocate("gpu", device=uuid(0).lower()))
        await at.node.for_some_beats()
        await at.node.until_problem("GPU CDI specs", "")
