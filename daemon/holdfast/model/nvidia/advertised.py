"""What the scheduler is told about GPUs and their MIG slices, as NVIDIA's DRA driver does."""

from collections.abc import Mapping, Sequence
from itertools import groupby

from msgspec.structs import replace

from holdfast.model.cards import replicas_in
from holdfast.model.devices import Device
from holdfast.model.dra.advertised import AdvertisedDevice, plain, texts, versions
from holdfast.model.ids import DeviceId, DeviceName
from holdfast.model.nvidia import REPLICAS
from holdfast.model.nvidia.devices import GpuFacts
from holdfast.model.nvidia.gpu import GpuTraits, MigEngines
from holdfast.model.nvidia.mig import GpuPart

_NOT_TOLD = GpuTraits()


def advertised_gpus(devices: Sequence[Device], facts: GpuFacts) -> tuple[AdvertisedDevice, ...]:
    """Return each of *devices* with what *facts* know of it, and replicas as the GPU they are of.

    A shared GPU has the same name as one that is not: a claim that has it keeps it either way. If
    replicas have a resource of their own, its last part is the type, so that no claim gets a share
    that asked for a whole GPU.
    """
    parts = {part.name.id: part for part in facts.layout.parts}
    found: list[AdvertisedDevice] = []
    for name, group in groupby(devices, lambda device: REPLICAS.whole(device.name)):
        replicas = tuple(group)
        if replicas_in(replicas[0].keys):
            card = replace(replicas[0], name=name)
            found.append(_shared(name, _told(card, parts, facts), replicas))
        else:
            found += (_told(each, parts, facts) for each in replicas)
    return tuple(found)


def _told(device: Device, parts: Mapping[DeviceId, GpuPart], facts: GpuFacts) -> AdvertisedDevice:
    part = parts.get(device.name.id)
    return plain(device) if part is None else _part(device, part, facts)


def _shared(
    whole: DeviceName, card: AdvertisedDevice, replicas: Sequence[Device]
) -> AdvertisedDevice:
    resource = replicas[0].name.resource
    renamed = resource != whole.resource
    told = texts(resource=resource, type=resource.rpartition("/")[2] if renamed else "")
    return replace(
        card,
        devices=tuple(each.name for each in replicas),
        attributes={**card.attributes, **told},
        whole=whole,
    )


def _part(device: Device, part: GpuPart, facts: GpuFacts) -> AdvertisedDevice:
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
            addressingMode=traits.addressing if piece is None else "",
        ),
        **versions(
            cudaComputeCapability=traits.capability,
            driverVersion=facts.version,
            cudaDriverVersion=traits.cuda_driver,
        ),
    }
    memory = gpu.memory if piece is None else piece.memory
    capacity = {} if memory is None else {"memory": memory}
    if piece is not None:
        capacity |= _amounts(piece.engines)
    return replace(found, attributes=attributes, capacity=capacity)


def _amounts(engines: MigEngines) -> Mapping[str, int]:
    return {
        "multiprocessors": engines.multiprocessors,
        "copyEngines": engines.copy,
        "decoders": engines.decoder,
        "encoders": engines.encoder,
        "jpegEngines": engines.jpeg,
        "ofaEngines": engines.ofa,
    }
