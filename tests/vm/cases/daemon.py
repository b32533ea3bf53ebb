"""The daemon on the kernel: whoever holds a device in whatever way, the next pod waits for them."""

import os
import signal
import time
from collections.abc import Sequence

from vm.catalogue import case
from vm.guest.holding import FORKED, IDLE, LEAK, MAPPED, ZOMBIE_LEADER, Holding
from vm.guest.node import GuestNode
from vm.guest.stage import PodOnStage
from vm.guest.waits import wait_until
from vm.modes import OBSERVE, POOL, TPU
from vm.topology import TPU_CHIPS

CHIPS = len(TPU_CHIPS)


@case(daemon=OBSERVE, deadline=90)
def case_daemon_allocate_hold_exit_free(node: GuestNode) -> str:
    stage = node.stage
    pod = node.run_pod("plain")
    (chip,) = pod.functions
    assert node.open(chip) == "EBUSY"
    assert stage.state(chip.address) == "held"
    (holder,) = stage.await_holders(chip.address, pod.main.pid)
    assert (holder["pid"], holder["pod"]) == (pod.main.pid, pod.uid)
    freed = stage.freed_after(chip.address, pod.exit())
    assert node.open(chip) == "ok"
    return f"{chip.address}: second open EBUSY while the pod holds it; last exit to FREE: {freed}"


@case(daemon=OBSERVE, deadline=90)
def case_daemon_holder_with_only_the_device_fd(node: GuestNode) -> str:
    return _waits_for_orphan(node, LEAK, access="device fd")


@case(daemon=OBSERVE, deadline=90)
def case_daemon_holder_that_only_maps_the_bar(node: GuestNode) -> str:
    return _waits_for_orphan(node, MAPPED, access="mapped")


@case(daemon=OBSERVE, deadline=90)
def case_daemon_thread_group_leader_that_exited(node: GuestNode) -> str:
    return _waits_for_orphan(node, ZOMBIE_LEADER, access="node open")


@case(daemon=OBSERVE, deadline=90)
def case_daemon_child_that_outlives_its_parent(node: GuestNode) -> str:
    pod = node.run_pod("parent", FORKED)
    (chip,) = pod.functions
    child = pod.main.child
    assert child is not None
    pod.exit()
    pod.await_over()
    following = node.submit("next", chips=CHIPS)
    told = following.await_refusal(f"pid {child}")
    assert pod.is_named_in(told)
    since = time.time()
    os.kill(child, signal.SIGKILL)
    return f"told: {_short(told)}; {_starts(node, following, chip.address, since)}"


@case(daemon=OBSERVE, deadline=90)
def case_daemon_live_process_without_any_fd(node: GuestNode) -> str:
    pod = node.run_pod("former")
    (chip,) = pod.functions
    idle = node.hold(IDLE, cgroup=pod.cgroup.container())
    pod.exit()
    pod.await_over()
    following = node.submit("next", chips=CHIPS)
    told = following.await_refusal("is not free of ")
    assert pod.is_named_in(told)
    wait_until(
        lambda: any(
            f"processes of its pod still live: pid {idle.pid}" in word.get("reason", "")
            for word in node.stage.words
            if word["event"] == "devices not free yet"
        ),
        what="the process to be named in the log",
    )
    assert (node.open(chip), chip.enable) == ("ok", 0)
    return f"told: {_short(told)}; {_starts(node, following, chip.address, idle.release())}"


@case(daemon=OBSERVE, deadline=90)
def case_daemon_in_observe_mode_signals_nobody(node: GuestNode) -> str:
    _, orphan, device = orphaned(node, LEAK)
    time.sleep(6)  # the proof is that nothing happens, long after every grace
    assert orphan.alive
    assert node.stage.state(device) == "releasing"
    assert not node.stage.said("signal sent")
    (spared,) = {w["reason"] for w in node.stage.words if w["event"] == "holder not ended"}
    freed = node.stage.freed_after(device, orphan.release())
    return f"6 s after its pod the orphan lives, RELEASING, because {spared}; exit to FREE: {freed}"


