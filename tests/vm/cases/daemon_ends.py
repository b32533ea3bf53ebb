"""The daemon where it may end processes, where it must not, and where it is itself killed."""

import time

from vm.cases.daemon import CHIPS, orphaned
from vm.catalogue import case
from vm.guest.holding import ALL, IDLE, LEAK
from vm.guest.node import GuestNode
from vm.modes import BLIND, OBSERVE, TERMINATE

STUBBORN = (*ALL, "ignore-term")


@case(daemon=TERMINATE, deadline=90, always=True)
def case_daemon_ends_an_orphan_through_cgroup_kill(node: GuestNode) -> str:
    stage = node.stage
    pod = node.run_pod("former", IDLE)
    (chip,) = pod.functions
    device, folder = chip.address, pod.cgroup.container("orphan")
    # Both before kubelet lets go: a process that is younger could be a new start of the pod.
    orphan = node.leave_behind(STUBBORN, chip, cgroup=folder)
    idle = node.leave_behind((*IDLE, "ignore-term"), cgroup=folder)
    pod.await_counted()
    pod.exit()
    pod.await_over()
    began = time.time()
    following = node.submit("next", chips=CHIPS)
    orphan.await_end()
    idle.await_end()
    ended = time.time()
    freed = stage.freed_after(device, began)
    following.await_running()
    assert stage.said("signal sent", signal="SIGTERM", pid=orphan.pid)
    assert stage.said("pod cgroup killed", pod=pod.uid)
    states = [row["to"] for row in stage.history(device)]
    assert "reclaiming" in states
    return (
        f"SIGTERM ignored, then cgroup.kill ended both {ended - began:.1f} s after the pod; "
        f"FREE after {freed}; the next pod started"
    )


@case(daemon=TERMINATE, deadline=90, always=True)
def case_daemon_withholds_from_a_foreign_holder(node: GuestNode) -> str:
    stage, chip = node.stage, node.chips[2]
    tool = node.hold(ALL, chip)
    began = time.monotonic()
    stage.await_state(chip.address, "foreign")
    stage.await_health(chip.address, "Unhealthy")
    seen = time.monotonic() - began
    (named,) = [row["reason"] for row in stage.ask("locks")]
    assert f"pid {tool.pid}" in named
    time.sleep(5)  # the proof is that nothing happens, long after every grace
    assert tool.alive
    assert not stage.said("signal sent")
    freed = stage.freed_after(chip.address, tool.release())
    stage.await_health(chip.address, "Healthy")
    return (
        f"FOREIGN and Unhealthy after {seen:.1f} s: {named}; not signalled; exit to FREE: {freed}"
    )


@case(daemon=TERMINATE, deadline=90, always=True)
def case_daemon_names_a_holder_under_another_uid(node: GuestNode) -> str:
    stage = node.stage
    pod = node.run_pod("former", IDLE)
    (chip,) = pod.functions
    holder = node.leave_behind(LEAK, chip, cgroup=pod.cgroup.container("other"), uid=1000)
    (row,) = stage.await_holders(chip.address, holder.pid)
    assert (row["pid"], row["uid"], row["pod"]) == (holder.pid, 1000, pod.uid)
    pod.await_counted()
    ended = pod.exit()
    holder.await_end()  # the orphan is ended by the rules, across uids
    freed = stage.freed_after(chip.address, ended)
    return f"pid {row['pid']} of uid 1000 named with its pod and ended; pod's end to FREE: {freed}"


@case(daemon=BLIND, deadline=120)
def case_daemon_without_capabilities_proves_nobody_guilty(node: GuestNode) -> str:
    stage = node.stage
    pod = node.run_pod("former", IDLE)
    (chip,) = pod.functions
    holder = node.leave_behind(LEAK, chip, cgroup=pod.cgroup.container("other"), uid=1000)
    other = next(each for each in node.chips if each != chip)
    tool = node.hold(ALL, other)
    (blind,) = [
        check["reason"]
        for check in stage.ask("status")["checks"]
        if check["name"] == "process visibility" and not check["passes"]
    ]
    pod.exit()
    pod.await_over()
    following = node.submit("next", chips=CHIPS)
    time.sleep(6)  # the proof is that nothing happens, long after every grace
    told = following.await_refusal("waiting for")
    assert holder.alive
    assert tool.alive
    assert not stage.said("signal sent")
    assert not stage.said("pod cgroup killed")
    assert stage.state(other.address) != "foreign"
    holder.release()
    told_then = following.await_refusal(other.address)
    tool.release()
    began = time.time()
    following.await_running()
    took = (time.time() - began) * 1000
    return (
        f"status says: {blind}; nobody signalled or called foreign; the next pod is told: {told}; "
        f"then: {told_then}; starts {took:.0f} ms after the last exit"
    )


@case(daemon=OBSERVE, deadline=120)
def case_daemon_killed_while_releasing(node: GuestNode) -> str:
    stage = node.stage
    _, orphan, device = orphaned(node, LEAK)
    stage.kill_daemon()
    up = stage.start_daemon()
    stage.await_state(device, "releasing")
    freed = stage.freed_after(device, orphan.release())
    return f"SIGKILL while RELEASING, registered {up:.1f} s later, RELEASING; exit to FREE: {freed}"


@case(daemon=TERMINATE, deadline=120)
def case_daemon_killed_while_reclaiming(node: GuestNode) -> str:
    stage = node.stage
    _, orphan, device = orphaned(node, STUBBORN)
    stage.await_state(device, "reclaiming")
    killed = time.time()
    stage.kill_daemon()
    assert orphan.alive
    up = stage.start_daemon()
    orphan.await_end()  # which no SIGTERM ends
    freed = stage.freed_after(device, killed)
    return f"SIGKILL while RECLAIMING, registered {up:.1f} s later; orphan ended; FREE in {freed}"
