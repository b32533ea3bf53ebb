"""Keeps the CDI specs of GPUs true; a GPU that no spec explains is given to nobody by its name."""

from collections.abc import Callable, Mapping

import structlog
from msgspec.structs import replace

from holdfast.allocation.cdi import SpecWriter
from holdfast.model.cards import parted
from holdfast.model.devices import Fault, FaultKind, Inventory, with_faults
from holdfast.model.ids import DeviceId
from holdfast.model.nvidia.devices import GpuFacts
from holdfast.model.nvidia.gpu import DriverState
from holdfast.model.nvidia.grant import DeviceIds, GpuGrantRules
from holdfast.model.nvidia.names import GPU_KINDS, Described, GpuNames, found_in, unexplained
from holdfast.vendors.nvidia.withoutdriver import WithoutDriver

log = structlog.get_logger(__name__)


class GpuSpecs:
    """Writes the specs of the GPUs; `names` is what a runtime finds in them.

    There is no other way to give a container a GPU under CDI: nodes by path have no libraries with
    them. So a GPU without its spec is Unhealthy, and nothing that was promised it starts.
    """

    def __init__(
        self,
        writer: SpecWriter,
        *,
        describe: Callable[[GpuFacts], Described],
        facts: Callable[[], GpuFacts],
        rules: GpuGrantRules,
        promised: Callable[[], bool],
    ) -> None:
        """Write what *describe* makes of *facts*, on the writer's lane; it may raise HostError.

        Where *rules* give new containers no names, the specs are for those that were *promised*
        some before, and without any the folder is left alone.
        """
        self._writer = writer
        self._describe = describe
        self._facts = facts
        self._rules = rules
        self._promised = promised
        self.names = GpuNames()

    async def publish(self, inventory: Inventory) -> Inventory:
        """Let the files say what is known; return *inventory* with the faults of what they lack.

        Never raises for what the folder or the driver's files do. While the driver is away the
        files stay: the GPUs are Unhealthy anyway.
        """
        if not (self._rules.by_name or self._promised()):
            self.names = GpuNames()
            return inventory
        facts = self._facts()
        if facts.state is DriverState.READY:
            await self._write(facts)
        if not self._rules.by_name:
            return inventory
        called = {
            part.name.id: str(part.name.id) if self._rules.ids is DeviceIds.UUID else part.index
            for part in facts.layout.parts
        }
        answers = {
            each.name.id: called.get(parted(each.name.id)[0])
            for each in inventory.devices
            if each.source == WithoutDriver.name
        }
        faults = unexplained(answers, self.names, imex=bool(facts.imex))
        return replace(inventory, devices=with_faults(inventory.devices, _faults(faults)))

    async def _write(self, facts: GpuFacts) -> None:
        made = Described()

        def make() -> Mapping[str, str]:
            nonlocal made
            made = self._describe(facts)
            return made.files

        written = await self._writer.write(make, GPU_KINDS)
        if written.problem:
            found = GpuNames(problem=written.problem)
        else:
            found = found_in(made, written.rivals)
        if found.problem and found.problem != self.names.problem:
            log.warning("cannot publish CDI specs of GPUs", reason=found.problem)
        self.names = found


def _faults(reasons: Mapping[DeviceId, str]) -> Mapping[str, tuple[Fault, ...]]:
    return {id_: (Fault(kind=FaultKind.NO_SPEC, text=text),) for id_, text in reasons.items()}
