"""The settings of node labels."""

from holdfast.settings.types import Section


class Labels(Section, frozen=True):
    """Node labels that describe the node's GPUs and TPUs.

    They are written to a file, which node-feature-discovery puts on the node: holdfast needs no
    rights in the cluster for it.
    """

    enabled: bool = False
    """Whether the file is written. Set it to true where the cluster runs node-feature-discovery
    0.15 or later and NVIDIA's GPU feature discovery does not run (nvidia.md, tpu.md)."""
    folder: str = "/etc/kubernetes/node-feature-discovery/features.d"
    """The folder on the node in which node-feature-discovery looks for such files; the file is
    called `holdfast`. Change it when its worker has another folder of the node mounted there."""
    gke_keys: bool = False
    """Whether TPU hosts also get the labels that GKE gives its nodes (cloud.google.com/gke-tpu-*).
    Set it to true outside of GKE, for pods that select nodes by them; never on GKE, whose labels
    node-feature-discovery would then overwrite and remove."""
