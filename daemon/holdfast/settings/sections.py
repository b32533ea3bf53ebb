"""Every setting, with its type, its default and when to change it, or where its section is."""

from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from holdfast.model.devicerules import DeviceRule
from holdfast.names import CLAIM_STATE
from holdfast.settings.hardware import (
    Api,
    DeviceSettings,
    GpuSettings,
    Pool,
    ServedResources,
    SharingSettings,
    TpuSettings,
)
from holdfast.settings.types import (
    AbsolutePath,
    DialedPath,
    DirectPath,
    DriverName,
    Duration,
    Interval,
    OptionalPath,
    Port,
    Section,
    SocketPrefix,
    Text,
)


class HistorySettings(Section, frozen=True):
    """How much of each device's history is kept in the ledger."""

    per_device: Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)] = 200
    """How many changes of state are kept for each device. Raise it to look back further with
    `holdfast history`."""


class HttpSettings(Section, frozen=True):
    """The HTTP server for probes (/livez, /readyz) and metrics (/metrics)."""

    address: Text = ""
    """The IP address to listen on. Empty: all. Set it to 127.0.0.1 when only programs on the node
    may ask; the daemon then needs the node's network."""
    port: Port = 8008
    """The TCP port. 0 turns probes and metrics off. Change it when another program has the port."""


class LogSettings(Section, frozen=True):
    """What is logged, and how."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe messages. Set it to debug to look into a problem."""
    format: Literal["auto", "json", "text"] = "auto"
    """How a message is written. auto: text on a terminal, JSON elsewhere. Set it when what collects
    your logs needs one."""


class LivenessSettings(Section, frozen=True):
    """When /livez fails, so that kubelet restarts the container."""

    loop_stall: Interval = Interval(30)
    """How long the event loop may stand still before /livez fails. Raise it when the container is
    restarted on nodes that are only overloaded."""


class ReadinessSettings(Section, frozen=True):
    """What /readyz checks in addition to a daemon that works."""

    require_devices: bool = False
    """Whether a node without any device counts as not ready. Set it to true where every node that
    holdfast runs on must have devices."""


class HostSettings(Section, frozen=True):
    """Where the node's folders are, as the daemon's own process sees them.

    The chart sets them.
    """

    sys: DirectPath = "/sys"
    """The node's sysfs, which shows the hardware. Change it when that is mounted elsewhere. Only
    `reclaim.reset` and `reclaim.rebind` write to it."""
    proc: DirectPath = "/proc"
    """The node's procfs. It must belong to the node's own PID namespace. Change it when that is
    mounted elsewhere."""
    dev: DirectPath = "/dev"
    """The node's device files, which containers are given. Change it when they are elsewhere."""
    cgroup: DirectPath = "/sys/fs/cgroup"
    """The node's whole cgroup tree, not the part that a private cgroup namespace shows. Change it
    when that is mounted elsewhere."""
    etc: DirectPath = "/etc"
    """The node's /etc, where `tpu/tpu-env` is looked for. Change it when that is mounted
    elsewhere."""
    run: DirectPath = "/run"
    """The node's /run, where container runtimes keep the state of sandboxes (gVisor, Kata). Change
    it when that is mounted elsewhere."""

    def folders(self) -> dict[str, Path]:
        """Return each folder by the name of its key."""
        return {name: Path(text) for name, text in msgspec.structs.asdict(self).items()}


class QuestionSettings(Section, frozen=True):
    """How often kubelet is asked which pods it still counts.

    Each question makes kubelet write its checkpoint, and kubelet limits how often it answers.
    """

    min_interval: Duration = Duration(1)
    """The shortest time between two questions. Raise it when kubelet's pod-resources API refuses
    calls as too many."""
    idle_interval: Interval = Interval(60)
    """The longest time without a question while any device is locked. Lower it to notice the end of
    a pod sooner where events are unreliable."""
    settle: Duration = Duration(1)
    """How long to wait after kubelet has written its checkpoint, before it is asked. Raise it on
    nodes that start and end many pods at once."""
    timeout: Interval = Interval(5)
    """How long kubelet may take for one answer, before it counts as down. Raise it on nodes whose
    kubelet is slow under load."""


