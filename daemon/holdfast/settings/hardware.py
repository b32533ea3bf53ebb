"""The settings of the hardware that is advertised: TPUs, GPUs and pools of other devices."""

from typing import Annotated, Literal

import msgspec

from holdfast.model.cards import Shared, Sharing
from holdfast.model.devicerules import DeviceRule
from holdfast.model.devices import OwnSettings
from holdfast.model.ids import ResourceName
from holdfast.model.vfio import PoolSpec
from holdfast.settings.types import (
    CONTROL,
    AnnotationPrefix,
    Duration,
    Glob,
    Index,
    Interval,
    OptionalFile,
    OptionalPath,
    OptionalResource,
    PciClass,
    PciIds,
    Replicas,
    Resource,
    Section,
    Text,
    Topology,
    text,
)

Api = Literal["device-plugin", "dra"]
"""By which API of Kubernetes pods come to a device."""

GPU_NAME, SHARED = "nvidia.com/gpu", ".shared"
"""The resource of GPUs, and what names of replicas can have at the end."""
SLICE_NAMES = "nvidia.com/mig-"
"""How the names of MIG slices begin, where GPUs have GPU_NAME."""
SharedName = Annotated[
    str,
    text(
        rf"{GPU_NAME}|{SLICE_NAMES}".replace(".", "[.]") + f"[^{CONTROL}]*",
        f"{GPU_NAME}, or MIG slices such as {SLICE_NAMES}1g.10gb",
    ),
]


class ServedResources(msgspec.Struct, frozen=True, kw_only=True):
    """What a section of hardware serves: its resources, and the API by which pods get them.

    A section with a key `api` tells it by its method `served`, also of hardware that was not seen
    yet, and `Settings.served` asks each of them.

    `beginnings` are how further names begin. Names of hardware that is not `enabled`
    are still its own: pods may have some of it.

    `functions`: its devices are whole PCI functions, which no driver of its own hands over. Their
    ids are addresses, `deviceListStrategy` is for them, they are never shared, and can be reset.
    """

    enabled: bool
    api: Api
    names: frozenset[str]
    beginnings: tuple[str, ...] = ()
    functions: bool = False

    def has(self, resource: str) -> bool:
        """Tell whether *resource* is one of its names."""
        return resource in self.names or resource.startswith(self.beginnings)


class TpuSettings(Section, frozen=True):
    """TPU chips, and what the programs on them are told.

    An empty value is taken from envFile, or else from the hardware.
    """

    enabled: bool = True
    """Whether TPU chips are looked for and advertised. Set it to false, on a drained node, when
    another device plugin grants them."""
    api: Api = "device-plugin"
    """By which API pods get TPU chips. device-plugin: pods ask for the resource. dra: pods have
    ResourceClaims; it needs Kubernetes 1.34. Change it on a drained node."""
    resource_name: Resource = "google.com/tpu"
    """The resource name. Change it when your pods ask for another one."""
    generation: Text = ""
    """The chips' generation, such as `v5e`. Empty: the PCI ids tell it. Set it for chips that are
    newer than this release."""
    topology: Topology = ""
    """The topology of the whole slice, such as `2x4`. Set it when envFile does not have it."""
    accelerator_type: Text = ""
    """The slice's accelerator type, such as `v5litepod-8`. Set it when envFile does not have it."""
    worker_id: Index | None = None
    """This host's number in its slice, from 0. Set it for a slice with several hosts when envFile
    does not have it."""
    worker_hostnames: tuple[Text, ...] = ()
    """The hosts of the slice, in the order of their worker ids. Set it for a slice with several
    hosts when envFile does not have it."""
    env_file: OptionalFile = ""
    """The file that describes the slice. Empty: `tpu/tpu-env` in host.etc. Set it when the file is
    elsewhere."""
    vbar_url: Text = ""
    """What programs get as VBAR_CONTROL_SERVICE_URL. Set it when your TPU runtime asks for that
    service."""

    def served(self) -> ServedResources:
        """Return the one resource of chips."""
        names = frozenset({self.resource_name})
        return ServedResources(enabled=self.enabled, api=self.api, names=names, functions=True)


