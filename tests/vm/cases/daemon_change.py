"""The daemon on hardware that changes: bound, unbound and unplugged, free and in use."""

import threading
import time

from vm.catalogue import case
from vm.guest.node import GuestNode
from vm.guest.waits import wait_until
from vm.modes import NVME, OBSERVE


@case(daemon=OBSERVE, deadline=90)
def case_daemon_unbind_and_bind_while_free(node: GuestNode) -> str:
    stage, chip = node.stage, node.chips[3]
    chip.unbind()
    gone = stage.await_health(chip.address, "Unhealthy")
    assert stage.answers
    chip.bind()
    back = stage.await_health(chip.address, "Healthy")
    return (
        f"unbound: Unhealthy after {gone * 1000:.0f} ms; bound: Healthy after {back * 1000:.0f} ms "
        "by uevents alone (the rescan is hourly)"
    )


@case(daemon=OBSERVE, deadline=90)
def case_daemon_unbind_while_held(node: GuestNode) -> str:
    stage = node.stage
    pod = node.run_pod("worker")
    (chip,) = pod.functions
    writer = threading.Thread(target=chip.unbind, daemon=True)
    writer.start()
    seen = stage.await_health(chip.address, "Unhealthy")
    assert writer.is_alive()
    assert stage.answers
    (reason,) = stage.device(chip.address)["reasons"][:1]
    freed = stage.freed_after(chip.address, pod.exit())
    writer.join(30)
    assert not writer.is_alive()
    assert chip.driver is None
    chip.bind()
    back = stage.await_health(chip.address, "Healthy")
    return (
        f"Unhealthy after {seen * 1000:.0f} ms ({reason}); status answers; exit to FREE: {freed}; "
        f"bound again: Healthy after {back * 1000:.0f} ms"
    )


@case(daemon=OBSERVE, deadline=120)
def case_daemon_unplug_while_free(node: GuestNode) -> str:
    stage = node.stage
    function = node.give(node.pluggable)
    stage.await_health(function.address, "Healthy", NVME)
    node.unplug()
    wait_until(lambda: not function.present)
    began = time.monotonic()
    wait_until(lambda: stage.health(function.address, NVME) != "Healthy")
    seen = time.monotonic() - began
    health = stage.health(function.address, NVME)
    assert stage.answers
    return f"device_del of {function.address}: {health} {seen * 1000:.0f} ms after its folder went"


@case(daemon=OBSERVE, deadline=120)
def case_daemon_unplug_while_held(node: GuestNode) -> str:
    stage = node.stage
    function = node.give(node.pluggable)
    stage.await_health(function.address, "Healthy", NVME)
    pod = node.run_pod("on-nvme", resource=NVME)
    node.unplug()
    wait_until(lambda: function.driver is None, what="the driver link to vanish")
    seen = stage.await_health(function.address, "Unhealthy", NVME)
    assert function.present
    assert stage.answers
    assert stage.state(function.address) == "held"
    freed = stage.freed_after(function.address, pod.exit())
    wait_until(lambda: not function.present)
    wait_until(lambda: stage.health(function.address, NVME) != "Healthy")
    assert stage.answers
    return (
        f"Unhealthy after {seen * 1000:.0f} ms, still held; status answers; exit to FREE: {freed}"
    )
