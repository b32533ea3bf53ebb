"""Builds what knows NVIDIA's GPUs; on a node without the driver none of it is ever loaded."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.app.gpu_health import build_gpu_health
from holdfast.app.hosts import Hosts
from holdfast.discovery.gpu_health import GpuHealthWatch
from holdfast.discovery.gpus import GpuSource
from holdfast.discovery.inventory import Besides
from holdfast.host.gpu_use import GpuUses
from holdfast.host.nvidia import NvidiaFiles
from holdfast.ledger.ledger import Ledger
from holdfast.model.gpu import GPU_RESOURCE
from holdfast.model.gpu_devices import GpuFacts, gpu_devices
from holdfast.model.gpu_free import GpuRules
from holdfast.model.gpu_grant import DeviceIds, DeviceList, GpuGrantRules
from holdfast.model.ids import ResourceName
from holdfast.model.mig import MigStrategy
from holdfast.runtime.clock import Clock
from holdfast.settings import Settings

if TYPE_CHECKING:
    from holdfast.host.nvml import Nvml

_GPUS = ResourceName(GPU_RESOURCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """What knows the GPUs, who uses them, and how they are."""

    source: GpuSource
    uses: GpuUses
    health: GpuHealthWatch
    rules: GpuGrantRules

    def facts(self) -> GpuFacts:
        """Return the latest that is known."""
        return self.source.facts.value

    def notes(self) -> Mapping[str, tuple[str, ...]]:
        """Return, by UUID, what is to be shown of GPUs and slices and makes none Unhealthy."""
        return {uuid: each.notes for uuid, each in self.health.health.value.items() if each.notes}

    def besides(self) -> Besides:
        """Return what discovery adds to what sysfs shows."""
        if not self.source.ever_read:
            return Besides(unread=frozenset({_GPUS}))
        facts = self.facts()
        return Besides(resources=facts.layout.resources, devices=gpu_devices(facts))


def build_gpus(settings: Settings, host: Hosts, ledger: Ledger, clock: Clock) -> Gpus | None:
    """Build the parts; None where the node is not to advertise GPUs."""
    gpu = settings.gpu
    if not gpu.enabled:
        return None
    source = GpuSource(
        NvidiaFiles(host.root, driver_root=gpu.driver_root, dev_root=gpu.dev_root),
        _nvml,
        lane=host.lanes["nvml"],
        clock=clock,
        look=gpu.look,
        strategy=MigStrategy(gpu.mig_strategy),
        rescan=gpu.rescan,
    )
    return Gpus(
        source=source,
        uses=GpuUses(
            host.lanes["nvml"],
            lambda: source.library,
            rules=GpuRules(
                monitors=gpu.monitors,
                displays=gpu.displays,
                memory_deadline=gpu.memory_deadline,
            ),
        ),
        health=build_gpu_health(
            settings,
            host,
            host.lanes["gpu health"],
            ledger=ledger,
            clock=clock,
            readings=source.reading,
        ),
        rules=GpuGrantRules(
            lists=tuple(map(DeviceList, gpu.device_list_strategy)),
            ids=DeviceIds(gpu.device_id_strategy),
            pass_device_specs=gpu.pass_device_specs,
            modes=frozenset(
                mode
                for mode, wanted in {
                    "gdrcopy": gpu.gdrcopy_enabled,
                    "gds": gpu.gds_enabled,
                    "mofed": gpu.mofed_enabled,
                }.items()
                if wanted
            ),
        ),
    )


def _nvml(library: str) -> "Nvml":
    # Loaded only now: a node without the driver never does.
    from holdfast.host.nvml import Nvml  # noqa: PLC0415

    return Nvml(Path(library) if library.startswith("/") else None)
