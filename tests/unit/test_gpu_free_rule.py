"""When a GPU is free: the tables of cases for model.gpu_free, and what they mean for a release."""

import pytest
from msgspec.structs import replace

from fakes.books import device_lock, device_of, name
from fakes.onegpu import RULES
from holdfast.model.book.book import DeviceLock, LockState
from holdfast.model.devices import Device, DeviceKind
from holdfast.model.ids import (
    DeviceName,
    PodUid,
    ProcessId,
    ResourceName,
)
from holdfast.model.nvidia.free import (
    Bystander,
    GpuHolders,
    GpuOwners,
    GpuRules,
    GpuSight,
    IdleLevel,
    IdleLook,
    IdleMemory,
    bystander,
    follow,
    granted_on,
    restored,
    sort,
    unused,
    with_level,
)
from holdfast.model.nvidia.gpu import GpuProcess, GpuUse
from holdfast.model.use.free import (
    FormerPod,
    Freedom,
    KernelFacts,
    OpenOutcome,
    ReleaseFacts,
    is_foreign,
    judge_kernel,
    judge_release,
    kept_by_driver,
)
from holdfast.model.use.holders import DeviceAccess, Holder, Sandbox

MIB = 1 << 20
FREE, IN_USE, UNKNOWN = Freedom.FREE, Freedom.IN_USE, Freedom.UNKNOWN
NODE = frozenset({DeviceAccess.NODE})
COMPUTES = frozenset({DeviceAccess.COMPUTES})
DRAWS = frozenset({DeviceAccess.DRAWS})
MINE, OTHER = PodUid("pod-mine"), PodUid("pod-other")
TO_MINE = GpuOwners(pods=frozenset({MINE}), unowned=False)
TO_NOBODY = GpuOwners()
TO_UNKNOWN = GpuOwners(pods=frozenset({None}), unowned=False)
TO_ADMIN = replace(TO_MINE, admins=frozenset({OTHER}))
GAPS = ("pid 9 (x) cannot be inspected",)


def holder(
    command: str = "python",
    access: frozenset[DeviceAccess] = NODE,
    pod: PodUid | None = None,
    pid: int = 77,
    sandbox: Sandbox | None = None,
) -> Holder:
    return Holder(
        process=ProcessId(pid, 1), command=command, access=access, pod=pod, sandbox=sandbox
    )


WHO = [
    # The former pod's processes are always in the way, whatever they are called.
    (holder(access=NODE, pod=MINE), TO_MINE, None),
    (holder(access=COMPUTES, pod=MINE), TO_MINE, None),
    (holder("dcgm-exporter", pod=MINE), TO_MINE, None),
    (holder("nvidia-cuda-mps", COMPUTES, MINE), TO_MINE, None),
    (holder("Xorg", DRAWS, MINE), TO_MINE, None),
    (holder("exe", NODE | COMPUTES, MINE, sandbox=Sandbox.SENTRY), TO_MINE, None),
    # Nobody else may compute, in a pod or out of it.
    (holder(access=COMPUTES, pod=OTHER), TO_MINE, None),
    (holder(access=COMPUTES), TO_MINE, None),
    (holder(access=COMPUTES), TO_NOBODY, None),
    (holder(access=DRAWS, pod=OTHER), TO_MINE, None),
    (holder("dcgm-exporter", NODE | COMPUTES, OTHER), TO_MINE, None),
    # In a pod anybody may be called like the MPS server.
    (holder("nvidia-cuda-mps", COMPUTES, OTHER), TO_MINE, None),
    (holder("nvidia-cuda-mps", NODE | COMPUTES, OTHER), TO_NOBODY, None),
    (holder("Xorg", DRAWS | COMPUTES), TO_MINE, None),
    (holder("Xorg", DRAWS, OTHER), TO_MINE, None),
    (holder("python", DRAWS), TO_MINE, None),
    # Monitoring agents, the MPS server and the display are told of.
    (holder("dcgm-exporter", NODE, OTHER), TO_MINE, Bystander.MONITOR),
    (holder("dcgm-exporter", NODE, OTHER), TO_UNKNOWN, Bystander.MONITOR),
    (holder("nv-hostengine", NODE | COMPUTES), TO_MINE, Bystander.MONITOR),
    (holder("nvidia-persiste"), TO_NOBODY, Bystander.MONITOR),
    (holder("nvidia-cuda-mps", NODE | COMPUTES), TO_MINE, Bystander.MPS),
    (holder("nvidia-cuda-mps", NODE, OTHER), TO_MINE, Bystander.MPS),
    (holder("Xorg", NODE | DRAWS), TO_MINE, Bystander.DISPLAY),
    # An open node alone is in the way when it is, or may be, the former pod's.
    (holder("telegraf", NODE, OTHER), TO_MINE, Bystander.ONLOOKER),
    (holder("telegraf", NODE, OTHER), TO_NOBODY, Bystander.ONLOOKER),
    (holder("telegraf", NODE), TO_UNKNOWN, Bystander.ONLOOKER),
    (holder("telegraf", NODE, OTHER), TO_UNKNOWN, None),
    # The node of a slice is its GPU's: a pod may have it for its other slice.
    (
        holder(access=NODE, pod=MINE),
        replace(TO_MINE, elsewhere=frozenset({MINE})),
        Bystander.ONLOOKER,
    ),
    (holder(access=NODE | COMPUTES, pod=MINE), replace(TO_MINE, elsewhere=frozenset({MINE})), None),
    (holder(access=NODE, pod=MINE), replace(TO_MINE, elsewhere=frozenset({OTHER})), None),
    # A pod with adminAccess keeps nobody from the GPU, unless the GPU was granted to it as well.
    (holder(access=COMPUTES, pod=OTHER), TO_ADMIN, Bystander.ADMIN),
    (holder(access=NODE, pod=OTHER), replace(TO_ADMIN, pods=frozenset({None})), Bystander.ADMIN),
    (holder(access=COMPUTES), TO_ADMIN, None),
    (holder(access=COMPUTES, pod=PodUid("a third one")), TO_ADMIN, None),
]


