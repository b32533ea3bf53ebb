"""Which replica of a shared GPU a claim is given, and what a result means without or with a share."""

import pytest
from msgspec.structs import replace

from fakes.books import X, Y, device_of, drafted, keys
from holdfast.model.book.book import Book, LockState
from holdfast.model.book.claims import Wish, end_claim, enlist
from holdfast.model.book.draft import Draft
from holdfast.model.book.marks import Asker, Mark, Marks, Quarantine
from holdfast.model.book.messages import sentence
from holdfast.model.devices import Device, DeviceKind, DeviceNode
from holdfast.model.dra.advertised import AdvertisedDevice
from holdfast.model.dra.claims import ClaimResult
from holdfast.model.dra.handover import (
    ResultDevices,
    as_whole,
    devices_of,
    hand_over,
    meant_by,
    placed,
)
from holdfast.model.dra.passage import by_resource, enter
from holdfast.model.gate.gate import Obstacle
from holdfast.model.grants import ContainerGrant
from holdfast.model.ids import ClaimRef, ClaimUid, DeviceId, DeviceName, PodUid, ResourceName

_GPU, _RENAMED = ResourceName("nvidia.com/gpu"), ResourceName("nvidia.com/gpu.shared")
_MINE, _OTHER = ClaimUid("uid-1"), ClaimUid("uid-2")


def _name(id_: str) -> DeviceName:
    return DeviceName(_GPU, DeviceId(id_))


def _replica(number: int) -> Device:
    return device_of(
        _name(f"G::{number}"),
        f"replica/G/{number}",
        kind=DeviceKind.DRIVER,
        nodes=(DeviceNode(path="/dev/nvidia0", rdev=1),),
    )


_REPLICAS = tuple(map(_replica, range(3)))
_WHOLE = replace(_REPLICAS[0], name=_name("G"), keys=keys("card/G"))
_TOLD = AdvertisedDevice(
    name="gpu-g", devices=tuple(each.name for each in _REPLICAS), whole=_WHOLE.name
)
_RESULT = ClaimResult(request="r", driver="d", pool="p", device="gpu-g", share_id="s1")


def _share(share: str, devices: tuple[Device, ...] = _REPLICAS) -> ResultDevices:
    return ResultDevices(result=replace(_RESULT, share_id=share), devices=devices)


def _takes(draft: Draft, claim: ClaimUid, *devices: Device, pod: PodUid = X) -> None:
    wish = Wish(ref=ClaimRef("team", claim, claim), pods={pod: ""}, devices=by_resource(devices))
    assert enlist(draft, wish) is None


def _ids(found: tuple[ResultDevices, ...] | Obstacle) -> list[str]:
    assert not isinstance(found, Obstacle), found
    return [device.name.id for each in found for device in each.devices]


def test_a_share_is_the_first_replica_that_nobody_has() -> None:
    draft = drafted()
    assert _ids(placed([_share("s")], draft.book, _MINE)) == ["G::0"]
    _takes(draft, _OTHER, _REPLICAS[0])
    assert _ids(placed([_share("s")], draft.book, _MINE)) == ["G::1"]


def test_a_claim_keeps_the_replica_that_it_has() -> None:
    draft = drafted()
    _takes(draft, _MINE, _REPLICAS[2])
    devices = (_REPLICAS[2], *_REPLICAS[:2])
    assert _ids(placed([_share("s", devices)], draft.book, _MINE)) == ["G::2"]


def test_a_claim_waits_for_no_certain_replica_when_none_is_left() -> None:
    draft = drafted()
    _takes(draft, _OTHER, *_REPLICAS, pod=Y)
    reason = placed([_share("s")], draft.book, _MINE)
    assert isinstance(reason, Obstacle)
    assert reason.text.startswith("no share of gpu-g is left: nvidia.com/gpu/G::0 is held by")
    assert "nvidia.com/gpu/G::2 is held by pod pod-y by claim team/uid-2" in reason.text
    assert reason.said is not None
    assert sentence(reason.said).startswith(
        "no share of gpu-g is left: G::0 is held by pod pod-y by claim team/uid-2; kubelet asks "
    )


def test_what_is_foreign_may_be_what_a_claim_has_that_is_prepared_already() -> None:
    draft = drafted()
    for each in _REPLICAS:
        draft.call_foreign(each.name, each.keys, "held by pid 7 (train)")
    assert isinstance(placed([_share("s")], draft.book, _MINE), Obstacle)
    assert _ids(placed([_share("s")], draft.book, _MINE, prepared=True)) == ["G::0"]
    _takes(draft, _OTHER, _REPLICAS[0])
    assert _ids(placed([_share("s")], draft.book, _MINE, prepared=True)) == ["G::1"]


def test_what_another_has_not_given_back_is_no_claims_that_is_prepared_already() -> None:
    draft = drafted()
    _takes(draft, _OTHER, *_REPLICAS, pod=Y)
    for allocation in draft.holdings.of_claim(_OTHER):
        draft.end(allocation, "its pod is over")
    assert {lock.state for lock in draft.locks.values()} == {LockState.RELEASING}
    assert isinstance(placed([_share("s")], draft.book, _MINE, prepared=True), Obstacle)


def test_more_shares_than_there_are_replicas_wait_with_the_reason() -> None:
    four = [_share(f"s{number}") for number in range(4)]
    reason = placed(four, Book(), _MINE)
    assert isinstance(reason, Obstacle)
    assert "nvidia.com/gpu/G::0 is given to another share of the same claim" in reason.text
    assert reason.said is not None
    assert "is left: the claim has other shares of it;" in sentence(reason.said)


