"""When a GPU is free: the tables of cases for model.gpu_free, and what they mean for a release."""

import pytest
from msgspec.structs import replace

from holdfast.model.devices import Device, DeviceKind
from holdfast.model.free import (
    FormerPod,
    KernelFacts,
    Opened,
    ReleaseFacts,
    is_foreign,
    judge_kernel,
    judge_release,
    kept_by_nvml,
)
from holdfast.model.gpu import GpuProcess, GpuUse
from holdfast.model.gpu_free import (
    Bystander,
    Found,
    GpuRules,
    GpuSight,
    Granted,
    Level,
    bystander,
    follow,
    granted,
    sort,
    uuids,
    with_level,
)
from holdfast.model.ids import (
    BootId,
    DeviceId,
    DeviceName,
    HardwareKey,
    PodUid,
    ProcessId,
    ResourceName,
)
from holdfast.model.locks import DeviceLock, LockState
from holdfast.model.sandbox import Sandbox
from holdfast.model.use import Grip, Holder
from holdfast.model.verdict import Freedom

MIB = 1 << 20
FREE, IN_USE, UNKNOWN = Freedom.FREE, Freedom.IN_USE, Freedom.UNKNOWN
NODE = frozenset({Grip.NODE})
COMPUTES = frozenset({Grip.COMPUTES})
DRAWS = frozenset({Grip.DRAWS})
MINE, OTHER = PodUid("pod-mine"), PodUid("pod-other")
TO_MINE = Granted(pods=frozenset({MINE}), unowned=False)
TO_NOBODY = Granted()
TO_UNKNOWN = Granted(pods=frozenset({None}), unowned=False)
RULES = GpuRules()
GAPS = ("pid 9 (x) cannot be looked into",)


def holder(
    command: str = "python",
    grips: frozenset[Grip] = NODE,
    pod: PodUid | None = None,
    pid: int = 77,
    sandbox: Sandbox | None = None,
) -> Holder:
    return Holder(process=ProcessId(pid, 1), command=command, grips=grips, pod=pod, sandbox=sandbox)


WHO = [
    # The former pod's processes are always in the way, whatever they are called.
    (holder(grips=NODE, pod=MINE), TO_MINE, None),
    (holder(grips=COMPUTES, pod=MINE), TO_MINE, None),
    (holder("dcgm-exporter", pod=MINE), TO_MINE, None),
    (holder("nvidia-cuda-mps", COMPUTES, MINE), TO_MINE, None),
    (holder("Xorg", DRAWS, MINE), TO_MINE, None),
    (holder("exe", NODE | COMPUTES, MINE, sandbox=Sandbox.SENTRY), TO_MINE, None),
    # Nobody else may compute, in a pod or out of it.
    (holder(grips=COMPUTES, pod=OTHER), TO_MINE, None),
    (holder(grips=COMPUTES), TO_MINE, None),
    (holder(grips=COMPUTES), TO_NOBODY, None),
    (holder(grips=DRAWS, pod=OTHER), TO_MINE, None),
    (holder("dcgm-exporter", NODE | COMPUTES, OTHER), TO_MINE, None),
    (holder("Xorg", DRAWS | COMPUTES), TO_MINE, None),
    (holder("Xorg", DRAWS, OTHER), TO_MINE, None),
    (holder("python", DRAWS), TO_MINE, None),
    # Monitoring agents, the MPS server and the display are told of.
    (holder("dcgm-exporter", NODE, OTHER), TO_MINE, Bystander.MONITOR),
    (holder("dcgm-exporter", NODE, OTHER), TO_UNKNOWN, Bystander.MONITOR),
    (holder("nv-hostengine", NODE | COMPUTES), TO_MINE, Bystander.MONITOR),
    (holder("nvidia-persiste"), TO_NOBODY, Bystander.MONITOR),
    (holder("nvidia-cuda-mps", NODE | COMPUTES), TO_MINE, Bystander.MPS),
    (holder("nvidia-cuda-mps", COMPUTES, OTHER), TO_MINE, Bystander.MPS),
    (holder("Xorg", NODE | DRAWS), TO_MINE, Bystander.DISPLAY),
    # An open node alone is in the way when it is, or may be, the former pod's.
    (holder("telegraf", NODE, OTHER), TO_MINE, Bystander.ONLOOKER),
    (holder("telegraf", NODE, OTHER), TO_NOBODY, Bystander.ONLOOKER),
    (holder("telegraf", NODE), TO_UNKNOWN, Bystander.ONLOOKER),
    (holder("telegraf", NODE, OTHER), TO_UNKNOWN, None),
    # The node of a slice is its GPU's: a pod may have it for its other slice.
    (
        holder(grips=NODE, pod=MINE),
        replace(TO_MINE, elsewhere=frozenset({MINE})),
        Bystander.ONLOOKER,
    ),
    (holder(grips=NODE | COMPUTES, pod=MINE), replace(TO_MINE, elsewhere=frozenset({MINE})), None),
    (holder(grips=NODE, pod=MINE), replace(TO_MINE, elsewhere=frozenset({OTHER})), None),
]


