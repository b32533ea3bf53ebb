"""Who holds a device, told to people: gVisor's leak is named with its cause and its cure."""

import pytest
from msgspec.structs import replace

from fakes.books import X, Y
from holdfast.model.ids import ProcessId
from holdfast.model.use.free import Freedom, KernelFacts, judge_kernel
from holdfast.model.use.holders import DeviceAccess, Holder, Sandbox, cause, held_by, leaking_pods

_SENTRY = Holder(
    process=ProcessId(42, 1),
    command="runsc-sandbox",
    access=frozenset({DeviceAccess.DEVICE_FD}),
    pod=X,
    sandbox=Sandbox.SENTRY,
)
_STUB = replace(_SENTRY, process=ProcessId(41, 2), command="exe", sandbox=Sandbox.STUB)
_GOFER = replace(_SENTRY, process=ProcessId(43, 2), sandbox=Sandbox.GOFER)
_IN_USE = replace(_SENTRY, access=frozenset({DeviceAccess.DEVICE_FD, DeviceAccess.NODE}))
_PROGRAM = replace(_SENTRY, process=ProcessId(44, 2), command="python", sandbox=None)


def test_of_a_crowd_of_holders_the_first_are_named_and_the_others_counted() -> None:
    crowd = [replace(_PROGRAM, process=ProcessId(pid, 1), pod=Y) for pid in range(1000, 6000)]
    said = held_by(crowd)
    assert "pid 1007 " in said
    assert said.endswith("and 4992 more")
    assert len(said) < 2000, "it is written to the ledger, and to every pod that waits"
    assert "more" not in held_by(crowd[:8])


@pytest.mark.parametrize(
    ("holders", "leaking"),
    [
        ((_SENTRY,), {X}),
        ((_SENTRY, _STUB), {X}),
        ((_STUB, _GOFER), {X}),
        ((_SENTRY, replace(_SENTRY, pod=Y)), {X, Y}),
        ((_SENTRY, replace(_PROGRAM, pod=Y)), {X}),
        # The group is open somewhere in the pod: it is in use.
        ((_IN_USE,), set()),
        ((_SENTRY, replace(_GOFER, access=frozenset({DeviceAccess.NODE}))), set()),
        ((_IN_USE, _STUB), set()),
        (
            (replace(_SENTRY, access=frozenset({DeviceAccess.DEVICE_FD, DeviceAccess.MAPPED})),),
            set(),
        ),
        # Not gVisor, or not it alone, or of no pod.
        ((_PROGRAM,), set()),
        ((_SENTRY, _PROGRAM), set()),
        ((replace(_SENTRY, sandbox=Sandbox.MACHINE),), set()),
        ((replace(_SENTRY, pod=None),), set()),
        ((), set()),
    ],
)
def test_a_leak_is_a_gvisor_sandbox_with_a_device_fd_and_no_group_open_in_its_pod(
    holders: tuple[Holder, ...], leaking: set[str]
) -> None:
    assert leaking_pods(holders) == leaking


def test_a_leak_is_told_with_its_pod_its_cause_and_its_cure() -> None:
    verdict = judge_kernel(KernelFacts(enabled=(), holders=(_STUB, _SENTRY)))
    assert verdict.freedom is Freedom.IN_USE
    assert (
        f"gVisor sandbox of pod {X} keeps a leaked VFIO device fd (gvisor#11545, fixed in "
        "release-20250326.0)"
    ) in verdict.reason
    assert f"pid {_SENTRY.process} (runsc-sandbox) and 1 more of its processes" in verdict.reason
    cures = "upgrade runsc, delete the pod, or set reclaim.leakedSandbox: restart"
    assert cures in verdict.reason


def test_other_holders_are_told_beside_a_leak() -> None:
    told = held_by((_SENTRY, replace(_PROGRAM, pod=Y)))
    assert told.startswith(f"held by pid {_PROGRAM.process} (python) of pod {Y} [device fd]; ")
    assert "gvisor#11545" in told
    assert "gvisor" not in held_by((_PROGRAM,))


@pytest.mark.parametrize(
    ("holder", "others", "said"),
    [
        (_SENTRY, (), "gVisor sandbox: a leaked VFIO device fd (gvisor#11545"),
        (_STUB, (_SENTRY,), "gVisor stub process: a leaked VFIO device fd (gvisor#11545"),
        (_IN_USE, (), "gVisor sandbox"),
        (replace(_SENTRY, sandbox=Sandbox.MACHINE), (), "virtual machine"),
        (_PROGRAM, (), ""),
    ],
)
def test_each_holder_says_what_it_is_in_a_sandbox(
    holder: Holder, others: tuple[Holder, ...], said: str
) -> None:
    assert cause(holder, (holder, *others)).startswith(said)
    assert bool(cause(holder, (holder, *others))) is bool(said)
