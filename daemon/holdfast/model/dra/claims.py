"""A ResourceClaim as the API server has it, and what kubelet is answered about it."""

from collections.abc import Mapping

from msgspec import Struct, field

from holdfast.model.ids import ClaimRef, PodUid


class ClaimResult(Struct, frozen=True, kw_only=True):
    """One device that the scheduler allocated to a claim (``status.allocation.devices.results``).

    `request` is as the API server has it, ``request`` or ``request/subrequest``. `driver` may be
    another one's. `share_id` is empty unless several claims were given parts of the device.
    """

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool = False
    share_id: str = ""


class OpaqueConfig(Struct, frozen=True, kw_only=True):
    """Opaque configuration of a claim or its class: for which driver, and of which kind."""

    driver: str
    kind: str


class AllocatedClaim(Struct, frozen=True, kw_only=True):
    """A claim with the results of all drivers; `results` is None while it is not allocated.

    `reserved_for` are the pods that may use it, with their names; their namespace is the claim's.
    `deleted`: it has a deletion timestamp, so it goes when its last pod has gone.
    """

    ref: ClaimRef
    results: tuple[ClaimResult, ...] | None = None
    configs: tuple[OpaqueConfig, ...] = ()
    reserved_for: Mapping[PodUid, str] = field(default_factory=dict)
    deleted: bool = False


class PreparedDevice(Struct, frozen=True, kw_only=True):
    """One device that containers are given by CDI names; `request_names` without subrequests."""

    request_names: tuple[str, ...]
    pool: str
    device: str
    cdi_ids: tuple[str, ...] = ()
    share_id: str = ""


class Prepared(Struct, frozen=True, kw_only=True):
    """What NodePrepareResources answers for one claim: its devices, or why it failed."""

    devices: tuple[PreparedDevice, ...] = ()
    error: str = ""
