"""What the scheduler is told of GPUs and slices: what NVIDIA's driver tells, and where they are."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fakes.books import device_of, name
from holdfast.model.cards import Sharing
from holdfast.model.devices import DeviceKind
from holdfast.model.dra.advertised import AdvertisedDevice
from holdfast.model.dra.slices import quantity
from holdfast.model.ids import PciAddress, ResourceName
from holdfast.model.nvidia.advertised import advertised_gpus
from holdfast.model.nvidia.devices import GpuFacts, gpu_devices
from holdfast.model.nvidia.gpu import DriverState, Gpu, GpuReading, GpuTraits, MigEngines, MigSlice
from holdfast.model.nvidia.mig import MigStrategy, lay_out
from simulated.cluster.candidates import Candidate, selects

UUID = "GPU-00000000-0000-4000-8000-000000000000"
MIG = "MIG-00000000-0000-4000-8000-000000000001"
TRAITS = GpuTraits(
    brand="Nvidia",
    architecture="Hopper",
    capability="9.0",
    cuda_driver="12.4",
    addressing="HMM",
)


def facts(gpu: Gpu) -> GpuFacts:
    reading = GpuReading(state=DriverState.READY, driver_version="535.129.03", gpus=(gpu,))
    return GpuFacts(
        state=DriverState.READY,
        layout=lay_out(reading, MigStrategy.MIXED),
        version=reading.driver_version,
        traits={gpu.uuid: TRAITS},
    )


def card(**changes: object) -> Gpu:
    known = {
        "index": 0,
        "uuid": UUID,
        "minor": 0,
        "pci": PciAddress("0000:65:00.0"),
        "name": "NVIDIA H100 80GB HBM3",
        "memory": 80 << 30,
    }
    return Gpu(**{**known, **changes})  # type: ignore[arg-type]


def told(found: AdvertisedDevice) -> dict[str, str | int | None]:
    return {
        name: value.text if value.text is not None else value.version
        for name, value in found.attributes.items()
    }


def test_a_gpu_has_the_attributes_of_nvidias_driver() -> None:
    known = facts(card())
    (found,) = advertised_gpus(gpu_devices(known), known)

    assert told(found) == {
        "type": "gpu",
        "resource": "nvidia.com/gpu",
        "model": "NVIDIA H100 80GB HBM3",
        "uuid": UUID,
        "productName": "NVIDIA H100 80GB HBM3",
        "brand": "Nvidia",
        "architecture": "Hopper",
        "cudaComputeCapability": "9.0.0",
        "driverVersion": "535.129.3",
        "cudaDriverVersion": "12.4.0",
        "addressingMode": "HMM",
    }
    assert (found.name, found.address) == (UUID.lower(), "0000:65:00.0")
    assert found.capacity == {"memory": 80 << 30}


def test_a_slice_names_its_gpu_and_its_profile() -> None:
    engines = MigEngines(multiprocessors=16, copy=2, decoder=3, encoder=4, jpeg=5, ofa=6)
    piece = MigSlice(uuid=MIG, gi=7, ci=0, profile="1g.10gb", memory=9856 << 20, engines=engines)
    known = facts(card(mig=True, slices=(piece,)))
    (found,) = advertised_gpus(gpu_devices(known), known)

    assert found.name == f"mig-1g-10gb-{MIG.lower()}"
    assert found.capacity == {
        "memory": 9856 << 20,
        "multiprocessors": 16,
        "copyEngines": 2,
        "decoders": 3,
        "encoders": 4,
        "jpegEngines": 5,
        "ofaEngines": 6,
    }
    expected = {"type": "mig", "parentUUID": UUID, "profile": "1g.10gb", "uuid": MIG}
    assert expected.items() <= told(found).items()
    assert "addressingMode" not in told(found)


@pytest.mark.parametrize(
    ("renamed", "resource", "type_"),
    [
        (False, "nvidia.com/gpu", "gpu"),
        (True, "nvidia.com/gpu.shared", "gpu.shared"),
    ],
)
def test_replicas_are_one_device_that_is_shared(renamed: bool, resource: str, type_: str) -> None:
    known = facts(card())
    shared = {ResourceName("nvidia.com/gpu"): Sharing(replicas=3, renamed=renamed)}
    devices = gpu_devices(known, shared=shared)
    (found,) = advertised_gpus(devices, known)

    (whole,) = advertised_gpus(gpu_devices(known), known)
    assert found.shared
    assert not whole.shared
    assert (found.name, found.address, found.capacity) == (
        whole.name,
        whole.address,
        whole.capacity,
    )
    assert found.devices == tuple(each.name for each in devices)
    assert told(found) == {**told(whole), "resource": resource, "type": type_}


@pytest.mark.parametrize(
    ("renamed", "resource", "type_"),
    [
        (False, "nvidia.com/mig-1g.10gb", "mig"),
        # No class of whole slices selects it.
        (True, "nvidia.com/mig-1g.10gb.shared", "mig-1g.10gb.shared"),
    ],
)
def test_replicas_of_a_slice_are_the_slice_that_is_shared(
    renamed: bool, resource: str, type_: str
) -> None:
    pieces = tuple(
        MigSlice(uuid=f"MIG-{place}", gi=place, ci=0, profile="1g.10gb") for place in (1, 2)
    )
    known = facts(card(mig=True, slices=pieces))
    shared = {ResourceName("nvidia.com/mig-1g.10gb"): Sharing(replicas=3, renamed=renamed)}
    devices = gpu_devices(known, shared=shared)
    found = advertised_gpus(devices, known)
    unshared = advertised_gpus(gpu_devices(known), known)
    assert [each.name for each in found] == [each.name for each in unshared]
    assert [len(each.devices) for each in found] == [3, 3]
    assert [each.capacity for each in found] == [each.capacity for each in unshared]
    assert told(found[1]) == {**told(unshared[1]), "resource": resource, "type": type_}


_RECORD: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[1] / "golden/dra/nvidia-gpus.json").read_text()
)
"""Devices as NVIDIA's DRA driver published them on its mock of NVML, which told of no engines."""
_OUR_OWN = frozenset({"resource", "model"})


