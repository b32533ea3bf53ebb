"""What is refused of a claim before anything is written down, and what keeps devices back."""

import pytest
from msgspec.structs import replace

from fakes.books import X, Y, name
from holdfast.errors import ClaimRefusedError
from holdfast.model.dra.claims import AllocatedClaim, ClaimResult, OpaqueConfig
from holdfast.model.dra.passage import in_the_way, results_for
from holdfast.model.ids import ClaimRef, ClaimUid, PodUid, ProcessId
from holdfast.model.use.free import Freedom, Verdict
from holdfast.model.use.holders import Grip, Holder

_REF = ClaimRef("team", ClaimUid("uid-1"), "claim")
_RESULT = ClaimResult(request="chips", driver="holdfast.dev", pool="node-1", device="tpu-0")
_OTHERS = replace(_RESULT, driver="nic.example.com", pool="elsewhere")
_CLAIM = AllocatedClaim(ref=_REF, results=(_RESULT, _OTHERS), reserved_for={X: "pod-x"})


def _results(claim: AllocatedClaim) -> tuple[ClaimResult, ...]:
    return results_for(claim, _REF, driver="holdfast.dev", pool="node-1")


def test_only_what_is_ours_is_prepared() -> None:
    assert _results(_CLAIM) == (_RESULT,)


def test_a_claim_may_have_as_many_results_as_the_api_allows() -> None:
    many = tuple(replace(_RESULT, device=f"tpu-{n}") for n in range(32))
    assert _results(replace(_CLAIM, results=many)) == many


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
        (replace(_CLAIM, results=(replace(_RESULT, admin_access=True),)), "adminAccess"),
        (replace(_CLAIM, results=(replace(_RESULT, share_id="half"),)), "is shared (half)"),
        (
            replace(_CLAIM, configs=(OpaqueConfig(driver="holdfast.dev", kind="TpuConfig"),)),
            "its configuration of kind TpuConfig is for holdfast.dev, which knows none",
        ),
    ],
)
def test_what_can_never_work_is_refused_with_a_text(claim: AllocatedClaim, text: str) -> None:
    with pytest.raises(ClaimRefusedError) as error:
        _results(claim)
    assert text in str(error.value)


def _held(*pods: PodUid | None) -> Verdict:
    holders = tuple(
        Holder(process=ProcessId(100 + n, 1), command="work", grips=frozenset({Grip.NODE}), pod=pod)
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
    found = in_the_way({name("d0"): verdict}, frozenset(sharing))
    assert found == told or (told is not None and found is not None and found.startswith(told))
