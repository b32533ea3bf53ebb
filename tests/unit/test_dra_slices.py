"""Slices of any node: within every limit, each device once, and no hardware given to two claims."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fakes.apischemas import check
from fakes.books import device_of
from fakes.books import name as named
from fakes.tpus import plain_tpus
from holdfast.discovery.source import Source, Sources
from holdfast.model.cards import replica_key
from holdfast.model.devices import (
    Device,
    DeviceKind,
    Fault,
    FaultKind,
    Identity,
    Inventory,
    pci_key,
)
from holdfast.model.dra.advertised import AdvertisedDevice, plain, texts, versions
from holdfast.model.dra.resourceslice import (
    Capacity,
    RequestPolicy,
    ResourceSlice,
    SliceContent,
    SliceDevice,
    SliceMetadata,
    SliceSpec,
    Taint,
    label,
)
from holdfast.model.dra.slices import (
    PoolFacts,
    SentSlice,
    SliceFields,
    Writes,
    another_name,
    contents,
    kept_of,
    quantity,
    slice_name,
    writes,
)
from holdfast.model.ids import DeviceId, DeviceName, HardwareKey, PciAddress, ResourceName
from simulated.cluster.rules import Rules

DRIVER, NODE = "holdfast.dev", "node-1"
TPU = ResourceName("google.com/tpu")
EVERYTHING = SliceFields()
HELD = Taint(key=f"{DRIVER}/held", value="releasing", effect="NoSchedule")


def address(place: int) -> PciAddress:
    return PciAddress(f"0000:{place // 32:02x}:{place % 32:02x}.0")


def device(
    place: int, resource: ResourceName = TPU, *, keys: frozenset[HardwareKey] | None = None
) -> Device:
    return device_of(
        named(address(place), resource),
        *([pci_key(address(place))] if keys is None else keys),
        functions=(address(place),),
        numa_node=place % 2,
        model="v5e",
        source="tpu",
    )


def chips(count: int) -> list[Device]:
    return [device(place) for place in range(count)]


def facts(
    devices: Sequence[Device],
    *,
    tainted: Mapping[DeviceName, tuple[Taint, ...]] | None = None,
    kept: SliceFields = EVERYTHING,
) -> PoolFacts:
    return PoolFacts(
        devices={each.name: each for each in devices},
        advertised=Sources([plain_tpus(), Source()]).advertised(devices),
        taints=tainted or {},
        pcie_roots={address(0): "pci0000:00"},
        kept=kept,
    )


def offered(found: Sequence[SliceContent]) -> list[SliceDevice]:
    return [each for content in found for each in content.devices]


def wire(spec: SliceSpec, name: str = "a") -> dict[str, Any]:
    made = ResourceSlice(
        api_version="resource.k8s.io/v1",
        kind="ResourceSlice",
        metadata=SliceMetadata(name=name),
        spec=spec,
    )
    return dict(json.loads(msgspec.json.encode(made)))


def plan(
    wanted: Sequence[SliceContent],
    stored: Mapping[str, ResourceSlice] | None = None,
    accepted: Mapping[str, SentSlice] | None = None,
    generation: int = 0,
    others: Mapping[str, str] | None = None,
) -> Writes:
    return writes(
        wanted,
        stored or {},
        driver=DRIVER,
        node=NODE,
        accepted=accepted or {},
        generation=generation,
        others=others or {},
    )


def carried_out(found: Writes, stored: Mapping[str, ResourceSlice]) -> dict[str, ResourceSlice]:
    after = dict(stored)
    for each in found.delete:
        del after[each.metadata.name]
    for name, spec in found.put.items():
        metadata = after[name].metadata if name in after else SliceMetadata(name=name)
        after[name] = ResourceSlice(metadata=metadata, spec=spec)
    return after


def allocatable(found: Sequence[SliceContent], chosen: Sequence[str]) -> bool:
    """Tell whether the scheduler would give out *chosen* together."""
    left = {
        (each.name, counter): int(amount.value)
        for content in found
        for each in content.shared_counters
        for counter, amount in each.counters.items()
    }
    for each in offered(found):
        if each.name in chosen:
            for use in each.consumes_counters:
                for counter, amount in use.counters.items():
                    left[use.counter_set, counter] -= int(amount.value)
    return all(amount >= 0 for amount in left.values())


# Devices of a node: keys that several of them may have, such as those of a GPU and its slices.
keys = st.frozensets(
    st.integers(0, 40).map(lambda number: HardwareKey(f"k/{number}")), min_size=1, max_size=4
)
nodes = st.lists(keys, max_size=90).map(
    lambda every: [
        device(place, ResourceName("example.com/card"), keys=each)
        for place, each in enumerate(every)
    ]
)
tpus = st.integers(0, 70).map(chips)


@given(st.one_of(nodes, tpus), st.data(), st.booleans(), st.booleans())
def test_slices_are_valid_and_have_each_device_once(
    devices: list[Device], data: st.DataObject, taints_kept: bool, counters_kept: bool
) -> None:
    names = [each.name for each in devices]
    chosen = data.draw(st.sets(st.sampled_from(names))) if names else set()
    tainted = dict.fromkeys(chosen, (HELD,))
    found = contents(
        facts(
            devices, tainted=tainted, kept=SliceFields(taints=taints_kept, counters=counters_kept)
        )
    )

    written = plan(found)
    rules = Rules(36)
    for name, spec in written.put.items():
        rules.check(wire(spec, name))
        assert spec.pool.resource_slice_count == len(written.put)
    told = [each.name for each in offered(found)]
    assert len(set(told)) == len(told)
    labels = {label(name): name for name in names}
    singles = [labels[name] for name in told if name in labels]
    if taints_kept and counters_kept and len(devices) <= 32:
        assert singles == names, "every device is there once, in its order"
    for each in offered(found):
        if each.name in labels:
            assert bool(each.taints) == (labels[each.name] in chosen)
            assert taints_kept or labels[each.name] not in chosen


@given(st.one_of(nodes, tpus), st.booleans(), st.randoms(use_true_random=False))
def test_the_scheduler_cannot_give_one_piece_of_hardware_to_two_claims(
    devices: list[Device], counters_kept: bool, random: Any
) -> None:
    made = facts(devices, kept=SliceFields(counters=counters_kept))
    found = contents(made)
    hardware = {
        each.name: frozenset().union(*(made.devices[name].keys for name in each.devices))
        for each in made.advertised
    }
    order = [each.name for each in offered(found)]
    random.shuffle(order)
    given_out: list[str] = []
    for name in order:
        if allocatable(found, [*given_out, name]):
            given_out.append(name)

    taken = [key for name in given_out for key in hardware[name]]
    assert len(taken) == len(set(taken))
    free = {name for name in order if hardware[name].isdisjoint(taken)}
    assert not free, "and what is free can be given out"


def test_one_function_of_two_resources_with_the_same_last_part_is_offered_as_both() -> None:
    first, second = ResourceName("a.io/fpga"), ResourceName("b.io/fpga")
    node = Inventory(devices=(device(0, first), device(1, first), device(0, second)))
    sources = Sources([plain_tpus(), Source()])

    told = sources.told(node, lambda _: True)
    found = offered(contents(replace(facts(node.devices), advertised=told)))

    assert [(each.name, each.attributes["resource"].text) for each in found] == [
        ("fpga-0000-00-00-0", first),
        ("fpga-0000-00-01-0", first),
        ("b-io-fpga-0000-00-00-0", second),
    ]
    (alone,) = sources.told(node, {second}.__contains__)
    assert alone.name == told[2].name, "whatever else DRA serves"


@given(tpus, tpus, st.data())
def test_what_is_written_makes_the_pool_what_is_wanted(
    before: list[Device], after: list[Device], data: st.DataObject
) -> None:
    stored = carried_out(plan(contents(facts(before))), {})
    gone = data.draw(st.sets(st.sampled_from(sorted(stored))))
    stored = {name: each for name, each in stored.items() if name not in gone}
    wanted = contents(facts(after))

    found = plan(wanted, stored)
    result = carried_out(found, stored)

    assert [result[slice_name(DRIVER, NODE, n)].spec.content for n in range(len(wanted))] == [
        *wanted
    ]
    assert len(result) == len(wanted)
    (pool,) = {each.spec.pool for each in result.values()}
    assert pool.resource_slice_count == len(wanted)
    untouched = stored.keys() - found.names
    if len(found.put) > 1:
        assert not untouched, "all have the new generation"
        assert all(pool.generation > each.spec.pool.generation for each in stored.values())
    assert plan(wanted, result) == Writes(), "nothing is written twice"


def test_eight_chips_are_offered_alone_as_squares_and_as_a_whole() -> None:
    found = contents(facts(chips(8)))

    told = {each.name: each for each in offered(found)}
    assert [*told][:2] == ["tpu-0000-00-00-0", "tpu-0000-00-01-0"]
    assert [*told][8:] == ["tpu-2x2-0000-00-00-0", "tpu-2x2-0000-00-04-0", "tpu-2x4-0000-00-00-0"]
    assert allocatable(found, ["tpu-2x2-0000-00-00-0", "tpu-2x2-0000-00-04-0"])
    assert allocatable(found, ["tpu-2x2-0000-00-00-0", "tpu-0000-00-04-0"])
    assert not allocatable(found, ["tpu-2x2-0000-00-00-0", "tpu-0000-00-03-0"])
    assert not allocatable(found, ["tpu-2x4-0000-00-00-0", "tpu-0000-00-07-0"])
    square = told["tpu-2x2-0000-00-04-0"]
    assert square.attributes["shape"].text == "2x2"
    assert square.attributes["resource"].text == "google.com/tpu-2x2"
    assert square.attributes["chips"].number == 4
    assert square.capacity["memory"].value == "64Gi"
    assert (
        told["tpu-0000-00-00-0"].attributes["resource.kubernetes.io/pciBusID"].text
        == "0000:00:00.0"
    )
    assert (
        told["tpu-0000-00-00-0"].attributes["resource.kubernetes.io/pcieRoot"].text == "pci0000:00"
    )
    assert told["tpu-0000-00-03-0"].attributes["resource.kubernetes.io/numaNode"].number == 1
    assert "resource.kubernetes.io/numaNode" not in square.attributes, "its chips have two"
    places = [
        tuple(told[f"tpu-0000-00-0{n}-0"].attributes[axis].number for axis in "xyz")
        for n in range(8)
    ]
    assert places == [(n % 2, n // 2, 0) for n in range(8)]


@pytest.mark.parametrize("count", [3, 5, 7])
def test_a_host_that_lost_a_chip_has_no_shapes(count: int) -> None:
    found = offered(contents(facts(chips(count))))

    assert len(found) == count
    assert all("x" not in each.attributes and not each.consumes_counters for each in found)


def test_a_shape_is_tainted_with_its_chips() -> None:
    devices = chips(4)
    ill = Taint(key=f"{DRIVER}/unhealthy", value="gone", effect="NoExecute")
    tainted = {devices[0].name: (HELD,), devices[3].name: (ill,)}
    found = {each.name: each.taints for each in offered(contents(facts(devices, tainted=tainted)))}

    assert found["tpu-2x2-0000-00-00-0"] == (HELD, ill)
    assert found["tpu-0000-00-01-0"] == ()


def test_where_taints_are_dropped_what_would_be_tainted_is_not_offered_and_the_rest_is() -> None:
    """Nothing else would keep the scheduler from a device that a leaked process still has."""
    devices = chips(4)
    made = facts(devices, tainted={devices[0].name: (HELD,)}, kept=SliceFields(taints=False))

    assert [each.name for each in offered(contents(made))] == [
        "tpu-0000-00-01-0",
        "tpu-0000-00-02-0",
        "tpu-0000-00-03-0",
    ]


def test_without_counters_only_single_devices_are_offered() -> None:
    found = contents(facts(chips(8), kept=SliceFields(counters=False)))

    assert [each.name for each in offered(found)] == [f"tpu-0000-00-0{n}-0" for n in range(8)]
    assert not any(each.shared_counters for each in found)


def test_a_node_without_devices_has_one_empty_slice() -> None:
    assert contents(facts([])) == (SliceContent(),)


def test_one_changed_slice_keeps_the_generation_and_the_times_of_its_taints() -> None:
    devices = chips(2)
    (name,) = carried_out(plan(contents(facts(devices))), {})
    first = contents(facts(devices, tainted={devices[0].name: (HELD,)}))
    stored = carried_out(plan(first), {})
    spec = stored[name].spec
    timed = msgspec.json.decode(
        msgspec.json.encode(spec).replace(
            b'"effect":"NoSchedule"', b'"effect":"NoSchedule","timeAdded":"T"'
        ),
        type=SliceSpec,
    )
    stored = {name: ResourceSlice(metadata=SliceMetadata(name=name), spec=timed)}
    assert plan(first, stored) == Writes(), "a time that the server added is no difference"

    both = contents(facts(devices, tainted={each.name: (HELD,) for each in devices}))
    (changed,) = plan(both, stored).put.values()

    assert changed.pool.generation == 1
    assert [each.taints[0].time_added for each in changed.devices or ()] == ["T", ""]

    other = msgspec.structs.replace(HELD, value="quarantined")
    (changed,) = plan(
        contents(facts(devices, tainted={devices[0].name: (other,)})), stored
    ).put.values()
    assert changed.devices is not None
    assert changed.devices[0].taints == (other,), "another taint has a time of its own"


def test_what_the_server_made_of_a_slice_is_not_written_again() -> None:
    devices = chips(1)
    wanted = contents(facts(devices, tainted={devices[0].name: (HELD,)}))
    ((name, spec),) = plan(wanted).put.items()
    without = SliceContent(devices=(SliceDevice(name="tpu-0000-00-00-0"),))
    kept = {
        name: ResourceSlice(
            metadata=SliceMetadata(name=name),
            spec=msgspec.structs.replace(spec, devices=without.devices),
        )
    }
    accepted = {name: SentSlice(sent=wanted[0], stored=without)}

    assert plan(wanted, kept, accepted) == Writes()
    assert len(plan(wanted, kept).put) == 1
    assert len(plan(contents(facts(devices)), kept, accepted).put) == 1, "another wish"
    emptied = msgspec.structs.replace(kept[name].spec, devices=())
    changed = {name: msgspec.structs.replace(kept[name], spec=emptied)}
    assert len(plan(wanted, changed, accepted).put) == 1, "somebody changed it since"


def test_a_slice_that_stays_as_it_is_says_how_many_there_are_now() -> None:
    """The scheduler uses none of them where the number is not that of the slices that there are."""
    first, second = (SliceContent(devices=(SliceDevice(name=each),)) for each in ("tpu-0", "tpu-1"))
    stored = carried_out(plan([first, second]), {})

    left = plan([first], stored)

    assert [each.metadata.name for each in left.delete] == [slice_name(DRIVER, NODE, 1)]
    assert [spec.pool.resource_slice_count for spec in left.put.values()] == [1]


def test_a_server_that_keeps_that_a_device_is_shared_says_so() -> None:
    shared = SliceContent(devices=(SliceDevice(name="gpu", allow_multiple_allocations=True),))
    assert kept_of(shared, shared).shares
    assert not kept_of(shared, SliceContent(devices=(SliceDevice(name="gpu"),))).shares


@pytest.mark.parametrize("count", [0, 1, 4, 8])
def test_a_pool_that_is_as_wanted_is_not_written_again(count: int) -> None:
    wanted = contents(facts(chips(count)))
    assert any(each.shared_counters for each in wanted) == (count > 1)

    assert plan(wanted, carried_out(plan(wanted), {})) == Writes()


def test_a_slice_of_another_pool_that_has_our_name_is_deleted_first_and_made_anew() -> None:
    wanted = contents(facts(chips(1)))
    ((name, ours),) = carried_out(plan(wanted), {}).items()
    pool = replace(ours.spec.pool, name="elsewhere", generation=7)
    theirs = {name: replace(ours, spec=replace(ours.spec, pool=pool))}

    found = plan(wanted, theirs)

    assert found.delete == (theirs[name],)
    assert found.put == {name: ours.spec}, "what is not ours has no say in the generation"


def test_a_slice_whose_name_is_taken_has_another_one_and_keeps_it() -> None:
    wanted = contents(facts(chips(1)))
    name = slice_name(DRIVER, NODE, 0)
    instead = another_name(name, "0123abcd")

    found = plan(wanted, others={name: instead})
    stored = carried_out(found, {})

    assert [*stored] == [instead]
    assert instead == f"{name}-0123abcd"
    assert plan(wanted, stored) == Writes(), "also after a restart"
    own = replace(stored[instead], metadata=SliceMetadata(name=name))
    again = plan(wanted, {**stored, name: own})
    assert [each.metadata.name for each in again.delete] == [instead], "it was not taken after all"
    third = another_name(name, "456789ab")
    more = {**stored, third: replace(own, metadata=SliceMetadata(name=third))}
    assert [each.metadata.name for each in plan(wanted, more).delete] == [third], "one is enough"


def test_a_name_at_its_longest_has_room_for_another_one() -> None:
    name = slice_name(DRIVER, "n" * 300, 0)
    assert len(another_name(name, "0123abcd")) <= 253
    wanted = contents(facts(chips(1)))
    assert len(plan(wanted, others={name: "x"}).put) == 1


def test_a_slice_of_another_pool_is_deleted_and_moves_no_generation() -> None:
    wanted = contents(facts(chips(1)))
    stored = carried_out(plan(wanted), {})
    name, ours = next(iter(stored.items()))
    pool = replace(ours.spec.pool, name="another-node", generation=2**62)
    other = replace(
        ours,
        metadata=replace(ours.metadata, name="evil"),
        spec=replace(ours.spec, pool=pool),
    )

    found = plan(wanted, {name: ours, "evil": other})

    assert found == Writes(delete=(other,))


def test_a_wiped_pool_begins_above_the_last_generation() -> None:
    wanted = contents(facts(chips(8)))

    found = plan(wanted, generation=7)

    assert {spec.pool.generation for spec in found.put.values()} == {8}
    assert next(iter(found.put.values())).shared_counters, "counters come first"


@pytest.mark.parametrize(
    ("sent", "stored", "told"),
    [
        (SliceContent(), SliceContent(), SliceFields()),
        (
            SliceContent(devices=(SliceDevice(name="a", taints=(HELD,)),)),
            SliceContent(devices=(SliceDevice(name="a"),)),
            SliceFields(taints=False),
        ),
        (
            SliceContent(devices=(SliceDevice(name="a", taints=(HELD,)),)),
            SliceContent(devices=(SliceDevice(name="a", taints=(HELD,)),)),
            SliceFields(),
        ),
        (
            SliceContent(devices=(SliceDevice(name="a"),)),
            SliceContent(devices=(SliceDevice(name="a"),)),
            SliceFields(),
        ),
        (
            SliceContent(devices=(SliceDevice(name="a", allow_multiple_allocations=True),)),
            SliceContent(devices=(SliceDevice(name="a"),)),
            SliceFields(shares=False),
        ),
    ],
)
def test_fields_of_devices_that_are_dropped_are_noticed(
    sent: SliceContent, stored: SliceContent, told: SliceFields
) -> None:
    assert kept_of(sent, stored) == told


def test_a_device_that_the_server_left_out_lost_its_taints_and_counters_too() -> None:
    devices, _ = contents(facts(chips(4), tainted={chips(4)[0].name: (HELD,)}))

    assert kept_of(devices, SliceContent()) == SliceFields(taints=False, counters=False)


def test_dropped_counters_are_noticed() -> None:
    devices, counters = contents(facts(chips(4)))
    bare = SliceContent(devices=tuple(SliceDevice(name=each.name) for each in devices.devices))

    assert kept_of(counters, SliceContent()) == SliceFields(counters=False)
    assert kept_of(devices, bare) == SliceFields(counters=False)
    assert kept_of(counters, counters) == kept_of(devices, devices) == SliceFields()


@pytest.mark.parametrize("minor", [34, 35, 36, 37])
def test_slices_fit_the_published_schema(minor: int) -> None:
    devices = chips(8)
    wanted = contents(facts(devices, tainted={devices[0].name: (HELD,)}))
    for name, spec in plan(wanted).put.items():
        check(wire(spec, name), minor)


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0"),
        (1000, "1000"),
        (1024, "1Ki"),
        (80 << 30, "80Gi"),
        (9856 << 20, "9856Mi"),
        (3 << 60, "3072Pi"),
    ],
)
def test_amounts_are_written_as_the_server_writes_them(amount: int, text: str) -> None:
    assert quantity(amount) == text


def test_the_name_of_a_slice_fits_and_stays_its_own() -> None:
    long = "n" * 250
    names = {slice_name(DRIVER, long + tail, place) for tail in "ab" for place in (0, 1)}

    assert len(names) == 4
    assert all(len(name) <= 253 for name in names)
    assert slice_name(DRIVER, NODE, 1) == "00001-holdfast.dev-node-1"
    longest = "n" * (253 - len("00001-holdfast.dev-"))
    assert slice_name(DRIVER, longest, 1) == f"00001-holdfast.dev-{longest}"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("550.54.15", "550.54.15"),
        ("535.129.03", "535.129.3"),
        ("12.4", "12.4.0"),
        ("9", "9.0.0"),
        ("", None),
        ("1.2.3.4", None),
        ("R550", None),
    ],
)
def test_versions_are_semantic_or_left_out(text: str, version: str | None) -> None:
    found = versions(driverVersion=text)

    assert found["driverVersion"].version == version if version else not found


def test_the_api_counts_bytes() -> None:
    assert texts(model="a" + "ü" * 64)["model"].text == "a" + "ü" * 31
    longest = "1." + "2" * 60 + ".3"
    assert [*versions(short=longest, long=longest + "4")] == ["short"]


def test_of_a_group_whose_chip_is_gone_nothing_is_offered() -> None:
    one, two = chips(2)
    group = AdvertisedDevice(name="pair", devices=(one.name, two.name))
    made = PoolFacts(devices={one.name: one}, advertised=(plain(one), group))

    assert [each.name for each in offered(contents(made))] == [plain(one).name]


def test_a_device_is_known_by_its_function_or_the_one_that_is_its_key() -> None:
    (one,) = chips(1)
    accel = msgspec.structs.replace(one, functions=(), kind=DeviceKind.ACCEL)
    nowhere = msgspec.structs.replace(accel, keys=frozenset({HardwareKey("card/x")}))
    placed = msgspec.structs.replace(nowhere, identity=Identity(addresses=(address(0),)))

    assert plain(accel).address == address(0)
    assert plain(placed).address == address(0), "the key of a GPU is its UUID"
    assert plain(nowhere).address is None


def test_a_device_of_no_numa_node_has_no_attribute_for_it() -> None:
    nowhere = msgspec.structs.replace(device(0), numa_node=None)

    (told,) = offered(contents(facts([nowhere])))

    assert "resource.kubernetes.io/numaNode" not in told.attributes


def test_attributes_give_way_so_that_a_device_has_as_many_values_as_the_api_takes() -> None:
    (one,) = chips(1)
    rich = msgspec.structs.replace(
        plain(one),
        attributes=texts(**{f"a{n}": "x" for n in range(40)}),
        capacity={"memory": 1 << 30, "cores": 2},
    )
    made = PoolFacts(devices={one.name: one}, advertised=(rich,))

    (told,) = offered(contents(made))

    assert (len(told.attributes), len(told.capacity)) == (30, 2)
    assert [*told.attributes][:1] == ["resource.kubernetes.io/pciBusID"], "the standard's stay"


def test_a_fault_alone_hides_no_device() -> None:
    (one,) = chips(1)
    ill = msgspec.structs.replace(one, faults=(Fault(kind=FaultKind.ILL, text="hot"),))

    assert len(offered(contents(facts([ill])))) == 1


def shared_gpu(*tainted: int, kept: SliceFields = EVERYTHING, replicas: int = 3) -> PoolFacts:
    names = [
        DeviceName(ResourceName("nvidia.com/gpu"), DeviceId(f"G::{n}")) for n in range(replicas)
    ]
    devices = {
        each: replace(device(0), name=each, keys=frozenset({replica_key("G", n)}))
        for n, each in enumerate(names)
    }
    told = AdvertisedDevice(
        name="gpu-g",
        devices=tuple(names),
        capacity={"memory": 80 << 30},
        whole=DeviceName(ResourceName("nvidia.com/gpu"), DeviceId("G")),
    )
    taints = {names[n]: (HELD,) for n in tainted}
    return PoolFacts(devices=devices, advertised=(told,), taints=taints, kept=kept)


@pytest.mark.parametrize("minor", [34, 35, 36, 37])
@pytest.mark.parametrize(
    ("tainted", "shares", "taints"),
    [((), "3", ()), ((1,), "2", ()), ((0, 2), "1", ()), ((0, 1, 2), "1", (HELD,))],
)
def test_a_shared_gpu_is_offered_to_as_many_claims_as_there_are_replicas_left(
    tainted: tuple[int, ...], shares: str, taints: tuple[Taint, ...], minor: int
) -> None:
    found = contents(shared_gpu(*tainted))
    (gpu,) = offered(found)
    assert gpu.allow_multiple_allocations
    assert gpu.taints == taints
    assert gpu.capacity["shares"] == Capacity(
        value=shares, request_policy=RequestPolicy(default="1", valid_values=("1",))
    )
    # Else the first claim would have all of it.
    policy = gpu.capacity["memory"].request_policy
    assert policy is not None
    assert policy.default == "0"
    for name, spec in plan(found).put.items():
        Rules(36).check(wire(spec, name))
        check(wire(spec, name), minor)
