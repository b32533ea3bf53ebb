"""What a claim hands to containers: by which CDI names, with which nodes and variables."""

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.model.devices import Device
from holdfast.model.dra.cdi import Handed, device, kind
from holdfast.model.dra.claims import ClaimResult, Prepared, PreparedDevice
from holdfast.model.grants import ContainerGrant
from holdfast.model.ids import ClaimUid, ResourceName

EVERY_REQUEST = "all.requests"
"""Stands for all requests of a claim where a name is wanted; no request, and no device, has a dot.

Kubelet gives a container the devices of the requests that it names, and every device where it names
none. So what is said to be of this request is given only to containers with the whole claim.
"""

Grant = Callable[[ResourceName, tuple[Device, ...]], ContainerGrant]
"""Returns what a container gets for devices that are all of one resource."""


class Given(Struct, frozen=True, kw_only=True):
    """One result of a claim, and the devices that it means: several where it is a group."""

    result: ClaimResult
    devices: tuple[Device, ...]

    @property
    def request(self) -> str:
        """Return the request without the subrequest that the scheduler chose."""
        return self.result.request.partition("/")[0]

    @property
    def is_share(self) -> bool:
        """Tell whether one of `devices` is meant, of which other claims have the others."""
        return bool(self.result.share_id) and not self.result.admin_access


def devices_of(given: Iterable[Given], *, admin: bool) -> tuple[Device, ...]:
    """Return the devices that are given with adminAccess, or those that are given without."""
    chosen = (each for each in given if each.result.admin_access is admin)
    return tuple(dict.fromkeys(device for each in chosen for device in each.devices))


def hand_over(
    driver: str, claim: ClaimUid, given: Sequence[Given], grant: Grant
) -> tuple[tuple[Handed, ...], Prepared]:
    """Return what the spec of *claim* has to have, and what kubelet is to be answered.

    Variables name all devices of a request: a container that has one has them all. Of several
    CDI devices with the same variable the last one's counts. So containers with the whole claim
    are given one more, after all others, whose variables name all devices of the claim. But a
    variable cannot be taken back: where the whole claim would be without one that a request has,
    as TPU chips can be, such containers learn of the last request only.
    """
    handed: dict[str, Handed] = {}
    prepared: list[PreparedDevice] = []
    envs: dict[str, str] = {}
    for each in given:
        request = (other for other in given if other.request == each.request)
        made = _granted(each.devices, _all_devices(request), grant)
        label = each.result.device
        if label in handed:  # two shares of one device, or requests, one of them with adminAccess
            label = f"{label}.{each.result.share_id or each.request}"
        handed[label] = Handed(label=label, grant=made)
        prepared.append(_prepared(driver, claim, each, handed[label], request=each.request))
        envs |= made.envs
    whole = _granted((), _all_devices(given), grant).envs
    if whole != envs and whole.keys() >= envs.keys():
        last = Handed(label=EVERY_REQUEST, grant=ContainerGrant(envs=whole))
        handed[last.label] = last
        prepared.append(_prepared(driver, claim, given[-1], last, request=EVERY_REQUEST))
    return tuple(handed.values()), Prepared(devices=tuple(prepared))


def _prepared(
    driver: str, claim: ClaimUid, given: Given, handed: Handed, *, request: str
) -> PreparedDevice:
    return PreparedDevice(
        request_names=(request,),
        pool=given.result.pool,
        device=given.result.device,
        cdi_ids=(f"{kind(driver)}={device(claim, handed.label)}", *handed.grant.cdi_devices),
        share_id=given.result.share_id,
    )


def _all_devices(given: Iterable[Given]) -> tuple[Device, ...]:
    return tuple(dict.fromkeys(device for each in given for device in each.devices))


def _granted(own: Sequence[Device], together: Sequence[Device], grant: Grant) -> ContainerGrant:
    """Return what a container gets of *own*, which it has *together* with others."""
    mine = {node.path for each in own for node in each.nodes}
    # Shares and slices of one GPU have the same node.
    others = {node.path for each in together for node in each.nodes} - mine
    made = ContainerGrant()
    for resource in dict.fromkeys(each.name.resource for each in together):
        granted = grant(resource, tuple(x for x in together if x.name.resource == resource))
        nodes = (each for each in granted.nodes if each.host_path not in others)
        made = replace(
            made,
            nodes=(*made.nodes, *nodes),
            envs={**made.envs, **granted.envs},
            mounts=(*made.mounts, *granted.mounts),
            cdi_devices=(*made.cdi_devices, *granted.cdi_devices),
        )
    return made
