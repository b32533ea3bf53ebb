"""Builds what knows NVIDIA's GPUs; on a node without the driver none of it is ever loaded."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from holdfast.allocation.cdi import SpecWriter
from holdfast.allocation.gpu_cdi import GpuSpecs
from holdfast.app.wiring.gpu_health import build_gpu_health
from holdfast.app.wiring.hosts import Hosts
from holdfast.discovery.inventory import Besides
from holdfast.discovery.nvidia.gpus import GpuSource
from holdfast.discovery.nvidia.health import GpuHealthWatch
from holdfast.discovery.nvidia.idle import keep_idle
from holdfast.discovery.nvidia.looks import GpuUsers
from holdfast.host.files.cdi import SpecFolder
from holdfast.host.nvidia.driver import NvidiaFiles
from holdfast.host.nvidia.use import GpuUses
from holdfast.host.use.holders import HolderScan
from holdfast.ledger.kept import Kept
from holdfast.ledger.ledger import Ledger
from holdfast.model.ids import DeviceId
from holdfast.model.nvidia.devices import GpuFacts, gpu_devices
from holdfast.model.nvidia.free import GpuRules
from holdfast.model.nvidia.gpu import GPU_RESOURCES, DriverState
from holdfast.model.nvidia.grant import CDI_VENDOR, DeviceIds, DeviceList, GpuGrantRules, Imex
from holdfast.model.nvidia.health import GpuState
from holdfast.model.nvidia.idle import IdleMemory, IdleRules
from holdfast.model.nvidia.mig import MigStrategy, hides_some
from holdfast.model.nvidia.names import Described
from holdfast.runtime.clock import Clock
from holdfast.settings import Settings

if TYPE_CHECKING:
    from holdfast.host.nvidia.nvml import Nvml

NO_GPUS = Besides(unseen=GPU_RESOURCES)
"""What discovery adds while nothing tells of GPUs: those that pods still have may be there."""


class Gpus(Struct, frozen=True, kw_only=True):
    """What knows the GPUs, who uses them, and how they are."""

    source: GpuSource
    uses: GpuUses
    health: GpuHealthWatch
    rules: GpuGrantRules
    specs: GpuSpecs
    ledger: Ledger
    kept_idle: Kept[IdleMemory]
    clock: Clock

    async def keep_idle(self) -> None:
        """Keep what is known of idle memory in the ledger, for ever."""
        await keep_idle(self.uses.idle, self.kept_idle, clock=self.clock)

    def facts(self) -> GpuFacts:
        """Return the latest that is known."""
        return self.source.facts.value

    def notes(self) -> Mapping[str, tuple[str, ...]]:
        """Return, by UUID, what is to be shown of GPUs and slices and makes none Unhealthy."""
        return {uuid: each.notes for uuid, each in self.health.health.value.items() if each.notes}

    def indexes(self) -> Mapping[DeviceId, str]:
        """Return the index of each GPU and slice that is advertised, as NVML has it today."""
        return {part.name.id: part.index for part in self.facts().layout.parts}

    def besides(self) -> Besides:
        """Return what discovery adds to what sysfs shows."""
        reading = self.source.reading.value
        if not self.source.ever_read:
            absent = reading.state is DriverState.ABSENT and reading.reason
            return NO_GPUS if absent else Besides(unread=GPU_RESOURCES)
        facts = self.facts()
        locks = {name: lock.keys for name, lock in self.ledger.book.value.locks.items()}
        return Besides(
            resources=facts.layout.resources,
            devices=gpu_devices(facts, locks),
            unseen=GPU_RESOURCES if hides_some(self.source.last) else frozenset(),
        )


def build_gpus(
    settings: Settings,
    host: Hosts,
    ledger: Ledger,
    clock: Clock,
    *,
    promised: Callable[[], bool],
) -> Gpus | None:
    """Build the parts; None where the node is not to advertise GPUs.

    *promised* tells whether some container was promised GPUs by their CDI names.
    """
    gpu = settings.gpu
    if not gpu.enabled:
        return None
    files = NvidiaFiles(
        host.root,
        driver_root=gpu.driver_root_seen,
        driver_root_on_host=gpu.driver_root_on_host,
        dev_root=gpu.dev_root,
    )
    idle = Kept(ledger, "nvidia/idle", IdleMemory)
    rules = _rules(settings)
    use_rules = GpuRules(
        monitors=gpu.monitors,
        displays=gpu.displays,
        idle=IdleRules(slack=gpu.memory_slack_mib << 20, deadline=gpu.memory_deadline),
    )
    source = GpuSource(
        files,
        _nvml,
        lane=host.lanes["nvml"],
        clock=clock,
        look=gpu.look,
        strategy=MigStrategy(gpu.mig_strategy),
        rescan=gpu.rescan,
        imex=_imex(settings),
        known={
            uuid: state.pci
            for uuid, state in Kept(ledger, "nvidia/health", GpuState).value.items()
            if state.pci is not None
        },
    )
    return Gpus(
        source=source,
        uses=GpuUses(
            host.lanes["nvml"],
            lambda: source.library,
            rules=use_rules,
            load=lambda: f"{host.boot} {source.load}",
            kept=idle.value,
        ),
        health=build_gpu_health(
            settings,
            host,
            host.lanes["gpu health"],
            ledger=ledger,
            clock=clock,
            readings=source.reading,
            users=GpuUsers(
                HolderScan(host.root).named,
                locks=lambda: ledger.book.value.locks,
                rules=use_rules,
            ),
        ),
        rules=rules,
        ledger=ledger,
        kept_idle=idle,
        clock=clock,
        specs=GpuSpecs(
            SpecWriter(
                SpecFolder(Path(settings.cdi.spec_dir), prefix=CDI_VENDOR, joint="-"),
                lane=host.lanes["cdi"],
            ),
            describe=partial(_described, settings, host, files),
            facts=lambda: source.facts.value,
            rules=rules,
            promised=promised,
        ),
    )


def _rules(settings: Settings) -> GpuGrantRules:
    gpu = settings.gpu
    modes = {"gdrcopy": gpu.gdrcopy_enabled, "gds": gpu.gds_enabled, "mofed": gpu.mofed_enabled}
    return GpuGrantRules(
        lists=tuple(map(DeviceList, gpu.device_list_strategy)),
        ids=DeviceIds(gpu.device_id_strategy),
        pass_device_specs=gpu.pass_device_specs,
        modes=frozenset(mode for mode, wanted in modes.items() if wanted),
        annotation_prefix=gpu.cdi_annotation_prefix,
    )


def _imex(settings: Settings) -> Imex:
    if not settings.gpu.imex_channel_ids:
        return Imex.UNWANTED
    return Imex.REQUIRED if settings.gpu.imex_required else Imex.WANTED


def _described(settings: Settings, host: Hosts, files: NvidiaFiles, facts: GpuFacts) -> Described:
    # Loaded only where names are handed over, or were.
    from holdfast.host.nvidia.needs import NvidiaDriver  # noqa: PLC0415
    from holdfast.model.nvidia.cdi import HookRules, described  # noqa: PLC0415

    gpu = settings.gpu
    driver = NvidiaDriver(
        host.root,
        files,
        driver_root=gpu.driver_root_seen,
        driver_root_on_host=gpu.driver_root_on_host,
        modes=_rules(settings).modes,
    )
    hooks = HookRules(path=gpu.cdi_hook_path, disabled=frozenset(gpu.cdi_disable_hooks))
    return described(driver.facts(facts), hooks)


def _nvml(library: str) -> "Nvml":
    # Loaded only now: a node without the driver never does.
    from holdfast.host.nvidia.nvml import Nvml  # noqa: PLC0415

    return Nvml(Path(library) if library.startswith("/") else None)
