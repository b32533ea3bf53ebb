"""Every key that can be set, with its type, its default and why it is there.

Keys are written in camelCase; durations are in seconds once they are read.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from holdfast.model.gpu_free import DISPLAYS, MONITORS
from holdfast.model.ids import ResourceName
from holdfast.model.pools import PoolSpec
from holdfast.settings.duration import Duration, Interval

Port = Annotated[int, Meta(ge=0, le=65535)]
Count = Annotated[int, Meta(ge=1)]
Index = Annotated[int, Meta(ge=0)]


class Section(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """The rules that all sections share: unknown keys are refused, names are camelCase."""


class Host(Section, frozen=True):
    """Where the host's folders are, as this process sees them."""

    sys: str = "/sys"
    proc: str = "/proc"
    """The host's pid namespace: holders outside of it are not seen."""
    dev: str = "/dev"
    cgroup: str = "/sys/fs/cgroup"
    """The host's whole tree, not the part that a private cgroup namespace shows."""
    etc: str = "/etc"
    run: str = "/run"
    """Where container runtimes keep what they run: it tells whether a sandbox is at work."""


class Question(Section, frozen=True):
    """How often kubelet is asked which pods it counts (List has effects and a rate limit)."""

    min_interval: Duration = Duration(1)
    """At least this long between two questions, however many reasons there are."""
    idle_interval: Interval = Interval(60)
    """At the latest after this, while any device is locked: events can be missed."""
    settle: Duration = Duration(1)
    """How long after others made kubelet write its checkpoint."""
    timeout: Interval = Interval(5)
    """How long kubelet may take to answer before it counts as down, which proves nothing."""


class Kubelet(Section, frozen=True):
    """Where kubelet is. Its plugin folder does not follow its --root-dir."""

    plugin_dir: str = "/var/lib/kubelet/device-plugins"
    pod_resources_socket: str = "/var/lib/kubelet/pod-resources/kubelet.sock"
    socket_prefix: str = "holdfast"
    """What the names of our sockets in the plugin folder begin with; those we may remove."""
    register_timeout: Interval = Interval(12)
    """Above the 10 s that kubelet takes to dial back."""
    poll: Interval = Interval(1)
    """How often the plugin folder is looked at, besides inotify."""
    question: Question = msgspec.field(default_factory=Question)


class Tpu(Section, frozen=True):
    """TPU chips, and what their programs are told; empty values come from envFile or hardware."""

    enabled: bool = True
    resource_name: str = "google.com/tpu"
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


class Gpu(Section, frozen=True):
    """NVIDIA GPUs, advertised once the driver has told of them; names are those of its plugin."""

    enabled: bool = True
    """On a node without the driver this costs one look at /proc now and then, and loads nothing."""
    driver_root: str = ""
    """The root of the file system with the driver's library, such as ``/run/nvidia/driver``, as
    this process sees it. Empty: GPU Operator's if it has one, else what the loader knows."""
    dev_root: str = ""
    """The root of the one with /dev/nvidia*. Empty: driverRoot, the host's own, GPU Operator's."""
    device_list_strategy: tuple[Literal["envvar", "volume-mounts"], ...] = ("envvar",)
    """How NVIDIA's container runtime is told which GPUs a container has."""
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
    memory_deadline: Duration = Duration(60)
    """How long a former pod's memory may take to be torn down before what to do about it is told,
    and how long memory has to stand on a GPU that nobody has to count as what its driver needs."""
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
    health_beat: Interval = Interval(10)
    """How often each GPU is asked how it is, besides at events."""
    health_quiet: Duration = Duration(60)
    """How long a GPU must be without an Xid that passes by itself before it is trusted again."""
    disable_health_checks: str = ""
    """Xids to ignore besides 13, 31, 43, 45, 68 and 109, or ``xids`` for all of them, or ``all``
    for everything; as DP_DISABLE_HEALTHCHECKS of NVIDIA's plugin, which is read too."""
    enable_health_checks: str = ""
    """Xids that count whatever else is said, or ``all``; as DP_ENABLE_HEALTHCHECKS."""


class Pool(Section, frozen=True):
    """VFIO devices that are advertised; a function must match each list that is not empty."""

    resource_name: str
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


class Cdi(Section, frozen=True):
    """Where container runtimes look up devices that are handed over by CDI name."""

    spec_dir: str = "/var/run/cdi"
    """The host's own folder, one of those that the runtime reads; holdfast does not make it."""


class Discovery(Section, frozen=True):
    """How the hardware is followed."""

    rescan: Interval = Interval(60)
    """The full look that is the truth; events only hasten it."""
    held_check: Interval = Interval(1)
    """For devices in use: a driver that is being removed from one announces nothing."""
    debounce: Duration = Duration(0.02)
    """Events come in bursts; one look after this answers them all."""


class Allocate(Section, frozen=True):
    """Allocate answers in any case; this is how long it waits to have it on disk."""

    commit_timeout: Interval = Interval(2)
    pending_timeout: Interval = Interval(60)
    """After this an Allocation that no checkpoint entry names is over."""


class Gate(Section, frozen=True):
    """PreStartContainer. Kubelet gives up after 30 s."""

    wait: Duration = Duration(25)
    """How long one start waits for its devices before it is refused; kubelet then asks again."""
    poll: Interval = Interval(0.25)
    """How often a waiting start asks the kernel again: some holders leave without an event."""
    exclusive_open: bool = True
    """Whether the group node may be opened and closed to prove that nobody has it."""
    caller_lookup: Duration = Duration(1)
    """How long kubelet's checkpoint may take to name the pod that starts."""


