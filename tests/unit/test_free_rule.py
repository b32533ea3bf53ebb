"""When a device is free: the table of cases, by kind of device and by what can be seen."""

import pytest
from msgspec.structs import replace

from fakes.books import X, Y
from holdfast.model.devices import DeviceKind
from holdfast.model.ids import PciAddress, PodUid, ProcessId
from holdfast.model.use.free import (
    FormerPod,
    Freedom,
    KernelFacts,
    OpenOutcome,
    ReleaseFacts,
    asking_whose,
    but_for_own_machine,
    is_foreign,
    judge_kernel,
    judge_release,
)
from holdfast.model.use.holders import DeviceAccess, Holder, Sandbox

_FREE, _IN_USE, _UNKNOWN = Freedom.FREE, Freedom.IN_USE, Freedom.UNKNOWN
_ENABLED = (PciAddress("0000:00:05.0"),)
_GAPS = ("cannot read /proc/77/fd: permission denied",)
_HOLDER = Holder(
    process=ProcessId(77, 5), command="python", access=frozenset({DeviceAccess.DEVICE_FD}), pod=X
)


@pytest.mark.parametrize(
    ("facts", "freedom", "reason"),
    [
        (KernelFacts(holders=()), _FREE, "no process has it open; it is not enabled"),
        (KernelFacts(), _UNKNOWN, "have not been scanned"),
        (KernelFacts(holders=(), gaps=_GAPS), _UNKNOWN, "permission denied"),
        (KernelFacts(holders=(_HOLDER,)), _IN_USE, "pid 77 (python) of pod pod-x [device fd]"),
        (KernelFacts(holders=(_HOLDER,), gaps=_GAPS), _IN_USE, "pid 77"),
        (KernelFacts(enabled=_ENABLED, holders=(_HOLDER,)), _IN_USE, "pid 77"),
        (KernelFacts(enabled=_ENABLED), _IN_USE, "0000:00:05.0 is enabled"),
        (KernelFacts(enabled=_ENABLED, holders=()), _IN_USE, "an fd in flight"),
        (KernelFacts(enabled=_ENABLED, holders=(), gaps=_GAPS), _IN_USE, "cannot be seen"),
        (KernelFacts(opened=OpenOutcome.BUSY), _IN_USE, "cannot be opened: busy"),
        (KernelFacts(opened=OpenOutcome.BUSY, holders=()), _IN_USE, "no process has it open"),
        (KernelFacts(opened=OpenOutcome.BUSY, holders=(), gaps=_GAPS), _IN_USE, "cannot be seen"),
        (KernelFacts(opened=OpenOutcome.BUSY, holders=(_HOLDER,)), _IN_USE, "pid 77"),
        (KernelFacts(opened=OpenOutcome.SUCCEEDED), _FREE, "opened exclusively"),
        (KernelFacts(opened=OpenOutcome.SUCCEEDED, holders=(), gaps=_GAPS), _FREE, "exclusively"),
        (KernelFacts(opened=OpenOutcome.SUCCEEDED, holders=(_HOLDER,)), _IN_USE, "pid 77"),
        (KernelFacts(kind=DeviceKind.ACCEL, holders=()), _FREE, "no fd in flight is seen"),
        (KernelFacts(kind=DeviceKind.ACCEL), _UNKNOWN, "have not been scanned"),
        (KernelFacts(kind=DeviceKind.ACCEL, holders=(), gaps=_GAPS), _UNKNOWN, "permission"),
        (KernelFacts(kind=DeviceKind.ACCEL, holders=(_HOLDER,)), _IN_USE, "pid 77"),
    ],
)
def test_the_kernel_shows_whether_somebody_uses_a_device(
    facts: KernelFacts, freedom: Freedom, reason: str
) -> None:
    verdict = judge_kernel(facts)
    assert verdict.freedom is freedom
    assert reason in verdict.reason


@pytest.mark.parametrize(
    ("unread", "of_unread", "but", "gap"),
    [
        ((), (), (77,), "cannot read"),
        ((77,), _GAPS, (), "cannot read"),
        ((77,), _GAPS, (77, 78), ""),
        ((77, 79), _GAPS, (77, 78), "cannot read"),
        ((77,), (), (77,), "cannot read"),
        ((77,), ("another text",), (77,), "cannot read"),
    ],
)
def test_a_gap_about_known_processes_alone_is_none_for_who_knows_them(
    unread: tuple[int, ...], of_unread: tuple[str, ...], but: tuple[int, ...], gap: str
) -> None:
    facts = KernelFacts(gaps=_GAPS, unread=frozenset(unread), of_unread=of_unread)
    assert facts.gap(but).startswith(gap)
    assert bool(facts.gap(but)) == bool(gap)
    assert replace(facts, gaps=(*_GAPS, "no /proc")).gap((77, 78)) in {*_GAPS, "no /proc"}
    assert KernelFacts().gap() == ""


