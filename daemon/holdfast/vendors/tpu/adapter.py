"""Advertises TPU chips, and tells their programs what they need to know of the host."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from msgspec import Struct
from msgspec.structs import replace

from holdfast.discovery.source import Source
from holdfast.errors import HostError, LaneStuckError
from holdfast.host.files.kernelfile import read_bytes
from holdfast.host.pci.sysfs import Snapshot
from holdfast.host.root import HostRoot
from holdfast.model.devices import Device, Inventory
from holdfast.model.grants import ContainerGrant
from holdfast.model.ids import HardwareKey, ResourceName
from holdfast.model.tpu.env import TpuEnvFile, TpuHostFacts, environment, parse_tpu_env, resolve
from holdfast.model.tpu.generations import GENERATIONS, TpuGeneration
from holdfast.model.vfio import PoolSpec, pool_variables
from holdfast.runtime.lane import Lane, Lanes
from holdfast.runtime.watched import Watched
from holdfast.vendors.context import Context
from holdfast.vendors.tpu.chips import tpu_devices
from holdfast.vendors.vfio.groups import pool_devices

_log = structlog.get_logger(__name__)

_MOST_BYTES = 64 * 1024
"""The longest file of the machine's image that is read."""
_DEADLINE = 5.0
"""Seconds that a reading of it may take."""

if TYPE_CHECKING:
    from holdfast.model.dra.advertised import AdvertisedDevice


class Tpus(Source, Struct, kw_only=True):
    """The TPU chips of this host, as `resource`, with the functions of `pools`, of that name too.

    `configured` goes before what `from_file` returns of /etc/tpu/tpu-env, on a lane of its own: a
    disk that hangs must not hold up more. `generation` overrules what the PCI ids say; empty: it
    does not. `gke_keys`: nodes also get the labels that GKE's have.
    """

    name = "tpu"
    resource: ResourceName
    pools: Sequence[PoolSpec]
    configured: TpuHostFacts
    generation: str
    gke_keys: Watched[bool]
    from_file: Callable[[], TpuEnvFile]
    lanes: Lanes
    _lane: Lane | None = None
    _file: TpuEnvFile = TpuEnvFile()
    _notes: dict[str, tuple[str, ...]] = {}

    @property
    def resources(self) -> tuple[ResourceName, ...]:
        """Return the one resource."""
        return (self.resource,)

    def scan(self, snapshot: Snapshot) -> Iterable[Device]:
        """Return each chip, and what the pools add to them; a chip's own view of itself wins."""
        chips = tpu_devices(snapshot, self.resource)
        keys = frozenset[HardwareKey]().union(*(each.keys for each in chips))
        added = pool_devices(snapshot, self.pools)
        return (*chips, *(each for each in added if keys.isdisjoint(each.keys)))

    async def prepare(self, inventory: Inventory) -> Inventory:
        """Note for people what is said of this host and cannot be used; it makes nothing ill."""
        chips = inventory.found_as(self.resource)
        if chips:
            self._file = await self._read()
        before = {text for texts in self._notes.values() for text in texts}
        self._notes = {chip.name.id: self._set_aside(chip, len(chips)) for chip in chips}
        for text in sorted({text for texts in self._notes.values() for text in texts} - before):
            _log.warning("TPU host fact not used", reason=text)
        return inventory

    def notes(self) -> Mapping[str, tuple[str, ...]]:
        """Return by chip what is said of this host and cannot be used."""
        return self._notes

    def grant(
        self,
        resource: ResourceName,
        devices: tuple[Device, ...],
        inventory: Inventory,
        *,
        by_claim: bool,
    ) -> ContainerGrant:
        """Return the variables that libtpu and frameworks read."""
        del by_claim
        generation = self._generation_of(devices[0])
        if generation is None:
            addresses = [address for device in devices for address in device.functions]
            return ContainerGrant(envs=pool_variables(resource, addresses))
        on_host = len(inventory.found_as(self.resource))
        facts, _ = self._resolved(generation, on_host)
        nodes = tuple(each.numa_node for each in devices if each.numa_node is not None)
        variables = environment(
            generation, granted=len(devices), on_host=on_host, facts=facts, numa_nodes=nodes
        )
        return ContainerGrant(envs=dict(variables))

    def _generation_of(self, chip: Device) -> TpuGeneration | None:
        return GENERATIONS.get(self.generation or chip.model)

    def _set_aside(self, chip: Device, on_host: int) -> tuple[str, ...]:
        generation = self._generation_of(chip)
        if generation is None:
            return ()
        _, problems = self._resolved(generation, on_host)
        return problems

    def _resolved(
        self, generation: TpuGeneration, on_host: int
    ) -> tuple[TpuHostFacts, tuple[str, ...]]:
        """Return what is known of this host, and what is said of it and cannot be used."""
        file = self._file
        facts, problems = resolve(
            generation, on_host=on_host, configured=self.configured, from_file=file.facts
        )
        return facts, (*problems, *file.problems)

    async def _read(self) -> TpuEnvFile:
        """Return what the file says; while it cannot be read in time, what it said before."""
        lane = self._lane = self._lane or self.lanes.open_lane("tpu-env", Watched(_DEADLINE))
        try:
            # One that hangs is not waited for again.
            deadline = None if lane.stuck_since is None else 0.0
            return await lane.run(self.from_file, deadline=deadline)
        except LaneStuckError:
            text = (
                "cannot read tpu-env: its disk does not answer, so what it said before counts; "
                "repair the disk, or set tpu.envFile to a file on another and restart holdfast"
            )
            return replace(self._file, problems=(text,))

    def labels(self, inventory: Inventory) -> Mapping[str, str]:
        """Return of which generation the chips are, and what is known of their slice."""
        from holdfast.model.tpu.env import tpu_labels  # noqa: PLC0415 - only where they are wanted

        chips = [each for each in inventory.found_as(self.resource) if self._generation_of(each)]
        left_out = {each.device.name for each in inventory.left_out}
        offered = [chip for chip in chips if chip.name not in left_out]
        generation = self._generation_of(offered[0]) if offered else None
        if generation is None:
            return {}
        facts, _ = self._resolved(generation, len(chips))
        return tpu_labels(generation, chips=len(offered), facts=facts, gke=self.gke_keys.value)

    def advertised(self, devices: Sequence[Device]) -> "tuple[AdvertisedDevice, ...]":
        """Return the chips, and the shapes that they make."""
        from holdfast.model.tpu.shapes import advertised_chips  # noqa: PLC0415 - as in the base

        return advertised_chips(devices, self.generation)