class KubeletSettings(Section, frozen=True):
    """Where kubelet is, and how the daemon registers with it."""

    plugin_dir: DialedPath = "/var/lib/kubelet/device-plugins"
    """The folder with kubelet's socket for device plugins, its checkpoint, and the daemon's own
    sockets. Kubelet's --root-dir does not move it. Change it only for a distribution that does."""
    pod_resources_socket: DialedPath = "/var/lib/kubelet/pod-resources/kubelet.sock"
    """The socket of kubelet's pod-resources API. Change it when kubelet runs with another
    --root-dir."""
    socket_prefix: SocketPrefix = "holdfast"
    """How the names of the daemon's own sockets, and of its CDI specs, begin. Old files with this
    prefix are removed. Change it when another program uses the same names."""
    register_timeout: Interval = Interval(12)
    """How long one registration with kubelet may take. Keep it above 10 s: kubelet connects back
    for as long. Raise it when registrations time out."""
    poll: Interval = Interval(1)
    """How often the plugin folder is read while inotify does not watch it. Lower it to register
    sooner after a restart of kubelet there."""
    question: QuestionSettings = msgspec.field(default_factory=QuestionSettings)


class CdiSettings(Section, frozen=True):
    """Where CDI spec files are written, for devices that containers get by CDI name."""

    spec_dir: DirectPath = "/var/run/cdi"
    """The node's folder for CDI specs. It must exist, and the container runtime must read it.
    Change it when the runtime reads other folders (`cdi_spec_dirs` in containerd)."""


class DiscoverySettings(Section, frozen=True):
    """How the daemon follows which hardware the node has."""

    rescan: Interval = Interval(60)
    """How often the hardware is read in full, when no event comes. Lower it when the daemon notices
    a change of the hardware too late."""
    held_check: Interval = Interval(1)
    """How often the drivers of devices in use are checked, 64 each time. Raise it to save CPU
    time."""
    debounce: Duration = Duration(0.02)
    """How long to wait after a kernel event before the hardware is read. Raise it when one change
    of the hardware makes the daemon read it many times."""


class AllocateSettings(Section, frozen=True):
    """The answer to kubelet's Allocate, and how long it may stay unused."""

    commit_timeout: Interval = Interval(2)
    """How long an answer waits until it is on disk, below 10 s because kubelet admits no other pod
    meanwhile. After it the container's start waits for the disk instead. Raise it on nodes with a
    slow disk."""
    pending_timeout: Interval = Interval(60)
    """How long an answer may wait until kubelet's checkpoint says for which pod it was. Then its
    devices are free for others. Raise it when kubelet takes longer to write."""


class GateSettings(Section, frozen=True):
    """The gate: a container's start waits (PreStartContainer) until its devices are free."""

    wait: Duration = Duration(25)
    """How long a start waits before it is refused; kubelet then tries again. At most 26 s, because
    kubelet gives up after 30 s. Lower it to see refusals sooner in the pod's events."""
    poll: Interval = Interval(0.25)
    """How often a waiting start checks its devices; a quarter as often while nothing changes. Raise
    it to save CPU time on nodes where many starts wait."""
    exclusive_open: bool = True
    """Whether a VFIO group may be opened and closed at once to prove that it is free. Set it to
    false when another program on the node must be able to open free groups at any moment."""
    caller_lookup: Duration = Duration(1)
    """How long a start waits for kubelet's checkpoint to name its pod. After that it goes on
    without the name. Raise it on a slow node whose ledger shows starts of unknown pods."""


class RetrySettings(Section, frozen=True):
    """The pause before a device that could not be reclaimed is tried again.

    It doubles with each failure, from first to last.
    """

    first: Interval = Interval(5)
    """The pause after the first failure. Raise it when failures take long to pass on your nodes."""
    last: Interval = Interval(300)
    """The longest pause, however many failures there were. Lower it to get a device back sooner
    once the cause is gone."""


