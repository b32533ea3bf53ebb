"""gVisor in the guest: sandboxes of a real runsc, laid out on the node as containerd lays them out."""

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vm.guest import pods
from vm.guest.pci import Function

USE = 'hold_device "$CHIP" container group attach device </dev/null'
"""Opens what a TPU program opens, prints READY or the step that failed, and closes it all."""

_STATE = Path("/run/containerd/runsc/k8s.io")
_BUNDLES = Path("/run/containerd/io.containerd.runtime.v2.task/k8s.io")
_FILES = Path("/run/gvisor")
_VFIO = Path("/dev/vfio")
# What this runsc calls the group nodes inside, whatever the kernel outside calls them.
_VFIO_MAJOR = 245
_SHARED_NODE = (10, 196)
_END = 300.0
_SIGKILLED = 128 + signal.SIGKILL


@dataclass(frozen=True, slots=True)
class Program:
    """What a pod runs in a gVisor sandbox: a shell script.

    In it `$CHIP` names the pod's devices to hold_device, and `$START` counts the starts of the
    script in this pod, from 1.
    """

    script: str


@dataclass(slots=True)
class Contained:
    """A container in a sandbox: nothing of it is a process that the node could signal."""

    id: str
    output: Path
    _waiter: subprocess.Popen[str]

    @property
    def alive(self) -> bool:
        return self._waiter.poll() is None

    @property
    def said(self) -> list[str]:
        """The lines that its program has printed."""
        return self.output.read_text().splitlines()

    def kill(self) -> None:
        """Have gVisor kill its program."""
        _runsc("kill", self.id, "KILL")

    def wait(self) -> int:
        """Return its exit status when it has ended, or that of SIGKILL if its sandbox did; forget it."""
        text, _ = self._waiter.communicate(timeout=_END)
        with contextlib.suppress(subprocess.CalledProcessError):
            _runsc("delete", "--force", self.id)
        shutil.rmtree(_BUNDLES / self.id, ignore_errors=True)
        # Where the sandbox is killed at the wrong moment, runsc succeeds and says nothing.
        known = self._waiter.returncode == 0 and text.strip()
        return int(json.loads(text)["exitStatus"]) if known else _SIGKILLED


@dataclass(slots=True)
class Sandbox:
    """One pod's sandbox: the sentry with its helpers, and the shim that started them."""

    pod: pods.Pod
    id: str = field(default_factory=lambda: uuid.uuid4().hex * 2)
    pid: int = 0
    """The sentry's."""
    containers: list[Contained] = field(default_factory=list)
    _shim: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the shim, and the sandbox with nothing but pause in it."""
        nodes = _FILES / f"{self.id}-vfio"
        _lay_out_nodes(nodes)
        self._shim = subprocess.Popen(
            [os.environ["SHIM"], str(nodes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        bundle = self._bundle(self.id, "sandbox", "exec sleep 100000", ())
        self._have_shim_do(
            "create", "--bundle", str(bundle), "--pid-file", f"{bundle}/pid", self.id
        )
        self._have_shim_do("start", self.id)
        self.pid = int((bundle / "pid").read_text())

    def run(self, program: Program, functions: Sequence[Function], *, start: int = 1) -> Contained:
        """Start a container that runs *program* with *functions*."""
        container = uuid.uuid4().hex * 2
        chip = ",".join(f"{_vfio_index(each)}:{each.address}" for each in functions)
        settings = (f"CHIP={chip}", f"START={start}")
        bundle = self._bundle(container, "container", program.script, settings, functions)
        self._have_shim_do("create", "--bundle", str(bundle), container)
        self._have_shim_do("start", container)
        waiter = subprocess.Popen(
            _command("wait", container),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        made = Contained(container, _FILES / container, waiter)
        self.containers.append(made)
        return made

    @property
    def alive(self) -> bool:
        """Whether the sentry lives."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            return "\nState:\tZ" not in Path(f"/proc/{self.pid}/status").read_text()
        return False

    @property
    def has_shim(self) -> bool:
        return self._shim is not None and self._shim.poll() is None

    def lose_shim(self) -> None:
        """Kill the shim, and nothing else: so the runtime loses a sandbox that lives on."""
        if self._shim is not None:
            self._shim.kill()
            self._shim.wait()
            for pipe in (self._shim.stdin, self._shim.stdout):
                if pipe is not None:
                    pipe.close()

    def stop(self) -> None:
        """Stop it as the runtime does at its pod's end, which it cannot without its shim."""
        for container in self.containers:
            if container.alive:
                container.kill()
                container.wait()
        if self.has_shim:
            with contextlib.suppress(subprocess.CalledProcessError):
                _runsc("delete", "--force", self.id)
            self.forget()

    def forget(self) -> None:
        """Remove the files that a runtime keeps of it, and end its shim."""
        self.lose_shim()
        shutil.rmtree(_BUNDLES / self.id, ignore_errors=True)
        for file in _STATE.glob(f"*{self.id}*"):
            file.unlink(missing_ok=True)

    def _have_shim_do(self, *arguments: str) -> None:
        """Have the shim run runsc; OSError with runsc's words if it fails."""
        assert self._shim is not None
        assert self._shim.stdin is not None
        assert self._shim.stdout is not None
        output = _FILES / arguments[-1]
        self._shim.stdin.write(f"{shlex.join(_command(*arguments))} </dev/null >>{output} 2>&1\n")
        self._shim.stdin.flush()
        if (answer := self._shim.stdout.readline()) != "DONE 0\n":
            raise OSError(f"runsc {arguments[0]}: {answer.strip()}: {output.read_text()[-600:]}")

    def _bundle(
        self,
        container: str,
        kind: str,
        script: str,
        settings: Sequence[str],
        functions: Sequence[Function] = (),
    ) -> Path:
        """Write a bundle as containerd does for *kind*, and return its folder."""
        bundle = _BUNDLES / container
        bundle.mkdir(parents=True)
        cgroup = self.pod.path.relative_to(pods.CGROUP) / container
        namespaces = ("pid", "mount", "ipc", "uts", "network")
        spec = {
            "ociVersion": "1.0.0",
            "process": {
                "user": {"uid": 0, "gid": 0},
                "cwd": "/",
                "env": ["PATH=/bin", *settings],
                "args": ["/bin/sh", "-c", script],
            },
            "root": {"path": str(_rootfs()), "readonly": True},
            "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
            "annotations": {
                "io.kubernetes.cri.container-type": kind,
                "io.kubernetes.cri.sandbox-id": self.id,
                "io.kubernetes.cri.sandbox-uid": self.pod.uid,
            },
            "linux": {
                "cgroupsPath": f"/{cgroup}",
                "namespaces": [{"type": namespace} for namespace in namespaces],
                "devices": [_device(_VFIO / "vfio", *_SHARED_NODE), *map(_group_device, functions)]
                if functions
                else [],
            },
        }
        (bundle / "config.json").write_text(json.dumps(spec))
        return bundle