class _NoTpus(Source):
    name = "tpu"


def tpus(on: Context) -> Source:
    """Return the adapter of TPU chips; where the settings want none, one that finds none."""
    settings = on.settings.value
    tpu = settings.tpu
    if not tpu.enabled:
        return _NoTpus()
    file = Path(tpu.env_file) if tpu.env_file else tpu_env_path(on.root)
    resource = ResourceName(tpu.resource_name)
    return Tpus(
        resource=resource,
        pools=[pool.spec() for pool in settings.pools if pool.resource_name == resource],
        configured=TpuHostFacts(
            topology=tpu.topology,
            accelerator_type=tpu.accelerator_type,
            worker_id="" if tpu.worker_id is None else str(tpu.worker_id),
            worker_hostnames=tpu.worker_hostnames,
            vbar_url=tpu.vbar_url,
        ),
        generation=tpu.generation,
        gke_keys=on.settings.part(lambda now: now.labels.gke_keys),
        from_file=partial(read_tpu_env, file),
        lanes=on.lanes,
    )


def tpu_env_path(root: HostRoot) -> Path:
    """Return where the Cloud TPU runtime leaves the file."""
    return root.etc / "tpu" / "tpu-env"


def read_tpu_env(path: Path) -> TpuEnvFile:
    """Return what the file says; nothing if the host does not have it, which is no problem."""
    try:
        content = read_bytes(path, most=_MOST_BYTES)
    except HostError as error:
        return TpuEnvFile(problems=(str(error),))
    return TpuEnvFile() if content is None else parse_tpu_env(content.decode(errors="replace"))
