"""Replicas of MIG slices: what they exclude, who is a neighbour, and what a node offers of them."""

import pytest
from msgspec.structs import replace

from fakes.books import (
    NAMES,
    Silicon,
    X,
    allocated,
    book_of,
    device_lock,
    device_of,
    entry,
    keys,
    name,
    seen,
)
from fakes.onegpu import RULES
from fakes.standings import standings_of
from holdfast.model.book.book import DeviceLock, LockState
from holdfast.model.cards import (
    Places,
    Sharing,
    clash,
    id_of,
    replica_of,
    replicas_in,
    shares,
    whole_of,
)
from holdfast.model.devices import (
    Device,
    DeviceKind,
    FaultKind,
    Inventory,
)
from holdfast.model.gate.placement import Choice
from holdfast.model.ids import DeviceId, DeviceName, HardwareKey, PodUid, ProcessId, ResourceName
from holdfast.model.nvidia.devices import GpuFacts, gpu_devices
from holdfast.model.nvidia.free import granted_on, sort, uuids
from holdfast.model.nvidia.gpu import DriverState, Gpu, GpuProcess, GpuReading, GpuUse, MigSlice
from holdfast.model.nvidia.mig import MigStrategy, lay_out
from holdfast.model.nvidia.placement import GpuTopology, SlicePolicy
from holdfast.model.nvidia.sharing import why_too_many
from holdfast.model.use.holders import DeviceAccess, Holder
from holdfast.runtime.watched import Watched
from holdfast.vendors.nvidia.specs import GpuPreference

GPU, SLICE = ResourceName("nvidia.com/gpu"), ResourceName("nvidia.com/mig-1g.10gb")
SHARED = ResourceName("nvidia.com/mig-1g.10gb.shared")
M, N = HardwareKey("part/G/1/M"), HardwareKey("part/G/2/N")


def of_slice(*numbers: int) -> Silicon:
    return {DeviceId(f"M::{each}"): frozenset({replica_of(M, each)}) for each in numbers}


CLASHES = [
    ("the same share", "replica/G/1/M/0", True),
    ("another share of the slice", "replica/G/1/M/1", False),
    ("the slice itself", M, True),
    ("a share of another slice", "replica/G/2/N/0", False),
    ("another slice", N, False),
    ("one in the same place, by another name", "part/G/1/M2", False),
    ("all of the GPU", "card/G", True),
    ("a share of the GPU", "replica/G/0", True),
    ("another GPU", "card/H", False),
    ("a share of a slice of another GPU", "replica/H/1/M/0", False),
    ("the GPU on VFIO", "pci/0000:3b:00.0", True),
    ("another function", "pci/0000:3c:00.0", False),
]


@pytest.mark.parametrize(("case", "other", "expected"), CLASHES)
def test_a_share_of_a_slice_excludes_all_of_its_gpu_but_other_shares_and_other_slices(
    case: str, other: str, expected: bool
) -> None:
    places = Places(of={"G": HardwareKey("pci/0000:3b:00.0")})
    share, them = keys("replica/G/1/M/0"), keys(other)
    assert clash(share, them, places) is expected, case
    assert clash(them, share, places) is expected, case


def test_pods_share_a_slice_by_different_shares_of_that_slice_alone() -> None:
    assert shares(keys("replica/G/1/M/0"), keys("replica/G/1/M/1"))
    for other in ("replica/G/1/M/0", "replica/G/2/N/0", "replica/G/0", M, "card/G"):
        assert not shares(keys("replica/G/1/M/0"), keys(other)), other
        assert not shares(keys(other), keys("replica/G/1/M/0")), other


@pytest.mark.parametrize(
    ("key", "whole", "id_"),
    [
        ("replica/G/0", "card/G", "G"),
        ("replica/G/1/M/7", "part/G/1/M", "M"),
        ("part/G/1/M", "part/G/1/M", "M"),
        ("card/G", "card/G", "G"),
        ("pci/0000:3b:00.0", "pci/0000:3b:00.0", ""),
    ],
)
def test_a_key_says_of_what_it_is_a_replica(key: str, whole: str, id_: str) -> None:
    assert whole_of(HardwareKey(key)) == whole
    assert id_of(HardwareKey(key)) == id_
    if whole != key:
        number = key.rpartition("/")[2]
        assert replica_of(HardwareKey(whole), number) == key
        assert replicas_in(keys(key)) == ((id_, number),)