@pytest.mark.parametrize(("who", "to", "role"), WHO)
def test_who_is_in_the_way_on_a_gpu_is_told_by_what_they_do_and_whose_they_are(
    who: Holder, to: GpuOwners, role: Bystander | None
) -> None:
    assert bystander(who, to, RULES) is role


def test_a_pod_that_was_given_the_gpu_is_in_the_way_all_the_same() -> None:
    both = replace(TO_ADMIN, pods=frozenset({OTHER}))
    assert bystander(holder(access=COMPUTES, pod=OTHER), both, RULES) is None
    assert bystander(holder(access=NODE, pod=OTHER), both, RULES) is None


def test_whom_nvml_names_and_proc_has_no_more_is_still_being_taken_down() -> None:
    use = GpuUse(processes=(GpuProcess(pid=5, kind="compute"), GpuProcess(pid=6, kind="mps")))
    found = sort(use, (), {6: holder(pid=6)}, TO_MINE, RULES)
    assert found.sight.ended == (5,)
    assert [(each.process.pid, each.access) for each in found.holders] == [(6, NODE | COMPUTES)]


def test_the_memory_of_bystanders_is_not_counted() -> None:
    use = GpuUse(
        processes=(GpuProcess(pid=77, kind="graphics", memory=300 * MIB),), memory_used=310 * MIB
    )
    found = sort(use, (), {77: holder("Xorg", frozenset())}, TO_MINE, RULES)
    assert found.holders == ()
    assert found.sight.memory == 10 * MIB


def test_a_bystander_that_two_lists_have_is_counted_once() -> None:
    lists = (("compute", 290), ("graphics", 300))
    use = GpuUse(
        processes=tuple(GpuProcess(pid=77, kind=kind, memory=mib * MIB) for kind, mib in lists),
        memory_used=310 * MIB,
    )
    monitor = {77: holder("dcgm-exporter", frozenset())}
    assert sort(use, (), monitor, TO_MINE, RULES).sight.memory == 10 * MIB
    two = {**monitor, 78: holder("dcgm-exporter", frozenset(), pid=78)}
    more = replace(use, processes=(*use.processes, GpuProcess(pid=78, kind="mps", memory=4 * MIB)))
    assert sort(more, (), two, TO_MINE, RULES).sight.memory == 6 * MIB


def test_where_the_memory_of_a_bystander_is_not_told_what_is_left_is_not_known() -> None:
    use = GpuUse(processes=(GpuProcess(pid=77, kind="graphics"),), memory_used=310 * MIB)
    found = sort(use, (), {77: holder("Xorg", frozenset())}, TO_MINE, RULES)
    assert found.sight.memory is None


