"""What containers get of a claim: kubelet picks CDI devices by request, the last variable counts."""

import os
from collections.abc import Mapping, Sequence

import pytest

from fakes.books import device_of, keys
from fakes.books import name as named
from holdfast.model.devices import Device, DeviceKind, DeviceNode
from holdfast.model.dra.claims import ClaimResult
from holdfast.model.dra.handover import (
    EVERY_REQUEST,
    ResultDevices,
    devices_of,
    hand_over,
    leads_to_others,
    nodes_in,
    nodes_of,
    spec,
)
from holdfast.model.grants import ContainerGrant
from holdfast.model.ids import ClaimUid, ResourceName

_CHIP, _NIC = ResourceName("a.b/chip"), ResourceName("a.b/nic")
_CLAIM = ClaimUid("uid-1")
_A = keys("a")


def _device(id_: str, resource: ResourceName = _CHIP) -> Device:
    return device_of(
        named(id_, resource),
        id_,
        kind=DeviceKind.DRIVER,
        nodes=(DeviceNode(path=f"/dev/{id_}", rdev=1),),
    )


def _given(request: str, *devices: Device, admin: bool = False) -> ResultDevices:
    result = ClaimResult(
        request=request,
        driver="holdfast.dev",
        pool="node-1",
        device=devices[0].name.id,
        admin_access=admin,
    )
    return ResultDevices(result=result, devices=devices)


def _grant(resource: ResourceName, devices: tuple[Device, ...]) -> ContainerGrant:
    """Return nodes, and a variable of the resource that tells of all devices."""
    paths = [node.path for each in devices for node in each.nodes]
    return ContainerGrant(
        nodes=tuple(paths),
        envs={resource.rpartition("/")[2].upper(): ",".join(each.name.id for each in devices)},
    )


class _Handed:
    """What is handed over of a claim, as kubelet and the runtime give it to a container."""

    def __init__(self, *given: ResultDevices) -> None:
        handed, self.answer = hand_over("holdfast.dev", _CLAIM, given, _grant)
        self.specs = {f"holdfast.dev/claim={_CLAIM}-{name}": each for name, each in handed.items()}
        assert len(self.specs) == len(self.answer.devices)

    def names(self, *requests: str) -> list[str]:
        """Return the CDI names of a container with *requests* of the claim, or with all of it."""
        return [
            name
            for request in requests or ("",)
            for each in self.answer.devices
            if not request or not each.requests or request in each.requests
            for name in each.cdi_ids
        ]

    def envs(self, *requests: str) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for name in self.names(*requests):
            found |= self.specs[name].envs
        return found

    def nodes(self, *requests: str) -> Sequence[str]:
        found = [path for name in self.names(*requests) for path in self.specs[name].nodes]
        return sorted(found)


_C0, _C1, _C2, _N0 = _device("c0"), _device("c1"), _device("c2"), _device("n0", _NIC)


def test_a_container_of_one_request_has_its_devices_and_is_told_of_them_alone() -> None:
    handed = _Handed(_given("a", _C0), _given("a", _C1), _given("b", _C2))
    assert handed.nodes("a") == ["/dev/c0", "/dev/c1"]
    assert handed.envs("a") == {"CHIP": "c0,c1"}
    assert handed.envs("b") == {"CHIP": "c2"}


def test_a_container_of_the_whole_claim_is_told_of_the_devices_of_every_request() -> None:
    handed = _Handed(_given("a", _C0), _given("b/sub", _C1, _C2), _given("c", _N0))
    assert handed.nodes() == ["/dev/c0", "/dev/c1", "/dev/c2", "/dev/n0"]
    assert handed.envs() == {"CHIP": "c0,c1,c2", "NIC": "n0"}
    assert handed.envs("b") == {"CHIP": "c1,c2"}


def test_what_is_for_the_whole_claim_is_of_a_request_that_no_container_can_name() -> None:
    handed = _Handed(_given("a", _C0), _given("b", _C1))
    assert handed.answer.devices[-1].requests == (EVERY_REQUEST,)
    assert "." in EVERY_REQUEST, "the names of requests are labels"
    assert handed.answer.devices[-1].name == "c1", "one that the claim has"


def test_requests_for_different_things_need_no_more_than_their_own() -> None:
    handed = _Handed(_given("a", _C0), _given("b", _N0))
    assert [each.requests for each in handed.answer.devices] == [("a",), ("b",)]
    assert handed.envs() == {"CHIP": "c0", "NIC": "n0"}


def test_a_variable_that_the_whole_claim_would_be_without_cannot_be_taken_back() -> None:
    """A mixture of both would be true of nothing."""
    given = [_given("a", _C0), _given("b", _C1)]

    def grant(_resource: ResourceName, devices: tuple[Device, ...]) -> ContainerGrant:
        one = {"ONLY": devices[0].name.id} if len(devices) == 1 else {}
        return ContainerGrant(envs={"COUNT": str(len(devices))} | one)

    handed, _ = hand_over("holdfast.dev", _CLAIM, given, grant)
    assert [each.envs["COUNT"] for each in handed.values()] == ["1", "1"]


def test_what_is_given_with_admin_access_is_told_apart_from_what_is_not() -> None:
    given = [_given("a", _C0, _C1), _given("b", _C1, _C2), _given("watch", _C0, _N0, admin=True)]
    assert devices_of(given, admin=False) == (_C0, _C1, _C2)
    assert devices_of(given, admin=True) == (_C0, _N0)


@pytest.mark.parametrize(
    ("path", "rdev", "key", "leads"),
    [
        ("/dev/c0", os.makedev(300, 4096), "b", True),
        ("/dev/c1", os.makedev(511, 257), "b", True),
        ("/dev/c1", os.makedev(511, 1), "b", False),
        ("/dev/c0", os.makedev(511, 257), "a", False),
    ],
)
def test_a_spec_leads_to_others_by_the_path_of_a_node_or_by_its_number(
    path: str, rdev: int, key: str, *, leads: bool
) -> None:
    grants = {
        "chip": ContainerGrant(nodes=("/dev/c0",)),
        "all.requests": ContainerGrant(envs={"A": "1"}),
    }
    text = spec("holdfast.dev", _CLAIM, grants, {"/dev/c0": os.makedev(511, 257)})
    device = device_of(named("c"), key, nodes=(DeviceNode(path=path, rdev=rdev),))
    assert leads_to_others(nodes_in(text.encode()), _A, nodes_of([device])) is leads


@pytest.mark.parametrize(
    ("has", "leads"), [("card/A", True), ("replica/A/1", True), ("part/B/2", False)]
)
def test_a_spec_leads_to_another_card_by_its_node_whatever_of_it_the_claim_has(
    has: str, leads: bool
) -> None:
    node = DeviceNode(path="/dev/nvidia1", rdev=1)
    text = spec("holdfast.dev", _CLAIM, {"gpu": ContainerGrant(nodes=(node.path,))}, {})
    found = [device_of(named("b1"), "part/B/1", nodes=(node,)), device_of(named("A"), "card/A")]
    assert leads_to_others(nodes_in(text.encode()), keys(has), nodes_of(found)) is leads


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"[]", b'{"devices": [1]}', b"[" * 100_000])
def test_what_is_no_spec_leads_nowhere(content: bytes) -> None:
    assert not leads_to_others(nodes_in(content), _A, {"/dev/c0": frozenset({"b"})})
