"""Replicas of a card: what they exclude, who comes first, and who of a card's users is a neighbour."""

import pytest
from msgspec.structs import replace

from fakes.books import (
    BOOT,
    HALF,
    NAMES,
    WHOLE,
    Silicon,
    X,
    Y,
    Z,
    allocated,
    book_of,
    device_lock,
    device_of,
    drafted,
    entry,
    keys,
    lock_of,
    name,
    seen,
)
from fakes.doors import why_wait
from fakes.onegpu import RULES
from holdfast.errors import RequestRefusedError
from holdfast.model.book.book import Book, DeviceLock, LockState
from holdfast.model.book.byhand import target
from holdfast.model.book.pods import Observation, reconcile
from holdfast.model.book.queue import first_before, settle
from holdfast.model.cards import (
    CardNames,
    ReplicaNames,
    Sharing,
    card_of,
    replica_key,
    sides_of,
)
from holdfast.model.devices import (
    Device,
    DeviceKind,
    DeviceNode,
    Fault,
    FaultKind,
    Inventory,
    told_of,
    with_faults,
)
from holdfast.model.gate.gate import Caller, Passage
from holdfast.model.gate.placement import Choice
from holdfast.model.ids import DeviceId, DeviceName, HardwareKey, PodUid, ProcessId, ResourceName
from holdfast.model.nvidia import REPLICAS
from holdfast.model.nvidia.devices import GpuFacts, gpu_devices
from holdfast.model.nvidia.free import (
    granted_on,
    sort,
    unused,
    uuids,
)
from holdfast.model.nvidia.gpu import Gpu, GpuProcess, GpuReading, GpuUse, MigSlice
from holdfast.model.nvidia.mig import MigStrategy, lay_out
from holdfast.model.nvidia.placement import GpuTopology, SlicePolicy
from holdfast.model.nvidia.sharing import why_too_many
from holdfast.model.use.free import Freedom
from holdfast.model.use.holders import DeviceAccess, Holder
from holdfast.runtime.watched import Watched
from holdfast.vendors.nvidia.specs import GpuPreference

MIB = 1 << 20
SHARED = ResourceName("nvidia.com/gpu.shared")
CARD: Silicon = {DeviceId("G"): keys("card/G", "part/G/1/M", "part/G/2/N")}
SLICE: Silicon = {DeviceId("M"): keys("part/G/1/M")}
OTHER: Silicon = {DeviceId("H"): keys("card/H")}


def replica(*numbers: int) -> Silicon:
    return {
        REPLICAS.replica(DeviceId("G"), number): frozenset({replica_key("G", number)})
        for number in numbers
    }


def test_hardware_that_is_never_shared_is_of_no_card() -> None:
    assert card_of(HardwareKey("pci/0000:00:05.0")) == ""
    assert sides_of(keys("pci/0000:00:05.0", "a")) == set()
    assert sides_of(keys("pci/0000:00:05.0", "replica/G/0")) == {("G", True)}


def test_a_replica_is_called_as_nvidias_plugin_calls_it() -> None:
    assert REPLICAS.replica(DeviceId("GPU-1"), 3) == "GPU-1::3"
    assert REPLICAS.parted(DeviceId("GPU-1::3")) == ("GPU-1", "3")
    assert REPLICAS.parted(DeviceId("GPU-1")) == ("GPU-1", "")
    # 256 replicas at most here, and any number of them by another plugin, which was here before.
    assert REPLICAS.parted(DeviceId("GPU-1::255")) == ("GPU-1", "255")
    assert REPLICAS.parted(DeviceId("GPU-1::999999999")) == ("GPU-1", "999999999")
    assert REPLICAS.parted(DeviceId("GPU-1::1000000000")) == ("GPU-1", "")