def runsc_version() -> str:
    """Return what runsc says of itself, in one line."""
    text = subprocess.run(_command("--version"), check=True, capture_output=True, text=True).stdout
    return text.splitlines()[0]


def _command(*arguments: str) -> list[str]:
    options = (f"--root={_STATE}", "--platform=systrap", "--network=none", "--tpuproxy")
    return [os.environ["RUNSC"], *options, *arguments]


def _runsc(*arguments: str) -> None:
    _STATE.mkdir(parents=True, exist_ok=True)
    subprocess.run(_command(*arguments), check=True, capture_output=True, timeout=_END)


def _rootfs() -> Path:
    """Return the root file system of every container, made if it is not there."""
    root = _FILES / "rootfs"
    if not root.exists():
        for folder in ("bin", "dev", "proc", "tmp"):
            (root / folder).mkdir(parents=True)
        for program in (os.environ["HOLD_DEVICE"], shutil.which("busybox")):
            shutil.copy(str(program), root / "bin")
        for name in ("sh", "sleep"):
            (root / "bin" / name).symlink_to("busybox")
    return root


def _vfio_index(function: Function) -> int:
    """Return the number of its vfio-dev folder, by which runsc knows its group's node."""
    (entry,) = (function.folder / "vfio-dev").iterdir()
    return int(entry.name.removeprefix("vfio"))


def _lay_out_nodes(folder: Path) -> None:
    """Make the group nodes anew, so that this runsc finds them.

    It takes the number in a node's name for that of the vfio-dev folder, as they are the same on a
    TPU VM. So the node of that name is the function's; the groups' own names stay, as far as they
    are not taken, since it looks below /sys/kernel/iommu_groups for each.
    """
    folder.mkdir(parents=True)
    devices = Path("/sys/class/vfio-dev")
    by_index = {
        entry.name.removeprefix("vfio"): _VFIO / (entry / "device/iommu_group").readlink().name
        for entry in devices.iterdir()
    }
    for name, node in {**{each.name: each for each in _VFIO.iterdir()}, **by_index}.items():
        os.mknod(folder / name, 0o20666, node.stat().st_rdev)


def _group_device(function: Function) -> dict[str, Any]:
    return _device(_VFIO / str(_vfio_index(function)), _VFIO_MAJOR, function.group)


def _device(path: Path, major: int, minor: int) -> dict[str, Any]:
    return {"path": str(path), "type": "c", "major": major, "minor": minor, "fileMode": 0o666}