class Retry(Section, frozen=True):
    """How long a quarantined device waits for the next try, doubling from first to last."""

    first: Interval = Interval(5)
    last: Interval = Interval(300)


class Reclaim(Section, frozen=True):
    """What may be done about a process that outlives its pod on a device."""

    mode: Literal["observe", "terminate"] = "terminate"
    """observe: name it and end nothing. terminate: end it, when all of docs/guards.md holds."""
    let_go_grace: Duration = Duration(30)
    """From kubelet's letting go of the pod."""
    orphan_grace: Duration = Duration(30)
    """From then on, and from the runtime's letting go."""
    sandbox_grace: Duration = Duration(900)
    """How long the runtime's own files must show that nothing but pause runs in a sandbox whose
    shim lives, before that sandbox (gVisor, Kata) counts as let go of."""
    leaked_sandbox: Literal["report", "restart"] = "report"
    """For a living pod whose own gVisor sandbox keeps its device by a leaked fd (gvisor#11545), so
    that its next container cannot start. report: that container waits, and is told. restart: the
    sandbox is ended, if nothing but pause runs in it, so that kubelet makes a new one. A pod whose
    restartPolicy is Never then fails, as it would have of the busy device."""
    leak_grace: Duration = Duration(10)
    """How long such a leak must be seen, so that a sandbox that is closing its files is spared."""
    term_grace: Duration = Duration(10)
    """From SIGTERM to SIGKILL."""
    kill_grace: Duration = Duration(10)
    """From SIGKILL to giving up until the next retry."""
    retry: Retry = msgspec.field(default_factory=Retry)
    reset: Literal["never", "afterForcedRelease"] = "never"
    """Whether functions with a reset of their own are reset once what we ended let go of them.

    The kernel does it too, at the last close and the first open; it needs a /sys that is writable.
    """
    reset_timeout: Interval = Interval(30)
    """From the beginning of a reset, or of the check that the functions answer, to quarantine."""
    rebind: bool = False
    """Whether a function that a rescan left without a driver is bound to vfio-pci again."""
    poll: Interval = Interval(2)
    """How often the pods of locked devices are looked at, besides events."""
    release_poll: Interval = Interval(0.2)
    """The same while a device is in release."""
    foreign_scan: Interval = Interval(60)
    """How often, at most, all processes are looked at for devices that were not granted.

    It is less often where that look takes long: it may take a thousandth of the time.
    """
    unseen_grace: Duration = Duration(30)
    """For a pod whose cgroup was never seen."""


class Drift(Section, frozen=True):
    """When ledger, kubelet and kernel disagree."""

    settle: Duration = Duration(30)
    """How long a disagreement must stand before it is reported: most are gone in a moment."""
    beat: Interval = Interval(60)
    """How often they are compared while nothing changes."""


class History(Section, frozen=True):
    """How much of each device's story is kept."""

    per_device: Count = 200
    """Moves; older ones are dropped."""


class Http(Section, frozen=True):
    """Probes and metrics; port 0 turns them off."""

    address: str = ""
    """Empty: every address of the host, IPv4 and IPv6."""
    port: Port = 8008


class Log(Section, frozen=True):
    """What is logged, and how."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "text"] = "auto"
    """auto: text on a terminal, otherwise JSON."""


class Liveness(Section, frozen=True):
    """When a restart would mend something."""

    loop_stall: Interval = Interval(30)
    """/livez fails when the event loop has not turned for this long."""


class Settings(Section, frozen=True):
    """Everything that can be set; durations are in seconds."""

    state_dir: str = "/var/lib/holdfast"
    """The ledger and the control socket: a folder on a local disk that outlives reboots."""
    withhold_after: Duration = Duration(30)
    """How long a device may be RELEASING before kubelet is told that it is Unhealthy."""
    host: Host = msgspec.field(default_factory=Host)
    kubelet: Kubelet = msgspec.field(default_factory=Kubelet)
    tpu: Tpu = msgspec.field(default_factory=Tpu)
    gpu: Gpu = msgspec.field(default_factory=Gpu)
    pools: tuple[Pool, ...] = ()
    device_list_strategy: Literal["device-nodes", "cdi"] = "device-nodes"
    """How kubelet is told what to give a container: by the paths of nodes, or by CDI name.

    After a reboot kubelet replays its old answer, and IOMMU groups may have other numbers. A path
    then leads to another chip, and the pod must be deleted; a name leads to the right one. It needs
    kubelet 1.29 and a container runtime with CDI turned on.
    """
    cdi: Cdi = msgspec.field(default_factory=Cdi)
    discovery: Discovery = msgspec.field(default_factory=Discovery)
    allocate: Allocate = msgspec.field(default_factory=Allocate)
    gate: Gate = msgspec.field(default_factory=Gate)
    reclaim: Reclaim = msgspec.field(default_factory=Reclaim)
    drift: Drift = msgspec.field(default_factory=Drift)
    history: History = msgspec.field(default_factory=History)
    http: Http = msgspec.field(default_factory=Http)
    log: Log = msgspec.field(default_factory=Log)
    liveness: Liveness = msgspec.field(default_factory=Liveness)
