"""What is known of GPUs before NVIDIA's driver is there."""

from collections.abc import Mapping, Sequence

from holdfast.discovery.source import DeviceListing, Source
from holdfast.model.ids import ResourceName
from holdfast.model.nvidia.replicas import REPLICAS
from holdfast.vendors.context import Context

RENAMED = frozenset({ResourceName("nvidia.com/gpu.shared")})
"""What replicas of GPUs may be called."""
RESOURCES = RENAMED | {ResourceName("nvidia.com/gpu"), ResourceName("nvidia.com/mig-*")}
"""All under which GPUs and slices are advertised."""

_VISIBLE = "NVIDIA_VISIBLE_DEVICES"


class WithoutDriver(Source):
    """GPUs that nobody can look at; pods may still have some of them."""

    name = "nvidia"
    replica_names = REPLICAS

    def __init__(self, on: Context) -> None:
        """Know nothing yet of the GPUs on the node of *on*."""
        self._on = on

    def found(self) -> DeviceListing:
        """Return no GPU: nobody can tell which there are."""
        return DeviceListing(unseen=RESOURCES)

    def promised(self, variables: Mapping[str, str], mounts: Sequence[str]) -> tuple[str, ...]:
        """Return the indexes by which an answer tells NVIDIA's runtime of GPUs and slices."""
        if _VISIBLE not in variables:
            return ()
        from holdfast.model.nvidia.grant import told_by_index  # noqa: PLC0415 - for GPUs alone

        return told_by_index(variables, mounts)
