"""A ResourceClaim as the API server has it, when it is over unasked, and what keeps the driver."""

from collections.abc import Mapping, Sequence
from enum import Enum

from msgspec import Struct, field

from holdfast.model.ids import ClaimRef, PodUid
from holdfast.model.kubelet import ClaimEntry, RecordedDevice


class ClaimResult(Struct, frozen=True, kw_only=True, rename="camel"):
    """One device that the scheduler allocated to a claim (``status.allocation.devices.results``).

    It is read from that JSON; other fields are left out. `request` is as the API server has it,
    ``request`` or ``request/subrequest``. `driver` may be another one's. `share_id` is empty unless
    several claims were given parts of the device.
    """

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool = False
    share_id: str = field(default="", name="shareID")


class OpaqueConfig(Struct, frozen=True, kw_only=True):
    """Opaque configuration of a claim or its class: for which driver, and of which kind."""

    driver: str
    kind: str


class AllocatedClaim(Struct, frozen=True, kw_only=True):
    """A claim with the results of all drivers; `results` is None while it is not allocated.

    `reserved_for` are the pods that may use it, with their names; their namespace is the claim's.
    `grouped`: others than pods may, such as a PodGroup, so that not all of its pods are known.
    """

    ref: ClaimRef
    results: tuple[ClaimResult, ...] | None = None
    configs: tuple[OpaqueConfig, ...] = ()
    reserved_for: Mapping[PodUid, str] = field(default_factory=dict)
    grouped: bool = False


class PrepareAnswer(Struct, frozen=True, kw_only=True):
    """What NodePrepareResources answers for one claim: its devices, or why it failed."""

    devices: tuple[RecordedDevice, ...] = ()
    error: str = ""


class OnServer(Enum):
    """What the API server has under the claim's name, in words."""

    THERE = "the API server has it as it is here"
    DEALLOCATED = "the API server has it as not allocated"
    UNRESERVED = "the API server has it as reserved for none of its pods"
    ELSEWHERE = "the API server has it as allocated other devices"
    GONE = "the API server has no such claim"
    ANOTHER = "the API server has another claim of its name"
    UNKNOWN = "the API server does not say"


class LostFacts(Struct, frozen=True, kw_only=True):
    """What decides whether a claim is over; `listed` and `server` as they were just read.

    `listed`: kubelet's record of claims has it, None where that cannot be read. `cgroups`: one of
    its pods has a cgroup, so that it may live.
    """

    listed: bool | None
    server: OnServer
    cgroups: bool


def why_over(facts: LostFacts) -> str | None:
    """Return why the claim is over, or None where it may not be.

    Each of the three can be wrong by itself: a server that was restored from a backup, a kubelet
    that lost its record, a pod whose cgroup is made only now.
    """
    if facts.listed is not False or facts.cgroups:
        return None
    if facts.server in {OnServer.THERE, OnServer.UNKNOWN}:
        return None
    found = facts.server.value
    return f"{found}, kubelet has no record of it, and none of its pods has a cgroup"


class LeavingFacts(Struct, frozen=True, kw_only=True):
    """What kubelet and the API server say at one moment.

    `entries` are kubelet's record of claims, and `unread` why that cannot be read; empty: it can,
    or there is none. `offered` are the devices that the scheduler may still give to a claim, None
    where it is not known what the API server has.
    """

    driver: str
    entries: Sequence[ClaimEntry] = ()
    unread: str = ""
    offered: Sequence[str] | None = ()


def why_driver_stays(facts: LeavingFacts) -> tuple[str, ...]:
    """Return what still needs the driver, which has to leave the node last.

    Without it kubelet cannot unprepare a claim, and its pods stay Terminating without limit.
    """
    found = [
        f"kubelet has claim {each.claim} prepared by {facts.driver}: delete its pods"
        for each in facts.entries
        if facts.driver in each.devices
    ]
    if facts.unread:
        found.append(f"it is unknown which claims kubelet has prepared: {facts.unread}")
    if facts.offered is None:
        found.append("it is unknown which devices the scheduler may still give to claims")
    found += [f"the scheduler may still give {name} to a claim" for name in facts.offered or ()]
    return tuple(found)
