"""NVIDIA's GPUs and MIG slices, as an adapter: which there are, who uses them, how they are."""

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import structlog
from msgspec.structs import replace

from holdfast.discovery.source import DeviceListing, HardwareError
from holdfast.host.nvidia.driver import NvidiaFiles, driver_load
from holdfast.host.nvidia.use import GpuUses
from holdfast.host.use.holders import HolderScan
from holdfast.host.use.look import DriverAnswer
from holdfast.ledger.topic import LedgerTopic
from holdfast.model.devices import Device, Fault, Inventory
from holdfast.model.gate.placement import Choice
from holdfast.model.gate.promise import Breach
from holdfast.model.grants import ContainerGrant
from holdfast.model.ids import DeviceId, DeviceName, ResourceName
from holdfast.model.kubelet import CheckpointEntry
from holdfast.model.node.readiness import ReadinessCheck, check
from holdfast.model.nvidia import REPLICAS
from holdfast.model.nvidia.devices import GpuFacts, gpu_devices
from holdfast.model.nvidia.free import GpuRules, IdleMemory
from holdfast.model.nvidia.gpu import DriverState
from holdfast.model.nvidia.grant import (
    CDI_VENDOR,
    BesideGpus,
    DeviceIds,
    DeviceList,
    GpuGrantRules,
    GrantedGpu,
    gpu_grant,
)
from holdfast.model.nvidia.health import GpuState
from holdfast.model.nvidia.mig import MigStrategy, hides_some
from holdfast.model.nvidia.names import NodeSpecs, gpu_breach, gpu_names_in
from holdfast.model.nvidia.placement import SlicePolicy
from holdfast.model.nvidia.roots import NvmlRelease
from holdfast.model.nvidia.sharing import why_too_many
from holdfast.model.nvidia.xids import labels_of, xid_checks
from holdfast.runtime.problem import Problem
from holdfast.runtime.watched import Changes, Watched
from holdfast.settings.hardware import GpuSettings
from holdfast.vendors.context import Context
from holdfast.vendors.nvidia.driver import DriverWatch
from holdfast.vendors.nvidia.gpuusers import GpuUsers, HealthTimes, keep
from holdfast.vendors.nvidia.health import GpuHealthWatch
from holdfast.vendors.nvidia.specs import GpuPreference, GpuSpecs
from holdfast.vendors.nvidia.withoutdriver import RESOURCES, WithoutDriver, is_renamed

if TYPE_CHECKING:
    from holdfast.host.nvidia.nvml import Nvml
    from holdfast.model.dra.advertised import AdvertisedDevice

log = structlog.get_logger(__name__)

_TIDY = 60.0
"""Seconds after which discovery is asked to look again, whatever happened."""

_PATIENCE = 5.0
"""How long NVML may take for all GPUs of one look, in seconds."""


