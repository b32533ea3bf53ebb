"""Rules of the settings for single devices: which they match, and what a device is called."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fakes.books import (
    HALF,
    NAMES,
    WHOLE,
    X,
    allocated,
    book_of,
    device_lock,
    device_of,
    entry,
    keys,
    name,
)
from holdfast.model.book.book import Book, LockState
from holdfast.model.book.offers import names_had
from holdfast.model.cards import replica_key
from holdfast.model.devicerules import DeviceRule, Had, assigned, taken
from holdfast.model.devices import (
    Device,
    DeviceKind,
    DeviceNode,
    Fault,
    FaultKind,
    Identity,
    Inventory,
    OwnSettings,
    pci_key,
    with_faults,
)
from holdfast.model.ids import DeviceId, DeviceName, HardwareKey, PciAddress, ResourceName
from holdfast.model.nvidia import REPLICAS

_GPU = ResourceName("nvidia.com/gpu")
_SLICE = ResourceName("nvidia.com/mig-1g.10gb")
_SHARED = ResourceName("nvidia.com/gpu.shared")
_DEBUG = ResourceName("example.com/debug")


def _gpu(number: int) -> Device:
    uuid = f"GPU-{number}"
    return device_of(
        name(uuid, _GPU),
        f"card/{uuid}",
        kind=DeviceKind.DRIVER,
        nodes=(DeviceNode(path=f"/dev/nvidia{7 - number}", rdev=number),),
        source="nvidia",
        model="NVIDIA H100 80GB HBM3",
        identity=Identity(
            indexes=(str(number),), uuids=(uuid,), addresses=(PciAddress(f"0000:3{number}:00.0"),)
        ),
    )


def _slice(number: int, of: int) -> Device:
    uuid = f"MIG-{of}{number}"
    return replace(
        _gpu(of),
        name=DeviceName(_SLICE, DeviceId(uuid)),
        keys=frozenset({HardwareKey(f"part/{uuid}")}),
        model="NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        identity=Identity(
            indexes=(f"{of}:{number}", str(of)),
            uuids=(uuid, f"GPU-{of}"),
            addresses=(PciAddress(f"0000:3{of}:00.0"),),
        ),
    )


def _chip(number: int) -> Device:
    address = PciAddress(f"0000:00:0{number}.0")
    return device_of(
        name(address),
        pci_key(address),
        nodes=(DeviceNode(path=f"/dev/vfio/1{number}", rdev=number),),
        functions=(address,),
        source="tpu",
        model="v5e",
    )


_ALL = (_chip(5), _chip(6), _gpu(0), _gpu(1), _slice(0, of=2), _slice(1, of=2))


def _found(*devices: Device, **more: Any) -> Inventory:
    resources = tuple(dict.fromkeys(each.name.resource for each in devices))
    return Inventory(resources=resources, devices=devices, names=NAMES, **more)


def _rules(*rules: Mapping[str, Any]) -> tuple[DeviceRule, ...]:
    return tuple(DeviceRule(place=f"devices[{n}]", **each) for n, each in enumerate(rules))


def _names(inventory: Inventory) -> list[str]:
    return [str(each.name) for each in inventory.devices]


def _had(*devices: tuple[ResourceName, Device]) -> Had:
    return {DeviceName(resource, each.name.id): each.keys for resource, each in devices}


@pytest.mark.parametrize(
    ("match", "ids"),
    [
        ({"uuid": "GPU-1"}, ["GPU-1"]),
        ({"uuid": "gpu-*"}, ["GPU-0", "GPU-1", "MIG-20", "MIG-21"]),
        ({"uuid": "MIG-2?"}, ["MIG-20", "MIG-21"]),
        ({"uuid": "GPU-2"}, ["MIG-20", "MIG-21"]),
        ({"index": "0"}, ["GPU-0"]),
        ({"index": "2:1"}, ["MIG-21"]),
        ({"index": "2"}, ["MIG-20", "MIG-21"]),
        ({"index": "15"}, ["0000:00:05.0"]),
        ({"pci": "0000:31:00.0"}, ["GPU-1"]),
        ({"pci": "00000000:31:00.0"}, ["GPU-1"]),
        ({"pci": "31:00.0"}, ["GPU-1"]),
        ({"pci": "0000:00:*"}, ["0000:00:05.0", "0000:00:06.0"]),
        ({"model": "*h100*"}, ["GPU-0", "GPU-1", "MIG-20", "MIG-21"]),
        ({"model": "* MIG 1g.*"}, ["MIG-20", "MIG-21"]),
        ({"model": "V5E"}, ["0000:00:05.0", "0000:00:06.0"]),
        ({"model": "v5e", "pci": "*:06.0"}, ["0000:00:06.0"]),
        ({"uuid": "*"}, ["GPU-0", "GPU-1", "MIG-20", "MIG-21"]),
        ({"model": "v5e", "uuid": "*"}, []),
        ({"uuid": ""}, []),
        ({"uuid": "GPU-[01]"}, []),
    ],
)
def test_a_rule_matches_by_all_patterns_that_are_given(
    match: dict[str, str], ids: list[str]
) -> None:
    (rule,) = _rules(match)

    assert [each.name.id for each in _ALL if rule.matches(each)] == ids


def test_a_bracket_in_a_model_is_a_bracket() -> None:
    (rule,) = _rules({"model": "nvidia h100 [s*]"})
    assert rule.matches(replace(_gpu(0), model="NVIDIA H100 [SXM]"))


def test_a_function_that_is_only_in_the_group_of_another_is_not_matched() -> None:
    beside = pci_key(PciAddress("0000:00:05.1"))
    chip = replace(_chip(5), keys=_chip(5).keys | {beside})
    own = replace(chip, identity=Identity(addresses=chip.functions))
    (rule,) = _rules({"pci": "*:05.1"})

    assert not rule.matches(own)
    assert not rule.matches(replace(own, functions=())), "which drivers they have is no matter"
    assert rule.matches(chip), "it is known by its keys alone"


def test_a_node_without_a_number_is_no_index() -> None:
    nodes = tuple(DeviceNode(path=f"/dev/{each}", rdev=1) for each in ("vfio/vfio", "accel3"))
    (three, other) = _rules({"index": "3"}, {"index": "4"})

    assert three.matches(replace(_chip(5), nodes=nodes))
    assert not other.matches(replace(_chip(5), nodes=nodes))


def test_without_a_rule_nothing_changes() -> None:
    found = _found(*_ALL)

    assert assigned(found, (), {}) == found
    assert assigned(found, (), _had((_GPU, _gpu(0)))) == found


def test_a_device_has_the_settings_of_its_rule_under_each_name() -> None:
    own = OwnSettings(mode="observe", reset="afterForcedRelease", ignore_health=True)
    found, rules = _found(*_ALL), _rules({"uuid": "GPU-1", "own": own})
    made = assigned(found, rules, {})

    assert [each.own for each in made.devices] == [
        own if each == _gpu(1) else OwnSettings() for each in _ALL
    ]
    assert replace(made, devices=_ALL) == found
    moved = _rules({"uuid": "GPU-1", "own": own, "resource": _DEBUG})
    assert all(
        each.own == own
        for had in ({}, _had((_GPU, _gpu(1))))
        for each in assigned(found, moved, had).devices
        if each.name.id == "GPU-1"
    )


def test_only_what_a_device_reports_of_itself_can_be_ignored() -> None:
    ill = Fault(kind=FaultKind.ILL, text="Xid 79")
    away = Fault(kind=FaultKind.NO_DRIVER, text="its driver is away")
    ignoring = replace(_gpu(1), own=OwnSettings(ignore_health=True))

    (told, ignored) = with_faults((_gpu(0), ignoring), {"GPU-0": (ill,), "GPU-1": (ill, away)})

    assert told.faults == (ill,)
    assert ignored.faults == (away,)


def test_a_device_that_is_moved_is_under_its_new_name_alone() -> None:
    made = assigned(_found(*_ALL), _rules({"index": "0", "resource": _DEBUG}), {})

    assert made.of(_GPU) == (_gpu(1),)
    (moved,) = made.of(_DEBUG)
    assert moved.name == DeviceName(_DEBUG, DeviceId("GPU-0"))
    assert moved.keys == _gpu(0).keys
    assert moved.found_as == _GPU
    assert made.resources == (WHOLE, _GPU, _SLICE, _DEBUG)
    assert made.found_as(_GPU) == (moved, _gpu(1))


def test_the_first_rule_that_matches_counts() -> None:
    rules = _rules(
        {"uuid": "GPU-1"}, {"uuid": "GPU-0", "resource": _DEBUG}, {"uuid": "*", "exclude": True}
    )
    made = assigned(_found(*_ALL), rules, {})

    assert made.of(_GPU) == (_gpu(1),)
    assert len(made.of(_DEBUG)) == 1
    assert [each.device.name.id for each in made.left_out] == ["MIG-20", "MIG-21"]
    assert made.idle_rules == ()


def test_a_rule_that_does_nothing_is_told_with_the_reason() -> None:
    rules = _rules({"uuid": "GPU-*"}, {"uuid": "GPU-1", "exclude": True}, {"uuid": "GPU-9"})
    made = assigned(_found(*_ALL), rules, {})

    assert made.idle_rules == (
        "devices[1] (uuid GPU-1) does nothing: earlier rules take every device that it matches",
        "devices[2] (uuid GPU-9) does nothing: it matches no device of this node",
    )


def test_while_some_hardware_was_not_seen_a_rule_may_be_for_that_and_so_may_its_name() -> None:
    found = _found(_chip(5), unseen=frozenset({_GPU}))
    made = assigned(found, _rules({"uuid": "GPU-1", "resource": _DEBUG}), {})

    (told,) = made.idle_rules
    assert told.endswith("matches no device that was seen, and none of nvidia.com/gpu was seen yet")
    assert made.may_have(_DEBUG)


def test_a_rule_that_moves_nothing_adds_no_name_to_what_was_not_seen() -> None:
    found = _found(_chip(5), unseen=frozenset({_GPU}))

    assert assigned(found, _rules({"uuid": "GPU-1", "exclude": True}), {}).unseen == {_GPU}


def test_what_a_pod_had_under_a_former_name_may_be_among_what_was_not_seen() -> None:
    """Else its lock would be taken for that of hardware which is gone."""
    found = _found(_chip(5), unseen=frozenset({_GPU}))
    made = assigned(found, (), _had((_DEBUG, _gpu(1))))

    assert made.may_have(_DEBUG)
    assert not made.may_have(WHOLE)


def test_where_a_rule_has_moved_what_was_seen_there_may_be_more_that_was_not() -> None:
    """One that is lost at a start, say: its lock would be taken for that of hardware that is gone."""
    found = _found(_chip(5), _gpu(0), unseen=frozenset({_GPU}))
    rules = _rules({"uuid": "GPU-*", "resource": _DEBUG})

    made = assigned(found, rules, _had((_DEBUG, _gpu(1))))
    assert _names(made) == [f"{WHOLE}/0000:00:05.0", f"{_DEBUG}/GPU-0"]
    assert made.may_have(_DEBUG)
    assert not made.may_have(WHOLE)


def test_what_is_known_by_its_pci_function_and_is_not_there_is_gone() -> None:
    """On a node without GPUs these are never seen, and a chip's lock must not stay for that."""
    rules = _rules({"pci": "*:05.0", "resource": _DEBUG})
    found = _found(_chip(5), unseen=frozenset({_GPU}))

    assert not assigned(found, rules, {}).may_have(_DEBUG)
    assert not assigned(found, (), _had((HALF, _chip(6)))).may_have(HALF)