class ReclaimSettings(Section, frozen=True):
    """How a device is taken back from a pod that has ended.

    Processes are ended only under every guard of guards.md. A longer grace is always safe; a
    shorter one frees devices sooner.
    """

    mode: Literal["observe", "terminate"] = "terminate"
    """What is done about a process that outlives its pod and keeps a device. terminate: end it,
    once every guard agrees. observe: report it and end nothing. Choose observe when you first
    install holdfast, or where people end such processes themselves."""
    let_go_grace: Duration = Duration(30)
    """How long kubelet must have stopped counting a pod before a process of that pod may be ended.
    Raise it when kubelet restarts often or its checkpoint gets lost."""
    orphan_grace: Duration = Duration(30)
    """How long a process must have been an orphan before it may be ended. It begins when letGoGrace
    is over and the container runtime has dropped the pod too. Raise it when programs need longer to
    shut down by themselves."""
    evidence_age: Interval = Interval(1)
    """How old kubelet's last answer may be when a signal is sent. Raise it on a very slow node
    where processes are spared for that."""
    sandbox_grace: Duration = Duration(900)
    """How long a sandbox (gVisor, Kata) must run nothing but its pause container by the runtime's
    files, before it may be ended although its shim lives. Raise it when sandboxes on your nodes
    recover by themselves."""
    leaked_sandbox: Literal["report", "restart"] = "report"
    """What is done when a pod's own gVisor sandbox keeps the device by a leaked file descriptor
    (gvisor#11545), so that the pod's next container cannot start. report: the container waits, and
    its events say why. restart: the sandbox is ended if it runs nothing but pause, and kubelet
    makes a new one; a pod with restartPolicy Never then fails. Choose restart until your nodes have
    a gVisor release with the fix. It needs mode terminate."""
    leak_grace: Duration = Duration(10)
    """How long such a leak must be seen before the sandbox is ended. Raise it when sandboxes are
    slow to close files."""
    term_grace: Duration = Duration(10)
    """How long a process has to end after SIGTERM before it gets SIGKILL. Raise it when your
    programs need longer to save their work."""
    kill_grace: Duration = Duration(10)
    """How long a process has to end after SIGKILL before the device is quarantined until the next
    try. Raise it when the kernel takes long to tear down large mappings."""
    retry: RetrySettings = msgspec.field(default_factory=RetrySettings)
    reset: Literal["never", "afterForcedRelease"] = "never"
    """Whether a device's PCI functions are reset after its holder had to be ended. The kernel
    resets a VFIO function when its last user closes it; choose afterForcedRelease when devices stay
    in a bad state all the same. It needs a writable /sys."""
    reset_timeout: Interval = Interval(30)
    """How long a reset, and the check that the functions answer, may take before the device is
    quarantined. Raise it for hardware that takes longer to come back."""
    rebind: bool = False
    """Whether a PCI function that is left without a driver, such as after a rescan of the bus, is
    bound to vfio-pci again. Set it to true when nothing else on your nodes does. It needs a
    writable /sys."""
    poll: Interval = Interval(2)
    """How often devices and pods are checked when no event comes, 64 devices each time. Lower it
    where events are unreliable; raise it to save CPU time."""
    release_poll: Interval = Interval(0.2)
    """How often a device is checked while it is being released. Raise it to save CPU time."""
    foreign_scan: Interval = Interval(60)
    """How often, at most, all processes of the node are searched for users of devices that were not
    granted to them. It takes at most half a thousandth of a core, so it is rarer on crowded nodes.
    Raise it to save more CPU time."""
    unseen_grace: Duration = Duration(30)
    """How long kubelet must have stopped counting a pod whose cgroup was never seen, before its
    device may be free. Raise it when pods can run for long before their cgroup is found."""


