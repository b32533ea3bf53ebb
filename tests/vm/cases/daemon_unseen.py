"""Holders that nobody can name, or that no signal ends: the device waits, and says exactly why."""

import subprocess
import time

from vm.cases.daemon import CHIPS, orphaned
from vm.catalogue import case
from vm.guest.holding import ALL, IDLE, IN_FLIGHT, IN_KVM
from vm.guest.node import GuestNode
from vm.guest.waits import wait_until
from vm.modes import OBSERVE, OPENING, OWN_PIDS, TERMINATE

_NOBODY = "no process has it open"


@case(daemon=OBSERVE, deadline=90)
def case_daemon_fd_in_flight_on_a_free_device(node: GuestNode) -> str:
    stage, chip = node.stage, node.chips[2]
    broker = node.hold(IN_FLIGHT, chip)
    stage.await_state(chip.address, "foreign")
    stage.await_health(chip.address, "Unhealthy")
    (told,) = [row["reason"] for row in stage.ask("locks")]
    assert _NOBODY in told
    assert "in flight" in told
    assert stage.holders(chip.address) == []
    freed = stage.freed_after(chip.address, broker.release())
    stage.await_health(chip.address, "Healthy")
    return f"withheld: {told}; back {freed} after the kernel let go"


@case(daemon=TERMINATE, deadline=90, always=True)
def case_daemon_fd_in_flight_after_its_pod(node: GuestNode) -> str:
    stage = node.stage
    pod = node.run_pod("former", IDLE)
    (chip,) = pod.functions
    # The pod passed its fd to somebody who has not taken it yet.
    broker = node.hold(IN_FLIGHT, chip)
    pod.exit()
    pod.await_over()
    following = node.submit("next", chips=CHIPS)
    told = following.await_refusal(_NOBODY)
    assert f"{chip.address} is enabled" in told
    assert stage.state(chip.address) == "releasing"
    time.sleep(5)  # the proof is that nothing happens, long after every grace
    assert broker.alive
    assert not stage.said("signal sent")
    broker.release()
    following.await_running()
    return f"told: {told}; nobody signalled; the next pod started when the kernel let go"


@case(daemon=TERMINATE, chart=OPENING, deadline=90)
def case_daemon_kernel_reference_by_kvm(node: GuestNode) -> str:
    subprocess.run(["modprobe", "kvm-amd"], check=True)
    stage, chip = node.stage, node.chips[1]
    machine = node.hold(IN_KVM, chip)
    assert (chip.enable, node.open(chip)) == (0, "EBUSY")
    assert not [text for text in machine.fd_texts if "/dev/vfio" in text or "vfio-device" in text]
    following = node.submit("next", chips=CHIPS)
    told = following.await_refusal("its group cannot be opened: busy")
    assert "KVM" in told
    time.sleep(5)  # the proof is that nothing happens, long after every grace
    assert machine.alive
    assert not stage.said("signal sent")
    machine.release()
    following.await_running()
    return f"enable=0 and no fd anywhere; told: {told}; started when the machine was gone"


@case(daemon=OWN_PIDS, deadline=120)
def case_daemon_in_its_own_pid_namespace_signals_nobody(node: GuestNode) -> str:
    stage = node.stage
    pod = node.run_pod("former", IDLE)
    (chip,) = pod.functions
    orphan = node.leave_behind(ALL, chip, cgroup=pod.cgroup.container("orphan"))
    other = next(each for each in node.chips if each != chip)
    tool = node.hold(ALL, other)
    (blind,) = [
        check["reason"]
        for check in stage.ask("status")["checks"]
        if check["name"] == "process visibility" and not check["passes"]
    ]
    assert "hostPID" in blind
    pod.exit()
    pod.await_over()
    following = node.submit("next", chips=CHIPS)
    told = following.await_refusal("its pod's cgroup is populated")
    time.sleep(5)  # the proof is that nothing happens, long after every grace
    assert orphan.alive
    assert tool.alive
    assert not stage.said("signal sent")
    assert not stage.said("pod cgroup killed")
    assert stage.state(other.address) != "foreign"
    orphan.release()
    tool.release()
    following.await_running()
    return f"status says: {blind}; the next pod is told: {told}; it started when both were gone"


@case(daemon=TERMINATE, deadline=120, last=True)
def case_daemon_holder_that_no_signal_ends(node: GuestNode) -> str:
    stage = node.stage
    pod = node.run_pod("former", IDLE)
    (chip,) = pod.functions
    busy, free = [each for each in node.chips if each != chip][:2]
    tool = node.hold(ALL, busy)
    orphan = node.leave_behind((*ALL, "ignore-term"), chip, cgroup=pod.cgroup.container("orphan"))
    node.later(tool.destroy)  # first of all: nothing else lets the orphan go
    orphan.begin(f"unbind={busy.address}")
    wait_until(lambda: busy.driver is None, what="the driver link to vanish")
    pod.await_counted()
    pod.exit()
    pod.await_over()
    stage.await_state(chip.address, "quarantined")
    told = [r["evidence"] for r in stage.history(chip.address) if r["to"] == "quarantined"][-1]
    assert f"pid {orphan.pid}" in told
    assert "uninterruptible sleep" in told
    assert orphan.alive
    stage.await_health(chip.address, "Unhealthy")
    stage.await_health(free.address, "Healthy")
    other = node.run_pod("other")
    assert chip not in other.functions
    released = tool.release()
    orphan.await_end()
    freed = stage.freed_after(chip.address, released)
    stage.await_health(chip.address, "Healthy")
    return f"QUARANTINED: {told}; other chips go on; {freed} after the kernel let go it was FREE"


@case(daemon=TERMINATE, deadline=90)
def case_daemon_ends_an_orphan_in_a_frozen_cgroup(node: GuestNode) -> str:
    pod, orphan, device = orphaned(node, (*ALL, "ignore-term"))
    (pod.cgroup.path / "cgroup.freeze").write_text("1")
    wait_until(lambda: "frozen 1" in (pod.cgroup.path / "cgroup.events").read_text())
    since, following = time.time(), node.submit("next", chips=CHIPS)
    orphan.await_end()
    freed = node.stage.freed_after(device, since)
    following.await_running()
    assert node.stage.said("pod cgroup killed", pod=pod.uid)
    return f"frozen, and SIGTERM ignored; cgroup.kill ended it all the same; FREE {freed} after"