@pytest.mark.parametrize("action", [{"exclude": True}, {"resource": _DEBUG}])
def test_a_device_that_a_pod_has_stays_under_its_name_and_is_under_no_other(
    action: dict[str, Any],
) -> None:
    rules = _rules({"uuid": "GPU-1", **action})
    made = assigned(_found(*_ALL), rules, _had((_GPU, _gpu(1))))

    assert _names(made).count("nvidia.com/gpu/GPU-1") == 1
    leaving = made.get(_gpu(1).name)
    assert leaving is not None
    done = "leaves it out" if "exclude" in action else "moves it to example.com/debug"
    then = "once no pod has it under this name"
    assert leaving.leaving == f"devices[0] (uuid GPU-1) {done} {then}"
    assert replace(leaving, leaving="") == _gpu(1)
    assert made.hardware, "discovery is to look again when the pod lets it go"
    assert not made.of(_DEBUG)
    assert not made.left_out


def test_a_rule_that_is_taken_back_lets_a_pod_keep_the_name_that_it_has() -> None:
    made = assigned(_found(*_ALL), (), _had((_DEBUG, _gpu(1))))

    assert [(each.found_as, each.leaving) for each in made.of(_DEBUG)] == [
        (_GPU, "it is nvidia.com/gpu/GPU-1 once no pod has it under this name")
    ]
    assert made.found_as(_GPU) == (_gpu(0), *made.of(_DEBUG))
    assert made.of(_GPU) == (_gpu(0),)


