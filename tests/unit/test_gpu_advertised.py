"""What the scheduler is told of GPUs and slices: what NVIDIA's driver tells, and where they are."""

import pytest

from holdfast.model.cards import Sharing
from holdfast.model.devices import Device, DeviceKind
from holdfast.model.dra.advertised import Advertised
from holdfast.model.ids import DeviceId, DeviceName, PciAddress, ResourceName
from holdfast.model.nvidia.advertised import advertised_gpus
from holdfast.model.nvidia.devices import GpuFacts, gpu_devices
from holdfast.model.nvidia.gpu import DriverState, Gpu, GpuReading, GpuTraits, MigSlice
from holdfast.model.nvidia.mig import MigStrategy, lay_out

UUID = "GPU-00000000-0000-4000-8000-000000000000"
MIG = "MIG-00000000-0000-4000-8000-000000000001"
TRAITS = GpuTraits(brand="Nvidia", architecture="Hopper", capability="9.0", cuda_driver="12.4")


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


def told(found: Advertised) -> dict[str, str | int | None]:
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
    }
    assert (found.name, found.address) == (UUID.lower(), "0000:65:00.0")
    assert found.capacity == {"memory": 80 << 30}


def test_a_slice_names_its_gpu_and_its_profile() -> None:
    piece = MigSlice(uuid=MIG, gi=7, ci=0, profile="1g.10gb", memory=9856 << 20)
    known = facts(card(mig=True, slices=(piece,)))
    (found,) = advertised_gpus(gpu_devices(known), known)

    assert found.name == f"mig-1g-10gb-{MIG.lower()}"
    assert found.capacity == {"memory": 9856 << 20}
    expected = {"type": "mig", "parentUUID": UUID, "profile": "1g.10gb", "uuid": MIG}
    assert expected.items() <= told(found).items()


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


def test_a_gpu_that_tells_nothing_is_offered_all_the_same() -> None:
    gpu = Device(
        name=DeviceName(ResourceName("nvidia.com/gpu"), DeviceId(UUID)),
        kind=DeviceKind.DRIVER,
        keys=frozenset(),
        nodes=(),
        functions=(),
    )
    silent = facts(card(pci=None, memory=None, name=""))

    for known in (GpuFacts(), silent):
        (found,) = advertised_gpus([gpu], known)
        assert found.name == UUID.lower()
        assert found.address is None
