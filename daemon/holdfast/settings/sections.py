"""Every key that can be set, with its type, its default and why it is there; hardware's apart.

Keys are written in camelCase; durations are in seconds once they are read.
"""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from holdfast.settings.duration import Duration, Interval
from holdfast.settings.hardware import Gpu, Pool, Tpu
from holdfast.settings.section import Section

Port = Annotated[int, Meta(ge=0, le=65535)]
Count = Annotated[int, Meta(ge=1)]


class Host(Section, frozen=True):
    """Where the host's folders are, as this process sees them."""

    sys: str = "/sys"
    """What the kernel tells of hardware; only `reclaim.reset` and `reclaim.rebind` write to it."""
    proc: str = "/proc"
    """The host's pid namespace: holders outside of it are not seen."""
    dev: str = "/dev"
    """Where the nodes are looked up that containers are given."""
    cgroup: str = "/sys/fs/cgroup"
    """The host's whole tree, not the part that a private cgroup namespace shows."""
    etc: str = "/etc"
    """Where ``tpu/tpu-env`` is."""
    run: str = "/run"
    """Where container runtimes keep what they run: it tells whether a sandbox is at work."""

    def folders(self) -> dict[str, Path]:
        """Return each folder by the name of its key."""
        return {name: Path(text) for name, text in msgspec.structs.asdict(self).items()}


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
    """The folder with kubelet's socket for plugins, its checkpoint, and our own sockets."""
    pod_resources_socket: str = "/var/lib/kubelet/pod-resources/kubelet.sock"
    """Where kubelet is asked which pods it counts; it follows its --root-dir."""
    socket_prefix: str = "holdfast"
    """What the names of our sockets in the plugin folder begin with; those we may remove."""
    register_timeout: Interval = Interval(12)
    """Above the 10 s that kubelet takes to dial back."""
    poll: Interval = Interval(1)
    """How often the plugin folder is looked at, besides inotify."""
    question: Question = msgspec.field(default_factory=Question)


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
    """After this it answers all the same; the gate then commits before it lets a start pass."""
    pending_timeout: Interval = Interval(60)
    """After this an Allocation that no checkpoint entry names is over."""


class Gate(Section, frozen=True):
    """PreStartContainer. Kubelet gives up after 30 s."""

    wait: Duration = Duration(25)
    """How long one start waits for its devices before it is refused, at most 26 s."""
    poll: Interval = Interval(0.25)
    """How often a waiting start looks again; four times as seldom while nothing changes."""
    exclusive_open: bool = True
    """Whether the group node may be opened and closed to prove that nobody has it."""
    caller_lookup: Duration = Duration(1)
    """How long kubelet's checkpoint may take to name the pod that starts."""


class Retry(Section, frozen=True):
    """How long a quarantined device waits for the next try, doubling from first to last."""

    first: Interval = Interval(5)
    """Before the second try."""
    last: Interval = Interval(300)
    """The longest wait, however many tries there were."""


class Reclaim(Section, frozen=True):
    """What may be done about a process that outlives its pod on a device."""

    mode: Literal["observe", "terminate"] = "terminate"
    """observe: name it and end nothing. terminate: end it, when all of docs/guards.md holds."""
    let_go_grace: Duration = Duration(30)
    """From kubelet's letting go of the pod."""
    orphan_grace: Duration = Duration(30)
    """From then on, and from the runtime's letting go."""
    evidence_age: Interval = Interval(1)
    """Nobody is signalled on what kubelet said longer ago; a very slow node needs more."""
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
    """0: no probes and no metrics are served."""


class Log(Section, frozen=True):
    """What is logged, and how."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least that is told."""
    format: Literal["auto", "json", "text"] = "auto"
    """auto: text on a terminal, otherwise JSON."""


class Liveness(Section, frozen=True):
    """When a restart would mend something."""

    loop_stall: Interval = Interval(30)
    """/livez fails when the event loop has not turned for this long."""


class Readiness(Section, frozen=True):
    """What /readyz asks for besides that everything works."""

    require_devices: bool = False
    """Whether a node without any device is not ready. By default it is ready and says so: a node
    may come up before its driver, and one without accelerators has nothing that is broken. Set it
    where every node that holdfast runs on must have devices, so that one without them shows."""


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
    """Other VFIO devices to be advertised, each pool as a resource of its own."""
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
    readiness: Readiness = msgspec.field(default_factory=Readiness)