IDLE = GpuSight(memory=5 * MIB, idle=5 * MIB, slack=RULES.slack)
JUDGED = [
    (IDLE, (), (), (FREE, False), "its memory is back (5 MiB"),
    (replace(IDLE, memory=69 * MIB), (), (), (FREE, False), "its memory is back"),
    (replace(IDLE, memory=69 * MIB + 1), (), (), (IN_USE, False), "not freed yet"),
    (replace(IDLE, memory=500 * MIB, overdue=True), (), (), (IN_USE, False), "--gpu-reset"),
    (replace(IDLE, memory=0), (), (), (FREE, False), "its memory is back"),
    (replace(IDLE, idle=75 * MIB, least=5 * MIB), (), (), (FREE, False), "idle 70 MiB more than"),
    # A GPU that works for nobody is waited for, and then handed over with a word about it.
    (replace(IDLE, utilization=49), (), (), (FREE, False), "its memory is back"),
    (replace(IDLE, utilization=100), (), (), (IN_USE, False), "it is 100 % busy"),
    (replace(IDLE, utilization=100), (), GAPS, (IN_USE, False), "it is 100 % busy"),
    (replace(IDLE, utilization=100, restless=True), (), (), (UNKNOWN, False), "it is 100 % busy"),
    (replace(IDLE, utilization=None, restless=True), (), (), (FREE, False), "its memory is back"),
    (replace(IDLE, idle=None), (), (), (FREE, False), "only processes count"),
    (replace(IDLE, memory=None), (), (), (FREE, False), "does not report its memory"),
    (IDLE, (holder(access=COMPUTES),), (), (IN_USE, False), "pid 77 (python)"),
    (IDLE, (holder(access=COMPUTES),), GAPS, (IN_USE, False), "pid 77 (python)"),
    (replace(IDLE, ended=(5,)), (), (), (IN_USE, False), "what pid 5 had on it"),
    (replace(IDLE, problem="NVML cannot tell"), (), (), (UNKNOWN, True), "NVML cannot tell"),
    (replace(IDLE, problem="x"), (holder(),), (), (IN_USE, False), "pid 77"),
    (IDLE, (), GAPS, (UNKNOWN, False), "cannot be inspected"),
    (IDLE, None, (), (UNKNOWN, True), "have not been scanned"),
    (None, (), (), (UNKNOWN, True), "its driver has not been asked"),
    (None, None, (), (UNKNOWN, True), "its driver has not been asked"),
    (None, (holder(),), (), (IN_USE, False), "pid 77"),
]


@pytest.mark.parametrize(("sight", "holders", "gaps", "expected", "reason"), JUDGED)
def test_a_gpu_is_free_only_when_nvml_says_so_nobody_is_in_the_way_and_its_memory_is_back(
    sight: GpuSight | None,
    holders: tuple[Holder, ...] | None,
    gaps: tuple[str, ...],
    expected: tuple[Freedom, bool],
    reason: str,
) -> None:
    # That its node could be opened says nothing: anybody may open it at any time.
    for opened in OpenOutcome:
        verdict = judge_kernel(
            KernelFacts(
                kind=DeviceKind.DRIVER, sight=sight, holders=holders, gaps=gaps, opened=opened
            )
        )
        assert (verdict.freedom, verdict.final) == expected
        assert reason in verdict.reason


def test_bystanders_are_told_of_where_the_device_is_free() -> None:
    sight = replace(IDLE, bystanders=((holder("dcgm-exporter"), Bystander.MONITOR),))
    verdict = judge_kernel(KernelFacts(kind=DeviceKind.DRIVER, sight=sight, holders=()))
    assert verdict.freedom is FREE
    assert "pid 77 (dcgm-exporter) outside any pod [node open], a monitoring agent" in (
        verdict.reason
    )


def gpu(
    sight: GpuSight | None, *, holders: tuple[Holder, ...] = (), gaps: tuple[str, ...] = ()
) -> KernelFacts:
    return KernelFacts(kind=DeviceKind.DRIVER, sight=sight, holders=holders, gaps=gaps)


GONE = FormerPod(counted=False, populated=False, cgroup_seen=True, uncounted_for=99.0)