def test_each_vendor_of_a_node_calls_its_replicas_as_it_does() -> None:
    names = CardNames(vendors=(REPLICAS, ReplicaNames(mark="-of-", suffix="-shared")))
    card = DeviceName(ResourceName("acme.example/widget"), DeviceId("w0"))
    theirs = DeviceName(ResourceName("acme.example/widget-shared"), DeviceId("w0-of-3"))
    assert names.parted(theirs.id) == ("w0", "3")
    assert names.parted(DeviceId("GPU-1::3")) == ("GPU-1", "3")
    assert names.unshared(theirs.resource) == card.resource
    assert names.whole(theirs) == card
    assert names.whole(card) == CardNames().whole(card) == card
    assert CardNames().parted(theirs.id) == (theirs.id, "")
    assert CardNames().whole(theirs) == theirs


@pytest.mark.parametrize(("whole", "resource"), [(CARD, WHOLE), (SLICE, HALF)])
def test_whoever_has_the_card_or_a_slice_keeps_every_replica(
    whole: Silicon, resource: ResourceName
) -> None:
    draft = drafted()
    first = allocated(whole, resource=resource, pod=X, active=True)(draft)
    allocated(replica(0), resource=SHARED, pod=Y)(draft)
    allocated(replica(1), resource=SHARED, pod=Z)(draft)
    settle(draft)
    assert {lock.pod for lock in draft.locks.values()} == {X}
    draft.end(first, "over")
    settle(draft)
    assert {lock.pod for lock in draft.locks.values()} == {X}  # not free yet
    draft.move(next(iter(draft.locks)), LockState.FREE, "free")
    settle(draft)
    assert {lock.pod for lock in draft.locks.values()} == {Y, Z}


def test_the_card_waits_for_the_last_replica_and_no_later_pod_overtakes_it() -> None:
    draft = drafted()
    first = allocated(replica(0), resource=SHARED, pod=X, active=True)(draft)
    settle(draft)
    allocated(CARD, pod=Y)(draft)
    late = allocated(replica(1), resource=SHARED, pod=Z)(draft)
    settle(draft)
    assert {lock.pod for lock in draft.locks.values()} == {X}
    before = first_before(draft.book, late, late.keys)
    assert before is not None
    assert before.pod == Y
    draft.end(first, "over")
    draft.move(name("G::0", SHARED), LockState.FREE, "free")
    settle(draft)
    assert {lock.pod for lock in draft.locks.values()} == {Y}


def test_a_start_on_a_replica_is_told_who_has_the_card() -> None:
    book = book_of(allocated(CARD, pod=X, active=True), allocated(replica(0), pod=Y))
    passage = Passage(resource=WHOLE, asked=frozenset({DeviceId("G::0")}), devices=dict(replica(0)))
    assert why_wait(passage, Caller(pods=(Y,)), book) == f"{name('G')} is held by pod {X}"
    # Whose start it is is not known: it may be that of a pod behind the other.
    queued = book_of(allocated(CARD), allocated(replica(0)))
    text = why_wait(passage, Caller(), Book(allocations=queued.allocations))
    assert text is not None
    assert "waits for the same hardware" in text


def _lock(
    *of: str, pod: PodUid | None, state: LockState = LockState.HELD, started: bool = True
) -> DeviceLock:
    return device_lock(name(of[0]), *of, state=state, pod=pod, started=started)


