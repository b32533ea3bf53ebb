"""A real gVisor with TPUs: the leak of gvisor#11545, and what the daemon makes of it."""

from pathlib import Path

from vm.catalogue import case
from vm.guest.gvisor import USE, Contained, Program, Sandbox
from vm.guest.node import GuestNode, vfio_fds
from vm.packages import RUNSC
from waiting import wait_until

USE_TWICE = f"{USE}; {USE}; exec sleep 100000"
BUSY = "FAILED group EBUSY"
_LEAKED = "anon_inode:[vfio-device]"


@case(deadline=90, needs=RUNSC)
def case_gvisor_without_holdfast(node: GuestNode) -> str:
    chip = node.chips[0]
    sandbox = node.sandbox(node.pod())
    container = sandbox.run(Program(USE_TWICE), [chip])
    first, second = said(container, 2)
    assert first.startswith("READY")
    assert second == BUSY
    seen = leaked_by(sandbox)
    assert chip.enable == 1
    sandbox.stop()
    wait_until(lambda: chip.enable == 0, what="the chip to be free of the sandbox")
    return seen


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
