"""Wires the health of GPUs; on a node without NVIDIA's driver nothing here loads NVML."""

from pathlib import Path

import structlog

from holdfast.app.wiring.hosts import Hosts
from holdfast.discovery.nvidia.health import GpuHealthWatch
from holdfast.discovery.nvidia.looks import GpuUsers, HealthTimes, Probe
from holdfast.host.nvidia.driver import driver_load
from holdfast.ledger.ledger import Ledger
from holdfast.model.nvidia.gpu import GpuReading
from holdfast.model.nvidia.xids import xid_checks
from holdfast.runtime.clock import Clock
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched
from holdfast.settings import Settings

log = structlog.get_logger(__name__)


def build_gpu_health(
    settings: Settings,
    host: Hosts,
    lane: Lane,
    *,
    ledger: Ledger,
    clock: Clock,
    readings: Watched[GpuReading],
    users: GpuUsers,
) -> GpuHealthWatch:
    """Wire it to *readings*; *lane* is its own, for one GPU may hang for ever.

    *users* tells whose work the processes on a GPU are.
    """
    checks = xid_checks(settings.gpu.disable_health_checks, settings.gpu.enable_health_checks)
    if checks.malformed:
        log.warning(
            "unknown Xids in a setting ignored",
            words=list(checks.malformed),
            where="gpu.disableHealthChecks or gpu.enableHealthChecks",
        )
    return GpuHealthWatch(
        _nvml,
        readings=readings,
        ledger=ledger,
        lane=lane,
        clock=clock,
        boot=host.boot,
        checks=checks,
        load=lambda: driver_load(host.root),
        users=users,
        times=HealthTimes(beat=settings.gpu.health_beat, quiet=settings.gpu.health_quiet),
    )


def _nvml(library: str) -> Probe:
    """Return the library as `GpuReading` names it: by path, or as the system finds it."""
    from holdfast.host.nvidia.nvml import Nvml  # noqa: PLC0415 - only where there is a driver

    return Nvml(Path(library) if "/" in library else None)
