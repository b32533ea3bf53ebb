"""The keys of the hardware that is advertised: TPUs, GPUs and pools of other VFIO devices."""

from typing import Annotated, Literal

from msgspec import Meta

from holdfast.model.ids import ResourceName
from holdfast.model.nvidia.free import DISPLAYS, MONITORS
from holdfast.model.vfio.pools import PoolSpec
from holdfast.settings.duration import Duration, Interval
from holdfast.settings.section import Section

Index = Annotated[int, Meta(ge=0)]


class Tpu(Section, frozen=True):
    """TPU chips, and what their programs are told; empty values come from envFile or hardware."""

    enabled: bool = True
    """Whether TPU chips are looked for."""
    resource_name: str = "google.com/tpu"
    """What pods ask for."""
    generation: str = ""
    """Such as ``v5e``; overrules what the PCI ids say."""
    topology: str = ""
    """Of the whole slice, such as ``2x4``."""
    accelerator_type: str = ""
    """Such as ``v5litepod-8``."""
    worker_id: Index | None = None
    """This host's place among the hosts of its slice."""
    worker_hostnames: tuple[str, ...] = ()
    """The hosts of the slice, in the order of their worker ids."""
    env_file: str = ""
    """Empty: tpu/tpu-env in host.etc."""
    vbar_url: str = ""
    """Handed on to programs as VBAR_CONTROL_SERVICE_URL; empty: it is not set."""


class Gpu(Section, frozen=True):
    """NVIDIA GPUs, advertised once the driver has told of them; names are those of its plugin."""

    enabled: bool = True
    """On a node without the driver this costs one look at /proc now and then, and loads nothing."""
    driver_root: str = ""
    """The root of the file system with the driver's library, such as ``/run/nvidia/driver``, as
    this process sees it. Empty: as driverRootOnHost; where that is empty, too, GPU Operator's if it
    has one, else what the loader knows."""
    dev_root: str = ""
    """The root of the one with /dev/nvidia*. Empty: driverRoot, the host's own, GPU Operator's."""
    driver_root_on_host: str = ""
    """What the host calls driverRoot, where holdfast runs in a container that has it elsewhere; it
    is what CDI specs and paths of nodes are told by. Empty: the same."""
    device_list_strategy: tuple[
        Literal["envvar", "volume-mounts", "cdi-annotations", "cdi-cri"], ...
    ] = ("envvar",)
    """How the container runtime is told which GPUs a container has. The first two are for NVIDIA's
    own runtime. Those of CDI are for any that reads CDI specs, which holdfast then writes to
    cdi.specDir; the way to choose under gVisor, where nodes alone are no driver."""
    cdi_annotation_prefix: str = "cdi.k8s.io/"
    """What the key of cdi-annotations begins with; runtimes read this one."""
    cdi_hook_path: str = ""
    """Where the host has nvidia-cdi-hook or nvidia-ctk, such as ``/usr/bin/nvidia-ctk``: specs then
    have the runtime call it, to make links and to refresh the cache of libraries. Empty: there is
    none, and links are mounts. A path where there is no program stops every container."""
    cdi_disable_hooks: tuple[str, ...] = ()
    """Names of hooks to leave out, or ``all``."""
    imex_channel_ids: tuple[Literal[0], ...] = ()
    """``[0]`` hands IMEX channel 0 over with each GPU, where the node has it."""
    imex_required: bool = False
    """Whether a node without that channel offers no GPU."""
    device_id_strategy: Literal["uuid", "index"] = "uuid"
    """By what it is told of each."""
    pass_device_specs: bool = False
    """Whether the device nodes are in the answer, too: CPU managers take away all others."""
    gdrcopy_enabled: bool = False
    """Whether NVIDIA's container runtime is told to hand over GDRCopy with each GPU."""
    gds_enabled: bool = False
    """Whether it is told to hand over GPUDirect Storage."""
    mofed_enabled: bool = False
    """Whether it is told to hand over Mellanox' InfiniBand devices."""
    look: Interval = Interval(5)
    """How often to look for a driver that is not there."""
    rescan: Interval = Interval(30)
    """How often the GPUs are enumerated, besides what events tell."""
    call_timeout: Interval = Interval(30)
    """How long NVML may take to tell of all GPUs before it counts as hung; half of it for how one
    of them is. What was known stays until it answers, and nothing is free that it has to prove."""
    memory_deadline: Duration = Duration(60)
    """How long a former pod's memory may take to be torn down before what to do about it is told,
    and how long a small rise has to stand on a GPU that nobody has to count as what its driver
    needs; ten times as long after a pod. A GPU that works for nobody is kept from pods as long."""
    memory_slack_mib: Index = 64
    """How many MiB above its idle memory a GPU may be and count as free. Small rises add up to four
    times as much at the most; what is more is a leak."""
    monitors: tuple[str, ...] = MONITORS
    """Commands of programs that look after GPUs: they may have one open in a pod, and do anything
    outside of pods, and keep it from nobody."""
    displays: tuple[str, ...] = DISPLAYS
    """Commands of programs that draw on the node's own monitor: outside of pods they may."""
    mig_strategy: Literal["none", "single", "mixed"] = "none"
    """How MIG slices are advertised; as MIG_STRATEGY of NVIDIA's plugin, which is read too.

    none: not at all, GPUs in MIG mode are whole. single: as nvidia.com/gpu, where all GPUs are
    divided alike. mixed: as nvidia.com/mig-1g.10gb and the like, beside whole GPUs.
    """
    shared_devices_allocation_policy: Literal["distributed", "packed"] = "distributed"
    """Which GPU the next MIG slice is taken from, when kubelet may choose; as with NVIDIA's plugin.

    distributed: the one with the fewest slices in use, so that pods share less of a GPU's heat and
    links. packed: the one with the most, so that whole GPUs stay empty for a new layout.
    """
    health_beat: Interval = Interval(10)
    """How often each GPU is asked how it is, besides at events."""
    health_quiet: Duration = Duration(60)
    """How long a GPU must be without an Xid that passes by itself before it is trusted again."""
    disable_health_checks: str = ""
    """Xids to ignore besides 13, 31, 43, 45, 68 and 109, or ``xids`` for all of them, or ``all``
    for everything; as DP_DISABLE_HEALTHCHECKS of NVIDIA's plugin, which is read too."""
    enable_health_checks: str = ""
    """Xids that count whatever else is said, or ``all``; as DP_ENABLE_HEALTHCHECKS."""

    @property
    def driver_root_seen(self) -> str:
        """Return the driver's root as this process sees it; empty: it is looked for."""
        return self.driver_root or self.driver_root_on_host


class Pool(Section, frozen=True):
    """VFIO devices that are advertised; a function must match each list that is not empty."""

    resource_name: str
    """What pods ask for, such as ``example.com/nvme``."""
    devices: tuple[str, ...] = ()
    """``vendor:device`` in hex, with ``*`` and ``?``."""
    classes: tuple[str, ...] = ()
    """Beginnings of the PCI class, such as ``0302``."""
    addresses: tuple[str, ...] = ()
    """Patterns of PCI addresses, such as ``0000:3b:*``."""

    def spec(self) -> PoolSpec:
        """Return the rule that discovery goes by."""
        return PoolSpec(
            resource=ResourceName(self.resource_name),
            devices=self.devices,
            classes=self.classes,
            addresses=self.addresses,
        )