class GpuSettings(Section, frozen=True):
    """NVIDIA GPUs. They are advertised once the driver shows them.

    Settings that NVIDIA's device plugin has too have the same names (nvidia.md).
    """

    enabled: bool = True
    """Whether GPUs are looked for and advertised. Set it to false, on a drained node, when NVIDIA's
    plugin or a DRA driver grants them."""
    api: Api = "device-plugin"
    """By which API pods get GPUs and MIG slices, as `tpu.api` says. Change it on a drained node."""
    driver_root: OptionalPath = ""
    """The root of the file system with the driver's library, such as `/run/nvidia/driver`, as the
    daemon's process sees it. Empty: `/driver-root` where that exists, driverRootOnHost, or, where
    that is empty too, GPU Operator's if there is one, or what the dynamic loader finds. Set it when
    the driver is elsewhere."""
    dev_root: OptionalPath = ""
    """The root of the file system with /dev/nvidia*, as the daemon's process sees it. Empty:
    driverRoot, the host's own, or GPU Operator's. Set it when the device files are elsewhere."""
    driver_root_on_host: OptionalPath = ""
    """The path that the host has for driverRoot; CDI specs and paths of device files are written
    with it. Empty: the same path, or `/` for `/driver-root`. Set it when holdfast runs in a
    container that has the driver at another path than the host."""
    device_list_strategy: tuple[
        Literal["envvar", "volume-mounts", "cdi-annotations", "cdi-cri"], ...
    ] = ("envvar",)
    """How the container runtime is told which GPUs a container gets. envvar and volume-mounts are
    for NVIDIA's container runtime. cdi-annotations and cdi-cri are for any runtime that reads CDI
    specs, which holdfast then writes to cdi.specDir. Choose cdi-cri under gVisor and on nodes
    without NVIDIA's container runtime."""
    cdi_annotation_prefix: AnnotationPrefix = "cdi.k8s.io/"
    """How the annotation's key begins with cdi-annotations. Change it when your runtime reads
    another one."""
    cdi_hook_path: OptionalFile = ""
    """The host's path of nvidia-cdi-hook or nvidia-ctk, such as `/usr/bin/nvidia-ctk`. CDI specs
    then make the runtime call it, to make links and to refresh the cache of libraries. Empty: specs
    call no hook, and links are mounts. Set it only where every node has the program: without it no
    container with a GPU starts."""
    cdi_disable_hooks: tuple[Text, ...] = ()
    """Hooks that CDI specs leave out, or `all`. Set it when one fails under your runtime."""
    cdi_feature_flags: tuple[Text, ...] = ()
    """Features that CDI specs are to have. no-additional-gids-for-device-nodes: containers join no
    group of a device file. disable-ipc-discoverer: they get no socket of the driver's daemons.
    enable-explicit-driver-libraries: they get libraries such as libEGL as well. Set it where you
    set CDI_FEATURE_FLAGS."""
    imex_channel_ids: tuple[Literal[0], ...] = ()
    """The IMEX channels that a container gets with its GPU, where the node has them. Set it to
    `[0]` for programs that share memory across the nodes of one NVLink domain."""
    imex_required: bool = False
    """Whether GPUs are Unhealthy on a node without that channel. Set it to true when a program must
    not start without it."""
    device_id_strategy: Literal["uuid", "index"] = "uuid"
    """Whether a container gets its GPUs' UUIDs or their indexes. Choose index when a program
    cannot read UUIDs; an index may mean another GPU after a reboot. A claim's containers always
    get UUIDs."""
    pass_device_specs: bool = False
    """Whether a container gets the device files by kubelet's answer too. Set it to true with
    kubelet's static CPU manager."""
    gdrcopy_enabled: bool = False
    """Whether NVIDIA's container runtime also hands over GDRCopy. Set it when programs use that."""
    gds_enabled: bool = False
    """Whether NVIDIA's container runtime also hands over GPUDirect Storage. Set it when programs
    use that."""
    mofed_enabled: bool = False
    """Whether NVIDIA's container runtime also hands over Mellanox InfiniBand devices. Set it when
    programs use GPUDirect RDMA."""
    look: Interval = Interval(5)
    """How often the driver is looked for while it is not there. Lower it to advertise GPUs
    sooner."""
    rescan: Interval = Interval(30)
    """How often the GPUs are listed again when no event comes. Lower it to notice a change of the
    MIG layout sooner."""
    call_timeout: Interval = Interval(30)
    """How long NVML may take to list all GPUs before it counts as hung; for the state of one GPU,
    half of it. Meanwhile no GPU becomes free. Raise it on nodes with many GPUs or a slow driver."""
    memory_deadline: Duration = Duration(60)
    """How long a GPU's memory may take to go back to its idle level after a pod, before the cure is
    reported; a GPU that works for no known process is kept from pods as long. Raise it for GPUs
    whose memory takes long to clear."""
    memory_slack_mib: Index = 64
    """How many MiB above its idle level a GPU's memory may be and count as free. Small rises may
    add up to four times as much; more is a leak. Raise it when a new driver keeps more memory for
    itself and free GPUs are reported as in use."""
    monitors: tuple[Text, ...] = (
        "nvidia-persistenced",
        "nv-hostengine",
        "dcgm-exporter",
        "dcgmi",
        "nvidia-smi",
        "nvtop",
        "nvidia-fabricmanager",
        "nv-fabricmanager",
        "nvidia-device-plugin",
        "gpu-feature-discovery",
        "config-manager",
        "nvidia-powerd",
    )
    """Commands of programs that monitor GPUs. They may keep a GPU open, and it still counts as
    free. A list replaces the default. Add your own agent when holdfast reports it as a holder."""
    displays: tuple[Text, ...] = (
        "Xorg",
        "X",
        "Xwayland",
        "gnome-shell",
        "kwin_wayland",
        "weston",
        "sddm",
    )
    """Commands of programs that draw on the node's own screen. Outside of pods they may keep a GPU
    open. A list replaces the default. Add yours when holdfast reports it as a holder."""
    mig_strategy: Literal["none", "single", "mixed"] = "none"
    """How MIG slices are advertised. none: not at all; a GPU in MIG mode is granted whole. single:
    as nvidia.com/gpu, where all GPUs are divided alike. mixed: as nvidia.com/mig-1g.10gb and the
    like, beside whole GPUs. Change it when you divide GPUs by MIG."""
    shared_devices_allocation_policy: Literal["distributed", "packed"] = "distributed"
    """The GPU that the next MIG slice or replica is taken from, where kubelet may choose.
    distributed: the one with the fewest in use. packed: the one with the most. Choose packed to
    keep whole GPUs empty for a new layout."""
    health_beat: Interval = Interval(10)
    """How often each GPU is asked for its state when no event comes. Raise it to save CPU time."""
    health_quiet: Duration = Duration(60)
    """How long a GPU must show no new Xid, of those that pass by themselves, before it is Healthy
    again. Raise it when a GPU goes Unhealthy again and again."""
    disable_health_checks: Text = ""
    """Xids to ignore in addition to 13, 31, 43, 45, 68 and 109, separated by commas; `xids` ignores
    all Xids, `all` every health check. Set it for an Xid that you know to be harmless."""
    enable_health_checks: Text = ""
    """Xids that count whatever else is ignored, separated by commas, or `all`. Set it for one that
    is ignored by default."""

    def served(self) -> ServedResources:
        """Return the resources of GPUs, of their replicas and of MIG slices."""
        names = frozenset({GPU_NAME, GPU_NAME + SHARED})
        return ServedResources(
            enabled=self.enabled, api=self.api, names=names, beginnings=(SLICE_NAMES,)
        )