_BUSY = GpuUse(
    processes=(GpuProcess(pid=7, kind="compute", memory=800 * MIB),),
    memory_used=900 * MIB,
    utilization=99,
)
_WORKS = Holder(
    process=ProcessId(7, 1), command="python", access=frozenset({DeviceAccess.NODE}), pod=X
)
NEIGHBOURS = [
    ("runs on another replica", [_lock("replica/G/0", pod=X)], True),
    # What it left behind keeps its own replica, and no other.
    ("ends", [_lock("replica/G/0", pod=X, state=LockState.RELEASING)], True),
    ("could not be ended", [_lock("replica/G/0", pod=X, state=LockState.QUARANTINED)], True),
    ("has started nothing", [_lock("replica/G/0", pod=X, started=False)], False),
    ("is on another card", [_lock("replica/H/0", pod=X)], False),
    ("has the whole card", [_lock("card/G", pod=X)], False),
    ("has this replica", [_lock("replica/G/1", pod=X)], False),
    ("has both", [_lock("replica/G/0", pod=X), _lock("replica/G/1", pod=X)], True),
    (
        "gives this one back",
        [_lock("replica/G/0", pod=X), _lock("replica/G/1", pod=X, state=LockState.RELEASING)],
        False,
    ),
    ("is not known", [_lock("replica/G/0", pod=None)], True),
    ("is not known and did not start", [_lock("replica/G/0", pod=None, started=False)], False),
    (
        "is not known, as is who gives this one back",
        [
            _lock("replica/G/0", pod=None),
            _lock("replica/G/1", pod=None, state=LockState.RELEASING),
        ],
        False,
    ),
    (
        "is not known and this one's is the pod",
        [_lock("replica/G/0", pod=None), _lock("replica/G/1", pod=X)],
        False,
    ),
    ("is a stranger's", [_lock("replica/G/0", pod=X, state=LockState.FOREIGN)], False),
    ("is nobody's", [], False),
]


@pytest.mark.parametrize(("case", "locks", "neighbour"), NEIGHBOURS)
def test_who_is_in_the_way_on_a_replica(
    case: str, locks: list[DeviceLock], neighbour: bool
) -> None:
    to = granted_on(keys("replica/G/1"), {each.device: each for each in locks})
    found = sort(_BUSY, (_WORKS,), {}, to, RULES)
    assert (not found.holders) is neighbour, case
    assert found.sight.shared is neighbour
    assert (found.sight.memory is None) is neighbour
    opened = sort(replace(_BUSY, processes=()), (_WORKS,), {}, to, RULES)
    assert (opened.sight.utilization is None) is neighbour
    if neighbour:
        verdict = found.sight.judge(looked=True, gaps=())
        assert verdict.freedom is Freedom.FREE
        assert "pods use other replicas of it, so only processes count" in verdict.reason
        assert unused(found, to) is None


def test_without_neighbours_on_the_card_its_memory_counts_for_the_last_replica() -> None:
    to = granted_on(keys("replica/G/1"), {name("replica/G/0"): _lock("replica/G/0", pod=X)})
    found = sort(GpuUse(memory_used=900 * MIB), (), {}, to, RULES)
    assert found.sight.memory == 900 * MIB
    look = unused(found, to)
    assert look is not None
    assert not look.unowned  # the pod may be about to use it


def test_every_pod_of_a_claim_is_a_neighbour_and_none_of_one_that_gives_this_replica_back() -> None:
    both = frozenset({X, Y})
    beside = _lock("replica/G/0", pod=Y)
    to = granted_on(keys("replica/G/1"), {beside.device: beside}, pods_of=lambda _lock: both)
    assert to.neighbours == both
    mine = _lock("replica/G/1", pod=Y, state=LockState.RELEASING)
    locks = {each.device: each for each in (beside, mine)}
    to = granted_on(
        keys("replica/G/1"), locks, pods_of=lambda lock: both if lock is mine else frozenset({X})
    )
    assert not to.neighbours


def test_of_a_replica_nvml_is_asked_about_its_card() -> None:
    device = device_of(name("G::1", SHARED), "replica/G/1", kind=DeviceKind.DRIVER)
    assert uuids(device, {}) == ("G",)
    # One in MIG mode shows no process on its slices.
    assert uuids(device, {"G": ("N", "M"), "H": ("O",)}) == ("G", "M", "N")
    assert lock_of(book_of(allocated(replica(1), pod=X)), "G::1").keys == device.keys


def _gpu(*devices: Device, resource: str = "nvidia.com/gpu") -> Inventory:
    return Inventory(resources=(ResourceName(resource),), devices=devices, names=NAMES)