@pytest.mark.parametrize(("who", "to", "role"), WHO)
def test_who_is_in_the_way_on_a_gpu_is_told_by_what_they_do_and_whose_they_are(
    who: Holder, to: Granted, role: Bystander | None
) -> None:
    assert bystander(who, to, RULES) is role


def test_what_counts_as_a_monitoring_agent_can_be_set() -> None:
    agent = holder("gpu-agent", COMPUTES)
    assert bystander(agent, TO_MINE, RULES) is None
    assert bystander(agent, TO_MINE, GpuRules(monitors=("gpu-agent",))) is Bystander.MONITOR


def test_whom_nvml_names_and_proc_has_no_more_is_still_being_taken_down() -> None:
    use = GpuUse(processes=(GpuProcess(pid=5, kind="compute"), GpuProcess(pid=6, kind="mps")))
    found = sort(use, (), {6: holder(pid=6)}, TO_MINE, RULES)
    assert found.sight.ended == (5,)
    assert [(each.process.pid, each.grips) for each in found.holders] == [(6, NODE | COMPUTES)]


def test_a_process_that_has_the_node_open_and_computes_is_one_holder_with_both_grips() -> None:
    use = GpuUse(processes=(GpuProcess(pid=77, kind="compute"),))
    found = sort(use, (holder(),), {77: holder(grips=frozenset())}, TO_MINE, RULES)
    assert [each.grips for each in found.holders] == [NODE | COMPUTES]


def test_the_memory_of_bystanders_is_not_counted() -> None:
    use = GpuUse(
        processes=(GpuProcess(pid=77, kind="graphics", memory=300 * MIB),), memory_used=310 * MIB
    )
    found = sort(use, (), {77: holder("Xorg", frozenset())}, TO_MINE, RULES)
    assert found.holders == ()
    assert found.sight.memory == 10 * MIB


