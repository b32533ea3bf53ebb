"""What is refused of a claim before anything is written down, and what keeps devices back."""

import pytest
from msgspec.structs import replace

from fakes.books import (
    HALF,
    NOW,
    WHOLE,
    X,
    Y,
    Z,
    allocated,
    book_of,
    device_of,
    drafted,
    keys,
    name,
    silicon,
)
from fakes.doors import why_claim_waits
from holdfast.errors import ClaimRefusedError
from holdfast.model.book.book import Book
from holdfast.model.book.claims import Wish, end_claim, enlist
from holdfast.model.book.marks import Asker, Mark, Marks
from holdfast.model.devices import Device, DeviceKind, Fault, FaultKind
from holdfast.model.dra.claims import AllocatedClaim, ClaimResult, OpaqueConfig
from holdfast.model.dra.handover import ResultDevices
from holdfast.model.dra.passage import (
    enter,
    is_prepared,
    of_its_own,
    results_for,
    rights_of_claim,
    why_unfit,
    wish_for,
)
from holdfast.model.gate.gate import in_the_way, why_not_yet
from holdfast.model.ids import (
    ClaimRef,
    ClaimUid,
    DeviceId,
    DeviceName,
    PodUid,
    ProcessId,
    ResourceName,
)
from holdfast.model.use.free import Freedom, Verdict
from holdfast.model.use.holders import DeviceAccess, Holder

_REF = ClaimRef("team", ClaimUid("uid-1"), "claim")
_RESULT = ClaimResult(request="chips", driver="holdfast.dev", pool="node-1", device="tpu-0")
_OTHERS = replace(_RESULT, driver="nic.example.com", pool="elsewhere")
_CLAIM = AllocatedClaim(ref=_REF, results=(_RESULT, _OTHERS), reserved_for={X: "pod-x"})


def _results(claim: AllocatedClaim) -> tuple[ClaimResult, ...]:
    return results_for(claim, _REF, driver="holdfast.dev", pool="node-1")


@pytest.mark.parametrize(
    "results",
    [
        (_RESULT, _RESULT),
        (replace(_RESULT, share_id="s1"),),
        (replace(_RESULT, share_id="s1"), replace(_RESULT, share_id="s2")),
        (replace(_RESULT, share_id="s1"), replace(_RESULT, device="tpu-1", share_id="s1")),
    ],
    ids=["no shares", "one", "two of a device", "one of each of two"],
)
def test_shares_that_are_not_the_same_twice_are_prepared(results: tuple[ClaimResult, ...]) -> None:
    assert _results(replace(_CLAIM, results=results)) == results


def test_configuration_of_others_is_not_ours_to_read() -> None:
    config = OpaqueConfig(driver="nic.example.com", kind="NicConfig")
    assert _results(replace(_CLAIM, configs=(config,))) == (_RESULT,)


@pytest.mark.parametrize(
    ("claim", "text"),
    [
        (
            replace(_CLAIM, ref=replace(_REF, uid=ClaimUid("uid-2"))),
            "the API server has another claim of that name, with uid uid-2",
        ),
        (replace(_CLAIM, results=None), "no device of driver holdfast.dev is allocated to it"),
        (replace(_CLAIM, results=(_OTHERS,)), "no device of driver holdfast.dev is allocated"),
        (replace(_CLAIM, reserved_for={}), "it is reserved for no pod any more"),
        (
            replace(_CLAIM, results=(replace(_RESULT, pool="node-2"),)),
            "tpu-0 is of pool node-2, and this node is node-1",
        ),
        (
            replace(_CLAIM, results=(replace(_RESULT, share_id="half"),) * 2),
            "it was allocated the same share of tpu-0 twice: half",
        ),
        (
            replace(_CLAIM, configs=(OpaqueConfig(driver="holdfast.dev", kind="TpuConfig"),)),
            "it has a configuration of kind TpuConfig for holdfast.dev, which takes none; remove",
        ),
    ],
)
def test_what_can_never_work_is_refused_with_a_text(claim: AllocatedClaim, text: str) -> None:
    with pytest.raises(ClaimRefusedError) as error:
        _results(claim)
    assert text in str(error.value)


