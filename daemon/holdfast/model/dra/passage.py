"""When a claim may be prepared: what it is to have, who is before it, and what the kernel shows."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from holdfast.errors import ClaimRefusedError
from holdfast.model.book.book import Book, LockState, Phase
from holdfast.model.book.claims import Wish, enlist
from holdfast.model.book.draft import Draft
from holdfast.model.book.standing import belongs_to
from holdfast.model.cards import clash
from holdfast.model.devices import Device, DeviceKind, FaultKind
from holdfast.model.dra.claims import AllocatedClaim, ClaimResult
from holdfast.model.dra.handover import ResultDevices, devices_of
from holdfast.model.gate.gate import Obstacle, Rights, why_not_yet
from holdfast.model.ids import (
    ClaimRef,
    ClaimUid,
    DeviceId,
    HardwareKey,
    PodUid,
    ResourceName,
)
from holdfast.model.use.free import Freedom, Verdict


def results_for(
    claim: AllocatedClaim, asked: ClaimRef, *, driver: str, pool: str
) -> tuple[ClaimResult, ...]:
    """Return what *driver* is to prepare of *claim*; raise ClaimRefusedError where that is wrong.

    *asked* is the claim that kubelet means, and *pool* the one of this node.
    """
    if claim.ref.uid != asked.uid:
        message = f"the API server has another claim of that name, with uid {claim.ref.uid}"
        raise ClaimRefusedError(message)
    mine = tuple(each for each in claim.results or () if each.driver == driver)
    if not mine:
        raise ClaimRefusedError(f"no device of driver {driver} is allocated to it")
    if not claim.reserved_for:
        raise ClaimRefusedError("it is reserved for no pod any more")
    for config in claim.configs:
        if config.driver == driver:
            raise ClaimRefusedError(
                f"it has a configuration of kind {config.kind} for {driver}, which takes none; "
                "remove it from the claim or its DeviceClass"
            )
    for each in mine:
        if each.pool != pool:
            raise ClaimRefusedError(
                f"{each.device} is of pool {each.pool}, and this node is {pool}"
            )
    shares = [(each.device, each.share_id) for each in mine if each.share_id]
    for device, share in shares:
        if shares.count((device, share)) > 1:
            raise ClaimRefusedError(f"it was allocated the same share of {device} twice: {share}")
    return mine


def wish_for(claim: ClaimRef, pods: Mapping[PodUid, str], given: Sequence[ResultDevices]) -> Wish:
    """Return what the book has to know of *claim*, which is *given* devices for *pods*.

    It may use those with adminAccess beside whoever has them. What it is to have itself is not
    among them: then its lock counts.
    """
    devices = devices_of(given, admin=False)
    own = frozenset[HardwareKey]().union(*(each.keys for each in devices))
    admin = devices_of(given, admin=True)
    return Wish(
        ref=claim,
        pods=pods,
        devices=by_resource(devices),
        admin={each.name: each.keys for each in admin if not clash(each.keys, own)},
    )


def may_be_shared(device: Device) -> bool:
    """Tell whether several may have *device* open at once, which adminAccess is for."""
    return device.kind is DeviceKind.DRIVER


def why_unfit(device: Device, *, admin: bool) -> str | None:
    """Return why a claim has to wait for *device* to be well, None where it has not.

    With *admin* access a claim gets hardware that reports an error, too: to look at it is what such
    a claim is for. Raise ClaimRefusedError for what no wait changes.
    """
    if admin and not may_be_shared(device):
        raise ClaimRefusedError(
            f"{device.name} is asked for with adminAccess, and the kernel lets one process open "
            "it at a time; ask for it without adminAccess"
        )
    for fault in device.faults:
        if fault.kind.permanent:
            raise ClaimRefusedError(f"{device.name}: {fault.text}")
        if not (admin and fault.kind is FaultKind.ILL):
            return f"{device.name}: {fault.text}"
    return None


def by_resource(
    devices: Iterable[Device],
) -> dict[ResourceName, dict[DeviceId, frozenset[HardwareKey]]]:
    """Return the keys of *devices* by resource and id."""
    found: dict[ResourceName, dict[DeviceId, frozenset[HardwareKey]]] = {}
    for device in devices:
        found.setdefault(device.name.resource, {})[device.name.id] = device.keys
    return found


def rights_of_claim(claim: ClaimUid, keys: frozenset[HardwareKey], book: Book) -> Rights:
    """Return what *claim* has of the hardware with *keys*."""
    mine = tuple(book.holdings.of_claim(claim))
    locks = book.locks_on(keys)
    return Rights(
        keys=keys,
        own=frozenset(
            each.device for each in locks if each.state is LockState.HELD and each.claim == claim
        ),
        started=frozenset[HardwareKey]().union(*(book.started(each) for each in mine)),
        queued=mine,
    )


def is_prepared(book: Book, claim: ClaimUid, keys: frozenset[HardwareKey]) -> bool:
    """Tell whether *claim* was prepared in this boot or a former one, with all of *keys*."""
    mine = book.holdings.of_claim(claim)
    active = (each.keys for each in mine if each.phase is Phase.ACTIVE)
    return keys <= frozenset[HardwareKey]().union(*active)


def line_up(draft: Draft, wish: Wish) -> Obstacle | None:
    """Put the claim into the queue; return what it has to give back before even that."""
    lock = enlist(draft, wish)
    return None if lock is None else Obstacle(text=belongs_to(lock, draft.book), locks=(lock,))


def enter(draft: Draft, wish: Wish, evidence: str) -> Obstacle | None:
    """Write down that the claim is prepared; or return what it waits for.

    *evidence* says what the kernel showed and goes into the history.
    """
    obstacle = line_up(draft, wish)
    if obstacle is None:
        obstacle = why_not_yet(rights_of_claim(wish.ref.uid, wish.keys, draft.book), draft.book)
    if obstacle is not None:
        return obstacle
    for lock in draft.book.locks_on(wish.keys):
        draft.note(lock, evidence)
    for allocation in draft.holdings.of_claim(wish.ref.uid):
        draft.activate(allocation)
    return None


def of_its_own(verdict: Verdict, sharing: frozenset[PodUid]) -> Verdict:
    """Return *verdict* for a claim of which the pods *sharing* may use the device already.

    They are those of a claim that is prepared and that several pods share: what they hold is
    theirs. A single pod gets a new sandbox only after its last one, so what it holds is left over.
    """
    holders = verdict.holders if verdict.freedom is Freedom.IN_USE else ()
    if not holders or not all(each.pod in sharing for each in holders):
        return verdict
    return replace(verdict, freedom=Freedom.FREE)
