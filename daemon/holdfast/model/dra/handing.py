"""What a claim hands to containers: by which CDI names, with which nodes and variables."""

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.model.devices import Device
from holdfast.model.dra.cdi import Handed, device, kind
from holdfast.model.dra.claims import ClaimResult, Prepared, PreparedDevice
from holdfast.model.grants import ContainerGrant
from holdfast.model.ids import ClaimUid, ResourceName

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


def devices_of(given: Iterable[Given], *, admin: bool) -> tuple[Device, ...]:
    """Return the devices that are given with adminAccess, or those that are given without."""
    chosen = (each for each in given if each.result.admin_access is admin)
    return tuple(dict.fromkeys(device for each in chosen for device in each.devices))


def hand_over(
    driver: str, claim: ClaimUid, given: Sequence[Given], grant: Grant
) -> tuple[tuple[Handed, ...], Prepared]:
    """Return what the spec of *claim* has to have, and what kubelet is to be answered.

    Variables tell of all devices of a request: a container that has one has them all.
    """
    handed: dict[str, Handed] = {}
    prepared: list[PreparedDevice] = []
    for each in given:
        request = (other for other in given if other.request == each.request)
        made = _granted(each.devices, _all_devices(request), grant)
        label = each.result.device
        if label in handed:  # two requests may be for one device, one of them with adminAccess
            label = f"{label}.{each.request}"
        handed[label] = Handed(label=label, grant=made)
        prepared.append(_prepared(driver, claim, each, handed[label], request=each.request))
    return tuple(handed.values()), Prepared(devices=tuple(prepared))


def _prepared(
    driver: str, claim: ClaimUid, given: Given, handed: Handed, *, request: str
) -> PreparedDevice:
    return PreparedDevice(
        request_names=(request,),
        pool=given.result.pool,
        device=given.result.device,
        cdi_ids=(f"{kind(driver)}={device(claim, handed.label)}", *handed.grant.cdi_devices),
    )


def _all_devices(given: Iterable[Given]) -> tuple[Device, ...]:
    return tuple(dict.fromkeys(device for each in given for device in each.devices))


def _granted(own: Sequence[Device], together: Sequence[Device], grant: Grant) -> ContainerGrant:
    """Return what a container gets of *own*, which it has *together* with others."""
    others = {node.path for each in together if each not in own for node in each.nodes}
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