_GPU = device_of(
    name("GPU-0", ResourceName("nvidia.com/gpu")), "card/GPU-0", kind=DeviceKind.DRIVER
)


def _with(kind: FaultKind, device: Device = _GPU) -> Device:
    return replace(device, faults=(Fault(kind=kind, text=f"it is {kind.value}"),))


@pytest.mark.parametrize(
    ("device", "admin", "told"),
    [
        (_GPU, False, None),
        (_GPU, True, None),
        (replace(_GPU, kind=DeviceKind.VFIO), False, None),
        (_with(FaultKind.ILL), False, "nvidia.com/gpu/GPU-0: it is ill"),
        (_with(FaultKind.ILL), True, None),
        (_with(FaultKind.NO_NODE), True, "nvidia.com/gpu/GPU-0: it is no-node"),
    ],
)
def test_an_administrator_gets_what_is_ill_and_nothing_that_is_not_there(
    device: Device, admin: bool, told: str | None
) -> None:
    assert why_unfit(device, admin=admin) == told


@pytest.mark.parametrize(
    ("device", "text"),
    [
        (_with(FaultKind.GONE), "nvidia.com/gpu/GPU-0: it is gone"),
        (replace(_GPU, kind=DeviceKind.VFIO), "lets one process open it at a time"),
        (replace(_GPU, kind=DeviceKind.ACCEL), "lets one process open it at a time"),
    ],
)
def test_what_no_administrator_can_use_is_refused_with_a_text(device: Device, text: str) -> None:
    with pytest.raises(ClaimRefusedError) as error:
        why_unfit(device, admin=True)
    assert text in str(error.value)


def test_of_what_a_claim_is_to_have_itself_its_lock_counts_and_not_its_admin_access() -> None:
    other = replace(
        _GPU, name=DeviceName(_GPU.name.resource, DeviceId("GPU-1")), keys=keys("card/GPU-1")
    )
    its = ResultDevices(result=_RESULT, devices=(_GPU,))
    admin = replace(_RESULT, admin_access=True)
    looked_at = ResultDevices(result=admin, devices=(_GPU, other))
    wish = wish_for(_REF, _CLAIM.reserved_for, [its, looked_at])
    assert wish.keys == _GPU.keys
    assert wish.admin == {other.name: other.keys}


def _held(*pods: PodUid | None) -> Verdict:
    holders = tuple(
        Holder(
            process=ProcessId(100 + n, 1),
            command="work",
            access=frozenset({DeviceAccess.NODE}),
            pod=pod,
        )
        for n, pod in enumerate(pods)
    )
    return Verdict(freedom=Freedom.IN_USE, reason="held by work", holders=holders)


_UNKNOWN = Verdict(freedom=Freedom.UNKNOWN, reason="not every process can be seen")


@pytest.mark.parametrize(
    ("verdict", "sharing", "told"),
    [
        (Verdict(freedom=Freedom.FREE, reason="not enabled"), (), None),
        (_UNKNOWN, (), None),
        (replace(_UNKNOWN, final=True), (), "it is unknown whether google.com/tpu/d0 is free"),
        (_held(X), (), "google.com/tpu/d0 is held by work"),
        (_held(X), (X, Y), None),
        (_held(X, Y), (X, Y), None),
        (_held(X, None), (X, Y), "google.com/tpu/d0 is held by work"),
        (_held(), (X, Y), "google.com/tpu/d0 is held by work"),
    ],
)
def test_only_the_pods_that_share_a_claim_may_have_its_device(
    verdict: Verdict, sharing: tuple[PodUid, ...], told: str | None
) -> None:
    found = in_the_way({name("d0"): of_its_own(verdict, frozenset(sharing))})
    assert set(found) == (set() if told is None else {name("d0")})
    assert all(text.startswith(told or "") for text in found.values())


