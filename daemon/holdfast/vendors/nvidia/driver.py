"""Keeps what is known of the node's GPUs true: the driver may come late, go away, and come back."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import structlog
from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.errors import HoldfastError, HostError
from holdfast.host.nvidia.driver import NvidiaFiles
from holdfast.model.devices import DeviceNode
from holdfast.model.ids import DeviceId, PciAddress
from holdfast.model.nvidia.devices import GpuFacts, gpu_topology
from holdfast.model.nvidia.gpu import NOWHERE, DriverState, Gpu, GpuLinks, GpuReading
from holdfast.model.nvidia.mig import GpuLayout, MigStrategy, lay_out, with_known
from holdfast.model.nvidia.placement import GpuTopology
from holdfast.model.nvidia.roots import DriverFacts, NvmlRelease, RootFacts, device_root, leave
from holdfast.runtime.clock import Clock, backoff
from holdfast.runtime.lane import Lane
from holdfast.runtime.problem import Problem
from holdfast.runtime.watched import Watched, pause

if TYPE_CHECKING:  # it loads NVML
    from holdfast.host.nvidia.nvml import Nvml

log = structlog.get_logger(__name__)

_FIRST_RETRY = 1.0
_READY_LOOK = 1.0
"""How often to look whether the driver container is still up, in seconds; it is one stat."""
_NO_IMEX = (
    "IMEX channel 0 is required, and the driver's folder of nodes has no "
    "nvidia-caps-imex-channels/channel0; create it, or set gpu.imexRequired to false"
)


class _DriverLook(Struct, frozen=True, kw_only=True):
    """One look: what NVML told, and what the node shows beside it."""

    reading: GpuReading
    facts: GpuFacts = field(default_factory=GpuFacts)
    links: GpuLinks | None = None
    """None: they are as they were, and so are the traits in `facts`."""


class DriverWatch(Struct, kw_only=True):
    """Publishes `facts`, `reading` and `topology`. Nothing of NVML is loaded before the driver is.

    A driver that is missing, starting or gone is a state with its reason, and is looked at again.
    All calls of NVML are on one lane: one that hangs is a stuck lane, and what was known stays.

    `make` makes an NVML of the path that was found, empty for the one the loader knows. `known` are
    the GPUs that a former daemon saw, by UUID, and where; `left` is why NVML was let go for good,
    by that one at first. `imex_required`: nothing starts without IMEX channel 0. Seconds: `look`
    between looks for a driver that is absent, `rescan` between readings.
    """

    files: NvidiaFiles
    make: Callable[[str], "Nvml"]
    lane: Lane
    clock: Clock
    look: Watched[float]
    strategy: MigStrategy
    rescan: Watched[float]
    imex_required: bool
    known: Mapping[str, PciAddress]
    left: NvmlRelease | None = None
    load: str = ""
    """What tells this load of the driver from any other, as of the last look."""
    last: GpuReading = GpuReading()
    """The last reading that found the driver ready."""
    facts: Watched[GpuFacts] = field(default_factory=lambda: Watched(GpuFacts()))
    reading: Watched[GpuReading] = field(default_factory=lambda: Watched(GpuReading()))
    topology: Watched[GpuTopology] = field(default_factory=lambda: Watched(GpuTopology()))
    ever_read: bool = False
    """Whether GPUs were ever enumerated: before, not even that one is gone is known."""
    _open: "tuple[str, Nvml] | None" = None
    _anew: bool = False
    _ready: bool | None = None
    _asked_to_leave: str = ""
    _latest: "Nvml | None" = None
    _links: GpuLinks = GpuLinks()
    _problem: Problem = field(default_factory=lambda: Problem(log, "cannot read the GPUs"))

    def __post_init__(self) -> None:
        gpus = (Gpu(index=NOWHERE, uuid=uuid, pci=pci) for uuid, pci in self.known.items())
        self.last = GpuReading(gpus=tuple(gpus))

    @property
    def library(self) -> "Nvml | None":
        """The library that is open, for calls on the same lane; None while there is none."""
        return self._open[1] if self._open is not None else None

    @property
    def holds_driver(self) -> bool:
        """Tell whether this process has NVML open, which keeps the driver from being unloaded."""
        return self._latest is not None and self._latest.in_use

    async def let_go(self, reason: str) -> None:
        """Let NVML go, so that the driver can be unloaded, until it was loaded again or `take_up`.

        Its other users follow `reading` and let go within seconds; see `holds_driver`.
        """
        self._asked_to_leave = reason
        await self.refresh()

    async def take_up(self) -> None:
        """Begin NVML again after `let_go`."""
        self._asked_to_leave, self.left = "", None
        await self.refresh()

    async def run(self) -> None:
        """Look until cancelled."""
        retries = backoff(_FIRST_RETRY, self.rescan.value)
        while True:
            state = await self.refresh()
            if state is DriverState.READY:
                retries = backoff(_FIRST_RETRY, self.rescan.value)
                await self._rest()
            elif not self.files.present:
                await pause(self.clock, self.look, float)
            else:
                await pause(self.clock, self.look, partial(min, next(retries)))

    async def _rest(self) -> None:
        """Wait for the next reading; a driver container that stops leaves no time to wait for."""
        began = self.clock.monotonic()
        while (left := began + self.rescan.value - self.clock.monotonic()) > 0:
            if not self._ready:
                await pause(self.clock, self.rescan, float)
            elif not self.files.ready:
                return
            else:
                await self.clock.sleep(min(left, _READY_LOOK))

    async def refresh(self) -> DriverState:
        """Look now, publish what is new, and return where the driver stands."""
        try:
            seen = await self.lane.run(partial(self._see, self.last))
        except HoldfastError as error:  # what is known stays
            self._problem.set(str(error))
            return self.reading.value.state
        self._problem.set("")
        self._report(seen.reading)
        if seen.reading.state is DriverState.READY:
            self.ever_read = True
            self._take(seen)
        else:
            away = self.facts.value
            self.facts.set(replace(away, state=seen.reading.state, reason=seen.reading.reason))
        self.reading.set(seen.reading)
        return seen.reading.state

    def _take(self, seen: _DriverLook) -> None:
        """Publish what a look showed that found the driver ready."""
        self.last = seen.reading
        if seen.links is not None:
            self._links = seen.links
            facts = seen.facts
        else:
            facts = replace(seen.facts, traits=self.facts.value.traits)
        self.topology.set(gpu_topology(facts.layout, self._links))
        self.facts.set(facts)

    def _see(self, last: GpuReading) -> _DriverLook:
        """Look at the driver, its library and the nodes; on the lane."""
        driver = self.files.facts()
        leaving = self._must_leave(driver)
        if leaving is not None:
            return self._without_nvml(DriverState.NOT_READY, leaving.reason)
        if not driver.present:
            reason = "the kernel has no NVIDIA driver (no /proc/driver/nvidia)"
            return self._without_nvml(DriverState.ABSENT, reason)
        if self._open is not None and driver.load != self.load:
            # Whatever NVML still answers is about a driver that is gone.
            reason = "the driver was reloaded or replaced: NVML is started again"
            return self._without_nvml(DriverState.NOT_READY, reason)
        self.load = driver.load
        try:
            library = self._begun(str(driver.libraries[0]) if driver.libraries else "")
        except HostError as error:
            missing = not driver.libraries and "LIBRARY_NOT_FOUND" in str(error)
            state = DriverState.NO_LIBRARY if missing else DriverState.NOT_READY
            return _DriverLook(reading=GpuReading(state=state, reason=str(error)))
        reading = library.read()
        if reading.state is not DriverState.READY:
            self._close()
            return _DriverLook(reading=reading)
        reading = self._placed(with_known(reading, last, on_driver=self.files.is_on_driver))
        uuids = tuple(sorted(gpu.uuid for gpu in reading.gpus if gpu.uuid))
        chosen = device_root(driver)
        root = chosen.root
        imex = self.files.imex(root) if root else ""
        layout = lay_out(reading, self.strategy)
        others = _tells_more(reading, last)
        facts = GpuFacts(
            state=DriverState.READY,
            layout=layout,
            nodes=self._nodes(root, reading) if root is not None else {},
            drm={gpu.uuid: self.files.drm_nodes(gpu.pci) for gpu in reading.gpus if gpu.pci},
            caps=_caps(layout, self.files.mig_nodes(root)) if root is not None else {},
            control=self.files.control(root) if root is not None else (),
            no_nodes=chosen.reason,
            version=reading.driver_version,
            traits=library.traits(uuids) if others else {},
            imex=imex,
            no_imex=_NO_IMEX if self.imex_required and not imex else "",
        )
        links = library.links(uuids) if others else None
        return _DriverLook(reading=reading, facts=facts, links=links)

    def _without_nvml(self, state: DriverState, reason: str) -> _DriverLook:
        """Let NVML go, and return a look without it; on the lane.

        Who else has it open here lets go when this is heard; nobody begins it before.
        """
        self._close()
        self._anew = True
        return _DriverLook(reading=GpuReading(state=state, reason=reason))

    def _must_leave(self, driver: DriverFacts) -> NvmlRelease | None:
        """Return why NVML is to be let go now, if it is; on the lane."""
        reason, self._asked_to_leave = self._asked_to_leave, ""
        asked = NvmlRelease(reason=reason, load=driver.load) if reason else self.left
        self.left = leave(asked, driver, was_ready=self._ready, now=self.clock.monotonic())
        self._ready = driver.ready
        return self.left

    def _begun(self, path: str) -> "Nvml":
        if self._open is not None and self._open[0] == path:
            return self._open[1]
        self._close()
        library = self._latest = self.make(path)
        if self._anew and library.in_use:
            raise HostError(
                "cannot start NVML again: calls to the former driver hang; if this lasts, restart "
                "holdfast"
            )
        library.open()
        self._open, self._anew = (path, library), False
        return library

    def _close(self) -> None:
        former, self._open = self._open, None
        if former is not None:
            former[1].close()

    def _nodes(self, root: RootFacts, reading: GpuReading) -> Mapping[int, DeviceNode]:
        minors = [gpu.minor for gpu in reading.gpus if gpu.minor is not None]
        return {
            minor: DeviceNode(path=f"{root.host}/nvidia{minor}", rdev=rdev)
            for minor in minors
            if (rdev := self.files.rdev(root, minor)) is not None
        }

    def _placed(self, reading: GpuReading) -> GpuReading:
        """Return *reading* with the NUMA node of each GPU, which sysfs knows."""
        return replace(
            reading,
            gpus=tuple(
                replace(gpu, numa_node=self.files.numa_node(gpu.pci)) if gpu.pci else gpu
                for gpu in reading.gpus
            ),
        )

    def _report(self, reading: GpuReading) -> None:
        before = self.reading.value
        if (reading.state, reading.reason) == (before.state, before.reason):
            return
        log.info(
            "NVIDIA driver state",
            state=reading.state.value,
            reason=reading.reason,
            version=reading.driver_version,
            gpus=len(reading.gpus),
        )


def _tells_more(reading: GpuReading, last: GpuReading) -> bool:
    """Tell whether links and traits are to be asked again.

    They are of another driver, or of GPUs that did not answer then; and MIG mode rests NVLinks.
    """
    another = reading.driver_version != last.driver_version
    return another or not _answering(reading) <= _answering(last)


def _answering(reading: GpuReading) -> frozenset[tuple[str, bool]]:
    """Return the GPUs that can be asked, by their UUIDs, and whether each is in MIG mode."""
    return frozenset((gpu.uuid, gpu.mig) for gpu in reading.gpus if gpu.uuid and not gpu.problems)


def _caps(
    layout: GpuLayout, caps: Mapping[tuple[int, int, int], tuple[DeviceNode, ...]]
) -> dict[DeviceId, tuple[DeviceNode, ...]]:
    """Return the capability nodes of each slice that the driver has all of."""
    return {
        part.name.id: found
        for part in layout.known
        if part.slice is not None and part.gpu.minor is not None
        if (found := caps.get((part.gpu.minor, part.slice.gi, part.slice.ci)))
    }