def _device(id_: str, *its_keys: str, resource: str = "nvidia.com/gpu") -> Device:
    return device_of(
        name(id_, ResourceName(resource)),
        *its_keys,
        kind=DeviceKind.DRIVER,
        nodes=(DeviceNode(path="/dev/nvidia0", rdev=1),),
        source="nvidia",
    )


WHOLE_GPU = _gpu(_device("G", "card/G", "part/G/1/M"))
SHARED_GPU = _gpu(_device("G::0", "replica/G/0"), _device("G::1", "replica/G/1"))
NAMED = _gpu(_device("G::0", "replica/G/0", resource=SHARED), resource=SHARED)
SLICED = _gpu(_device("M", "part/G/1/M"))
FOUND = [
    (WHOLE_GPU, "nvidia.com/gpu", "G", ("G", {"card/G", "part/G/1/M"})),
    (WHOLE_GPU, "nvidia.com/gpu", "G::7", ("G::7", {"replica/G/7"})),
    (WHOLE_GPU, SHARED, "G::1", ("G::1", {"replica/G/1"})),
    (WHOLE_GPU, "nvidia.com/gpu", "G::x", ("G", {"card/G", "part/G/1/M"})),
    (WHOLE_GPU, "nvidia.com/gpu", "nvidia0", ("G", {"card/G", "part/G/1/M"})),
    (WHOLE_GPU, "nvidia.com/gpu", "H::0", None),
    (WHOLE_GPU, "nvidia.com/mig-1g.5gb", "G", None),
    (SHARED_GPU, "nvidia.com/gpu", "G::1", ("G::1", {"replica/G/1"})),
    (SHARED_GPU, "nvidia.com/gpu", "G::9", ("G::9", {"replica/G/9"})),
    (SHARED_GPU, "nvidia.com/gpu", "G", ("G", {"card/G"})),
    (SHARED_GPU, "nvidia.com/gpu", "nvidia0", ("G", {"card/G"})),
    (NAMED, "nvidia.com/gpu", "G", ("G", {"card/G"})),
    (NAMED, "nvidia.com/gpu", "G::0", ("G::0", {"replica/G/0"})),
    (SLICED, "nvidia.com/gpu", "M::1", ("M::1", {"replica/G/1/M/1"})),
    (SLICED, "nvidia.com/gpu", "G", None),
]


@pytest.mark.parametrize(("inventory", "resource", "id_", "found"), FOUND)
def test_a_pod_finds_what_it_has_whether_the_card_is_shared_now_or_not(
    inventory: Inventory, resource: str, id_: str, found: tuple[str, set[str]] | None
) -> None:
    device = inventory.find(ResourceName(resource), DeviceId(id_))
    assert (None if device is None else (device.name.id, set(device.keys))) == found
    assert device is None or (device.name.resource, device.source) == (resource, "nvidia")


def test_what_is_reported_of_a_card_is_reported_of_its_replicas() -> None:
    ill = {"G": (Fault(kind=FaultKind.ILL, text="Xid 79"),)}
    assert all(not each.healthy for each in with_faults(SHARED_GPU.devices, ill))
    (one,) = [each for each in SHARED_GPU.devices if each.name.id == "G::1"]
    assert told_of(one, {"G": ("a",), "G::1": ("b",)}) == ("b", "a")
    assert told_of(_device("H::1", "replica/H/1"), {"G": ("a",)}) == ()


