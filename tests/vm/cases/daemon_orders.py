"""Kubelet's orders of events on the kernel: who comes too early is told for whom it waits."""

import os
import signal

from vm.cases.daemon import CHIPS
from vm.catalogue import case
from vm.guest.holding import ALL, FORKED
from vm.guest.node import GuestNode
from vm.modes import OBSERVE


@case(daemon=OBSERVE, deadline=90)
def case_daemon_order_force_delete_through_the_grace(node: GuestNode) -> str:
    stage = node.stage
    old = node.run_pod("old", (*ALL, "ignore-term"))
    (chip,), program = old.functions, old.main
    # In 5 s an emulated machine may not come to tell it.
    stage.delete(old, grace=30.0, force=True)
    new = node.submit("new", chips=CHIPS)
    told = new.await_refusal(f"pid {program.pid}")
    assert program.alive
    assert node.open(chip) == "EBUSY"
    new.await_running()
    assert not program.alive
    assert not stage.said("signal sent")
    return f"told: {told}; it started when the grace was over"


@case(daemon=OBSERVE, deadline=90)
def case_daemon_order_container_restart_with_a_straggler(node: GuestNode) -> str:
    pod = node.run_pod("only", FORKED, restart="Always")
    straggler = pod.main.child
    assert straggler is not None
    pod.exit()
    told = pod.await_wait_after(1, f"pid {straggler}")
    os.kill(straggler, signal.SIGKILL)
    pod.await_starts(2)
    return f"told: {told}; the container started again when its straggler was gone"


@case(daemon=OBSERVE, deadline=90)
def case_daemon_order_two_containers_on_different_chips(node: GuestNode) -> str:
    pod = node.submit("both", FORKED, restart="Always", containers=("main", "other"))
    pod.await_starts(2)
    (chip,), (others,) = pod.functions, pod.granted("other")
    assert chip != others
    steady, straggler = pod.program("other"), pod.main.child
    assert straggler is not None
    pod.exit()
    told = pod.await_wait_after(2, f"pid {straggler}")
    assert f"pid {steady.pid} " not in told, "it holds another chip"
    os.kill(straggler, signal.SIGKILL)
    pod.await_starts(3)
    assert steady.alive
    assert pod.functions == (chip,)
    return f"told: {told}; the container on {others.address} was not disturbed"