def test_a_chip_keeps_the_name_that_a_pod_has_it_under_when_its_rule_is_taken_back() -> None:
    made = assigned(_found(*_ALL), (), _had((_DEBUG, _chip(5))))

    assert [each.name.id for each in made.of(_DEBUG)] == ["0000:00:05.0"]
    assert made.of(WHOLE) == (_chip(6),)


def test_a_device_leaves_a_former_name_for_its_own_though_another_rule_is_for_it() -> None:
    rules = _rules({"uuid": "GPU-1", "own": OwnSettings(mode="observe")})
    made = assigned(_found(*_ALL), rules, _had((_DEBUG, _gpu(1))))

    assert [each.leaving for each in made.of(_DEBUG)] == [
        "it is nvidia.com/gpu/GPU-1 once no pod has it under this name"
    ]


def test_a_pod_that_only_kubelets_checkpoint_names_keeps_the_name_of_a_rule() -> None:
    """Its rule is for another device now; which hardware the pod has is not known."""
    rules = _rules({"uuid": "GPU-0", "resource": _DEBUG})
    had = names_had(Book(), [entry(X, "GPU-1", resource=_DEBUG)])
    made = assigned(_found(*_ALL), rules, had)

    assert {each.name.id: bool(each.leaving) for each in made.of(_DEBUG)} == {
        "GPU-0": False,
        "GPU-1": True,
    }