def test_each_gpu_that_is_shared_counts_as_its_replicas_and_slices_of_others_do_not() -> None:
    piece = MigSlice(uuid="MIG-1", gi=1, ci=0, profile="1g.10gb")
    gpus = (
        Gpu(index=0, uuid="GPU-0", minor=0),
        Gpu(index=1, uuid="GPU-1", minor=1, mig=True, slices=(piece,)),
        Gpu(index=2, uuid="GPU-2", minor=2),
    )

    def named(sharing: Sharing) -> list[str]:
        layout = lay_out(GpuReading(gpus=gpus), MigStrategy.MIXED)
        shared = {ResourceName("nvidia.com/gpu"): sharing}
        return [str(each.name) for each in gpu_devices(GpuFacts(layout=layout), {}, shared)]

    assert named(Sharing(replicas=2, renamed=True)) == [
        *(f"nvidia.com/gpu.shared/GPU-0::{number}" for number in range(2)),
        "nvidia.com/mig-1g.10gb/MIG-1",
        *(f"nvidia.com/gpu.shared/GPU-2::{number}" for number in range(2)),
    ]
    assert named(Sharing()) == [
        "nvidia.com/gpu/GPU-0",
        "nvidia.com/mig-1g.10gb/MIG-1",
        "nvidia.com/gpu/GPU-2",
    ]


def test_what_a_rule_takes_into_another_resource_is_shared_by_nobody() -> None:
    layout = lay_out(
        GpuReading(gpus=tuple(Gpu(index=n, uuid=f"GPU-{n}", minor=n) for n in range(2))),
        MigStrategy.NONE,
    )
    found = gpu_devices(
        GpuFacts(layout=layout),
        {},
        {ResourceName("nvidia.com/gpu"): Sharing(replicas=2)},
        lambda device: device.name.id == "GPU-0",
    )
    assert [each.name.id for each in found] == ["GPU-0", "GPU-1::0", "GPU-1::1"]


def test_a_container_has_one_replica_where_that_is_the_rule() -> None:
    single = {ResourceName("nvidia.com/gpu"): Sharing(replicas=2, single=True)}
    text = "maximum request size for shared resources is 1; found 2"
    assert why_too_many(SHARED_GPU.devices, single) == text
    assert why_too_many(SHARED_GPU.devices[:1], single) == ""
    assert why_too_many(SHARED_GPU.devices, {ResourceName("nvidia.com/gpu"): Sharing()}) == ""
    assert why_too_many((*WHOLE_GPU.devices, *SLICED.devices), single) == ""
    # One that a pod has whole, from before it was shared.
    assert why_too_many((*WHOLE_GPU.devices, *SHARED_GPU.devices[:1]), single) == text
    # NVIDIA's plugin has one option for all resources.
    several = single | {ResourceName("nvidia.com/mig-1g.10gb"): Sharing()}
    assert why_too_many(SHARED_GPU.devices, several) == text


@pytest.mark.parametrize(
    ("policy", "size", "wanted"),
    [
        (SlicePolicy.DISTRIBUTED, 1, {"B::0"}),
        (SlicePolicy.DISTRIBUTED, 2, {"B::0", "B::1"}),
        (SlicePolicy.DISTRIBUTED, 3, {"B::0", "B::1", "A::2"}),
        (SlicePolicy.PACKED, 1, {"A::2"}),
        (SlicePolicy.PACKED, 2, {"A::2", "B::0"}),
    ],
)
def test_the_preferred_replicas(policy: SlicePolicy, size: int, wanted: set[str]) -> None:
    devices = [
        _device(f"{card}::{number}", f"replica/{card}/{number}")
        for card in ("A", "B")
        for number in range(3)
    ]
    free = tuple(DeviceId(id_) for id_ in ("A::2", "B::0", "B::1", "B::2"))
    followed = Watched(next(each for each in SlicePolicy if each is not policy))
    preference = GpuPreference(Watched(GpuTopology()), followed)
    followed.set(policy)
    choice = Choice(available=free, size=size, must_include=(), avoid=())
    assert set(preference.preferred(devices, choice)) == wanted