class DraSettings(Section, frozen=True):
    """Dynamic Resource Allocation, for hardware whose `api` is `dra`.

    `nodeName` and `serviceAccount` are for `events` too.
    """

    driver_name: DriverName = "holdfast.dev"
    """The driver's name in ResourceSlices, DeviceClasses and claims. Change it when another driver
    of that name runs in the cluster; pods with claims of the former name then have to end first."""
    node_name: Text = ""
    """The name of this node in the cluster. Empty: the environment variable NODE_NAME, which the
    chart sets, or else the host's name. Set it where neither is the node's name."""
    kubelet_root: AbsolutePath = "/var/lib/kubelet"
    """Kubelet's root folder, with its folders plugins and plugins_registry and its record of
    claims. Change it when kubelet runs with another --root-dir."""
    claim_state: OptionalPath = ""
    """Kubelet's record of claims, dra_manager_state, as the daemon's process sees it. Empty: the
    one in kubeletRoot. Set it where that folder is not mounted; the chart sets it."""
    service_account: AbsolutePath = "/var/run/secrets/kubernetes.io/serviceaccount"
    """The folder with the token and the CA for requests to the API server. Change it when they
    are mounted at another place."""
    unprepare_wait: Duration = Duration(120)
    """How long the end of a claim may wait for its devices to be free. The pod stays Terminating
    meanwhile. After it the claim ends for kubelet, and the devices are withheld until they are
    free. Raise it where leftover processes take longer to end."""
    evict_lost: bool = False
    """Whether pods are deleted whose device is gone, such as a GPU that fell off the bus, by the
    taint's effect NoExecute. Set it to true where nothing else notices such pods."""

    def claim_file(self) -> str:
        """Return the path of kubelet's record of claims."""
        return self.claim_state or f"{self.kubelet_root}/{CLAIM_STATE}"


class EventsSettings(Section, frozen=True):
    """Events that `kubectl describe` shows, and a condition of the node.

    They are written with the token and the node's name of the section `dra`.
    """

    enabled: bool = False
    """Whether Events about waiting pods and held, reclaimed or quarantined devices are written, and
    the node's condition HoldfastDevicesHeld. Set it to true where people look there. It takes
    rights in the cluster, which the chart gives."""


class NamedSettings(Section, frozen=True):
    """Settings by name: documents in a folder, of which a label of the node picks one.

    A document has keys of this page, or is a file of NVIDIA's device plugin (`version: v1`). It
    overrides the file; the environment and flags override it. The keys of this section and
    `stateDir` can be set only in the file. The chart sets them from `config.map` and the like.
    """

    folder: OptionalPath = ""
    """The folder with the documents: the name of a file is the document's. Set it where nodes need
    different settings."""
    labels: tuple[Text, ...] = ("holdfast.dev/config", "nvidia.com/device-plugin.config")
    """The node's labels that name its document; the first that has a value counts. They are read
    from the API server; an empty list reads none. Change it when your nodes have another label."""
    default: Text = ""
    """The document of nodes without a label. Set it where fallbackStrategies find another."""
    fallback_strategies: tuple[Literal["named", "single", "empty"], ...] = ("named", "single")
    """Which document is used without label and default, tried in this order. named: the document
    `default`. single: the only one there is. empty: none, only the file. If none of them finds one,
    the configuration cannot be used. Add empty for nodes that need no document."""


class LabelsSettings(Section, frozen=True):
    """Node labels that describe the node's GPUs and TPUs.

    They are written to a file, which node-feature-discovery puts on the node.
    """

    enabled: bool = False
    """Whether the file is written. Set it to true where the cluster runs node-feature-discovery
    0.15 or later and NVIDIA's GPU feature discovery does not run (nvidia.md, tpu.md)."""
    folder: DirectPath = "/etc/kubernetes/node-feature-discovery/features.d"
    """The folder on the node in which node-feature-discovery looks for such files. Change it when
    its worker has another one mounted."""
    gke_keys: bool = False
    """Whether TPU hosts also get the labels that GKE gives its nodes (cloud.google.com/gke-tpu-*).
    Set it to true outside of GKE, for pods that select nodes by them; never on GKE."""


class DriftSettings(Section, frozen=True):
    """When it is reported that the ledger, kubelet and the kernel disagree."""

    settle: Duration = Duration(30)
    """How long a disagreement must last before it is reported. Raise it when short ones raise
    alerts on slow nodes."""
    beat: Interval = Interval(60)
    """How often the three are compared while nothing changes. Lower it to notice a disagreement
    sooner."""