def _lock(of: str, pod: PodUid | None, state: LockState = LockState.HELD) -> DeviceLock:
    return device_lock(name(of), of, state=state, pod=pod)


_WORKS = Holder(
    process=ProcessId(7, 1), command="python", access=frozenset({DeviceAccess.NODE}), pod=X
)
_COMPUTES = GpuUse(processes=(GpuProcess(pid=7, kind="compute", memory=1 << 30),), memory_used=2)
_HAS_IT_OPEN = GpuUse(memory_used=2)
NEIGHBOURS = [
    ("has another share of the slice", [_lock("replica/G/1/M/0", X)], _COMPUTES, ()),
    (
        "gives this share back",
        [
            _lock("replica/G/1/M/0", X),
            _lock("replica/G/1/M/1", X, LockState.RELEASING),
        ],
        _HAS_IT_OPEN,
        (7,),
    ),
    ("has a share of another slice", [_lock("replica/G/2/N/0", X)], _COMPUTES, (7,)),
    # The node of a slice is its GPU's: it may have that open for the other slice.
    ("opened the node for another slice", [_lock("replica/G/2/N/0", X)], _HAS_IT_OPEN, ()),
    ("has another slice", [_lock(N, X)], _COMPUTES, (7,)),
    ("has the slice", [_lock(M, X)], _HAS_IT_OPEN, (7,)),
    ("has the GPU", [_lock("card/G", X)], _HAS_IT_OPEN, (7,)),
    ("has a share of the GPU", [_lock("replica/G/0", X)], _HAS_IT_OPEN, (7,)),
    ("is nobody's", [], _COMPUTES, (7,)),
]


@pytest.mark.parametrize(("case", "locks", "use", "in_the_way"), NEIGHBOURS)
def test_who_is_in_the_way_on_a_share_of_a_slice(
    case: str, locks: list[DeviceLock], use: GpuUse, in_the_way: tuple[int, ...]
) -> None:
    to = granted_on(keys("replica/G/1/M/1"), {each.device: each for each in locks})
    found = sort(use, (_WORKS,), {}, to, RULES)
    assert tuple(each.process.pid for each in found.holders) == in_the_way, case


def _device(id_: str, *its: str, resource: ResourceName = SHARED) -> Device:
    return device_of(name(id_, resource), *its, kind=DeviceKind.DRIVER, source="nvidia")


def test_of_a_share_of_a_slice_nvml_is_asked_about_the_slice() -> None:
    assert uuids(_device("M::1", "replica/G/1/M/1"), {"G": ("M", "N")}) == ("M",)


SHARED_SLICE = Inventory(
    resources=(SHARED,),
    devices=tuple(_device(f"M::{n}", f"replica/G/1/M/{n}") for n in range(2)),
    names=NAMES,
)
ONE_SLICE = Inventory(resources=(SLICE,), devices=(_device("M", M, resource=SLICE),), names=NAMES)
FOUND = [
    (SHARED_SLICE, SHARED, "M::1", "replica/G/1/M/1"),
    (SHARED_SLICE, SHARED, "M::7", "replica/G/1/M/7"),
    (SHARED_SLICE, SLICE, "M", M),
    (SHARED_SLICE, SLICE, "M::0", "replica/G/1/M/0"),
    (SHARED_SLICE, GPU, "M::0", None),
    (ONE_SLICE, SLICE, "M", M),
    (ONE_SLICE, SHARED, "M::1", "replica/G/1/M/1"),
    (ONE_SLICE, SLICE, "G", None),
]


@pytest.mark.parametrize(("inventory", "resource", "id_", "key"), FOUND)
def test_a_pod_finds_the_slice_that_it_has_whether_it_is_shared_now_or_not(
    inventory: Inventory, resource: ResourceName, id_: str, key: str | None
) -> None:
    device = inventory.find(resource, DeviceId(id_))
    assert (None if device is None else device.keys) == (None if key is None else keys(key))