class Gpus(WithoutDriver):
    """The adapter of a node that has the driver, or had it."""

    def __init__(self, on: Context) -> None:
        """Build the parts; nothing runs yet, and NVML is not loaded."""
        super().__init__(on)
        self._since = int(on.clock.wall())
        live = on.settings.part(lambda now: now.gpu)
        gpu = live.value
        lane = on.lanes.open_lane("nvml", live.part(lambda now: now.call_timeout))
        files = self._files = NvidiaFiles(
            on.root,
            driver_root=gpu.driver_root,
            driver_root_on_host=gpu.driver_root_on_host,
            dev_root=gpu.dev_root,
        )
        self._rules = _grant_rules(gpu)
        _tell_of_features(gpu)
        self._shared = on.settings.part(lambda now: now.sharing.by_resource())
        use_rules = live.part(_use_rules)
        self._checks = live.part(
            lambda now: xid_checks(now.disable_health_checks, now.enable_health_checks)
        )
        kept = LedgerTopic(on.ledger, "nvidia/health", GpuState).value
        self._kept_idle = LedgerTopic(on.ledger, "nvidia/idle", IdleMemory)
        self._kept_leave = LedgerTopic(on.ledger, "nvidia/leave", NvmlRelease)
        drained = on.ledger.book.value.marks.drain is not None
        self._driver = DriverWatch(
            files=files,
            make=_nvml,
            lane=lane,
            clock=on.clock,
            look=live.part(lambda now: now.look),
            strategy=MigStrategy(gpu.mig_strategy),
            rescan=live.part(lambda now: now.rescan),
            imex_required=bool(gpu.imex_channel_ids) and gpu.imex_required,
            known={uuid: state.pci for uuid, state in kept.items() if state.pci is not None},
            left=self._kept_leave.value.get(on.boot) if drained else None,
        )
        self._uses = GpuUses(
            lane=lane,
            source=lambda: self._driver.library,
            rules=use_rules,
            book=lambda: on.ledger.book.value,
            load=lambda: f"{on.boot} {self._driver.load}",
            idle=Watched(self._kept_idle.value),
            divided=self._slices,
            patience=_PATIENCE,
            monotonic=on.clock.monotonic,
        )
        self._health = GpuHealthWatch(
            source=_nvml,
            readings=self._driver.reading,
            ledger=on.ledger,
            # Its own, because one GPU may hang forever.
            lane=on.lanes.open_lane("gpu health", live.part(lambda now: now.call_timeout / 2)),
            clock=on.clock,
            boot=on.boot,
            checks=self._checks,
            load=lambda: driver_load(on.root),
            users=GpuUsers(
                named=HolderScan(on.root).named,
                book=lambda: on.ledger.book.value,
                rules=use_rules,
            ),
            times=live.part(lambda now: HealthTimes(beat=now.health_beat, quiet=now.health_quiet)),
            count=lambda event, condemns: on.count(*labels_of(event, condemns=condemns)),
        )
        self._preference = GpuPreference(
            self._driver.topology,
            live.part(lambda now: SlicePolicy(now.shared_devices_allocation_policy)),
        )
        self._specs = GpuSpecs(
            writer=on.specs(CDI_VENDOR, "-"),
            describe=lambda facts: _described(on, files, facts),
            facts=lambda: self._driver.facts.value,
            rules=self._rules,
            promised=lambda: any(map(gpu_names_in, on.view.value.entries)),
            claimed=lambda: bool(on.ledger.book.value.claims),
            imex=bool(gpu.imex_channel_ids),
        )

    def found(self) -> DeviceListing:
        """Return the GPUs and slices that NVML lists, in its order."""
        driver = self._driver
        if not driver.ever_read:
            return DeviceListing(unseen=RESOURCES)
        locks = {name: lock.keys for name, lock in self._on.ledger.book.value.locks.items()}
        devices = gpu_devices(driver.facts.value, locks, self._shared.value, self._on.taken)
        # Pods may still have some under a name that nothing is advertised by any more.
        former = {each.resource for each in locks if is_renamed(each.resource)}
        names = sorted({each.name.resource for each in devices} | former)
        return DeviceListing(
            resources=tuple(dict.fromkeys((*driver.facts.value.layout.resources, *names))),
            devices=devices,
            unseen=RESOURCES if hides_some(driver.last) else frozenset(),
        )

    async def prepare(self, inventory: Inventory) -> Inventory:
        """Write the CDI specs; a GPU that none explains is Unhealthy where answers are names."""
        return await self._specs.publish(inventory)

    def faults(self) -> Mapping[str, tuple[Fault, ...]]:
        """Return what makes GPUs and slices Unhealthy, by UUID."""
        return self._health.faults.value

    def notes(self) -> Mapping[str, tuple[str, ...]]:
        """Return what is to be shown of GPUs and slices and makes none Unhealthy, by UUID."""
        return {uuid: each.notes for uuid, each in self._health.health.value.items() if each.notes}

    async def ask(self, devices: tuple[Device, ...]) -> Mapping[DeviceName, DriverAnswer]:
        """Return what NVML answers about who uses *devices*."""
        return await self._uses.ask(devices)

    def grant(
        self,
        resource: ResourceName,
        devices: tuple[Device, ...],
        inventory: Inventory,
        *,
        by_claim: bool,
    ) -> ContainerGrant:
        """Return what a container gets for GPUs, to the byte as NVIDIA's plugin does.

        But by a claim never by index: nobody is asked whose that is when it starts again.
        """
        del resource, inventory
        rules = replace(self._rules, ids=DeviceIds.UUID) if by_claim else self._rules
        facts, indexes = self._driver.facts.value, self._indexes()
        gpus = [
            GrantedGpu(
                uuid=id_,
                index=indexes.get(id_, ""),
                nodes=tuple(node.path for node in (*each.nodes, *facts.caps.get(id_, ()))),
            )
            for each in devices
            for id_ in REPLICAS.parted(each.name.id)[:1]
        ]
        beside = BesideGpus(
            control=facts.control,
            imex=facts.imex if self._specs.imex else "",
            explained=self._specs.names.modes,
            answer_id=str(uuid4()),
        )
        return gpu_grant(gpus, rules, beside)

    def refuses(self, devices: Sequence[Device]) -> str:
        """Return why a container cannot have several replicas, where that is not wanted."""
        return why_too_many(devices, self._shared.value)

    def preferred(self, devices: Sequence[Device], choice: Choice) -> tuple[DeviceId, ...]:
        """Return GPUs that are near each other, or slices as the policy says."""
        return self._preference.preferred(devices, choice)

    def advertised(self, devices: Sequence[Device]) -> "tuple[AdvertisedDevice, ...]":
        """Return GPUs and slices with what NVML reports about them."""
        from holdfast.model.nvidia.advertised import advertised_gpus  # noqa: PLC0415 - as in the base

        return advertised_gpus(devices, self._driver.facts.value)

    def labels(self, inventory: Inventory) -> Mapping[str, str]:
        """Return what NVIDIA's GPU feature discovery says about the GPUs."""
        if not self._driver.ever_read:
            return {}
        from holdfast.model.nvidia.labels import GpuLabelFacts, gpu_labels  # noqa: PLC0415 - rare

        gpus = self._driver.last.gpus
        return gpu_labels(
            GpuLabelFacts(
                gpus=gpus,
                facts=self._driver.facts.value,
                strategy=MigStrategy(self._on.settings.value.gpu.mig_strategy),
                machine=self._files.machine,
                classes={gpu.pci: self._files.pci_class(gpu.pci) for gpu in gpus if gpu.pci},
                configs={gpu.pci: self._files.pci_config(gpu.pci) for gpu in gpus if gpu.pci},
                since=self._since,
                sharing=self._shared.value,
                left_out=frozenset(
                    REPLICAS.parted(each.device.name.id)[0] for each in inventory.left_out
                ),
            )
        )

    def breach(self, entry: CheckpointEntry, devices: Sequence[Device]) -> Breach | None:
        """Return why names and indexes of an old answer lead to other GPUs today."""
        return gpu_breach(entry, devices, names=self._specs.names, indexes=self._indexes())

    def errors(self, device: DeviceName) -> Sequence[HardwareError]:
        """Return the Xids that condemn the GPU or slice."""
        return self._health.xids_on(REPLICAS.parted(device.id)[0])

    def forgive(self, device: DeviceName, errors: Collection[HardwareError]) -> None:
        """Drop the records of those Xids."""
        self._health.forgive(REPLICAS.parted(device.id)[0], errors)

    async def let_go(self, reason: str) -> str:
        """Let NVML go, which keeps the driver from being unloaded, also over restarts.

        Also where it is not begun: a driver that does not answer now may do so soon.
        """
        await self._driver.let_go(reason)
        left = self._driver.left
        await self._kept_leave.keep({} if left is None else {self._on.boot: left})
        return "holdfast is closing NVML" if self._driver.holds_driver else ""

    async def take_up(self) -> None:
        """Begin NVML again."""
        await self._driver.take_up()
        await self._kept_leave.keep({})

    def checks(self) -> Iterator[ReadinessCheck]:
        """Yield whether the driver answers and specs are written, on a node that has or had it."""
        reading = self._driver.reading.value
        if reading.state is DriverState.ABSENT and not self._driver.ever_read:
            return
        problems = "; ".join(self._driver.facts.value.layout.problems)
        ready = reading.state is DriverState.READY
        yield ReadinessCheck(name="NVIDIA driver", passes=ready, reason=reading.reason or problems)
        yield check("GPU CDI specs", self._specs.names.problem)

    def state(self) -> object:
        """Return the last reading, and the health of each GPU and slice."""
        return {"reading": self._driver.reading.value, "health": self._health.health.value}

    def hanging(self) -> Iterator[str]:
        """Yield the wait for events, which is on a thread of its own."""
        if self._health.waits_in_vain:
            yield "wait for events of GPUs"

    async def run(self) -> None:
        """Follow the driver, its GPUs and their health, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._driver.run(), name="gpus")
            tasks.create_task(self._follow_health(), name="health of gpus")
            tasks.create_task(self._report(), name="faults of gpus")
            tasks.create_task(self._tell_malformed(), name="settings of gpus")
            tasks.create_task(self._save_idle(), name="idle memory of gpus")
            while True:
                changes = Changes([self._driver.facts])
                self._on.discovery.look_again()
                await changes.wait(_TIDY)

    async def _follow_health(self) -> None:
        """Follow how the GPUs are, once there are any."""
        await self._driver.reading.until(lambda reading: reading.state is DriverState.READY)
        await self._health.run()

    async def _save_idle(self) -> None:
        """Keep how much memory GPUs need while nobody uses them: a restart must not hide a leak."""
        problem = Problem(
            log, "cannot save the idle memory of GPUs", over="idle memory of GPUs saved again"
        )
        await keep(self._uses.idle, self._kept_idle, problem, self._on.clock)

    async def _report(self) -> None:
        async for _ in self._health.faults.follow():
            self._on.discovery.publish()

    async def _tell_malformed(self) -> None:
        async for checks in self._checks.follow():
            if checks.malformed:
                log.warning(
                    "words that name no Xid are ignored",
                    words=list(checks.malformed),
                    where="gpu.disableHealthChecks or gpu.enableHealthChecks",
                )

    def _slices(self) -> Mapping[str, tuple[str, ...]]:
        """Return the slices of each GPU that has any, advertised or not."""
        gpus = self._driver.last.gpus
        return {gpu.uuid: tuple(each.uuid for each in gpu.slices if each.uuid) for gpu in gpus}

    def _indexes(self) -> Mapping[DeviceId, str]:
        """Return the index of each GPU and slice that a pod can have, as NVML has it today."""
        return {part.name.id: part.index for part in self._driver.facts.value.layout.known}


def _use_rules(gpu: GpuSettings) -> GpuRules:
    return GpuRules(
        monitors=gpu.monitors,
        displays=gpu.displays,
        slack=gpu.memory_slack_mib << 20,
        deadline=gpu.memory_deadline,
    )


def _grant_rules(gpu: GpuSettings) -> GpuGrantRules:
    modes = {"gdrcopy": gpu.gdrcopy_enabled, "gds": gpu.gds_enabled, "mofed": gpu.mofed_enabled}
    return GpuGrantRules(
        lists=tuple(map(DeviceList, gpu.device_list_strategy)),
        ids=DeviceIds(gpu.device_id_strategy),
        pass_device_specs=gpu.pass_device_specs,
        modes=frozenset(mode for mode, wanted in modes.items() if wanted),
        annotation_prefix=gpu.cdi_annotation_prefix,
    )


def _tell_of_features(gpu: GpuSettings) -> None:
    """Log which features of CDI specs are wanted and change nothing."""
    if not gpu.cdi_feature_flags:
        return
    from holdfast.model.nvidia.cdi import no_effect  # noqa: PLC0415 - as in _described

    for feature in gpu.cdi_feature_flags:
        if reason := no_effect(feature):
            log.warning(
                "CDI feature has no effect",
                feature=feature,
                reason=reason,
                where="gpu.cdiFeatureFlags",
            )


def _described(on: Context, files: NvidiaFiles, facts: GpuFacts) -> NodeSpecs:
    # Loaded only where names are handed over, or were.
    from holdfast.host.nvidia.needs import NvidiaDriver  # noqa: PLC0415
    from holdfast.model.nvidia.cdi import Feature, SpecRules, described  # noqa: PLC0415

    gpu = on.settings.value.gpu
    features = frozenset(each for each in Feature if each in gpu.cdi_feature_flags)
    more = Feature.MORE_LIBRARIES in features
    driver = NvidiaDriver(root=on.root, files=files, more=more)
    wanted = SpecRules(
        hook=gpu.cdi_hook_path,
        disabled_hooks=frozenset(gpu.cdi_disable_hooks),
        features=features,
    )
    return described(driver.facts(facts), wanted)


def _nvml(library: str) -> "Nvml":
    """Return the library by its path, or as the system finds it."""
    from holdfast.host.nvidia.nvml import Nvml  # noqa: PLC0415 - not before the driver is there

    return Nvml(Path(library) if "/" in library else None)