@case(daemon=OBSERVE, deadline=90)
def case_daemon_two_functions_are_one_device(node: GuestNode) -> str:
    stage = node.stage
    first, second = (node.give(function) for function in node.twin)
    chip = first.address.removesuffix(".0")
    stage.await_health(chip, "Healthy")
    pod = node.run_pod("twins", chips=CHIPS + 1)
    assert chip in pod.ids
    assert {first, second} <= set(pod.functions)
    assert (first.enable, second.enable) == (1, 1)
    freed = stage.freed_after(chip, pod.exit())
    assert (first.enable, second.enable, node.open(first)) == (0, 0, "ok")
    return f"{chip} = .0 and .1 in group {first.group}, both enabled, both free: {freed} after exit"


@case(daemon=OBSERVE, deadline=90)
def case_daemon_group_with_a_bridge(node: GuestNode) -> str:
    stage = node.stage
    function = node.give(node.bridged)
    bridges = [node.function(a) for a in function.group_members if a != function.address]
    stage.await_health(function.address, "Healthy", POOL)
    pod = node.run_pod("behind", resource=POOL)
    assert pod.functions == (function,)
    freed = stage.freed_after(function.address, pod.exit())
    enabled = {bridge.address: bridge.enable for bridge in bridges}
    assert 1 in enabled.values()
    return f"{function.address} is free {freed} after exit, although enabled: {enabled}"


@case(daemon=OBSERVE, deadline=90)
def case_daemon_sibling_on_a_native_driver(node: GuestNode) -> str:
    stage = node.stage
    first, second = node.mixed
    node.give(first)
    node.give(second, "uio_pci_generic")
    wait_until(
        lambda: any("uio_pci_generic" in text for text in stage.device(first.address)["reasons"])
    )
    stage.await_health(first.address, "Unhealthy", POOL)
    refused = stage.allocate(POOL, first.address)
    assert "uio_pci_generic" in refused
    assert stage.state(first.address) == "free"
    return f"Unhealthy; Allocate: {refused}"


def orphaned(node: GuestNode, steps: Sequence[str]) -> tuple[PodOnStage, Holding, str]:
    """Return a pod that is over, a process that it left behind, and the device that this holds."""
    pod = node.run_pod("former", IDLE)
    orphan = node.leave_behind(steps, *pod.functions, cgroup=pod.cgroup.container("orphan"))
    if "leader-exit" in steps:
        orphan.await_dead_leader()
    pod.await_counted()
    pod.exit()
    pod.await_over()
    (device,) = pod.functions
    node.stage.await_state(device.address, "releasing", "reclaiming")
    return pod, orphan, device.address


def _waits_for_orphan(node: GuestNode, steps: Sequence[str], *, access: str) -> str:
    pod, orphan, device = orphaned(node, steps)
    following = node.submit("next", chips=CHIPS)
    told = following.await_refusal(f"pid {orphan.pid}")
    assert pod.is_named_in(told)
    rows = node.stage.await_holders(device, orphan.pid)
    (row,) = [each for each in rows if each["pid"] == orphan.pid]
    assert access in row["access"]
    return f"told: {_short(told)}; {_starts(node, following, device, orphan.release())}"


def _starts(node: GuestNode, following: PodOnStage, device: str, since: float) -> str:
    """See the next pod start after an exit at *since*, wall time, and say how long that took."""
    freed = node.stage.freed_after(device, since)
    following.await_running()
    started = (time.time() - since) * 1000
    assert {f"{TPU}/{id_}" for id_ in following.ids} >= {f"{TPU}/{device}"}
    return f"last exit to FREE: {freed}, to the next pod's start: {started:.0f} ms"


def _short(told: str) -> str:
    """Return what was told without for what."""
    return told.partition(": ")[2]