@pytest.mark.parametrize(
    ("facts", "foreign"),
    [
        (KernelFacts(holders=(_HOLDER,)), True),
        (KernelFacts(enabled=_ENABLED, holders=()), True),
        (KernelFacts(enabled=_ENABLED, holders=(_HOLDER,), gaps=_GAPS), False),
        (KernelFacts(enabled=_ENABLED, holders=(), gaps=_GAPS), False),
        (KernelFacts(enabled=_ENABLED, holders=(), opened=OpenOutcome.SUCCEEDED), False),
        (KernelFacts(holders=()), False),
        (KernelFacts(holders=(), gaps=_GAPS), False),
    ],
)
def test_a_device_is_foreign_only_by_a_look_that_missed_nothing(
    facts: KernelFacts, foreign: bool
) -> None:
    assert is_foreign(facts) is foreign


@pytest.mark.parametrize(
    ("opened", "enabled", "told"),
    [
        (OpenOutcome.UNAVAILABLE, _ENABLED, True),
        (OpenOutcome.BUSY, _ENABLED, False),
        (OpenOutcome.BUSY, (), False),
    ],
)
def test_that_it_may_have_been_left_enabled_is_told_where_its_group_could_not_be_opened(
    opened: OpenOutcome, enabled: tuple[PciAddress, ...], told: bool
) -> None:
    facts = KernelFacts(enabled=enabled, holders=(), opened=opened)
    assert ("it was left enabled" in judge_kernel(facts).reason) is told


_QUIET = KernelFacts(holders=())
_GONE = FormerPod(counted=False, populated=False, cgroup_seen=True)
_UNREAD = FormerPod(counted=None, populated=False, unreadable=True, cgroup_seen=True)


@pytest.mark.parametrize(
    ("pod", "kernel", "freedom", "reason"),
    [
        (None, _QUIET, _FREE, "not enabled"),
        (_GONE, _QUIET, _FREE, "not enabled"),
        (replace(_GONE, processes=()), _QUIET, _FREE, "not enabled"),
        (replace(_GONE, counted=None), _QUIET, _UNKNOWN, "checkpoint has not been read"),
        (_UNREAD, _QUIET, _FREE, "unverified: kubelet's checkpoint cannot be read"),
        (replace(_UNREAD, processes=()), _QUIET, _FREE, "unverified: kubelet's checkpoint"),
        (replace(_UNREAD, populated=True, processes=(41,)), _QUIET, _IN_USE, "pid 41"),
        (_UNREAD, KernelFacts(holders=(_HOLDER,)), _IN_USE, "pid 77"),
        (replace(_UNREAD, cgroup_seen=False, uncounted_for=29.9), _QUIET, _UNKNOWN, "never seen"),
        (replace(_UNREAD, cgroup_seen=False, uncounted_for=30.0), _QUIET, _FREE, "unverified"),
        (replace(_GONE, counted=True), _QUIET, _IN_USE, "kubelet counts its pod"),
        (replace(_GONE, populated=True, processes=(41, 42)), _QUIET, _IN_USE, "pid 41, 42"),
        (replace(_GONE, populated=True, processes=()), _QUIET, _IN_USE, "cgroup is populated"),
        (replace(_GONE, populated=True), KernelFacts(holders=(_HOLDER,)), _IN_USE, "pid 77"),
        (replace(_GONE, processes=(41,)), _QUIET, _FREE, "not enabled"),  # a list proves nothing
        (
            replace(_GONE, populated=True, processes=(41,)),
            KernelFacts(holders=(_HOLDER,)),
            _IN_USE,
            "pid 77",
        ),
        (_GONE, KernelFacts(holders=(_HOLDER,)), _IN_USE, "pid 77"),
        (_GONE, KernelFacts(enabled=_ENABLED, holders=()), _IN_USE, "enabled"),
        (_GONE, KernelFacts(), _UNKNOWN, "have not been scanned"),
        (FormerPod(counted=False, populated=False), _QUIET, _UNKNOWN, "never seen"),
        (
            FormerPod(counted=False, populated=False, uncounted_for=29.9),
            _QUIET,
            _UNKNOWN,
            "never seen",
        ),
        (
            FormerPod(counted=False, populated=False, uncounted_for=30.0),
            _QUIET,
            _FREE,
            "not enabled",
        ),
        (FormerPod(counted=False, populated=False, processes=()), _QUIET, _FREE, "not enabled"),
    ],
)
def test_a_lock_becomes_free_when_its_pod_is_gone_and_the_kernel_agrees(
    pod: FormerPod | None, kernel: KernelFacts, freedom: Freedom, reason: str
) -> None:
    verdict = judge_release(ReleaseFacts(unseen_grace=30.0, kernel=kernel, pod=pod))
    assert verdict.freedom is freedom
    assert reason in verdict.reason