class SharedResource(Section, frozen=True):
    """A resource of which each device is shared."""

    name: SharedName
    """The resource that is shared. Set it to GPUs or MIG slices. What a node does not have is
    passed over. TPUs and VFIO devices are never shared."""
    replicas: Replicas
    """How many pods, or claims, may have each GPU or slice at the same time. Choose as many as its
    memory is enough for."""
    rename: Text = ""
    """What replicas are advertised as. Set it to the resource's name with `.shared` for what
    renameByDefault does."""
    devices: Literal["all"] = "all"
    """Which devices are shared. Choose all, or leave it out."""


class TimeSlicing(Section, frozen=True):
    """GPUs and MIG slices that several pods share: the driver switches between their programs."""

    rename_by_default: bool = False
    """Whether what is shared is advertised as nvidia.com/gpu.shared and so on. Set it so that no
    pod that asks for nvidia.com/gpu gets a shared one."""
    fail_requests_greater_than_one: bool = False
    """Whether a container, or a claim, that asks for more than one replica is refused. Set it to
    true where people take two for more of a GPU."""
    resources: tuple[SharedResource, ...] = ()
    """Which resources are shared, and by how many pods. Set it for programs that leave a GPU idle
    most of the time and trust each other."""


class SharingSettings(Section, frozen=True):
    """What several pods may have at the same time. The form is that of NVIDIA's plugin."""

    time_slicing: TimeSlicing = msgspec.field(default_factory=TimeSlicing)

    def by_resource(self) -> Shared:
        """Return how the devices of each resource are shared."""
        rules = self.time_slicing
        return {
            ResourceName(each.name): Sharing(
                replicas=each.replicas,
                renamed=rules.rename_by_default or bool(each.rename),
                single=rules.fail_requests_greater_than_one,
            )
            for each in rules.resources
        }