@pytest.mark.parametrize(
    ("facts", "freedom"),
    [
        (gpu(IDLE), FREE),
        (gpu(IDLE, gaps=GAPS), FREE),
        (gpu(None), UNKNOWN),
        (gpu(replace(IDLE, problem="x")), UNKNOWN),
        (gpu(replace(IDLE, problem="x"), gaps=GAPS), UNKNOWN),
        (gpu(replace(IDLE, memory=500 * MIB)), IN_USE),
        (gpu(replace(IDLE, memory=500 * MIB, overdue=True)), IN_USE),
        (gpu(replace(IDLE, ended=(5,)), gaps=GAPS), IN_USE),
    ],
)
def test_a_lock_on_a_gpu_is_not_freed_while_nvml_fails_or_its_memory_is_not_back(
    facts: KernelFacts, freedom: Freedom
) -> None:
    assert judge_release(ReleaseFacts(unseen_grace=30.0, kernel=facts, pod=GONE)).freedom is freedom


RESTLESS = replace(IDLE, utilization=100, restless=True)


@pytest.mark.parametrize(
    ("facts", "freedom"),
    [
        (gpu(RESTLESS), FREE),
        (gpu(RESTLESS, gaps=GAPS), UNKNOWN),
        (gpu(replace(IDLE, utilization=100)), IN_USE),
        (gpu(replace(IDLE, problem="x")), UNKNOWN),
        (KernelFacts(), UNKNOWN),
    ],
)
def test_a_gpu_of_an_unknown_pod_that_works_for_nobody_is_free_once_every_process_was_seen(
    facts: KernelFacts, freedom: Freedom
) -> None:
    assert judge_release(ReleaseFacts(unseen_grace=30.0, kernel=facts)).freedom is freedom


@pytest.mark.parametrize(
    ("facts", "foreign"),
    [
        (gpu(IDLE, holders=(holder(access=COMPUTES),)), True),
        (gpu(IDLE, holders=(holder(access=COMPUTES),), gaps=GAPS), False),
        (gpu(replace(IDLE, memory=500 * MIB)), False),
        (gpu(replace(IDLE, ended=(5,))), False),
        (gpu(replace(IDLE, problem="x")), False),
        (gpu(IDLE), False),
        (KernelFacts(holders=(holder(),)), True),
        (KernelFacts(holders=(), opened=OpenOutcome.BUSY), True),
    ],
)
def test_a_gpu_is_called_foreign_only_for_a_process_that_can_be_named(
    facts: KernelFacts, foreign: bool
) -> None:
    assert is_foreign(facts) is foreign


def test_nvml_alone_keeps_a_gpu_and_nothing_else() -> None:
    assert kept_by_driver(gpu(None))
    assert kept_by_driver(gpu(replace(IDLE, memory=500 * MIB)))
    assert not kept_by_driver(gpu(IDLE, holders=(holder(),)))
    works = replace(IDLE, utilization=100)
    assert kept_by_driver(gpu(works))
    assert not kept_by_driver(gpu(replace(works, restless=True))), "every process has to be seen"
    assert not kept_by_driver(KernelFacts(holders=None))


DEADLINE, LATER = 60.0, 600.0
HUGE = 70 << 30
SETTLED = IdleLevel(idle=5 * MIB, least=5 * MIB)


def at(memory: int | None, *, owned: bool = False, works: int | None = None) -> IdleLook:
    return IdleLook(memory=memory, utilization=works, unowned=not owned)


def since(level: IdleLevel, above: float) -> IdleLevel:
    return replace(level, above_since=above)


