"""What the scheduler is told of GPUs and their MIG slices, as NVIDIA's DRA driver does."""

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.model.devices import Device
from holdfast.model.dra.advertised import Advertised, plain, texts, versions
from holdfast.model.nvidia.devices import GpuFacts
from holdfast.model.nvidia.gpu import GpuTraits
from holdfast.model.nvidia.mig import GpuPart

_NOT_TOLD = GpuTraits()


def advertised_gpus(devices: Sequence[Device], facts: GpuFacts) -> tuple[Advertised, ...]:
    """Return each of *devices* with what *facts* know of it."""
    parts = {part.name.id: part for part in facts.layout.parts}
    return tuple(
        _part(device, parts[device.name.id], facts) if device.name.id in parts else plain(device)
        for device in devices
    )


def _part(device: Device, part: GpuPart, facts: GpuFacts) -> Advertised:
    gpu, piece = part.gpu, part.slice
    traits = facts.traits.get(gpu.uuid, _NOT_TOLD)
    found = plain(device)
    attributes = {
        **found.attributes,
        **texts(
            type="gpu" if piece is None else "mig",
            uuid=device.name.id,
            productName=gpu.name,
            brand=traits.brand,
            architecture=traits.architecture,
            parentUUID="" if piece is None else gpu.uuid,
            profile="" if piece is None else piece.profile,
        ),
        **versions(
            cudaComputeCapability=traits.capability,
            driverVersion=facts.version,
            cudaDriverVersion=traits.cuda_driver,
        ),
    }
    memory = gpu.memory if piece is None else piece.memory
    return replace(
        found,
        address=gpu.pci,
        attributes=attributes,
        capacity={} if memory is None else {"memory": memory},
    )