def test_what_is_not_known_of_a_device_is_not_known_for_those_who_share_it_either() -> None:
    unknown = replace(_held(X, Y), freedom=Freedom.UNKNOWN)
    assert of_its_own(unknown, frozenset({X, Y})) == unknown


_WISH = Wish(ref=_REF, pods={X: "pod-x"}, devices={WHOLE: silicon(d0="a", d1="b")})
_BOTH = replace(_WISH, devices={**_WISH.devices, HALF: silicon(h0="c")})


def _after(wish: Wish, *, prepared: bool) -> Book:
    draft = drafted()
    assert (enter(draft, wish, "free") if prepared else enlist(draft, wish)) is None
    return draft.book


def test_a_claim_is_prepared_on_all_that_it_passed_the_gate_with_and_on_nothing_else() -> None:
    """What its pods hold of the rest is not theirs: they never got it."""
    prepared = _after(_WISH, prepared=True)

    assert is_prepared(prepared, _REF.uid, _WISH.keys)
    assert is_prepared(prepared, _REF.uid, keys("a"))
    assert not is_prepared(prepared, _REF.uid, _BOTH.keys)
    assert not is_prepared(prepared, ClaimUid("another"), _WISH.keys)
    assert not is_prepared(_after(_WISH, prepared=False), _REF.uid, _WISH.keys)


def test_the_history_has_what_the_kernel_showed_of_each_device() -> None:
    draft = drafted()
    assert enter(draft, _WISH, "claim prepared: nobody has it open") is None

    shown = {each.device for each in draft.moves if "nobody has it open" in each.evidence}
    assert shown == {name("d0"), name("d1")}


def test_a_lock_that_is_to_be_given_back_is_no_claims_to_use() -> None:
    draft = drafted(_after(_WISH, prepared=True))
    end_claim(draft, _REF.uid, "kubelet unprepared it")

    found = why_not_yet(rights_of_claim(_REF.uid, _WISH.keys, draft.book), draft.book)

    assert found is not None
    assert f"{WHOLE}/d0 is not free of" in found.text
    assert not found.withheld


def test_a_claim_that_another_pod_uses_before_its_end_is_done_is_told_of_its_own_lock() -> None:
    draft = drafted(_after(_WISH, prepared=True))
    end_claim(draft, _REF.uid, "kubelet unprepared it")

    found = enter(draft, replace(_WISH, pods={Y: "pod-y"}), "free")

    assert found is not None
    assert found.text.startswith(f"{WHOLE}/d0 is not free of")
    assert [lock.device for lock in found.locks] == [name("d0")]


def test_hardware_that_nobody_locked_is_not_a_claims_to_use() -> None:
    assert why_claim_waits(Book(), _REF.uid, keys("b", "a")) == "a, b is not granted to it yet"


def test_a_claim_with_admin_access_alone_waits_for_no_person() -> None:
    draft = drafted()
    draft.mark(Marks(drain=Mark(asker=Asker(uid=0, pid=1), at=NOW)))
    assert why_claim_waits(draft.book, _REF.uid, keys("a")) is not None
    assert why_claim_waits(draft.book, _REF.uid, frozenset()) is None


def test_a_claim_waits_behind_the_older_pod_that_has_not_got_all_of_its_hardware() -> None:
    """What the pod waits for elsewhere keeps it from the lock, and its turn comes first."""
    elsewhere = allocated(silicon(h1="z"), resource=HALF, pod=Z, active=True)
    older = allocated(silicon(h0="bz"), resource=HALF, pod=X)
    draft = drafted(book_of(elsewhere, older))
    assert enlist(draft, replace(_WISH, pods={Y: "pod-y"})) is None

    found = why_claim_waits(draft.book, _REF.uid, _WISH.keys)

    assert found == "b waits behind pod pod-x"