LEVELS = [
    # (known, seen now, at, what is known then); the deadline is 60 s
    (IdleLevel(), at(5 * MIB), 0, SETTLED),
    (IdleLevel(), at(5 * MIB, owned=True), 0, IdleLevel()),
    (IdleLevel(), at(None), 0, IdleLevel()),
    (IdleLevel(), None, 0, IdleLevel()),
    (IdleLevel(idle=90 * MIB, least=90 * MIB), at(5 * MIB), 0, SETTLED),
    (SETTLED, at(1 * MIB, owned=True), 0, SETTLED),
    (SETTLED, at(69 * MIB), 0, SETTLED),
    (SETTLED, at(69 * MIB + 1), 0, since(SETTLED, 0)),
    (since(SETTLED, 3), at(None), 99, SETTLED),
    (SETTLED, at(99 * MIB, owned=True), 3, since(SETTLED, 3)),
    (since(SETTLED, 3), at(98 * MIB, owned=True), 99, since(SETTLED, 3)),
    (since(SETTLED, 3), at(5 * MIB, owned=True), 99, SETTLED),
    (since(SETTLED, 3), None, 99, SETTLED),
    # A small rise that stands is what the driver needs from now on, also after a pod.
    (since(SETTLED, 3), at(99 * MIB), 62, since(SETTLED, 3)),
    (since(SETTLED, 3), at(99 * MIB), 63, IdleLevel(idle=99 * MIB, least=5 * MIB)),
    (since(SETTLED, 3), at(99 * MIB, owned=True), 602, since(SETTLED, 3)),
    (since(SETTLED, 3), at(99 * MIB, owned=True), 603, IdleLevel(idle=99 * MIB, least=5 * MIB)),
    (since(SETTLED, 3), at(261 * MIB), 63, IdleLevel(idle=261 * MIB, least=5 * MIB)),
    (since(SETTLED, 3), at(261 * MIB + 1), 63, since(SETTLED, 3)),
    # A great one is a leak, however long it stands and whoever had the GPU.
    (since(SETTLED, 3), at(HUGE), 1e6, since(SETTLED, 3)),
    (since(SETTLED, 3), at(HUGE, owned=True), 1e6, since(SETTLED, 3)),
    # All rises together are bounded, by 4 times the slack above the least that was ever seen.
    (
        IdleLevel(idle=200 * MIB, least=5 * MIB, above_since=3),
        at(265 * MIB, owned=True),
        1e6,
        IdleLevel(idle=200 * MIB, least=5 * MIB, above_since=3),
    ),
    # A GPU that works for nobody is noted, and no more when it rests.
    (SETTLED, at(5 * MIB, works=50), 7, replace(SETTLED, busy_since=7)),
    (SETTLED, at(5 * MIB, works=49), 7, SETTLED),
    (replace(SETTLED, busy_since=7), at(5 * MIB, works=100), 9, replace(SETTLED, busy_since=7)),
    (replace(SETTLED, busy_since=7), at(5 * MIB, works=3), 9, SETTLED),
    (replace(SETTLED, busy_since=7), at(5 * MIB), 9, SETTLED),
    (replace(SETTLED, busy_since=7), None, 9, SETTLED),
]


@pytest.mark.parametrize(("level", "look", "now", "then"), LEVELS)
def test_idle_memory_is_the_least_that_was_seen_while_nobody_had_the_gpu_and_small_rises(
    level: IdleLevel, look: IdleLook | None, now: float, then: IdleLevel
) -> None:
    assert follow(level, look, now=now, rules=RULES) == then


def test_the_slack_can_be_set() -> None:
    wide = GpuRules(slack=1 << 30, deadline=DEADLINE)
    assert follow(SETTLED, at(900 * MIB, owned=True), now=0, rules=wide) == SETTLED
    found = with_level(GpuHolders(sight=GpuSight(memory=900 * MIB)), SETTLED, now=0, rules=wide)
    assert not found.sight.above


def test_many_small_leaks_end_in_one_that_is_told() -> None:
    level, now, memory = SETTLED, 0.0, 5 * MIB
    for _ in range(20):
        memory += 66 * MIB
        for _ in range(2):
            level = follow(level, at(memory, owned=True), now=now, rules=RULES)
            now += LATER
    assert level.idle is not None
    assert level.idle <= 5 * MIB + 4 * 64 * MIB
    found = with_level(GpuHolders(sight=GpuSight(memory=memory)), level, now=now, rules=RULES)
    verdict = judge_kernel(gpu(found.sight))
    assert verdict.freedom is IN_USE
    assert "not freed" in verdict.reason
    assert "--gpu-reset" in verdict.reason


def test_what_is_known_outlives_a_restart_and_no_other_load_of_the_driver() -> None:
    level = IdleLevel(idle=90 * MIB, least=5 * MIB, above_since=3, busy_since=4)
    kept = level.kept("boot-1 load 7")
    assert kept == IdleMemory(load="boot-1 load 7", least=5 * MIB, now=90 * MIB)
    assert restored(kept, "boot-1 load 7") == IdleLevel(idle=90 * MIB, least=5 * MIB)
    assert restored(kept, "boot-1 load 8") == IdleLevel()
    assert restored(None, "boot-1 load 7") == IdleLevel()
    assert IdleLevel().kept("boot-1 load 7") is None