class Pool(Section, frozen=True):
    """VFIO devices that are advertised under one resource name.

    A PCI function belongs to the pool when it matches each list that is not empty. One that is in
    pools of several names, or a TPU too, is offered under each name, and one pod at a time has it.
    """

    resource_name: Resource
    """The resource name. Choose one that no other device plugin on the node has."""
    devices: tuple[PciIds, ...] = ()
    """`vendor:device` ids in hex, with `*` and `?` as wildcards. Set it to choose devices by
    model."""
    classes: tuple[PciClass, ...] = ()
    """Beginnings of PCI class codes in hex, such as `0302`. Set it to choose devices by what they
    are for."""
    addresses: tuple[Glob, ...] = ()
    """Patterns of PCI addresses, such as `0000:3b:*`. Set it to choose devices by their slot."""
    api: Api = "device-plugin"
    """By which API pods get the pool's devices, as `tpu.api` says. Change it on a drained node."""

    def spec(self) -> PoolSpec:
        """Return the rule that discovery follows."""
        return PoolSpec(
            resource=ResourceName(self.resource_name),
            devices=self.devices,
            classes=self.classes,
            addresses=self.addresses,
        )

    def served(self) -> ServedResources:
        """Return the pool's resource."""
        names = frozenset({self.resource_name})
        return ServedResources(enabled=True, api=self.api, names=names, functions=True)


class Match(Section, frozen=True):
    """Which devices a rule is for: those that match every key that is given.

    A value is a pattern with `*` and `?`, and upper and lower case are the same. A MIG slice also
    matches by what its GPU is called.
    """

    uuid: Glob | None = None
    """A GPU's or a slice's UUID, as `nvidia-smi -L` shows it. Set it to name one GPU."""
    index: Glob | int | None = None
    """What the driver numbers the device: a GPU's index, `0:1` for the second slice of GPU 0, the
    number of `/dev/accelN`, or the IOMMU group of `/dev/vfio/N`. Set it where nothing else tells
    them apart: it may change with a reboot."""
    pci: Glob | None = None
    """A PCI address, such as `0000:3b:00.0` or `0000:3b:*`. Set it to name devices by their
    slot."""
    model: Glob | None = None
    """What `holdfast devices` shows as the model: a GPU's name, a slice's such as `NVIDIA H100 MIG
    1g.10gb`, a TPU generation, or `vendor:device` of a pool's device. Set it to name all of a
    kind."""

    def given(self) -> dict[str, str]:
        """Return each pattern that is given, by its key."""
        found = {"uuid": self.uuid, "index": self.index, "pci": self.pci, "model": self.model}
        return {key: str(value) for key, value in found.items() if value is not None}


class DeviceSettings(Section, frozen=True):
    """A rule for some devices. Of each device the first rule that matches it counts.

    A rule that only has `match` keeps its devices from the rules after it. A device that a pod has
    is affected later: it leaves its resource when its pod has ended.
    """

    match: Match
    """Which devices the rule is for. Set at least one key of it."""
    exclude: bool = False
    """Whether the devices are left out: no pod is given them, and who uses them is not watched. Set
    it for a GPU that is not for pods."""
    resource: OptionalResource = ""
    """The resource name that the devices get instead of their own. Set it to reserve them for the
    pods that ask for it. All devices of one name must be of one kind, GPUs or TPUs or a pool's."""
    api: Literal["", "device-plugin", "dra"] = ""
    """By which API pods get the devices of `resource`, as `tpu.api` says. Empty: by the API of the
    node's hardware. Set it where hardware is served by both."""

    reclaim_mode: Literal["", "observe", "terminate"] = ""
    """In place of `reclaim.mode`. A process of a pod that also has a device with observe is not
    ended. Set it to observe where people look into such processes themselves."""
    reset: Literal["", "never", "afterForcedRelease"] = ""
    """In place of `reclaim.reset`. Set it where one model needs a reset, or does not survive
    one."""
    ignore_health: bool = False
    """Whether such a device stays Healthy whatever it reports of itself, such as an Xid. Set it for
    a card that is for tests."""

    def rule(self, place: int) -> DeviceRule:
        """Return the rule that discovery follows; it is number *place* of the list."""
        return DeviceRule(
            place=f"devices[{place}]",
            exclude=self.exclude,
            resource=ResourceName(self.resource) if self.resource else None,
            own=OwnSettings(
                mode=self.reclaim_mode, reset=self.reset, ignore_health=self.ignore_health
            ),
            **self.match.given(),
        )