def test_a_lowered_number_counts_for_each_slice() -> None:
    had = of_slice(2)
    book = book_of(allocated(had, resource=SHARED, pod=X, active=True))
    both = replace(
        SHARED_SLICE,
        devices=(
            *SHARED_SLICE.devices,
            *(_device(f"N::{n}", f"replica/G/2/N/{n}") for n in range(2)),
        ),
    )
    found = standings_of(book, both, view=seen(entry(X, "M::2", resource=SHARED)))
    assert {each.name.id for each in found.listed if each.crowded} == {"M::1"}


PIECES = tuple(
    MigSlice(uuid=uuid, gi=place, ci=0, profile="1g.10gb")
    for place, uuid in enumerate(("M", "N"), 1)
)
DIVIDED = Gpu(index=0, uuid="G", minor=0, mig=True, slices=PIECES)
UNDIVIDED = Gpu(index=1, uuid="H", minor=1)


def _offered(
    strategy: MigStrategy,
    *gpus: Gpu,
    share: dict[ResourceName, Sharing],
    had: dict[DeviceName, frozenset[HardwareKey]] | None = None,
) -> tuple[Device, ...]:
    layout = lay_out(GpuReading(gpus=gpus), strategy)
    return gpu_devices(GpuFacts(state=DriverState.READY, layout=layout), had, share)


@pytest.mark.parametrize(
    ("strategy", "share", "expected"),
    [
        (
            MigStrategy.MIXED,
            {SLICE: Sharing(replicas=2)},
            [f"{SLICE}/M::0", f"{SLICE}/M::1", f"{SLICE}/N::0", f"{SLICE}/N::1", f"{GPU}/H"],
        ),
        (
            MigStrategy.MIXED,
            {SLICE: Sharing(replicas=2, renamed=True), GPU: Sharing(replicas=2, renamed=True)},
            [
                *(f"{SHARED}/{each}" for each in ("M::0", "M::1", "N::0", "N::1")),
                *(f"{GPU}.shared/H::{each}" for each in range(2)),
            ],
        ),
        (
            MigStrategy.NONE,
            {GPU: Sharing(replicas=2)},
            [f"{GPU}/{each}" for each in ("G::0", "G::1", "H::0", "H::1")],
        ),
    ],
)
def test_each_slice_counts_as_its_replicas_under_its_own_name_or_that_of_replicas(
    strategy: MigStrategy, share: dict[ResourceName, Sharing], expected: list[str]
) -> None:
    found = _offered(strategy, DIVIDED, UNDIVIDED, share=share)
    assert [str(each.name) for each in found] == expected


def test_with_strategy_single_slices_are_shared_as_gpus_are() -> None:
    found = _offered(MigStrategy.SINGLE, DIVIDED, share={GPU: Sharing(replicas=2)})
    assert [each.name.id for each in found] == ["M::0", "M::1", "N::0", "N::1"]
    assert {each.name.resource for each in found} == {GPU}
    assert found[1].keys == keys("replica/G/1/M/1")


def test_a_new_slice_is_shared_by_nobody_while_a_pod_has_what_was_in_its_place() -> None:
    new = replace(PIECES[0], uuid="M2")
    gpu = replace(DIVIDED, slices=(new, PIECES[1]))
    share = {SLICE: Sharing(replicas=2)}

    def occupied(*of: str, resource: ResourceName = SLICE) -> set[str]:
        had = {DeviceName(resource, DeviceId(each)): frozenset({HardwareKey(each)}) for each in of}
        found = _offered(MigStrategy.MIXED, gpu, share=share, had=had)
        kinds = {each.name.id: {fault.kind for fault in each.faults} for each in found}
        return {id_ for id_, faults in kinds.items() if FaultKind.OCCUPIED in faults}

    assert not occupied()
    assert occupied(M) == occupied("replica/G/1/M/0") == {"M2::0", "M2::1"}
    # What is there, all of the GPU and shares of that exclude them by their names alone.
    assert not occupied("replica/G/2/N/0", N, "card/G", "replica/G/0")


