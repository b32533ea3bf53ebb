"""What is known of GPUs before NVIDIA's driver is there."""

from collections.abc import Mapping, Sequence

from holdfast.discovery.source import DeviceListing, Source
from holdfast.model.ids import ResourceName
from holdfast.model.nvidia import GPU, REPLICAS, SLICES
from holdfast.vendors.context import Context

RESOURCES = frozenset({GPU, REPLICAS.renamed(GPU), ResourceName(f"{SLICES}*")})
"""All under which GPUs, slices and their replicas are advertised."""

_VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def is_renamed(resource: ResourceName) -> bool:
    """Tell whether *resource* is a name that only replicas of GPUs or slices have."""
    whole = REPLICAS.unshared(resource)
    return whole != resource and (whole == GPU or whole.startswith(SLICES))


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