def test_a_function_of_two_pools_stays_under_both_names_though_a_pod_has_it_under_one() -> None:
    found = _found(_chip(5), _named(_chip(5), HALF))

    for had in (WHOLE, HALF):
        assert assigned(found, (), _had((had, _chip(5)))) == found


def test_two_pods_with_a_device_under_two_names_are_both_found() -> None:
    """The second waits at the gate: the lock is on the hardware."""
    rules = _rules({"uuid": "GPU-1", "resource": _DEBUG})
    made = assigned(_found(*_ALL), rules, _had((_GPU, _gpu(1)), (_DEBUG, _gpu(1))))

    (moved,) = made.of(_DEBUG)
    assert moved.keys == _gpu(1).keys
    assert made.find(_GPU, DeviceId("GPU-1")) is not None


def _replicas(number: int) -> tuple[Device, ...]:
    return tuple(
        replace(
            _gpu(number),
            name=DeviceName(_GPU, REPLICAS.replica(DeviceId(f"GPU-{number}"), each)),
            keys=frozenset({replica_key(f"GPU-{number}", each)}),
        )
        for each in range(2)
    )


@pytest.mark.parametrize("had", [_gpu(1), _replicas(1)[1]])
@pytest.mark.parametrize("found", [(_gpu(1),), _replicas(1)])
def test_a_moved_card_is_let_go_as_a_whole_when_its_rule_is_taken_back(
    found: tuple[Device, ...], had: Device
) -> None:
    made = assigned(_found(*found), (), {_named(had, _DEBUG).name: had.keys})

    assert {each.name.resource for each in made.devices} == {_DEBUG}
    again = made.find(_DEBUG, had.name.id)
    assert again is not None
    assert again.keys == had.keys


def test_a_pod_that_only_kubelets_checkpoint_names_keeps_its_device() -> None:
    rules = _rules({"uuid": "GPU-1", "exclude": True})
    had = names_had(Book(), [entry(X, "nvidia6", resource=_GPU)])
    made = assigned(_found(*_ALL), rules, had)

    assert made.find(_GPU, DeviceId("nvidia6")) is not None
    assert not made.left_out


@pytest.mark.parametrize("own", [_GPU, _SHARED])
@pytest.mark.parametrize("had", [_GPU, _SHARED])
def test_a_card_whose_replicas_pods_have_is_under_no_new_name_whatever_replicas_are_called(
    own: ResourceName, had: ResourceName
) -> None:
    """A rule takes it, and with renameByDefault its replicas are, or were, called otherwise."""
    found = _found(replace(_gpu(1), name=DeviceName(own, DeviceId("GPU-1"))))
    share = DeviceName(had, REPLICAS.replica(DeviceId("GPU-1"), 1))
    rules = _rules({"uuid": "GPU-1", "resource": _DEBUG})
    made = assigned(found, rules, {share: frozenset({replica_key("GPU-1", 1)})})
    (kept,) = made.devices
    assert kept.name.resource == own
    assert kept.leaving
    assert [each.name.resource for each in assigned(found, rules, {}).devices] == [_DEBUG]


