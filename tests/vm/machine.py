"""One boot of the test machine: QEMU, its console, and the two channels into it."""

import contextlib
import math
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vm import initramfs
from vm.lines import JsonLines, NoWordError, SilenceError
from vm.parts import Parts
from vm.topology import qemu_devices

REPOSITORY = Path(__file__).parents[2]
_GUEST = Path(__file__).parent / "guest"
_DISK_BYTES = 256 << 20
_ANSWER = 120.0
"""Seconds that QEMU may take to answer on a machine with much else to do."""
_FROZEN = 240.0
"""Seconds without a heartbeat after which a machine does nothing any more, however slow the host is."""
_BEFORE_OTHERS = ("nice", "-n", "-5")
"""All else that runs beside a machine ends long before it does. Without root it goes on as it is."""
# The emulated processor's counter is as good as the host's. Without that word the kernel takes the HPET,
# and each look at the clock leaves the emulated processor.
_KERNEL_LINE = "console=ttyS0 quiet intel_iommu=on panic=-1 mitigations=off tsc=reliable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine that is up; `control` speaks with its runner, `qmp` with QEMU."""

    control: JsonLines
    qmp: JsonLines

    def answer_qmp(self, command: str, arguments: object) -> object:
        """Have QEMU do *command*; return what it answers, `return` or `error`."""
        self.qmp.send({"execute": command, "arguments": arguments})
        while True:
            answer = self.qmp.receive(limit=_ANSWER)
            if "return" in answer or "error" in answer:
                return answer


@contextlib.contextmanager
def booted(
    parts: Parts, work: Path, *, runner: list[str], variables: Mapping[str, object]
) -> Iterator[Machine]:
    """Boot, with the guest's *runner* started as `python RUNNER...`; power off at the end.

    *variables* are of the guest's environment: where it finds what some cases need.
    """
    (work / "console.log").unlink(missing_ok=True)
    command = [
        "/bin/bash",
        str(_GUEST / "init.sh"),
        str(parts.modules),
        str(parts.faketpu),
        "/usr/bin/env",
        f"PYTHONPATH={REPOSITORY / 'tests'}:{REPOSITORY / 'daemon'}",
        f"HOLD_DEVICE={parts.hold_device}",
        f"SHIM={parts.shim}",
        *(f"{name}={value}" for name, value in variables.items()),
        sys.executable,
        *runner,
    ]
    initramfs.write(parts, command, work / "initramfs")
    _make_disk(work / "state.img")
    with (
        tempfile.TemporaryDirectory(prefix="vm-") as folder,
        (work / "qemu.log").open("wb") as log,
    ):
        sockets = Path(folder)
        process = subprocess.Popen(
            (*_BEFORE_OTHERS, *_qemu(parts, work, sockets)),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            with (
                _connected(sockets / "control", process) as control,
                _connected(sockets / "qmp", process) as qmp,
            ):
                machine = Machine(control=control, qmp=qmp)
                qmp.receive(limit=_ANSWER)  # the greeting
                machine.answer_qmp("qmp_capabilities", {})
                yield machine
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.5)
            process.kill()
            process.wait()


def _qemu(parts: Parts, work: Path, sockets: Path) -> list[str]:
    devices = [
        "intel-iommu,intremap=on,caching-mode=on",  # before all others, or they escape it
        "virtio-9p-pci,fsdev=root,mount_tag=hostroot,addr=2",
        "virtio-blk-pci,drive=state,addr=3",
        *qemu_devices(),
    ]
    return [
        *("qemu-system-x86_64", "-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max"),
        *("-m", "2560", "-smp", "2", "-no-reboot", "-display", "none", "-vga", "none"),
        *("-nic", "none", "-monitor", "none", "-kernel", str(parts.kernel)),
        *("-initrd", str(work / "initramfs")),
        # A host with much else to do is late with the interrupts by which the kernel tests its timer.
        *("-append", f"{_KERNEL_LINE} no_timer_check"),
        *("-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap"),
        *("-drive", f"file={work / 'state.img'},format=raw,if=none,id=state,cache=unsafe"),
        *("-serial", f"file:{work / 'console.log'}"),
        *("-chardev", f"socket,id=control,path={sockets / 'control'},server=on,wait=off"),
        *("-serial", "chardev:control"),
        *("-qmp", f"unix:{sockets / 'qmp'},server=on,wait=off"),
        *(part for device in devices for part in ("-device", device)),
    ]


def _make_disk(image: Path) -> None:
    """Make an empty ext4 disk, or a blank one where the host has no mkfs (the guest copes)."""
    with image.open("wb") as file:
        file.truncate(_DISK_BYTES)
    tool = shutil.which("mkfs.ext4", path="/usr/sbin:/sbin:/usr/bin")
    if tool:
        subprocess.run([tool, "-q", "-F", str(image)], check=True, capture_output=True)


@contextlib.contextmanager
def _connected(path: Path, process: subprocess.Popen[bytes]) -> Iterator[JsonLines]:
    """Connect to a socket that QEMU is about to open."""
    deadline = time.monotonic() + _ANSWER
    with socket.socket(socket.AF_UNIX) as peer:
        while True:
            try:
                peer.connect(str(path))
                break
            except OSError as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SilenceError(f"QEMU does not run ({process.returncode})") from error
                time.sleep(0.02)
        yield JsonLines(peer.fileno())


def serve_until(
    machine: Machine,
    *,
    limit: float,
    handle: Callable[[dict[str, Any]], bool],
    beat: float = _FROZEN,
    end: float = math.inf,
) -> None:
    """Pass each of the runner's messages to *handle* until it returns true; answer its QMP requests.

    Raises SilenceError when the runner says nothing but that it is alive for *limit* seconds, or
    does not say even that for *beat* seconds: then the machine as a whole stands still. And in any
    case at *end*, on the monotonic clock.
    """
    deadline = min(time.monotonic() + limit, end)
    while True:
        left = deadline - time.monotonic()
        try:
            message = machine.control.receive(limit=max(0.0, min(left, beat)))
        except NoWordError as error:
            still = "it stands still" if left > beat else "it lives, and its case does not end"
            raise SilenceError(f"{error}: {still}") from error
        if message["kind"] == "alive":
            continue
        deadline = min(time.monotonic() + limit, end)
        if message["kind"] == "qmp":
            machine.control.send(machine.answer_qmp(message["execute"], message["arguments"]))
        elif handle(message):
            return