_BLIND = KernelFacts(holders=(), gaps=_GAPS)


@pytest.mark.parametrize(
    ("pod", "kernel", "freedom"),
    [
        (_GONE, _BLIND, _FREE),
        (_GONE, replace(_BLIND, kind=DeviceKind.ACCEL), _FREE),
        (replace(_GONE, processes=()), _BLIND, _FREE),
        (FormerPod(counted=False, populated=False, uncounted_for=30.0), _BLIND, _FREE),
        (FormerPod(counted=False, populated=False), _BLIND, _UNKNOWN),
        (replace(_GONE, populated=True, processes=(41,)), _BLIND, _IN_USE),
        (replace(_GONE, counted=True), _BLIND, _IN_USE),
        (replace(_GONE, counted=None), _BLIND, _UNKNOWN),
        (_GONE, replace(_BLIND, enabled=_ENABLED), _IN_USE),
        (_GONE, KernelFacts(gaps=_GAPS), _UNKNOWN),
        (None, _BLIND, _UNKNOWN),
    ],
)
def test_where_not_every_process_can_be_seen_a_node_does_not_stop_if_the_pod_is_accounted_for(
    pod: FormerPod | None, kernel: KernelFacts, freedom: Freedom
) -> None:
    """The gate then tries an exclusive open, and marks the start unverified where it cannot."""
    verdict = judge_release(ReleaseFacts(unseen_grace=30.0, kernel=kernel, pod=pod))
    assert verdict.freedom is freedom
    if freedom is _FREE:
        assert "unverified: not every process can be seen" in verdict.reason


def test_a_pod_whose_cgroup_cannot_be_read_may_live_and_keeps_its_device() -> None:
    pod = FormerPod(counted=False, populated=False, processes=(), cgroup_seen=True)
    facts = ReleaseFacts(unseen_grace=30.0, kernel=KernelFacts(holders=()), pod=pod)
    assert judge_release(facts).freedom is _FREE
    unknown = replace(
        pod, populated=None, unlisted="cannot read cgroup.events: Too many open files"
    )
    verdict = judge_release(replace(facts, pod=unknown))
    assert verdict.freedom is _UNKNOWN
    assert "Too many open files" in verdict.reason
    listed = replace(unknown, populated=False, unlisted="cannot list some cgroup below")
    assert judge_release(replace(facts, pod=listed)).freedom is _FREE


_MACHINE = replace(_HOLDER, command="qemu-system-x86", sandbox=Sandbox.MACHINE)


@pytest.mark.parametrize(
    ("pod", "holders", "had_none", "freedom"),
    [
        (X, (_MACHINE,), False, _FREE),
        (X, (_MACHINE, replace(_MACHINE, process=ProcessId(78, 5))), False, _FREE),
        (X, (_MACHINE,), True, _IN_USE),  # plugged in for a container of it, and not let go of
        (Y, (_MACHINE,), False, _IN_USE),
        (None, (_MACHINE,), False, _IN_USE),
        (None, (replace(_MACHINE, pod=None),), False, _IN_USE),
        (X, (replace(_MACHINE, pod=None),), False, _IN_USE),
        (X, (_HOLDER,), False, _IN_USE),  # a straggler of its own
        (X, (_MACHINE, _HOLDER), False, _IN_USE),
    ],
)
def test_a_pods_own_virtual_machine_is_not_in_its_way(
    pod: PodUid | None, holders: tuple[Holder, ...], had_none: bool, freedom: Freedom
) -> None:
    verdict = judge_kernel(KernelFacts(enabled=_ENABLED, holders=holders))
    assert but_for_own_machine(verdict, pod, had_none=had_none).freedom is freedom
    busy = judge_kernel(KernelFacts(opened=OpenOutcome.BUSY, holders=()))
    assert but_for_own_machine(busy, pod).freedom is _IN_USE, "whoever has it is not seen"
    unknown = replace(verdict, freedom=_UNKNOWN)
    assert but_for_own_machine(unknown, pod) == unknown, "there is more than the machine"