def test_all_of_a_gpu_is_shared_though_a_pod_has_a_slice_that_it_had() -> None:
    """They exclude it by their names."""
    had = {DeviceName(SLICE, DeviceId("M")): keys("part/H/1/M")}
    found = _offered(MigStrategy.NONE, UNDIVIDED, share={GPU: Sharing(replicas=2)}, had=had)
    assert [each.keys for each in found] == [keys("replica/H/0"), keys("replica/H/1")]
    assert not any(fault.kind is FaultKind.OCCUPIED for each in found for fault in each.faults)
    assert all(clash(each.keys, keys("part/H/1/M")) for each in found)


def test_a_container_has_one_share_of_slices_where_that_is_the_rule() -> None:
    single = {SLICE: Sharing(replicas=2, single=True)}
    text = "maximum request size for shared resources is 1; found 2"
    assert why_too_many(SHARED_SLICE.devices, single) == text
    assert why_too_many(ONE_SLICE.devices * 2, single) == ""


def test_what_is_not_shared_excludes_the_shares_that_were_in_its_place() -> None:
    had = {DeviceName(SHARED, DeviceId("M::0")): keys("replica/G/1/M/0")}
    new = replace(PIECES[0], uuid="M2")
    gpu = replace(DIVIDED, slices=(new, PIECES[1]))
    taken_over, bystander = _offered(MigStrategy.MIXED, gpu, share={}, had=had)
    assert taken_over.keys == keys("part/G/1/M2", M)
    assert clash(taken_over.keys, keys("replica/G/1/M/0"))
    assert bystander.keys == keys(N)
    (whole,) = _offered(
        MigStrategy.MIXED, replace(DIVIDED, mig=False, slices=()), share={}, had=had
    )
    assert clash(whole.keys, keys("replica/G/1/M/0"))
    # The slice is still there, and was shared.
    same, _ = _offered(MigStrategy.MIXED, DIVIDED, share={}, had=had)
    assert same.keys == keys(M)


@pytest.mark.parametrize("had", ["replica/G/1/M/0", M])
def test_what_is_there_in_the_same_place_under_any_name_excludes_nothing_else_there(
    had: str,
) -> None:
    """Compute instances share the place of their GPU instance."""
    parts = tuple(replace(PIECES[0], uuid=uuid, ci=ci) for ci, uuid in enumerate("MO"))
    name_of_it = DeviceName(ResourceName("example.com/moved"), DeviceId("M::0"))
    found = _offered(
        MigStrategy.SINGLE,
        replace(DIVIDED, slices=parts),
        share={GPU: Sharing(replicas=2)},
        had={name_of_it: keys(had)},
    )
    assert [each.name.id for each in found] == ["M::0", "M::1", "O::0", "O::1"]
    assert not any(fault.kind is FaultKind.OCCUPIED for each in found for fault in each.faults)
    whole = _offered(
        MigStrategy.SINGLE, replace(DIVIDED, slices=parts), share={}, had={name_of_it: keys(had)}
    )
    assert [each.keys for each in whole] == [keys(M), keys("part/G/1/O")]


@pytest.mark.parametrize(
    ("policy", "gone", "size", "wanted"),
    [
        # An unused slice before a used one, and the one on the GPU with less in use.
        (SlicePolicy.DISTRIBUTED, {"A::0"}, 1, {"C::0"}),
        (SlicePolicy.DISTRIBUTED, {"A::0", "C::0"}, 2, {"B::0", "D::0"}),
        (SlicePolicy.DISTRIBUTED, {"A::0", "B::0", "C::0"}, 2, {"D::0", "A::1"}),
        (SlicePolicy.PACKED, {"C::0"}, 1, {"C::1"}),
        (SlicePolicy.PACKED, {"C::0"}, 3, {"C::1", "D::0", "D::1"}),
    ],
)
def test_the_preferred_shares_of_slices(
    policy: SlicePolicy, gone: set[str], size: int, wanted: set[str]
) -> None:
    parents = {DeviceId(each): gpu for gpu, pieces in (("1", "AB"), ("2", "CD")) for each in pieces}
    devices = [_device(f"{each}::{n}", f"replica/1/{each}/{n}") for each in parents for n in (0, 1)]
    free = tuple(each.name.id for each in devices if each.name.id not in gone)
    preference = GpuPreference(Watched(GpuTopology(parents=parents)), Watched(policy))
    choice = Choice(available=free, size=size, must_include=(), avoid=())
    assert set(preference.preferred(devices, choice)) == wanted