def test_a_replica_that_a_person_withholds_is_passed_over() -> None:
    draft = drafted()
    first = _REPLICAS[0]
    mark = Mark(asker=Asker(uid=0, pid=1), at=0.0, reason="it is odd")
    quarantine = Quarantine(device=first.name, keys=first.keys, mark=mark)
    draft.mark(draft.marks.with_quarantine(quarantine))
    assert _ids(placed([_share("s")], draft.book, _MINE)) == ["G::1"]
    draft.mark(draft.marks.with_quarantine(replace(quarantine, keys=_WHOLE.keys)))
    reason = placed([_share("s")], draft.book, _MINE)
    assert isinstance(reason, Obstacle)
    assert "is quarantined by hand" in reason.text
    assert reason.said is not None
    assert "is left: G::0 is quarantined by hand;" in sentence(reason.said)


def test_a_claim_queues_for_a_replica_while_another_has_the_whole_gpu() -> None:
    draft = drafted()
    _takes(draft, _OTHER, _WHOLE)
    assert _ids(placed([_share("s")], draft.book, _MINE)) == ["G::0"]
    _takes(draft, _MINE, _REPLICAS[0], pod=Y)
    assert draft.book.locks.keys() == {_WHOLE.name}


def _drained() -> Draft:
    draft = drafted()
    draft.mark(Marks(drain=Mark(asker=Asker(uid=0, pid=1), at=0.0, reason="new disk")))
    return draft


def test_a_replica_that_a_claim_waits_for_is_given_to_no_other() -> None:
    """Its turn comes first, and nobody has a lock on it yet."""
    draft = _drained()
    _takes(draft, _OTHER, _REPLICAS[0])
    assert not draft.book.locks
    assert _ids(placed([_share("s")], draft.book, _MINE)) == ["G::1"]


def test_a_replica_that_is_not_free_of_a_claim_that_is_over_is_given_to_no_other() -> None:
    draft = drafted()
    wish = Wish(
        ref=ClaimRef("team", _OTHER, "other"), pods={X: ""}, devices=by_resource(_REPLICAS[:1])
    )
    assert enter(draft, wish, "nobody has it") is None
    end_claim(draft, _OTHER, "kubelet unprepared it")
    assert not draft.holdings.on(_REPLICAS[0].keys)
    assert _ids(placed([_share("s")], draft.book, _MINE)) == ["G::1"]


def test_who_waits_for_the_replicas_is_told_and_of_many_the_first() -> None:
    draft = _drained()
    four = tuple(map(_replica, range(4)))
    for number, replica in enumerate(four):
        _takes(draft, ClaimUid(f"uid-{number + 2}"), replica, pod=Y)
        told = placed([_share("s", four[: number + 1])], draft.book, _MINE)
        assert isinstance(told, Obstacle)
        assert f"nvidia.com/gpu/G::{min(number, 2)} is waited for by" in told.text
        assert told.text.endswith(" and 1 more") is (number == 3)
        assert " more" not in told.text or number == 3
        assert told.said is not None
        assert "is left: G::0 is held by pod pod-y" in sentence(told.said)


@pytest.mark.parametrize(
    ("result", "is_one"),
    [
        (_RESULT, True),
        (replace(_RESULT, share_id=""), False),
        (replace(_RESULT, admin_access=True), False),
    ],
    ids=["a share", "no share", "an administrator's"],
)
def test_of_several_devices_a_share_means_one(result: ClaimResult, *, is_one: bool) -> None:
    assert ResultDevices(result=result, devices=_REPLICAS).is_share is is_one


def test_a_claims_share_of_another_gpu_is_not_what_it_has_of_this_one() -> None:
    draft = drafted()
    other = replace(_replica(0), name=_name("H::1"), keys=keys("replica/H/1"))
    _takes(draft, _MINE, other, _replica(2))
    found = meant_by(_RESULT, _TOLD, draft.book, _MINE)
    assert [each.id for each in found] == ["G::2", "G::0", "G::1"]


def test_a_result_without_a_share_is_not_placed() -> None:
    whole = ResultDevices(result=replace(_RESULT, share_id=""), devices=(_WHOLE,))
    admin = ResultDevices(result=replace(_RESULT, admin_access=True), devices=(_WHOLE,))
    assert placed([whole, admin], Book(), _MINE) == (whole, admin)


@pytest.mark.parametrize(
    ("result", "told", "expected"),
    [
        (_RESULT, _TOLD, ["G::0", "G::1", "G::2"]),
        (replace(_RESULT, share_id=""), _TOLD, ["G"]),
        (replace(_RESULT, admin_access=True), _TOLD, ["G"]),
        (replace(_RESULT, share_id=""), as_whole(_TOLD), ["G"]),
        (_RESULT, as_whole(_TOLD), []),
    ],
)
def test_what_a_result_means(
    result: ClaimResult, told: AdvertisedDevice, expected: list[str]
) -> None:
    assert [each.id for each in meant_by(result, told, Book(), _MINE)] == expected


def test_containers_are_given_the_node_of_each_share_and_kubelet_its_id() -> None:
    def grant(_resource: ResourceName, devices: tuple[Device, ...]) -> ContainerGrant:
        nodes = dict.fromkeys(node.path for each in devices for node in each.nodes)
        return ContainerGrant(nodes=tuple(nodes))

    given = placed([_share("a"), _share("b")], Book(), _MINE)
    assert not isinstance(given, Obstacle)
    handed, answer = hand_over("holdfast.dev", _MINE, given, grant)
    assert [*handed] == ["gpu-g", "gpu-g.b"]
    assert [len(each.nodes) for each in handed.values()] == [1, 1]
    assert [each.share_id for each in answer.devices] == ["a", "b"]
    assert devices_of(given, admin=False) == _REPLICAS[:2]