@pytest.mark.parametrize(
    "device",
    [each for devices in _RECORD.values() for each in devices],
    ids=lambda device: device["attributes"]["uuid"]["string"],
)
def test_a_device_has_all_that_nvidias_driver_publishes_of_it(device: dict[str, Any]) -> None:
    # Those with a domain are of no vendor, and every device has them.
    there = {name: value for name, value in device["attributes"].items() if "/" not in name}
    text = {name: value.get("string", value.get("version")) for name, value in there.items()}
    divided = "parentUUID" in text
    memory = device["capacity"]["memory"]["value"]
    size = int(memory[:-2]) << {"Mi": 20, "Gi": 30}[memory[-2:]]
    piece = MigSlice(uuid=text["uuid"], gi=7, ci=0, profile=text.get("profile", ""), memory=size)
    gpu = card(
        uuid=text["parentUUID"] if divided else text["uuid"],
        name=text["productName"],
        memory=size,
        mig=divided,
        slices=(piece,) if divided else (),
    )
    traits = GpuTraits(
        brand=text["brand"],
        architecture=text["architecture"],
        capability=text["cudaComputeCapability"].removesuffix(".0"),
        cuda_driver=text["cudaDriverVersion"].removesuffix(".0"),
    )
    reading = GpuReading(state=DriverState.READY, gpus=(gpu,))
    known = GpuFacts(
        state=DriverState.READY,
        layout=lay_out(reading, MigStrategy.MIXED),
        version=text["driverVersion"],
        traits={gpu.uuid: traits},
    )
    (found,) = advertised_gpus(gpu_devices(known), known)

    ours = {name: each for name, each in found.attributes.items() if name not in _OUR_OWN}
    assert msgspec.to_builtins(ours) == there
    capacity = {name: quantity(amount) for name, amount in found.capacity.items()}
    assert capacity == {name: each["value"] for name, each in device["capacity"].items()}


def test_the_classes_of_the_page_select_gpus_and_slices_under_the_name_of_nvidias_driver(
    repository: Path,
) -> None:
    page = (repository / "docs/dra.md").read_text()
    section = page.partition("## Move claims over from NVIDIA's DRA driver")[2].partition("\n## ")[
        0
    ]
    classes = re.findall(r"name: (\S+)\n(?:.*\n){3} +expression: (.+)\n", section)
    piece = MigSlice(uuid=MIG, gi=7, ci=0, profile="1g.10gb")
    told = {}
    for gpu in (card(), card(uuid="GPU-1", mig=True, slices=(piece,))):
        known = facts(gpu)
        (found,) = advertised_gpus(gpu_devices(known), known)
        device = {"attributes": msgspec.to_builtins(found.attributes)}
        one = Candidate(driver="gpu.nvidia.com", pool="n", node="n", device=device)
        told[found.devices[0].id] = [
            name for name, expression in classes if selects(expression, one)
        ]
    assert told == {UUID: ["gpu.nvidia.com"], MIG: ["mig.nvidia.com"]}


def test_a_gpu_that_tells_nothing_is_offered_all_the_same() -> None:
    gpu = device_of(name(UUID, ResourceName("nvidia.com/gpu")), kind=DeviceKind.DRIVER)
    silent = facts(card(pci=None, memory=None, name=""))

    for known in (GpuFacts(), silent):
        (found,) = advertised_gpus([gpu], known)
        assert found.name == UUID.lower()
        assert found.address is None
        assert found.capacity == {}