def test_another_plugins_name_for_the_same_id_is_not_taken_over() -> None:
    had = names_had(Book(), [entry(X, "0000:00:05.0", resource=HALF)])

    assert assigned(_found(*_ALL), (), had) == _found(*_ALL)
    unseen = _found(_chip(5), unseen=frozenset({_GPU}))
    assert not assigned(unseen, (), had).may_have(HALF)
    other = {DeviceName(HALF, DeviceId("GPU-1")): keys("card/GPU-9")}
    assert assigned(_found(*_ALL), (), other) == _found(*_ALL)


def test_what_is_only_called_foreign_leaves_at_once() -> None:
    lock = device_lock(name("d0"), "a", state=LockState.FOREIGN, since=0.0)
    book = Book(locks={lock.device: lock})

    assert names_had(book, ()) == {}
    waits = book_of(allocated({DeviceId("d1"): keys("b")}))
    assert names_had(waits, ()) == {name("d1"): keys("b")}


def test_hardware_of_two_kinds_is_never_under_one_name() -> None:
    """A container may get any devices of a resource, and one adapter has to explain them."""
    rules = _rules({"uuid": "GPU-1", "resource": WHOLE}, {"model": "v5e", "resource": _DEBUG})
    made = assigned(_found(*_ALL), rules, {})

    assert {each.source for each in made.of(_DEBUG)} == {"tpu"}
    assert not made.of(WHOLE)
    (left,) = made.left_out
    assert left.reason == (
        "devices[0] (uuid GPU-1) moves it to google.com/tpu, which has hardware of another kind"
    )


def _named(device: Device, resource: ResourceName) -> Device:
    return replace(device, name=DeviceName(resource, device.name.id))


_PATTERNS = st.sampled_from(["GPU-0", "GPU-1", "GPU-*", "MIG-20", "*"])
_RULE = st.fixed_dictionaries(
    {"uuid": _PATTERNS},
    optional={"exclude": st.booleans(), "resource": st.sampled_from([_DEBUG, _GPU, HALF])},
)


@given(
    rules=st.lists(_RULE, max_size=4),
    had=st.lists(
        st.tuples(st.sampled_from([_GPU, _SLICE, _DEBUG, HALF]), st.sampled_from(_ALL[2:])),
        max_size=6,
    ),
)
def test_hardware_is_new_to_pods_under_one_name_at_most_and_what_pods_have_is_found(
    rules: list[dict[str, Any]], had: list[tuple[ResourceName, Device]]
) -> None:
    names = _had(*had)
    made = assigned(_found(*_ALL), _rules(*rules), names)

    assert len(made.devices) == len({each.name for each in made.devices})
    for device in _ALL:
        shown = [each for each in made.devices if each.keys == device.keys]
        left = [each for each in made.left_out if each.device == device]
        assert len([each for each in shown if not each.leaving]) <= 1
        assert bool(shown) != bool(left)
        # New pods get it under a name only when nobody has it under another.
        if any(each.leaving for each in shown):
            assert all(each.leaving or each.name in names for each in shown)
        assert {each for each in names if names[each] == device.keys} <= {
            each.name for each in shown
        }
    assert len(made.hardware or made.devices) == len(_ALL)
    # Once nobody has anything, nothing is leaving.
    assert not any(each.leaving for each in assigned(_found(*_ALL), _rules(*rules), {}).devices)


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ((), False),
        ((DeviceRule(place="devices[0]", uuid="GPU-1", exclude=True),), False),
        ((DeviceRule(place="devices[0]", uuid="GPU-0", exclude=True),), True),
        ((DeviceRule(place="devices[0]", uuid="GPU-0", resource=_DEBUG),), True),
        ((DeviceRule(place="devices[0]", uuid="GPU-0", resource=_GPU),), False),
        (
            (
                DeviceRule(place="devices[0]", index="0"),
                DeviceRule(place="devices[1]", uuid="GPU-0", exclude=True),
            ),
            False,
        ),
    ],
)
def test_what_a_rule_takes_out_of_its_resource(
    rules: tuple[DeviceRule, ...], expected: bool
) -> None:
    assert taken(_gpu(0), rules) is expected


def test_a_rule_that_names_a_cards_own_resource_leaves_replicas_the_name_that_they_have() -> None:
    shared = tuple(
        replace(each, name=DeviceName(REPLICAS.renamed(_GPU), each.name.id))
        for each in _replicas(0)
    )
    rules = _rules({"uuid": "*", "resource": _GPU})
    found = assigned(_found(*shared), rules, {})
    assert {each.name.resource for each in found.devices} == {REPLICAS.renamed(_GPU)}
