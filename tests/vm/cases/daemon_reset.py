"""What a device goes through between a forced release and the next pod, on real functions."""

import os
import tempfile
import threading
import time
from pathlib import Path

from vm.catalogue import case
from vm.guest.holding import ALL, IDLE
from vm.guest.node import GuestNode
from vm.guest.pci import Function
from vm.guest.stage import STATE
from vm.guest.waits import wait_until
from vm.modes import NVME, READ_ONLY, RESET, TERMINATE, TPU


def _force(node: GuestNode, resource: str = TPU) -> tuple[Function, float]:
    """Have the daemon end what a pod left on a device; return that, and when the pod ended."""
    pod = node.run_pod("former", IDLE, resource=resource)
    (function,) = pod.functions
    orphan = node.leave_behind(ALL, function, cgroup=pod.cgroup.container("orphan"))
    pod.await_counted()
    ended = pod.exit()
    pod.await_over()
    orphan.await_end()
    return function, ended


def _nvme(node: GuestNode) -> Function:
    """Offer the controller that can reset itself."""
    function = node.give(node.pluggable)
    node.stage.await_health(function.address, "Healthy", NVME)
    return function


def _freed_with(node: GuestNode, function: Function) -> str:
    frees = [row for row in node.stage.history(function.address) if row["to"] == "free"]
    return str(frees[-1]["evidence"])


@case(daemon=RESET, deadline=120)
def case_daemon_resets_a_function_that_has_a_reset_of_its_own(node: GuestNode) -> str:
    _nvme(node)
    function, ended = _force(node, NVME)
    freed = node.stage.freed_after(function.address, ended)
    told = _freed_with(node, function)
    assert f"{function.address} reset (flr)" in told
    assert f"{function.address} checked" in told
    node.stage.await_health(function.address, "Healthy", NVME)
    node.run_pod("next", resource=NVME)
    return f"{told}; the pod's end to FREE: {freed}; the next pod uses it"


@case(daemon=RESET, deadline=120)
def case_daemon_checks_a_function_without_a_reset(node: GuestNode) -> str:
    function, ended = _force(node)
    freed = node.stage.freed_after(function.address, ended)
    told = _freed_with(node, function)
    assert f"not reset: {function.address} has no reset" in told
    assert f"{function.address} checked" in told
    return f"{told}; the pod's end to FREE: {freed}"


@case(daemon=READ_ONLY, deadline=120)
def case_daemon_with_a_read_only_sys_resets_nothing_and_frees_all_the_same(node: GuestNode) -> str:
    _nvme(node)
    function, ended = _force(node, NVME)
    freed = node.stage.freed_after(function.address, ended)
    told = _freed_with(node, function)
    if node.stage.mode == READ_ONLY:
        assert "Read-only file system" in told
        assert node.stage.said("device reset not permitted")
    else:  # nor can the group be opened there, which comes first
        assert "its group cannot be opened here" in told
    return f"{told}; the pod's end to FREE: {freed}"


@case(daemon=RESET, deadline=120)
def case_daemon_quarantines_the_device_alone_whose_reset_hangs(node: GuestNode) -> str:
    stage = node.stage
    nvme = _nvme(node)
    file = str((nvme.folder / "reset").resolve())
    with tempfile.TemporaryDirectory(dir=STATE) as folder:
        never_read = Path(folder) / "reset"
        os.mkfifo(never_read)
        # In the kernel's place: a write to it does not return until somebody reads.
        with stage.covered(file, never_read):
            function, _ = _force(node, NVME)
            stage.await_state(function.address, "quarantined")
            (reason,) = [row["reason"] for row in stage.ask("locks")]
            assert "has not returned" in reason
            (stuck,) = [
                check["reason"]
                for check in stage.ask("status")["checks"]
                if check["name"] == "device resets" and not check["passes"]
            ]
            assert f"lane reset {NVME}/{function.address}" in stuck
            chip, ended = _force(node)
            other = stage.freed_after(chip.address, ended)
            assert stage.state(function.address) == "quarantined"
            reader = os.open(never_read, os.O_RDONLY | os.O_NONBLOCK)
            since = time.time()
            node.later(lambda: os.close(reader))
            freed = stage.freed_after(function.address, since)
    return (
        f"{reason}; readiness: {stuck}; another device, its pod's end to FREE meanwhile: {other}; "
        f"FREE {freed} after the write returned"
    )


def _unbound_while_held(node: GuestNode) -> Function:
    """Take a function off vfio-pci as soon as its holder is ended."""
    pod = node.run_pod("former", IDLE)
    (chip,) = pod.functions
    orphan = node.leave_behind((*ALL, "ignore-term"), chip, cgroup=pod.cgroup.container("orphan"))
    writer = threading.Thread(target=chip.unbind, daemon=True)
    writer.start()
    wait_until(lambda: chip.driver is None, what="the driver link to vanish")
    pod.await_counted()
    pod.exit()
    pod.await_over()
    orphan.await_end()
    writer.join(20)
    assert not writer.is_alive()
    return chip


@case(daemon=TERMINATE, deadline=120)
def case_daemon_without_reset_quarantines_what_left_vfio(node: GuestNode) -> str:
    stage = node.stage
    chip = _unbound_while_held(node)
    stage.await_state(chip.address, "quarantined")
    (reason,) = [row["reason"] for row in stage.ask("locks")]
    assert "bound to no driver" in reason
    assert chip.driver is None
    since = time.time()
    chip.bind()
    freed = stage.freed_after(chip.address, since)
    return f"{reason}; bound again by hand: FREE after {freed}"


@case(daemon=RESET, deadline=120)
def case_daemon_with_reset_binds_again_what_has_no_driver(node: GuestNode) -> str:
    stage = node.stage
    chip = _unbound_while_held(node)
    freed = stage.freed_after(chip.address, time.time())
    told = _freed_with(node, chip)
    assert f"{chip.address} bound to vfio-pci again" in told
    assert chip.driver == "vfio-pci"
    stage.await_health(chip.address, "Healthy")
    return f"{told}; FREE after {freed}"
