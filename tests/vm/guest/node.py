"""The node that a case works on: its hardware, its pods, the processes on it, and QEMU outside."""

import contextlib
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forked import Template
from vm import topology
from vm.guest import holding, pods
from vm.guest.gvisor import Program, Sandbox
from vm.guest.holding import HoldFailedError, Holding
from vm.guest.pci import Function, below, opened
from vm.guest.reboot import renumber
from vm.guest.stage import PodOnStage, Stage
from vm.guest.waits import wait_until
from vm.lines import JsonLines

_SETTLE = 120.0


@dataclass(slots=True)
class GuestNode:
    """What a case gets. Everything made through it is undone when the case ends."""

    control: JsonLines
    template: Template
    """What daemons are forked from."""
    findings: dict[str, dict[str, str]] = field(default_factory=dict)
    """What the case has found for the line with which the whole run ends, by that line's subject."""
    _undo: ExitStack = field(default_factory=ExitStack)
    _stage: Stage | None = None

    # --- hardware -----------------------------------------------------------------------------

    @property
    def chips(self) -> tuple[Function, ...]:
        """Four TPU v5e chips, bound to vfio-pci, each in a group of its own."""
        return tuple(Function(address) for address in topology.TPU_CHIPS)

    @property
    def twin(self) -> tuple[Function, ...]:
        """The two functions of a tpu7x chip in one group; without a driver at first."""
        return tuple(Function(address) for address in topology.TWIN_CHIP)

    @property
    def mixed(self) -> tuple[Function, ...]:
        """Two functions in one group, to be bound as the case likes; without a driver at first."""
        return tuple(Function(address) for address in topology.MIXED_GROUP)

    @property
    def pluggable(self) -> Function:
        """The NVMe controller that can be unplugged; without a driver at first."""
        (function,) = below(topology.PLUGGABLE_PORT)
        return function

    @property
    def bridged(self) -> Function:
        """The function behind a PCIe-to-PCI bridge; without a driver at first."""
        (bridge,) = below(topology.BRIDGE_PORT)
        (function,) = below(bridge.address)
        return function

    def function(self, address: str) -> Function:
        """Return any PCI function of the guest."""
        return Function(address)

    @contextlib.contextmanager
    def split(self) -> Any:
        """Make a tpu7x chip of two functions in two groups (SR-IOV); gone again at the end."""
        (parent,) = below(topology.SPLIT_PORT)
        parent.bind("pci-pf-stub")
        (parent.folder / "sriov_drivers_autoprobe").write_text("0")
        try:
            (parent.folder / "sriov_numvfs").write_text("2")
            functions = below(topology.SPLIT_PORT)[1:]
            for function in functions:
                function.become(topology.TPU_7X)
            yield tuple(functions)
        finally:
            for function in below(topology.SPLIT_PORT)[1:]:
                function.unbind()
            (parent.folder / "sriov_numvfs").write_text("0")
            parent.unbind()

    def give(self, function: Function, driver: str = "vfio-pci") -> Function:
        """Bind *function* to *driver* for the length of this case."""
        function.bind(driver)
        self._undo.callback(_unbind_if_present, function)
        return function

    def open(self, function: Function) -> str:
        """Open and close the function's group node; return "ok" or the error's name."""
        return opened(function.node)

    # --- processes ----------------------------------------------------------------------------

    def hold(
        self,
        steps: Sequence[str],
        *functions: Function,
        cgroup: Path | None = None,
        uid: int | None = None,
    ) -> Holding:
        """Start a process that holds *functions* by *steps* (see holding.py)."""
        held = holding.start(steps, functions, cgroup=cgroup, uid=uid)
        self._undo.callback(held.destroy)
        return held

    def leave_behind(
        self,
        steps: Sequence[str],
        *functions: Function,
        cgroup: Path,
        uid: int | None = None,
    ) -> Holding:
        """Do the same with an orphan in *cgroup*, which its runtime has lost."""
        held = holding.start(steps, functions, cgroup=cgroup, uid=uid, orphan=True)
        self._undo.callback(held.destroy)
        return held

    def attempt(self, steps: Sequence[str], *functions: Function) -> str:
        """Hold *functions* for a moment; return "ok", or the step that failed and its error."""
        try:
            holding.start(steps, functions).destroy()
        except HoldFailedError as failed:
            return str(failed)
        return "ok"

    def pod(
        self,
        uid: str | None = None,
        *,
        qos: pods.Qos = "besteffort",
        driver: pods.CgroupDriver = "cgroupfs",
    ) -> pods.Pod:
        """Make a pod's cgroup; its processes are killed and it is removed when the case ends."""
        made = pods.make(uid or str(uuid.uuid4()), qos, driver)

        def remove() -> None:
            if made.path.exists():
                made.kill()
                made.remove()

        self._undo.callback(remove)
        return made

    def tell(self, line: str) -> None:
        """Have a line of the case's story printed, as it happens."""
        self.control.send({"kind": "line", "text": line})

    def conclude(self, subject: str, **findings: str) -> None:
        """Have the whole run end with a line on *subject*, to which several cases may contribute."""
        self.findings.setdefault(subject, {}).update(findings)

    def later(self, undo: Callable[[], object]) -> None:
        """Do *undo* when the case ends, before what was made earlier is undone."""
        self._undo.callback(undo)

    # --- the daemon ---------------------------------------------------------------------------

    def play(self, mode: str) -> None:
        """See that the daemon runs in *mode* with a kubelet, or not at all if it is empty."""
        if mode and self._stage is None:
            self._stage = Stage(self.template)
        if self._stage is not None:
            self._stage.play(mode)

    @property
    def stage(self) -> Stage:
        """The daemon, a kubelet and a runtime; for cases that name a daemon."""
        assert self._stage is not None, "the case must say @case(daemon=...)"
        return self._stage

    def sandbox(self, pod: pods.Pod) -> Sandbox:
        """Start a gVisor sandbox in *pod* without a kubelet; it is gone when the case ends."""
        made = Sandbox(pod)
        self._undo.callback(made.forget)
        self._undo.callback(made.stop)
        made.start()
        return made

    def reboot(self, *chips: Function) -> None:
        """Reboot the node; *chips*, in the order of their addresses, come up in other groups."""
        self._undo.callback(self.stage.reboot(lambda: renumber(chips)))

    def submit(
        self, name: str, steps: Sequence[str] | Program = holding.ALL, **wishes: Any
    ) -> PodOnStage:
        """Submit a pod to kubelet whose program does *steps*; it is gone when the case ends."""
        pod = self.stage.submit(name, steps, **wishes)
        self._undo.callback(self.stage.end, pod)
        return pod

    def submit_claim(
        self, name: str, steps: Sequence[str] = holding.ALL, *, chips: Sequence[Function]
    ) -> PodOnStage:
        """Do the same with a pod that has *chips* by a claim of its own."""
        pod = self.stage.submit_claim(name, steps, chips=chips)
        self._undo.callback(self.stage.cluster.forget, name)
        self._undo.callback(self.stage.end, pod)
        return pod

    def run_pod(
        self, name: str, steps: Sequence[str] | Program = holding.ALL, **wishes: Any
    ) -> PodOnStage:
        """Submit a pod and wait until its program runs."""
        pod = self.submit(name, steps, **wishes)
        pod.await_running()
        return pod

    @property
    def daemon_words(self) -> str:
        """What the daemon said lately, for the reader of a failure."""
        return self._stage.daemon_words if self._stage is not None else ""

    # --- outside ------------------------------------------------------------------------------

    def qmp(self, command: str, **arguments: object) -> dict[str, Any]:
        """Have QEMU do *command*; return its answer, `return` or `error`."""
        self.control.send({"kind": "qmp", "execute": command, "arguments": arguments})
        answer: dict[str, Any] = self.control.receive(limit=120)
        return answer

    def unplug(self) -> None:
        """Ask for the NVMe controller to be unplugged; it goes once nobody has it open."""
        gone = self.pluggable
        self._undo.callback(self._plug_again, gone)
        answer = self.qmp("device_del", id=topology.PLUGGABLE_ID)
        assert "return" in answer, f"QEMU will not unplug it: {answer}"

    def _plug_again(self, gone: Function) -> None:
        wait_until(lambda: not gone.present, limit=_SETTLE, what=f"{gone.address} to be gone")
        self.plug()

    def plug(self) -> Function:
        """Plug the NVMe controller in again."""
        # The guest sees the old one go a moment before QEMU has forgotten it.
        wait_until(
            lambda: "return" in self.qmp("device_add", **topology.PLUGGABLE_DEVICE),
            limit=_SETTLE,
            what="QEMU to take the controller again",
        )
        wait_until(lambda: below(topology.PLUGGABLE_PORT), limit=_SETTLE, what="the new controller")
        return self.pluggable

    # --- the frame of a case ------------------------------------------------------------------

    def prepare(self) -> None:
        """Bring the chips to their places; done once, after boot."""
        for address, identity in topology.IDENTITIES.items():
            Function(address).become(identity)
        for chip in self.chips:
            chip.bind()

    def restore(self) -> None:
        """Undo what the case made, and see that no device is in use any more."""
        undo, self._undo = self._undo, ExitStack()
        undo.close()
        for chip in self.chips:
            chip.bind()
            _await_free(chip)
        if self._stage is not None:
            self._stage.settle()


def _await_free(chip: Function) -> None:
    wait_until(
        lambda: chip.enable == 0 and opened(chip.node) == "ok",
        limit=_SETTLE,
        what=f"{chip.address} to be free after the case (enable={chip.enable})",
    )


def _unbind_if_present(function: Function) -> None:
    if function.present:
        function.unbind()


def vfio_fds() -> list[str]:
    """Return "PID TEXT" for each fd of /dev/vfio/N or of a VFIO device, of every process."""
    found = []
    everyone = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    for pid in everyone:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            texts = holding.fd_texts(pid)
            found += [f"{pid} {text}" for text in texts if "vfio" in text]
    return found
