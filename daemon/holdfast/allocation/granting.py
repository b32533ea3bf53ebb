"""What a container is given: the nodes of its devices, and the environment its programs expect."""

import uuid
from collections.abc import Callable

from msgspec import Struct

from holdfast.model.devices import Device, DeviceKind, Inventory
from holdfast.model.gate.cdi import Published, cdi_name
from holdfast.model.grants import VFIO_CONTAINER, ContainerGrant, GrantedNode
from holdfast.model.ids import ResourceName
from holdfast.model.nvidia.devices import GpuFacts
from holdfast.model.nvidia.grant import BesideGpus, GpuGrantRules, GrantedGpu, gpu_grant
from holdfast.model.tpu.env import TpuHostFacts, environment, resolve
from holdfast.model.tpu.generations import GENERATIONS, TpuGeneration


def _fresh() -> str:
    return str(uuid.uuid4())


class TpuInputs(Struct, frozen=True, kw_only=True):
    """Where the TPU environment comes from, besides the hardware.

    `generation` overrules what the PCI ids say; empty: it does not.
    """

    resource: ResourceName
    configured: TpuHostFacts
    generation: str = ""


class GpuInputs(Struct, frozen=True, kw_only=True):
    """Where GPUs' grants come from; `facts` is the latest that is known of them.

    `modes` are those that can be handed over by name; `answer_id` returns a fresh UUID.
    """

    rules: GpuGrantRules
    facts: Callable[[], GpuFacts]
    modes: Callable[[], frozenset[str]] = frozenset
    answer_id: Callable[[], str] = _fresh

    def grant(self, devices: tuple[Device, ...]) -> ContainerGrant:
        """Return what a container gets for GPUs."""
        facts = self.facts()
        index = {part.name.id: part.index for part in facts.layout.parts}
        gpus = [
            GrantedGpu(
                uuid=each.name.id,
                index=index.get(each.name.id, ""),
                nodes=(*(node.path for node in each.nodes), *facts.caps.get(each.name.id, ())),
            )
            for each in devices
        ]
        beside = BesideGpus(
            control=facts.control,
            imex=facts.imex,
            explained=self.modes(),
            answer_id=self.answer_id(),
        )
        return gpu_grant(gpus, self.rules, beside)


class Granting:
    """Builds answers to Allocate from values alone; `from_file` is what /etc/tpu/tpu-env says."""

    def __init__(
        self,
        tpu: TpuInputs | None,
        *,
        from_file: Callable[[], TpuHostFacts],
        published: Callable[[], Published] | None = None,
        gpus: GpuInputs | None = None,
    ) -> None:
        """Give TPU variables for *tpu*'s resource; None: the node offers no TPUs.

        `published` is what the CDI spec files say; None: devices are never handed over by name.
        `gpus` is what GPUs' grants are made from; None: the node offers none.
        """
        self._tpu = tpu
        self._from_file = from_file
        self._published = published
        self._gpus = gpus

    def grant(
        self, resource: ResourceName, devices: tuple[Device, ...], inventory: Inventory
    ) -> ContainerGrant:
        """Return exactly the granted nodes, the VFIO container's where needed, and variables.

        With a spec that has them all it returns CDI names for the nodes. Without one the nodes
        themselves: the container then runs as it would, and only a reboot may take it its chip.
        """
        if self._gpus is not None and any(each.kind is DeviceKind.DRIVER for each in devices):
            return self._gpus.grant(devices)
        envs = self._environment(resource, devices, inventory)
        if self._published is not None and all(map(self._published().covers, devices)):
            names = tuple(cdi_name(device.name) for device in devices)
            return ContainerGrant(cdi_devices=names, envs=envs)
        nodes = [
            GrantedNode(host_path=node.path, container_path=node.path)
            for device in devices
            for node in device.nodes
        ]
        if any(device.kind is DeviceKind.VFIO for device in devices):
            nodes.append(GrantedNode(host_path=VFIO_CONTAINER, container_path=VFIO_CONTAINER))
        return ContainerGrant(nodes=tuple(dict.fromkeys(nodes)), envs=envs)

    def _environment(
        self, resource: ResourceName, devices: tuple[Device, ...], inventory: Inventory
    ) -> dict[str, str]:
        if not devices:
            return {}
        if self._tpu is None or resource != self._tpu.resource:
            return _pci_environment(resource, devices)
        generation = self._generation(devices[0])
        if generation is None:
            return _pci_environment(resource, devices)
        on_host = len(inventory.of(resource))
        facts, _ = resolve(
            generation,
            on_host=on_host,
            configured=self._tpu.configured,
            from_file=self._from_file(),
        )
        nodes = tuple(each.numa_node for each in devices if each.numa_node is not None)
        variables = environment(
            generation, granted=len(devices), on_host=on_host, facts=facts, numa_nodes=nodes
        )
        return dict(variables)

    def _generation(self, device: Device) -> TpuGeneration | None:
        wanted = (self._tpu.generation if self._tpu is not None else "") or device.model
        return GENERATIONS.get(wanted)


def _pci_environment(resource: ResourceName, devices: tuple[Device, ...]) -> dict[str, str]:
    """Return KubeVirt's variable that names a pool's PCI addresses to the program."""
    name = resource.upper().translate(str.maketrans("./-", "___"))
    addresses = [address for device in devices for address in device.functions]
    return {f"PCI_RESOURCE_{name}": ",".join(addresses)}