class Settings(Section, frozen=True, dict=True):
    """The settings that belong to no section."""

    state_dir: DirectPath = "/var/lib/holdfast"
    """The folder for the ledger and the control socket. It must be on a local disk and outlive
    reboots. Change it when that disk is mounted elsewhere; a new folder begins with an empty
    ledger."""
    withhold_after: Duration = Duration(30)
    """How long a device may be in release, or the ledger fail to write, before kubelet is told that
    the device is Unhealthy. Raise it when releases on your nodes take longer than that and still
    end."""
    host: HostSettings = msgspec.field(default_factory=HostSettings)
    kubelet: KubeletSettings = msgspec.field(default_factory=KubeletSettings)
    tpu: TpuSettings = msgspec.field(default_factory=TpuSettings)
    gpu: GpuSettings = msgspec.field(default_factory=GpuSettings)
    sharing: SharingSettings = msgspec.field(default_factory=SharingSettings)
    pools: tuple[Pool, ...] = ()
    """Other VFIO devices to advertise. Set it to grant devices that are neither TPUs nor GPUs."""
    devices: tuple[DeviceSettings, ...] = ()
    """Rules for some devices. Set it to leave devices out, or to put them under another resource
    name."""
    device_list_strategy: Literal["device-nodes", "cdi"] = "device-nodes"
    """How containers get TPUs and devices of pools: by the paths of device files, or by CDI name.
    After a reboot a path may lead to another device, and the pod must be deleted, while a name
    leads to the right one. Choose cdi with kubelet 1.29 or later and a container runtime that has
    CDI turned on."""
    cdi: CdiSettings = msgspec.field(default_factory=CdiSettings)
    labels: LabelsSettings = msgspec.field(default_factory=LabelsSettings)
    discovery: DiscoverySettings = msgspec.field(default_factory=DiscoverySettings)
    allocate: AllocateSettings = msgspec.field(default_factory=AllocateSettings)
    gate: GateSettings = msgspec.field(default_factory=GateSettings)
    reclaim: ReclaimSettings = msgspec.field(default_factory=ReclaimSettings)
    dra: DraSettings = msgspec.field(default_factory=DraSettings)
    events: EventsSettings = msgspec.field(default_factory=EventsSettings)
    named: NamedSettings = msgspec.field(default_factory=NamedSettings)
    drift: DriftSettings = msgspec.field(default_factory=DriftSettings)
    history: HistorySettings = msgspec.field(default_factory=HistorySettings)
    http: HttpSettings = msgspec.field(default_factory=HttpSettings)
    log: LogSettings = msgspec.field(default_factory=LogSettings)
    liveness: LivenessSettings = msgspec.field(default_factory=LivenessSettings)
    readiness: ReadinessSettings = msgspec.field(default_factory=ReadinessSettings)

    def device_rules(self) -> tuple[DeviceRule, ...]:
        """Return the rules for single devices, in order."""
        return tuple(each.rule(place) for place, each in enumerate(self.devices))

    @cached_property
    def served(self) -> tuple[ServedResources, ...]:
        """What each section of hardware serves, first what is enabled."""
        found = (self.tpu.served(), self.gpu.served(), *(each.served() for each in self.pools))
        return tuple(sorted(found, key=lambda each: not each.enabled))

    @property
    def functions(self) -> tuple[ServedResources, ...]:
        """What of it are whole PCI functions."""
        return tuple(each for each in self.served if each.functions)

    def has_dra(self) -> bool:
        """Tell whether any hardware is served by DRA."""
        return "dra" in self.apis() or any(each.api == "dra" for each in self.devices)

    def apis(self) -> frozenset[Api]:
        """Return the APIs by which the hardware is served, but for what single devices have."""
        return frozenset(each.api for each in self.served if each.enabled)

    def hardware_api(self, resource: str) -> Api | None:
        """Return by which API hardware of this name is served, None where no section has it."""
        return next((each.api for each in self.served if each.has(resource)), None)

    def api_of(self, resource: str) -> Api | None:
        """Return by which API *resource* is served, None where no section and no rule has it."""
        if (api := self.hardware_api(resource)) is not None:
            return api
        rules = [each for each in self.devices if each.resource == resource]
        if not rules:
            return None
        of_all: Api = "dra" if "dra" in self.apis() else "device-plugin"
        return next((each.api for each in rules if each.api), of_all)

    def is_dra(self, resource: str) -> bool:
        """Tell whether DRA serves *resource*. What nobody here knows comes by the device plugin."""
        return self.api_of(resource) == "dra"