IDLE = GpuSight(memory=5 * MIB, idle=5 * MIB)
JUDGED = [
    (IDLE, (), (), (FREE, False), "its memory is back (5 MiB"),
    (replace(IDLE, memory=69 * MIB), (), (), (FREE, False), "its memory is back"),
    (replace(IDLE, memory=69 * MIB + 1), (), (), (IN_USE, False), "not given back yet"),
    (replace(IDLE, memory=500 * MIB, overdue=True), (), (), (IN_USE, False), "--gpu-reset"),
    (replace(IDLE, memory=0), (), (), (FREE, False), "its memory is back"),
    (replace(IDLE, idle=None), (), (), (FREE, False), "processes alone tell"),
    (replace(IDLE, memory=None), (), (), (FREE, False), "does not tell its memory"),
    (IDLE, (holder(grips=COMPUTES),), (), (IN_USE, False), "pid 77 (python)"),
    (IDLE, (holder(grips=COMPUTES),), GAPS, (IN_USE, False), "pid 77 (python)"),
    (replace(IDLE, ended=(5,)), (), (), (IN_USE, False), "what pid 5 had on it"),
    (replace(IDLE, problem="NVML cannot tell"), (), (), (UNKNOWN, True), "NVML cannot tell"),
    (replace(IDLE, problem="x"), (holder(),), (), (IN_USE, False), "pid 77"),
    (IDLE, (), GAPS, (UNKNOWN, False), "cannot be looked into"),
    (IDLE, None, (), (UNKNOWN, True), "nobody has looked"),
    (None, (), (), (UNKNOWN, True), "NVML has not been asked"),
    (None, None, (), (UNKNOWN, True), "NVML has not been asked"),
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
    for opened in Opened:
        verdict = judge_kernel(
            KernelFacts(kind=DeviceKind.GPU, gpu=sight, holders=holders, gaps=gaps, opened=opened)
        )
        assert (verdict.freedom, verdict.final) == expected
        assert reason in verdict.reason


def test_bystanders_are_told_of_where_the_device_is_free() -> None:
    sight = replace(IDLE, bystanders=((holder("dcgm-exporter"), Bystander.MONITOR),))
    verdict = judge_kernel(KernelFacts(kind=DeviceKind.GPU, gpu=sight, holders=()))
    assert verdict.freedom is FREE
    assert "pid 77 (dcgm-exporter) outside any pod [node open], a monitoring agent" in (
        verdict.reason
    )


def gpu(
    sight: GpuSight | None, *, holders: tuple[Holder, ...] = (), gaps: tuple[str, ...] = ()
) -> KernelFacts:
    return KernelFacts(kind=DeviceKind.GPU, gpu=sight, holders=holders, gaps=gaps)


GONE = FormerPod(counted=False, processes=None, cgroup_seen=True, uncounted_for=99.0)


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
    assert judge_release(ReleaseFacts(kernel=facts, pod=GONE)).freedom is freedom


@pytest.mark.parametrize(
    ("facts", "foreign"),
    [
        (gpu(IDLE, holders=(holder(grips=COMPUTES),)), True),
        (gpu(IDLE, holders=(holder(grips=COMPUTES),), gaps=GAPS), False),
        (gpu(replace(IDLE, memory=500 * MIB)), False),
        (gpu(replace(IDLE, ended=(5,))), False),
        (gpu(replace(IDLE, problem="x")), False),
        (gpu(IDLE), False),
        (KernelFacts(holders=(holder(),)), True),
        (KernelFacts(holders=(), opened=Opened.BUSY), True),
    ],
)
def test_a_gpu_is_called_foreign_only_for_a_process_that_can_be_named(
    facts: KernelFacts, foreign: bool
) -> None:
    assert is_foreign(facts) is foreign


def test_nvml_alone_keeps_a_gpu_and_nothing_else() -> None:
    assert kept_by_nvml(gpu(None))
    assert kept_by_nvml(gpu(replace(IDLE, memory=500 * MIB)))
    assert not kept_by_nvml(gpu(IDLE, holders=(holder(),)))
    assert not kept_by_nvml(KernelFacts(holders=None))


def seen(memory: int | None, *, problem: str = "", ended: tuple[int, ...] = ()) -> Found:
    return Found(sight=GpuSight(memory=memory, problem=problem, ended=ended))


OWNED = TO_MINE
LEVELS = [
    # (known, seen now, granted to, at, what is known then); the deadline is 60 s
    (Level(), seen(5 * MIB), TO_NOBODY, 0, Level(idle=5 * MIB)),
    (Level(), seen(5 * MIB), OWNED, 0, Level()),
    (Level(), seen(None), TO_NOBODY, 0, Level()),
    (Level(), seen(5 * MIB, problem="x"), TO_NOBODY, 0, Level()),
    (Level(), seen(5 * MIB, ended=(7,)), TO_NOBODY, 0, Level()),
    (Level(), Found(holders=(holder(),), sight=GpuSight(memory=5)), TO_NOBODY, 0, Level()),
    (Level(idle=90 * MIB), seen(5 * MIB), TO_NOBODY, 0, Level(idle=5 * MIB)),
    (Level(idle=90 * MIB), seen(5 * MIB), OWNED, 0, Level(idle=90 * MIB)),
    (Level(idle=5 * MIB), seen(60 * MIB), TO_NOBODY, 0, Level(idle=5 * MIB)),
    (Level(idle=5), seen(99 * MIB), OWNED, 3, Level(idle=5, above_since=3)),
    (Level(idle=5, above_since=3), seen(98 * MIB), OWNED, 99, Level(idle=5, above_since=3)),
    (Level(idle=5, above_since=3), seen(5), OWNED, 99, Level(idle=5)),
    (Level(idle=5, above_since=3), seen(98 * MIB, ended=(7,)), OWNED, 99, Level(idle=5)),
    # What stands on a GPU that nobody has is what its driver needs from now on.
    (Level(idle=5, above_since=3), seen(99 * MIB), TO_NOBODY, 62, Level(idle=5, above_since=3)),
    (Level(idle=5, above_since=3), seen(99 * MIB), TO_NOBODY, 63, Level(idle=99 * MIB)),
]


@pytest.mark.parametrize(("level", "found", "to", "now", "then"), LEVELS)
def test_idle_memory_is_the_least_that_was_seen_while_nobody_had_the_gpu(
    level: Level, found: Found, to: Granted, now: float, then: Level
) -> None:
    assert follow(level, found, to, now=now, deadline=60) == then


def test_memory_that_stays_is_overdue_after_the_deadline_and_not_before() -> None:
    level = Level(idle=5, above_since=3)
    looks = [with_level(seen(99 * MIB), level, now=now, deadline=60) for now in (62, 63)]
    assert [each.sight.overdue for each in looks] == [False, True]
    assert {each.sight.idle for each in looks} == {5}


def device(*keys: str) -> Device:
    return Device(
        name=DeviceName(ResourceName("nvidia.com/gpu"), DeviceId(keys[0].partition("/")[2])),
        kind=DeviceKind.GPU,
        keys=frozenset(map(HardwareKey, keys)),
        nodes=(),
        functions=(),
    )


def lock(of: Device, state: LockState, pod: PodUid | None) -> dict[DeviceName, DeviceLock]:
    return {
        of.name: DeviceLock(
            device=of.name, keys=of.keys, state=state, fence=1, since=0.0, boot=BootId("b"), pod=pod
        )
    }


def test_a_gpu_in_mig_mode_is_asked_for_itself_and_for_every_slice() -> None:
    assert uuids(device("gpu/GPU-1", "mig/GPU-1/2/MIG-2", "mig/GPU-1/1/MIG-1")) == (
        "GPU-1",
        "MIG-1",
        "MIG-2",
    )
    assert uuids(device("mig/GPU-1/1/MIG-1")) == ("MIG-1",)


WHOLE, ONE, TWO = (
    device("gpu/GPU-1", "mig/GPU-1/1/MIG-1"),
    device("mig/GPU-1/1/MIG-1"),
    device("mig/GPU-1/2/MIG-2"),
)
ELSEWHERE = device("gpu/GPU-2")


@pytest.mark.parametrize(
    ("of", "locks", "expected"),
    [
        (WHOLE, {}, Granted()),
        (WHOLE, lock(WHOLE, LockState.RELEASING, MINE), TO_MINE),
        (WHOLE, lock(ONE, LockState.HELD, MINE), TO_MINE),
        (WHOLE, lock(ELSEWHERE, LockState.HELD, MINE), Granted()),
        (WHOLE, lock(WHOLE, LockState.RELEASING, None), TO_UNKNOWN),
        (WHOLE, lock(WHOLE, LockState.HELD, None), Granted(unowned=False)),
        (WHOLE, lock(WHOLE, LockState.FOREIGN, None), Granted()),
        (ONE, lock(TWO, LockState.HELD, MINE), Granted(elsewhere=frozenset({MINE}))),
        (ONE, lock(TWO, LockState.RELEASING, MINE), Granted()),
        (WHOLE, lock(TWO, LockState.HELD, MINE), Granted()),
    ],
)
def test_a_gpu_was_granted_to_the_pods_of_the_locks_on_its_hardware(
    of: Device, locks: dict[DeviceName, DeviceLock], expected: Granted
) -> None:
    assert granted(of, locks) == expected