def test_a_person_quarantines_a_shared_card_by_its_name_and_releases_one_replica_at_a_time() -> (
    None
):
    with pytest.raises(RequestRefusedError, match="cannot find device G"):
        target("G", SHARED_GPU, Book())
    for text in ("G", "nvidia.com/gpu/G"):
        what = target(text, SHARED_GPU, Book(), cards=True)
        assert str(what.device) == "nvidia.com/gpu/G"
        assert what.keys == keys("card/G")
    assert target("G", NAMED, Book(), cards=True).device.resource == "nvidia.com/gpu"
    assert target("G::1", SHARED_GPU, Book(), cards=True).keys == keys("replica/G/1")
    assert WHOLE_GPU.shared_cards == SLICED.shared_cards == ()


def test_a_shared_card_that_a_person_means_is_the_one_that_is_there_today() -> None:
    """A pod may have it from when it had slices, and with their keys."""
    former = allocated(
        {DeviceId("G"): keys("card/G", "part/G/1/M")},
        resource=ResourceName("nvidia.com/gpu"),
        pod=X,
    )
    for text in ("G", "nvidia.com/gpu/G"):
        assert target(text, SHARED_GPU, book_of(former), cards=True).keys == keys("card/G")
    assert target("G", SHARED_GPU, book_of(former)).keys == keys("card/G", "part/G/1/M")


def test_it_is_lifted_though_the_pod_has_other_hardware_already() -> None:
    both = {**CARD, **OTHER}
    draft = drafted(
        book_of(
            lambda draft: draft.call_foreign(name("G::0"), keys("replica/G/0"), "held by pid 9"),
            allocated(both, pod=X, active=True),
        )
    )
    assert lock_of(draft.book, "H").pod == X
    devices = [_device(id_, *its, resource=WHOLE) for id_, its in both.items()]
    inventory = _gpu(*devices, resource=WHOLE)
    observed = Observation(
        view=seen(entry(X, "G", "H")), inventory=inventory, boot=BOOT, pending_timeout=60.0
    )
    reconcile(draft, observed)
    assert {(lock.state, lock.pod) for lock in draft.locks.values()} == {(LockState.HELD, X)}


def test_a_replica_whose_former_start_has_not_ended_is_not_freed_because_its_pod_has_the_card() -> (
    None
):
    draft = drafted(book_of(allocated(replica(0), resource=SHARED, pod=X, active=True)))
    draft.end(draft.book.allocations[1], "kubelet no longer counts it")
    draft.activate(draft.allocate(WHOLE, CARD, pod=X))
    observed = Observation(
        view=seen(entry(X, "G")), inventory=WHOLE_GPU, boot=BOOT, pending_timeout=60.0
    )
    reconcile(draft, observed)
    assert lock_of(draft.book, "G::0", SHARED).state is LockState.RELEASING


def test_it_is_not_lifted_while_another_pod_keeps_the_card_from_whoever_is_counted() -> None:
    draft = drafted()
    first = allocated(replica(1), resource=SHARED, pod=Z, active=True)(draft)
    settle(draft)
    draft.end(first, "over")
    draft.call_foreign(name("G::0"), keys("replica/G/0"), "held by pid 9")
    allocated(CARD, pod=X, active=True)(draft)
    observed = Observation(
        view=seen(entry(X, "G")), inventory=WHOLE_GPU, boot=BOOT, pending_timeout=60.0
    )
    reconcile(draft, observed)
    assert {lock.state for lock in draft.locks.values()} == {
        LockState.FOREIGN,
        LockState.RELEASING,
    }


def test_the_card_of_a_replica_is_named_without_what_sharing_adds_and_no_other_device_is() -> None:
    shared = ResourceName("nvidia.com/gpu.shared")
    card = DeviceName(ResourceName("nvidia.com/gpu"), DeviceId("GPU-1"))
    assert REPLICAS.whole(DeviceName(shared, REPLICAS.replica(card.id, 3))) == card
    # Somebody's own name for GPUs that nobody shares.
    assert REPLICAS.whole(DeviceName(shared, card.id)) == DeviceName(shared, card.id)
