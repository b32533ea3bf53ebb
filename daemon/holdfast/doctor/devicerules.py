"""Checks the rules for single devices: which devices of the node each of them is for."""

import re
from collections.abc import Iterator

from holdfast.doctor.finding import Check, Finding, Node
from holdfast.doctor.nvidia.facts import driver_tells
from holdfast.host.files.kernelfile import field_of
from holdfast.host.pci.sysfs import Snapshot
from holdfast.host.root import HostRoot
from holdfast.model.cards import card_key
from holdfast.model.devicerules import DeviceRule, assigned
from holdfast.model.devices import Device, DeviceKind, Identity, Inventory
from holdfast.model.ids import DeviceId, DeviceName, PciAddress, ResourceName
from holdfast.model.text import some
from holdfast.vendors.tpu.chips import tpu_devices
from holdfast.vendors.vfio.groups import pool_devices

_GPU = ResourceName("nvidia.com/gpu")
_OF_SLICES = re.compile(r"mig|:", re.IGNORECASE)


def device_findings(node: Node) -> Iterator[Finding]:
    """Yield what each rule of the settings does on this node; nothing where there are none."""
    rules = node.settings.device_rules()
    if not rules:
        return
    devices = (*_on_pci(node), *_gpus(node.host))
    made = assigned(Inventory(devices=devices), rules, {})
    unnamed = any(each.kind is DeviceKind.DRIVER and not each.identity.uuids for each in devices)
    idle = {text.partition(" (")[0]: text for text in made.idle_rules}
    for rule in rules:
        if rule.place not in idle:
            names = [str(each.name.id) for each in devices if rule.matches(each)]
            yield Check("rules").ok(f"{rule} is for {some(names)}")
        elif _may_be_for_slices(rule) or (rule.uuid is not None and unnamed):
            yield Check("rules").ok(
                f"{rule}: `holdfast status` shows whether a slice, or a GPU that nobody has "
                "opened yet, matches"
            )
        else:
            yield Check("rules").warn(
                idle[rule.place],
                remedy="correct or remove the rule, or leave it for other nodes that it is for; "
                "`holdfast devices` shows what devices are called",
            )


def _on_pci(node: Node) -> Iterator[Device]:
    """Yield the TPU chips and the devices of pools."""
    settings = node.settings
    snapshot = Snapshot(node.host)
    if settings.tpu.enabled:
        yield from tpu_devices(snapshot, ResourceName(settings.tpu.resource_name))
    yield from pool_devices(snapshot, [pool.spec() for pool in settings.pools])


def _gpus(host: HostRoot) -> Iterator[Device]:
    """Yield the GPUs that the driver shows without NVML, which numbers them by PCI address."""
    for index, (address, told) in enumerate(driver_tells(host)):
        uuid = field_of(told, "GPU UUID")
        if "?" in uuid:  # the driver has not set this GPU up: no process has opened it
            uuid = ""
        yield Device(
            name=DeviceName(_GPU, DeviceId(uuid or address)),
            kind=DeviceKind.DRIVER,
            keys=frozenset({card_key(uuid or address)}),
            nodes=(),
            functions=(),
            source="nvidia",
            model=field_of(told, "Model"),
            identity=Identity(
                indexes=(str(index),),
                uuids=(uuid,) if uuid else (),
                addresses=(PciAddress(address.lower()),),
            ),
        )


def _may_be_for_slices(rule: DeviceRule) -> bool:
    """Tell whether *rule* names MIG slices, which only NVML shows."""
    given = (rule.uuid, rule.index, rule.model)
    return any(pattern is not None and _OF_SLICES.search(pattern) for pattern in given)