@pytest.mark.parametrize(
    "found",
    [
        GpuHolders(sight=GpuSight(memory=5, problem="x")),
        GpuHolders(sight=GpuSight(memory=5, ended=(7,))),
        GpuHolders(holders=(holder(),), sight=GpuSight(memory=5)),
    ],
)
def test_nothing_is_learned_of_a_gpu_while_somebody_is_on_it_or_may_be(found: GpuHolders) -> None:
    assert unused(found, TO_NOBODY) is None


def test_memory_that_stays_is_overdue_after_the_deadline_and_not_before() -> None:
    level = IdleLevel(idle=5, least=5, above_since=3, busy_since=3)
    found = GpuHolders(sight=GpuSight(memory=99 * MIB))
    looks = [with_level(found, level, now=now, rules=RULES) for now in (62, 63)]
    assert [each.sight.overdue for each in looks] == [False, True]
    assert [each.sight.restless for each in looks] == [False, True]
    assert {each.sight.idle for each in looks} == {5}


def test_work_is_nobodys_only_where_no_bystander_is_at_work_on_the_gpu() -> None:
    use = GpuUse(
        processes=(GpuProcess(pid=77, kind="graphics"),), memory_used=5 * MIB, utilization=90
    )
    drawing = sort(use, (), {77: holder("Xorg", frozenset())}, TO_MINE, RULES)
    assert drawing.sight.utilization is None
    watching = sort(replace(use, processes=()), (holder("dcgm-exporter"),), {}, TO_MINE, RULES)
    assert watching.sight.utilization == 90


def device(*keys: str) -> Device:
    return device_of(
        name(keys[0].partition("/")[2], ResourceName("nvidia.com/gpu")),
        *keys,
        kind=DeviceKind.DRIVER,
    )


def lock(
    of: Device, state: LockState, pod: PodUid | None, *, started: bool = True
) -> dict[DeviceName, DeviceLock]:
    return {
        of.name: device_lock(of.name, *of.keys, state=state, since=0.0, pod=pod, started=started)
    }


WHOLE, ONE, TWO = (
    device("card/GPU-1", "part/GPU-1/1/MIG-1"),
    device("part/GPU-1/1/MIG-1"),
    device("part/GPU-1/2/MIG-2"),
)
ELSEWHERE = device("card/GPU-2")


@pytest.mark.parametrize(
    ("of", "locks", "expected"),
    [
        (WHOLE, {}, GpuOwners()),
        (WHOLE, lock(WHOLE, LockState.RELEASING, MINE), TO_MINE),
        (WHOLE, lock(ONE, LockState.HELD, MINE), TO_MINE),
        (WHOLE, lock(ELSEWHERE, LockState.HELD, MINE), GpuOwners()),
        (WHOLE, lock(WHOLE, LockState.RELEASING, None), TO_UNKNOWN),
        (WHOLE, lock(WHOLE, LockState.RELEASING, None, started=False), GpuOwners(unowned=False)),
        (WHOLE, lock(WHOLE, LockState.RELEASING, MINE, started=False), TO_MINE),
        (WHOLE, lock(WHOLE, LockState.HELD, None), GpuOwners(unowned=False)),
        (WHOLE, lock(WHOLE, LockState.FOREIGN, None), GpuOwners()),
        (ONE, lock(TWO, LockState.HELD, MINE), GpuOwners(elsewhere=frozenset({MINE}))),
        (ONE, lock(TWO, LockState.RELEASING, MINE), GpuOwners()),
        (ONE, lock(ELSEWHERE, LockState.HELD, MINE), GpuOwners()),
        (WHOLE, lock(TWO, LockState.HELD, MINE), GpuOwners()),
    ],
)
def test_a_gpu_was_granted_to_the_pods_of_the_locks_on_its_hardware(
    of: Device, locks: dict[DeviceName, DeviceLock], expected: GpuOwners
) -> None:
    assert granted_on(of.keys, locks) == expected


def test_of_many_that_have_a_gpu_open_or_end_on_it_a_few_are_named() -> None:
    """What is told of a release is kept in the history."""
    many = tuple((holder(pod=OTHER, pid=pid), Bystander.ONLOOKER) for pid in range(2000))
    open_ = GpuSight(memory=5, bystanders=many).judge(looked=True, gaps=())
    assert open_.freedom is FREE
    assert open_.reason.endswith(", which has it open and does not use it and 1992 more")
    ends = GpuSight(memory=5, ended=tuple(range(2000))).judge(looked=True, gaps=())
    assert "what pid 0, 1, 2, 3, 4, 5, 6, 7 and 1992 more had on it" in ends.reason