@pytest.mark.parametrize(
    ("holders", "told"),
    [
        ((replace(_MACHINE, pod=None),), True),
        ((_MACHINE,), False),
        ((_HOLDER, replace(_MACHINE, pod=None)), True),
        ((replace(_HOLDER, pod=None),), False),  # a program of the node's
    ],
)
def test_of_a_virtual_machine_of_no_pod_it_is_told_what_shows_whose_it_is(
    holders: tuple[Holder, ...], told: bool
) -> None:
    verdict = judge_kernel(KernelFacts(holders=holders))
    assert ("sandbox_cgroup_only = true" in asking_whose(verdict).reason) is told


@pytest.mark.parametrize(
    ("heir", "processes", "kind", "freedom"),
    [
        (X, (), DeviceKind.VFIO, _FREE),
        (X, (41,), DeviceKind.VFIO, _IN_USE),  # the former pod's, which could open it again
        (Y, (), DeviceKind.VFIO, _IN_USE),
        (None, (), DeviceKind.VFIO, _IN_USE),
        (X, (), DeviceKind.ACCEL, _IN_USE),  # which several can have at a time
    ],
)
def test_a_device_that_the_next_pods_machine_has_already_is_free_of_the_former_pod(
    heir: PodUid | None, processes: tuple[int, ...], kind: DeviceKind, freedom: Freedom
) -> None:
    facts = ReleaseFacts(
        unseen_grace=30.0,
        kernel=KernelFacts(kind=kind, enabled=_ENABLED, holders=(_MACHINE,)),
        pod=FormerPod(
            counted=False, populated=bool(processes), processes=processes, cgroup_seen=True
        ),
        heir=heir,
    )
    assert judge_release(facts).freedom is freedom


@pytest.mark.parametrize(
    ("kernel", "nobodys", "freedom"),
    [
        (KernelFacts(holders=(), gaps=_GAPS), True, _FREE),
        (KernelFacts(kind=DeviceKind.ACCEL, holders=(), gaps=_GAPS), True, _FREE),
        (KernelFacts(holders=(), gaps=_GAPS), False, _UNKNOWN),  # of a pod that was never known
        (KernelFacts(enabled=_ENABLED, holders=(), gaps=_GAPS), True, _IN_USE),
        (KernelFacts(holders=(_HOLDER,), gaps=_GAPS), True, _IN_USE),
        (KernelFacts(gaps=_GAPS), True, _UNKNOWN),  # nobody has looked
        (
            KernelFacts(kind=DeviceKind.DRIVER, holders=()),
            True,
            _UNKNOWN,
        ),  # its driver has not been asked
    ],
)
def test_what_no_pod_had_is_not_kept_for_ever_by_one_process_that_cannot_be_read(
    kernel: KernelFacts, nobodys: bool, freedom: Freedom
) -> None:
    verdict = judge_release(ReleaseFacts(unseen_grace=30.0, kernel=kernel, nobodys=nobodys))
    assert verdict.freedom is freedom
    assert ("unverified" in verdict.reason) is (freedom is _FREE)


def test_where_nobody_looked_for_holders_nothing_is_said_of_any() -> None:
    assert judge_kernel(KernelFacts(enabled=_ENABLED)).reason == "in use: 0000:00:05.0 is enabled"


def test_a_free_verdict_is_unverified_only_where_something_was_not_read() -> None:
    verdict = judge_release(ReleaseFacts(unseen_grace=30.0, kernel=_QUIET, pod=_GONE))
    assert verdict.reason == "no process has it open; it is not enabled"


def test_what_nvml_does_not_tell_is_the_first_thing_to_mend() -> None:
    kernel = KernelFacts(kind=DeviceKind.DRIVER, holders=())
    verdict = judge_release(
        ReleaseFacts(
            unseen_grace=30.0, kernel=kernel, pod=FormerPod(counted=False, populated=False)
        )
    )
    assert verdict.freedom is _UNKNOWN
    assert verdict.reason == "its driver has not been asked who uses it"
