"""The settings of what the daemon has to do with the cluster: DRA, Events, labels, documents."""

from typing import Literal

from holdfast.names import CLAIM_STATE
from holdfast.settings.types import (
    AbsolutePath,
    DirectPath,
    DriverName,
    Duration,
    OptionalPath,
    Section,
)


class DraSettings(Section, frozen=True):
    """Dynamic Resource Allocation, for hardware whose `api` is `dra`.

    `nodeName` and `serviceAccount` are for `events` too.
    """

    driver_name: DriverName = "holdfast.dev"
    """The driver's name in ResourceSlices, DeviceClasses and claims. Change it when another driver
    of that name runs in the cluster; pods with claims of the former name then have to end first."""
    node_name: str = ""
    """The name of this node in the cluster. Empty: the environment variable NODE_NAME, which the
    chart sets, or else the host's name. Set it where neither is the node's name."""
    kubelet_root: AbsolutePath = "/var/lib/kubelet"
    """Kubelet's root folder, with its folders plugins and plugins_registry and its record of
    claims. Change it when kubelet runs with another --root-dir."""
    claim_state: OptionalPath = ""
    """Kubelet's record of claims, dra_manager_state, as the daemon's process sees it. Empty: the
    one in kubeletRoot. Set it where that folder is not mounted: the chart sets a path below
    /proc/1/root, because the folder has the volumes of every pod."""
    service_account: AbsolutePath = "/var/run/secrets/kubernetes.io/serviceaccount"
    """The folder with the token and the CA for requests to the API server. Change it when they
    are mounted at another place."""
    unprepare_wait: Duration = Duration(120)
    """How long the end of a claim may wait for its devices to be free. The pod stays Terminating
    for that time, and no other claim in the cluster gets its devices. After it the claim ends for
    kubelet, and the devices are withheld until they are free. Raise it where leftover processes
    take longer to end."""
    evict_lost: bool = False
    """Whether pods are deleted whose device is gone, such as a GPU that fell off the bus: its taint
    is then NoExecute, and Kubernetes' device-taint-eviction controller deletes them, unless they
    tolerate it. Set it to true where nothing else notices that such pods do no work."""

    def claim_file(self) -> str:
        """Return the path of kubelet's record of claims."""
        return self.claim_state or f"{self.kubelet_root}/{CLAIM_STATE}"


class EventsSettings(Section, frozen=True):
    """Events that `kubectl describe` shows, and a condition of the node.

    They are written with the token and the node's name of the section `dra`.
    """

    enabled: bool = False
    """Whether Events are written about pods that wait for a device, and about the node whose
    devices are held by leftovers, were reclaimed or are quarantined; and the node's condition
    HoldfastDevicesHeld. Set it to true where people look there; the daemon then needs the rights to
    create events and to patch the status of nodes, which the chart gives it."""


class NamedSettings(Section, frozen=True):
    """Settings by name: documents in a folder, of which a label of the node picks one.

    A document has keys of this page, or is a file of NVIDIA's device plugin (`version: v1`). It
    overrides the file; the environment and flags override it. The keys of this section and
    `stateDir` can be set only in the file. The chart sets them from `config.map` and the like.
    """

    folder: OptionalPath = ""
    """The folder with the documents: the name of a file is the document's. Empty: there are none.
    Set it where nodes need different settings."""
    labels: tuple[str, ...] = ("holdfast.dev/config", "nvidia.com/device-plugin.config")
    """The node's labels that name its document; the first that has a value counts. They are read
    from the API server, and a change is applied like one of the file. An empty list reads none.
    Change it when your nodes have another label."""
    default: str = ""
    """The document of nodes without a label. Set it where that is not the one that
    fallbackStrategies find."""
    fallback_strategies: tuple[Literal["named", "single", "empty"], ...] = ("named", "single")
    """Which document is used without label and default, tried in this order. named: the document
    `default`. single: the only one there is. empty: none, only the file. If none of them finds one,
    the configuration cannot be used. Add empty for nodes that need no document."""


class LabelsSettings(Section, frozen=True):
    """Node labels that describe the node's GPUs and TPUs.

    They are written to a file, which node-feature-discovery puts on the node: holdfast needs no
    rights in the cluster for it.
    """

    enabled: bool = False
    """Whether the file is written. Set it to true where the cluster runs node-feature-discovery
    0.15 or later and NVIDIA's GPU feature discovery does not run (nvidia.md, tpu.md)."""
    folder: DirectPath = "/etc/kubernetes/node-feature-discovery/features.d"
    """The folder on the node in which node-feature-discovery looks for such files; the file is
    called `holdfast`. Change it when its worker has another folder of the node mounted there."""
    gke_keys: bool = False
    """Whether TPU hosts also get the labels that GKE gives its nodes (cloud.google.com/gke-tpu-*).
    Set it to true outside of GKE, for pods that select nodes by them; never on GKE, whose labels
    node-feature-discovery would then overwrite and remove."""
