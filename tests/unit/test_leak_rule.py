"""May a living pod's sandbox be ended? Each guard is shown by the one case that it alone decides."""

from typing import Any

import pytest
from msgspec.structs import replace

from fakes.books import BOOT, SHIM, X, Y, device_lock, name
from holdfast.model.book.book import LockState, PodRecord
from holdfast.model.ids import ProcessId
from holdfast.model.reclaim.ending import Member, RuntimeState
from holdfast.model.reclaim.leak import LeakFacts, WaitingStart, held_up, why_keep
from holdfast.model.use.holders import DeviceAccess, Holder, Sandbox

_SENTRY = Member(
    process=ProcessId(42, 1),
    command="exe",
    parent=SHIM,
    in_pod=X,
    inode=7,
    sandbox=Sandbox.SENTRY,
)
_STUB = replace(_SENTRY, process=ProcessId(43, 1), sandbox=Sandbox.STUB)
_GOFER = replace(_SENTRY, process=ProcessId(41, 1), sandbox=Sandbox.GOFER)
_PROGRAM = replace(_SENTRY, process=ProcessId(44, 1), command="python", sandbox=None)
_HOLDS = Holder(
    process=_SENTRY.process,
    command="runsc-sandbox",
    access=frozenset({DeviceAccess.DEVICE_FD}),
    pod=X,
    sandbox=Sandbox.SENTRY,
)
_STUB_HOLDS = replace(_HOLDS, process=_STUB.process, sandbox=Sandbox.STUB)
_LOCK = device_lock(name("d0"), "k0", fence=3, since=0.0, allocation=1, pod=X)
_SATISFIED = LeakFacts(
    restart=True,
    terminate=True,
    scan_complete=True,
    pod=X,
    record=PodRecord(uid=X, boot=BOOT, cgroup="/kubepods/podx", inode=7),
    lock=_LOCK,
    held_up=True,
    counted=True,
    holders=(_HOLDS, _STUB_HOLDS),
    members=(_SENTRY, _STUB, _GOFER),
    runtime=RuntimeState(),
    leaking_for=10.0,
    leak_grace=10.0,
)


def test_an_idle_sandbox_that_only_leaks_and_stands_in_its_own_pods_way_is_ended() -> None:
    assert why_keep(_SATISFIED) is None
    assert why_keep(replace(_SATISFIED, holders=(_HOLDS,), members=(_SENTRY,))) is None


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"restart": False}, "reclaim.leakedSandbox is report"),
        ({"terminate": False}, "reclaim.mode is observe"),
        ({"scan_complete": False}, "the scan was incomplete"),
        ({"held_up": False}, "no container of the pod waits"),
        ({"counted": False}, "kubelet does not count the pod"),
        ({"lock": None}, "not held by the pod"),
        ({"lock": replace(_LOCK, pod=Y)}, "not held by the pod"),
        ({"lock": replace(_LOCK, state=LockState.RELEASING)}, "not held by the pod"),
        ({"record": None}, "not in the cgroup that the pod had"),
        ({"record": PodRecord(uid=X, boot=BOOT)}, "not in the cgroup that the pod had"),
        (
            {"record": PodRecord(uid=X, boot=BOOT, cgroup="/kubepods/podx", inode=8)},
            "not in the cgroup that the pod had",
        ),
        ({"members": (_SENTRY, _STUB, replace(_GOFER, in_pod=Y))}, "not in the cgroup"),
        (
            {"record": PodRecord(uid=X, boot=BOOT, inode=7)},
            "the cgroup that the pod had is not known",
        ),
        ({"record": None, "members": ()}, "the cgroup that the pod had is not known"),
        ({"holders": ()}, "nobody holds the device"),
        # Another holds it, too: ending the sandbox would not free it.
        (
            {"holders": (_HOLDS, replace(_HOLDS, process=ProcessId(99, 9), pod=Y))},
            "another process holds it as well",
        ),
        (
            {"holders": (_HOLDS, replace(_HOLDS, process=ProcessId(99, 9), pod=None))},
            "another process holds it as well",
        ),
        # The same pid, but not the same process.
        (
            {"holders": (replace(_HOLDS, process=ProcessId(42, 2)),)},
            "another process holds it as well",
        ),
        # A device of the pod is in use: some program in the sandbox has its group open.
        (
            {"holders": (_HOLDS, replace(_HOLDS, access=frozenset({DeviceAccess.NODE})))},
            "held by more than a leaked fd",
        ),
        (
            {
                "holders": (
                    replace(_HOLDS, access=frozenset({DeviceAccess.NODE, DeviceAccess.DEVICE_FD})),
                )
            },
            "held by more than a leaked fd",
        ),
        (
            {
                "holders": (
                    replace(
                        _HOLDS, access=frozenset({DeviceAccess.MAPPED, DeviceAccess.DEVICE_FD})
                    ),
                )
            },
            "held by more than a leaked fd",
        ),
        # Somebody is at work in the pod.
        ({"members": (_SENTRY, _STUB, _PROGRAM)}, "not part of a gVisor sandbox"),
        (
            {"members": (_SENTRY, _STUB, replace(_PROGRAM, command="containerd-shim"))},
            "pid 44 (containerd-shim) is not part of a gVisor sandbox",
        ),
        (
            {"members": (_SENTRY, _STUB, replace(_PROGRAM, sandbox=Sandbox.MACHINE))},
            "not part of a gVisor sandbox",
        ),
        ({"members": (_STUB,), "holders": (_STUB_HOLDS,)}, "its sandbox cannot be seen"),
        ({"runtime": None}, "its runtime's state cannot be read"),
        ({"runtime": RuntimeState(problem="gone")}, "its runtime's state cannot be read (gone)"),
        ({"runtime": RuntimeState(containers=("c1",))}, "its runtime runs container c1 in it"),
        ({"leaking_for": 9.9}, "seen for less than 10 s"),
        ({"pause": 4.0}, "was ended recently"),
        ({"pause": 0.5}, "was ended recently"),
    ],
)
def test_one_fact_that_is_otherwise_keeps_the_sandbox(changed: dict[str, Any], reason: str) -> None:
    said = why_keep(replace(_SATISFIED, **changed))
    assert said is not None
    assert reason in said


@pytest.mark.parametrize(
    ("pod", "pods", "so"),
    [
        (X, (X,), True),
        (X, (X, X), True),
        (X, (), False),
        (X, (Y,), False),
        (X, (X, Y), False),
        (X, (X, None), False),
        (X, (None,), False),
        (None, (X,), False),
        (None, (None,), False),
    ],
)
def test_a_start_is_held_up_by_its_own_pod_only_if_nobody_else_has_the_device(
    pod: Any, pods: tuple[Any, ...], so: bool
) -> None:
    found = held_up(pod, name("d0"), [replace(_HOLDS, pod=each) for each in pods])
    assert found == (frozenset({WaitingStart(pod=pod, device=name("d0"))}) if so else frozenset())
