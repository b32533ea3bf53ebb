"""Keeps the CDI specs of GPUs true, and says which GPUs or slices kubelet should pick."""

from collections.abc import Callable, Mapping, Sequence

import structlog
from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.allocation.specwriter import SpecWriter
from holdfast.model.devices import Device, Fault, FaultKind, Inventory, with_faults
from holdfast.model.gate.placement import Choice
from holdfast.model.ids import DeviceId, ResourceName
from holdfast.model.nvidia import REPLICAS
from holdfast.model.nvidia.devices import GpuFacts
from holdfast.model.nvidia.gpu import DriverState
from holdfast.model.nvidia.grant import DeviceIds, GpuGrantRules
from holdfast.model.nvidia.names import GPU_KINDS, GpuNames, NodeSpecs, found_in, unexplained
from holdfast.model.nvidia.placement import GpuBoard, GpuTopology, SlicePolicy, preferred_slices
from holdfast.runtime.problem import Problem
from holdfast.runtime.watched import Watched
from holdfast.vendors.nvidia.withoutdriver import WithoutDriver

log = structlog.get_logger(__name__)


class GpuSpecs(Struct, kw_only=True):
    """Writes the specs of the GPUs; `names` is what a runtime finds in them.

    There is no other way to give a container a GPU under CDI: nodes by path have no libraries with
    them. So a GPU without its spec is Unhealthy, and nothing that was promised it starts.

    They are what `describe` makes of `facts`, on the writer's lane; it may raise HostError. Where
    `rules` give new containers no names, the specs are for those that were `promised` some before,
    and without any the folder is left alone. `claimed`: there are claims. `imex`: new
    containers have the name of channel 0.
    """

    writer: SpecWriter
    describe: Callable[[GpuFacts], NodeSpecs]
    facts: Callable[[], GpuFacts]
    rules: GpuGrantRules
    promised: Callable[[], bool]
    claimed: Callable[[], bool]
    imex: bool
    names: GpuNames = GpuNames()
    _were_files: bool = False
    _problem: Problem = field(
        default_factory=lambda: Problem(log, "cannot publish CDI specs of GPUs")
    )

    async def publish(self, inventory: Inventory) -> Inventory:
        """Let the files say what is known; return *inventory* with the faults of what they lack.

        Never raises for what the folder or the driver's files do. While the driver is away the
        files stay: the GPUs are Unhealthy anyway.
        """
        if not (self.rules.by_name or self.promised() or await self._claims_count_on_it()):
            self._keep(GpuNames())
            return inventory
        facts = self.facts()
        if facts.state is DriverState.READY:
            await self._write(facts)
        if not self.rules.by_name:
            return inventory
        called = {
            part.name.id: str(part.name.id) if self.rules.ids is DeviceIds.UUID else part.index
            for part in facts.layout.known
        }
        answers = {
            each.name.id: called.get(REPLICAS.parted(each.name.id)[0])
            for each in inventory.devices
            if each.source == WithoutDriver.name
        }
        faults = unexplained(answers, self.names, imex=self.imex and bool(facts.imex))
        return replace(inventory, devices=with_faults(inventory.devices, _faults(faults)))

    async def _claims_count_on_it(self) -> bool:
        """Tell whether a claim may have names: no answer says so, but all came after the files.

        A boot removes these, and after it each claim is prepared again.
        """
        if not self.claimed():
            return False
        self._were_files = self._were_files or await self.writer.has_files()
        return self._were_files

    async def _write(self, facts: GpuFacts) -> None:
        made = NodeSpecs()

        def make() -> Mapping[str, str]:
            nonlocal made
            made = self.describe(facts)
            return made.files

        written = await self.writer.write(make, GPU_KINDS)
        if written.problem:
            self._keep(GpuNames(problem=written.problem))
        else:
            self._keep(found_in(made, written.rivals))

    def _keep(self, found: GpuNames) -> None:
        self._problem.set(found.problem)
        self.names = found


def _faults(reasons: Mapping[DeviceId, str]) -> Mapping[str, tuple[Fault, ...]]:
    return {id_: (Fault(kind=FaultKind.NO_SPEC, text=text),) for id_, text in reasons.items()}


class GpuPreference(Struct):
    """Answers from the topology that was read last, and asks nobody.

    `topology` says which GPUs are near each other, and which slices are of one GPU; `slices`, from
    which GPU the next MIG slice, or the next replica, is taken.
    """

    topology: Watched[GpuTopology]
    slices: Watched[SlicePolicy]
    _boards: dict[ResourceName, tuple[Sequence[Device], GpuTopology, GpuBoard]] = {}

    def preferred(self, devices: Sequence[Device], choice: Choice) -> tuple[DeviceId, ...]:
        """Return GPUs that are near each other, or slices and replicas as the policy says."""
        replicas = {each.name.id: REPLICAS.parted(each.name.id) for each in devices}
        parents = {
            **self.topology.value.parents,
            **{id_: card for id_, (card, number) in replicas.items() if number},
        }
        if any(device.name.id in parents for device in devices):
            ids = tuple(device.name.id for device in devices)
            return preferred_slices(ids, parents, self.slices.value, choice)
        return self._board(devices).preferred(choice)

    def _board(self, devices: Sequence[Device]) -> GpuBoard:
        """Return the board of *devices*, made again only when they or the topology changed."""
        topology, resource = self.topology.value, devices[0].name.resource
        known = self._boards.get(resource)
        if known is None or known[0] != devices or known[1] is not topology:
            known = (devices, topology, GpuBoard.of(devices, topology))
            self._boards[resource] = known
        return known[2]
