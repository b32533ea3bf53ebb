"""A real gVisor with TPUs: the leak of gvisor#11545, and what the daemon makes of it."""

import time
from pathlib import Path

from vm.catalogue import case
from vm.guest.gvisor import USE, Contained, Program, Sandbox, runsc_version
from vm.guest.holding import IDLE
from vm.guest.node import GuestNode, vfio_fds
from vm.guest.waits import wait_until
from vm.modes import RESTART, TERMINATE
from vm.packages import RUNSC

STAY = "exec sleep 100000"
USE_TWICE = Program(f"{USE}; {USE}")
USE_AND_STAY = Program(f"{USE}; {STAY}")
USE_AND_STAY_AT_THE_SECOND_START = Program(f'{USE}; [ "$START" = 1 ] || {STAY}')
BUSY = "FAILED group EBUSY"
CAUSE = ("gvisor#11545", "release-20250326.0")
_LEAKED = "anon_inode:[vfio-device]"


@case(needs=RUNSC)
def case_gvisor_leaks_without_holdfast(node: GuestNode) -> str:
    chip = node.chips[0]
    sandbox = node.sandbox(node.pod())
    container = sandbox.run(USE_TWICE, [chip])
    first, second = said(container, 2)
    node.tell(
        f"without holdfast, {runsc_version()}: the first process uses {chip.address}: {first}"
    )
    node.tell(f"it has exited, and the second in the same sandbox is told: {second}")
    assert first.startswith("READY")
    assert second == BUSY
    leaked, enabled = leaked_by(sandbox), chip.enable
    node.tell(f"{leaked}; enable={enabled}")
    assert enabled == 1
    sandbox.stop()
    wait_until(lambda: chip.enable == 0, what="the chip to be free of the sandbox")
    node.conclude("gvisor", before=second.split()[-1])
    return f"EBUSY as long as the sandbox lives, enable={chip.enable} after its end"


@case(daemon=TERMINATE, deadline=120, needs=RUNSC)
def case_gvisor_leak_is_named_and_ended_after_its_pod(node: GuestNode) -> str:
    stage = node.stage
    # The others are taken, so that both pods are granted the same chip.
    node.run_pod("others", IDLE, chips=len(node.chips) - 1)
    pod = node.run_pod("first", USE_TWICE, restart="Always")
    (chip,), sandbox, program = pod.functions, pod.sandbox, pod.contained
    _, second = said(program, 2)
    node.tell(f"with holdfast, a pod is granted {chip.address}; its second process: {second}")
    assert second == BUSY
    leaked_by(sandbox)

    # All of them have it; on a busy machine not each is read in time.
    mine = sandbox.pod.processes
    rows = stage.await_holders(chip.address, *mine)
    row = next(each for each in rows if each["pid"] in mine)
    node.tell(f"holdfast holders: pid {row['pid']} ({row['command']}), the pod's: {row['cause']}")
    assert row["pod"] == pod.uid
    assert all(words in row["cause"] for words in CAUSE)
    told = pod.await_wait_after(1, "this pod's gVisor sandbox leaked")
    node.tell(f"its container cannot start again (leakedSandbox: report): {told}")
    assert any(f"pid {each}" in told for each in mine), told
    assert CAUSE[0] in told
    time.sleep(4)  # the proof is that nothing happens, long after every grace
    assert sandbox.alive
    assert stage.state(chip.address) == "held"
    assert not stage.said("pod cgroup killed")
    assert not stage.said("signal sent")
    node.tell("4 s later, while the pod lives: the device is HELD by it, and nothing was ended")

    pod.await_counted()
    sandbox.lose_shim()
    stage.delete(pod)
    pod.await_over()
    assert sandbox.alive
    node.tell("the pod is deleted, its shim has gone; the sandbox lives on, and the next pod comes")
    following = node.submit("next", USE_AND_STAY)
    since = time.time()
    wait_until(lambda: not sandbox.alive, what="the sandbox to be ended")
    wait_until(lambda: stage.said("pod cgroup killed", pod=pod.uid))
    assert not stage.said("signal sent")
    freed = stage.freed_after(chip.address, since)
    node.tell(
        f"the sandbox is ended as one, by its pod's cgroup; {chip.address} is FREE {freed} after"
    )

    following.await_running()
    (used,) = said(following.contained, 1)
    node.tell(f"the next pod is granted {chip.address}; its process in its own sandbox: {used}")
    assert following.functions == (chip,)
    assert used.startswith("READY")
    node.conclude("gvisor", named="yes", ended="yes", next="ok")
    return f"{row['cause']}; ended after its pod, FREE {freed} later, used by the next pod"


@case(daemon=RESTART, deadline=120, needs=RUNSC)
def case_gvisor_leak_of_a_live_pod_is_ended_for_its_restart(node: GuestNode) -> str:
    pod = node.run_pod("worker", USE_AND_STAY_AT_THE_SECOND_START, restart="Always")
    (chip,), leaking = pod.functions, pod.sandbox
    assert said(pod.contained, 1)[0].startswith("READY")
    pod.await_starts(2)
    assert not leaking.alive
    assert pod.sandbox.id != leaking.id
    (used,) = said(pod.contained, 1)
    node.tell(f"with leakedSandbox: restart, the same pod goes on in a new sandbox: {used}")
    assert used.startswith("READY")
    assert node.stage.state(chip.address) == "held"
    assert not node.stage.runtime.failures
    return f"the leaking sandbox was ended before the container's start; in a new one: {used}"


def said(container: Contained, lines: int) -> list[str]:
    """Wait until the container's program has printed so many lines, and return them."""
    wait_until(
        lambda: len(container.said) >= lines or not container.alive,
        what=f"{lines} lines of the program in the sandbox",
    )
    return container.said


def leaked_by(sandbox: Sandbox) -> str:
    """See that nothing holds a device but the sandbox, and only by a VFIO device fd."""
    found = [entry.split(maxsplit=1) for entry in vfio_fds()]
    holders = {int(pid) for pid, text in found if "/sys/" not in text}
    assert {text for _, text in found if "/sys/" not in text} == {_LEAKED}, found
    assert sandbox.pid in holders
    stubs = holders - {sandbox.pid}
    assert holders <= set(sandbox.pod.processes)
    arguments = Path(f"/proc/{sandbox.pid}/cmdline").read_text().split("\0")
    assert arguments[0] == "runsc-sandbox", arguments
    assert not any(Path(f"/proc/{stub}/cmdline").read_text() for stub in stubs)
    return (
        f"no fd of /dev/vfio/N anywhere, only {_LEAKED}, in {arguments[0]} (pid {sandbox.pid}) "
        f"and {len(stubs)} stub processes of it, all in its pod's cgroup"
    )
