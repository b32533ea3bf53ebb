"""What a holder that lives on lets go of, and what nobody has although it looks so."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.host.root import HostRoot
from holdfast.host.use.holders import HolderScan
from holdfast.model.ids import DeviceId, DeviceName
from holdfast.model.tpu.generations import TPU_RESOURCE
from holdfast.model.use.holders import DeviceAccess, ScanTarget
from vm.cases.daemon import CHIPS
from vm.catalogue import case
from vm.guest.holding import ALL, IN_FLIGHT, NODE_ONLY
from vm.guest.node import GuestNode
from vm.guest.pci import Function
from vm.modes import OBSERVE, OPENING
from waiting import wait_until

_OWN_TABLE = """
import ctypes, os, sys, threading
ready = threading.Event()
number = os.open("/dev/null", os.O_RDONLY)
def alone():
    assert ctypes.CDLL(None).unshare(0x400) == 0
    os.close(number)
    assert os.open(sys.argv[1], os.O_RDWR) == number
    ready.set()
    threading.Event().wait()
threading.Thread(target=alone, daemon=True).start()
ready.wait()
print(flush=True)
sys.stdin.read()
"""


@case(daemon=OBSERVE, deadline=90, always=True)
def case_daemon_looks_again_at_a_holder_that_lives_on(node: GuestNode) -> str:
    stage, chip = node.stage, node.chips[0]
    tool = node.hold(ALL, chip)
    stage.await_state(chip.address, "foreign")
    since = time.time()
    for step in ("close-device", "close-group", "close-container"):
        tool.do(step)
    freed = stage.freed_after(chip.address, since)
    stage.await_health(chip.address, "Healthy")
    assert chip.enable == 0
    agent = node.hold(NODE_ONLY, chip)  # which enables nothing
    following = node.submit("next", chips=CHIPS)
    following.await_refusal(f"pid {agent.pid}")
    agent.do("close-group")
    following.await_running()
    assert tool.alive
    assert agent.alive
    return f"free {freed} after it closed the device; who waited for a mere group runs, too"


@case(daemon=OBSERVE, chart=OPENING, deadline=120)
def case_daemon_looks_into_why_a_function_is_enabled(node: GuestNode) -> str:
    stage, chip, began = node.stage, node.chips[1], time.time()
    with _left_enabled(chip):
        assert (chip.enable, node.open(chip)) == (1, "ok")
        stage.await_health(chip.address, "Healthy")
        pods = [node.run_pod(f"all-{count}", ALL) for count in range(4)]
        holder = next(pod for pod in pods if chip in pod.functions)
        assert chip.enable == 2
        holder.exit()
        holder.await_over()
        stage.await_state(chip.address, "free")
        assert chip.enable == 1
        moves = [row["to"] for row in stage.history(chip.address) if row["at"] > began]
        assert "foreign" not in moves
        # What holds it now has no process: only the level that was learned tells.
        broker = node.hold(IN_FLIGHT, chip)
        assert chip.enable == 2
        stage.await_state(chip.address, "foreign")
        broker.release()
        stage.await_state(chip.address, "free")
        for pod in pods:
            node.stage.end(pod)
    return "enable=1 is its idle level: free, held at 2, free again; an fd in flight is seen"


@case(daemon=OBSERVE, deadline=120)
def case_daemon_looks_in_vain_for_who_left_a_function_enabled(
    node: GuestNode,
) -> str:
    stage, chip = node.stage, node.chips[1]
    with _left_enabled(chip):
        time.sleep(5)  # the proof is that nothing else happens
        state = stage.state(chip.address)
        reasons = [row["reason"] for row in stage.ask("locks")]
    stage.await_state(chip.address, "free")
    if state == "free":  # as root it may open the group
        return "free"
    told = str(reasons[0])
    assert state == "foreign"
    assert "it was left enabled: unbind it" in told
    return told


def case_a_look_sees_a_thread_with_a_file_table_of_its_own(node: GuestNode) -> str:
    chip = node.chips[2]
    with subprocess.Popen(
        [sys.executable, "-I", "-c", _OWN_TABLE, str(chip.node)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        node.later(process.kill)
        assert process.stdout is not None
        process.stdout.readline()
        assert (chip.enable, node.open(chip)) == (0, "EBUSY")
        name = DeviceName(TPU_RESOURCE, DeviceId(chip.address))
        rdevs = frozenset({chip.node.stat().st_rdev})
        target = ScanTarget(device=name, rdevs=rdevs, addresses=frozenset())
        (holder,) = HolderScan(HostRoot.under()).scan([target]).holders[name]
        assert (holder.process.pid, holder.access) == (process.pid, frozenset({DeviceAccess.NODE}))
        process.kill()
    wait_until(lambda: node.open(chip) == "ok", what="the group to be closed")
    return f"enable=0, open=EBUSY: {holder}"


@contextmanager
def _left_enabled(chip: Function) -> Iterator[None]:
    """Have *chip* bound to vfio-pci and enabled, as a former driver can leave it."""
    chip.unbind()
    (chip.folder / "enable").write_text("1")
    chip.bind()
    try:
        yield
    finally:
        chip.unbind()
        (chip.folder / "enable").write_text("0")
        chip.bind()
