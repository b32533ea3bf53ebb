"""What a claim is given and hands to containers: shares, nodes and variables, by its CDI spec."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.model.book.book import Allocation, Book, DeviceLock, LockState
from holdfast.model.book.messages import Message
from holdfast.model.book.standing import belongs_to, quarantines_on, why_withheld
from holdfast.model.cards import card_of, replicas_in
from holdfast.model.devices import Device, major, minor
from holdfast.model.dra.advertised import AdvertisedDevice
from holdfast.model.dra.claims import ClaimResult, PrepareAnswer
from holdfast.model.gate.cdi import VERSION, node_edits, spec_text
from holdfast.model.gate.gate import Obstacle
from holdfast.model.grants import ContainerGrant, in_container
from holdfast.model.ids import ClaimUid, DeviceName, HardwareKey, ResourceName
from holdfast.model.kubelet import RecordedDevice
from holdfast.model.text import some

EVERY_REQUEST = "all.requests"
"""Stands for all requests of a claim where a name is wanted; no request, and no device, has a dot.

Kubelet gives a container the devices of the requests that it names, and every device where it names
none. So what is said to be of this request is given only to containers with the whole claim.
"""

Grant = Callable[[ResourceName, tuple[Device, ...]], ContainerGrant]
"""Returns what a container gets for devices that are all of one resource."""
Grants = Mapping[str, ContainerGrant]
"""What containers get of each device of a claim, by its label in ResourceSlices."""


def kind(driver: str) -> str:
    """Return the CDI kind of the claims of *driver*."""
    return f"{driver}/claim"


def device(claim: ClaimUid, label: str) -> str:
    """Return the name of a device within its kind."""
    return f"{claim}-{label}"


def file_name(claim: ClaimUid) -> str:
    """Return the end of the name of the spec file of *claim*."""
    return f"{claim}.json"


def spec(driver: str, claim: ClaimUid, devices: Grants, numbers: Mapping[str, int]) -> str:
    """Return the content of the spec of *claim*; *numbers* are the nodes' device numbers.

    The same grants have the same content to the byte.
    """
    edits = {device(claim, label): _edits(grant, numbers) for label, grant in devices.items()}
    return spec_text(kind(driver), edits, version=VERSION)


def _edits(grant: ContainerGrant, numbers: Mapping[str, int]) -> dict[str, object]:
    edits: dict[str, object] = {
        "env": [f"{name}={value}" for name, value in sorted(grant.envs.items())],
        "deviceNodes": [
            node_edits(in_container(path), host_path=path, rdev=numbers.get(path))
            for path in grant.nodes
        ],
        "mounts": [
            {
                "hostPath": each.host_path,
                "containerPath": each.container_path,
                "options": ["bind", "nosuid", "nodev", "ro" if each.read_only else "rw"],
            }
            for each in grant.mounts
        ],
    }
    return {name: each for name, each in edits.items() if each}


Nodes = Mapping[str | tuple[int, int], frozenset[str]]
"""The hardware behind device nodes, a card as such, by their paths and by their numbers."""
SpecNodes = AbstractSet[tuple[str, tuple[Any, Any]]]
"""The device nodes in a spec by their paths on the host, with major and minor as it says them."""


def nodes_of(devices: Iterable[Device]) -> Nodes:
    """Return the nodes of *devices*."""
    found: dict[str | tuple[int, int], frozenset[str]] = {}
    for device in devices:
        for node in device.nodes:
            for name in (node.path, (major(node.rdev), minor(node.rdev))):
                found[name] = found.get(name, frozenset()) | _behind_nodes(device.keys)
    return found


def _behind_nodes(keys: Iterable[HardwareKey]) -> frozenset[str]:
    return frozenset(card_of(each) or each for each in keys)


def nodes_in(content: bytes) -> SpecNodes:
    """Return the nodes that a spec gives containers; none where it is no such spec."""
    try:
        return {
            (str(node["hostPath"]), (node.get("major"), node.get("minor")))
            for each in json.loads(content)["devices"]
            for node in each["containerEdits"].get("deviceNodes", ())
        }
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return set()


def leads_to_others(given: SpecNodes, keys: frozenset[HardwareKey], nodes: Nodes) -> bool:
    """Tell whether one that is *given* is one of *nodes* that has none of *keys*."""
    own = _behind_nodes(keys)
    names = (name for each in given for name in each)
    return any(name in nodes and own.isdisjoint(nodes[name]) for name in names)


class ResultDevices(Struct, frozen=True, kw_only=True):
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


def devices_of(given: Iterable[ResultDevices], *, admin: bool) -> tuple[Device, ...]:
    """Return the devices that are given with adminAccess, or those that are given without."""
    return _all_devices(each for each in given if each.result.admin_access is admin)


def hand_over(
    driver: str, claim: ClaimUid, given: Sequence[ResultDevices], grant: Grant
) -> tuple[Grants, PrepareAnswer]:
    """Return what the spec of *claim* has to have, and what kubelet is to be answered.

    Variables name all devices of a request: a container that has one has them all. Of several
    CDI devices with the same variable the last one's counts. So containers with the whole claim
    are given one more, after all others, whose variables name all devices of the claim. But a
    variable cannot be taken back: where the whole claim would be without one that a request has,
    as TPU chips can be, such containers learn of the last request only.
    """
    handed: dict[str, ContainerGrant] = {}
    prepared: list[RecordedDevice] = []
    envs: dict[str, str] = {}

    def hand(one: ResultDevices, request: str, label: str, made: ContainerGrant) -> None:
        handed[label] = made
        prepared.append(
            RecordedDevice(
                pool=one.result.pool,
                name=one.result.device,
                share_id=one.result.share_id,
                requests=(request,),
                cdi_ids=(f"{kind(driver)}={device(claim, label)}", *made.cdi_devices),
            )
        )

    for each in given:
        request = (other for other in given if other.request == each.request)
        made = _granted(each.devices, _all_devices(request), grant)
        label = each.result.device
        if label in handed:  # two shares of one device, or requests, one of them with adminAccess
            label = f"{label}.{each.result.share_id or each.request}"
        hand(each, each.request, label, made)
        envs |= made.envs
    whole = _granted((), _all_devices(given), grant).envs
    if whole != envs and whole.keys() >= envs.keys():
        hand(given[-1], EVERY_REQUEST, EVERY_REQUEST, ContainerGrant(envs=whole))
    return handed, PrepareAnswer(devices=tuple(prepared))


def _all_devices(given: Iterable[ResultDevices]) -> tuple[Device, ...]:
    return tuple(dict.fromkeys(device for each in given for device in each.devices))


def _granted(own: Sequence[Device], together: Sequence[Device], grant: Grant) -> ContainerGrant:
    """Return what a container gets of *own*, which it has *together* with others."""
    mine = {node.path for each in own for node in each.nodes}
    # Shares and parts of one card have the same node.
    others = {node.path for each in together for node in each.nodes} - mine
    made = ContainerGrant()
    for resource in dict.fromkeys(each.name.resource for each in together):
        granted = grant(resource, tuple(x for x in together if x.name.resource == resource))
        nodes = (path for path in granted.nodes if path not in others)
        made = replace(
            made,
            nodes=(*made.nodes, *nodes),
            envs={**made.envs, **granted.envs},
            mounts=(*made.mounts, *granted.mounts),
            # A claim has ids and no annotations.
            cdi_devices=(*made.cdi_devices, *granted.cdi_names),
        )
    return made


def as_whole(told: AdvertisedDevice) -> AdvertisedDevice:
    """Return *told* as a device that one claim at a time can have, all of it."""
    return told if told.whole is None else replace(told, devices=(told.whole,), whole=None)


def meant_by(
    result: ClaimResult, told: AdvertisedDevice, book: Book, claim: ClaimUid
) -> tuple[DeviceName, ...]:
    """Return the devices that *result* of *claim* means; of a share, every one that it can be.

    Those that the claim has come first, also where the card is not shared any more, or by fewer.
    Without a share's id all of the card is meant: then the scheduler has given it to nobody else.
    """
    whole = as_whole(told).devices
    if not result.share_id or result.admin_access:
        return whole
    mine = (each for allocation in book.holdings.of_claim(claim) for each in allocation.names())
    had = (
        (int(number), name)
        for name, keys in mine
        for card, number in replicas_in(keys)
        if card == whole[0].id
    )
    former = (name for _, name in sorted(had))
    return tuple(dict.fromkeys((*former, *(told.devices if told.shared else ()))))


def placed(
    given: Sequence[ResultDevices], book: Book, claim: ClaimUid, *, prepared: bool = False
) -> tuple[ResultDevices, ...] | Obstacle:
    """Return *given* with one device for each share, or why there is none for one of them yet.

    *prepared*: its pods run with them, so what was called foreign may be what they have.
    """
    taken: set[HardwareKey] = set()
    found: dict[str, ResultDevices] = {}
    shares = [each for each in given if each.is_share]
    for each in sorted(shares, key=lambda share: share.result.share_id):
        left = (
            device
            for device in each.devices
            if taken.isdisjoint(device.keys) and _is_left(device, book, claim, prepared=prepared)
        )
        device = next(left, None)
        if device is None:
            return _why_none(each, book)
        taken |= device.keys
        found[each.result.share_id] = replace(each, devices=(device,))
    return tuple(found[each.result.share_id] if each.is_share else each for each in given)


def _is_left(device: Device, book: Book, claim: ClaimUid, *, prepared: bool) -> bool:
    """Tell whether *claim* has *device*, or nobody has, waits for or withholds it.

    Who has all of the card is waited for in the queue: that decides no less for the other replicas.
    """
    on_it = book.holdings.on(device.keys)
    if any(each.claim == claim for each in on_it):
        return True
    locked = any(
        lock.keys & device.keys and not (prepared and lock.state is LockState.FOREIGN)
        for lock in book.locks_on(device.keys)
    )
    return not (on_it or locked or quarantines_on(book, device.keys))


def _why_none(given: ResultDevices, book: Book) -> Obstacle:
    told = list(dict.fromkeys(_who(each, book) for each in given.devices))
    share = given.result.device
    return Obstacle(
        text=f"no share of {share} is left: {some(told, between='; ')}",
        said=Message.NO_SHARE.filled(share=share, reason=_who_briefly(given.devices[0], book)),
    )


def _who_briefly(device: Device, book: Book) -> str:
    """Return in a few words who has *device*."""
    owners: list[DeviceLock | Allocation] = [*book.locks_on(device.keys)]
    owners += book.holdings.on(device.keys)
    if owners:
        return f"{device.name.id} is held by {book.owner(owners[0])}"
    if quarantines_on(book, device.keys):
        return f"{device.name.id} is quarantined by hand"
    return "the claim has other shares of it"


def _who(device: Device, book: Book) -> str:
    """Return who has *device*, waits for it or withholds it."""
    for lock in book.locks_on(device.keys):
        return belongs_to(lock, book)
    for allocation in book.holdings.on(device.keys):
        return f"{device.name} is waited for by {book.holder(allocation)}"
    given = f"{device.name} is given to another share of the same claim"
    return str(why_withheld(book, device.keys) or given)
