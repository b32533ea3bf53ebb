"""What containers of claims are given of GPUs when they start again in their sandbox."""

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from fakes.claimstage import begin
from fakes.gpustage import GPU
from holdfast.model.nvidia.names import GPU_KIND
from simulated.nvml import uuid


async def test_a_container_that_starts_again_is_not_given_the_gpu_that_has_its_node_now(
    claimed_gpus: Any,
) -> None:
    """The driver counts again when it is loaded anew without a GPU."""
    async with claimed_gpus(3, passDeviceSpecs=True) as (at, gpus):
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
    claimed_gpus: Any,
) -> None:
    """A kubelet that was started again has its claims prepared again."""
    async with claimed_gpus(2, deviceIdStrategy="index") as (at, _):
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
    claimed_gpus: Any, driver_root: Path
) -> None:
    (driver_root / "usr/lib64/libcuda.so.550.54.15").touch()
    async with claimed_gpus(1, deviceListStrategy=["cdi-cri"]) as (at, _):
        claim = at.allocate("admin", device=uuid(0).lower(), adminAccess=True)
        assert f"{GPU_KIND}={uuid(0)}" in await at.prepared(claim)
        await at.node.stop()
        at.node.settings["gpu"]["deviceListStrategy"] = ["envvar"]
        spec = at.node.specs / "k8s.device-plugin.nvidia.com-gpu.json"
        spec.write_text("{}")
        await begin(at)
        await at.node.until(lambda: uuid(0) in spec.read_text(), "the spec that a claim counts on")


async def test_claims_that_were_given_no_names_need_none_of_the_drivers_files(
    claimed_gpus: Any, driver_root: Path, short_path: Path
) -> None:
    """NVIDIA's runtime finds the driver by itself, where holdfast may not look."""
    library = short_path / "driver/usr/lib64/libnvidia-ml.so.1"
    library.parent.mkdir(parents=True)
    library.write_bytes((driver_root / "usr/lib64" / library.name).read_bytes())
    async with claimed_gpus(1, driverRoot=str(short_path / "driver")) as (at, _):
        await at.prepared(at.allocate("gpu", device=uuid(0).lower()))
        await at.node.for_some_beats()
        await at.node.until_problem("GPU CDI specs", "")
