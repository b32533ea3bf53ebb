"""The main job on a real GPU, as root, on a machine with one that nobody uses: `python -m gpu`.

It prints what was seen, and fails where a promise is broken.
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast._pb.deviceplugin.v1beta1 import api_pb2 as api
from holdfast.control import ask
from simulated.kubelet import Kubelet
from simulated.pods import Container, Pod, PodSpec

_GPU = "nvidia.com/gpu"
_PROGRAM = Path(__file__).with_name("program.py")
_LIMIT = 60.0
_MIB = "512"
_PLAIN = "main"


@dataclass(slots=True)
class _Programs:
    """The runtime: each container is a program that computes, in a cgroup of its pod's.

    What else it does is told by the container's name, as program.py has it.
    """

    kubepods: Path
    running: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    """The containers' processes by the names of their pods."""
    left: dict[str, int] = field(default_factory=dict)
    """The pids that programs print, by name."""

    def enclose(self, pod: Pod) -> None:
        self._folder(pod).mkdir(parents=True, exist_ok=True)

    async def sandbox(self, pod: Pod) -> None:
        """No pause: its programs are all that runs."""

    async def start(
        self, pod: Pod, container: Container, _grant: api.ContainerAllocateResponse
    ) -> None:
        folder = self._folder(pod) / container.name
        folder.mkdir(parents=True, exist_ok=True)
        self.running[pod.spec.name] = await asyncio.to_thread(
            self.program, *{container.name} - {_PLAIN}, cgroup=folder
        )

    def program(self, *steps: str, cgroup: Path | None = None) -> subprocess.Popen[str]:
        """Start a program; return it when it computes."""
        command = [sys.executable, str(_PROGRAM), _MIB, *steps]
        if cgroup is not None:
            inside = f'echo $$ > {cgroup}/cgroup.procs; exec "$@"'
            command = ["/bin/sh", "-c", inside, "sh", *command]
        started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        expected = {"ready", *steps}
        for line in started.stdout or ():
            name, _, pid = line.strip().partition(" ")
            expected.discard(name)
            if pid:
                self.left[name] = int(pid)
            if not expected:
                return started
        raise OSError(f"the program ended with {started.wait()}")

    async def wait(self, pod: Pod, _container: Container) -> int:
        return await asyncio.to_thread(self.running[pod.spec.name].wait)

    async def stop(self, pod: Pod, _grace: float) -> None:
        program = self.running.get(pod.spec.name)
        if program is not None and program.poll() is None:
            program.kill()
            await asyncio.to_thread(program.wait)

    async def remove(self, pod: Pod) -> None:
        folder = self._folder(pod)
        while "populated 1" in (folder / "cgroup.events").read_text():
            await asyncio.sleep(0.01)
        for each in [each for each in folder.iterdir() if each.is_dir()]:
            each.rmdir()
        folder.rmdir()

    def _folder(self, pod: Pod) -> Path:
        return self.kubepods / f"pod{pod.uid}"


@dataclass(slots=True)
class _Node:
    """The node: a simulated kubelet, the daemon, and the GPU."""

    state: Path
    kubelet: Kubelet
    programs: _Programs

    async def ask(self, question: str) -> Any:
        return await asyncio.to_thread(ask, self.state, question, patience=30.0)

    async def until(self, happened: Callable[[], Any], what: str) -> float:
        """Wait until *happened*; return how many seconds that took."""
        began = time.monotonic()
        while time.monotonic() < began + _LIMIT:
            if happened():
                return time.monotonic() - began
            await asyncio.sleep(0.005)
        raise AssertionError(f"waited {_LIMIT:g} s in vain for {what}: {await self.ask('locks')}")

    def healthy(self) -> bool:
        messages = self.kubelet.messages.get(_GPU)
        return messages is not None and "Healthy" in messages[-1].values()

    async def free(self) -> float:
        """Wait until no lock is left; return how many seconds that took."""
        began = time.monotonic()
        while any(each["state"] != "queued" for each in await self.ask("locks")):
            assert time.monotonic() < began + _LIMIT, await self.ask("locks")
            await asyncio.sleep(0.02)
        return time.monotonic() - began

    async def pod(self, name: str, container: str = _PLAIN) -> Pod:
        containers = (Container(name=container, limits={_GPU: 1}),)
        return await self.kubelet.submit(PodSpec(name=name, containers=containers))


async def _check(node: _Node, daemon: subprocess.Popen[bytes]) -> None:
    programs = node.programs
    print(f"offered after {await node.until(node.healthy, 'a healthy GPU'):.2f} s")
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    resident = re.findall(r"(VmRSS|RssAnon):\s+(\d+)", status)
    print("memory: " + ", ".join(f"{name} {int(kib) / 1024:.1f} MiB" for name, kib in resident))
    print(f"devices: {json.dumps(await node.ask('devices'))}")

    first = await node.pod("first", "orphan")
    await node.until(lambda: first.starts, "the first pod to start")
    computing = {programs.running["first"].pid, programs.left["orphan"]}
    began = time.monotonic()
    holders = {each["pid"] for each in await node.ask("holders")}
    print(f"holders: named in {(time.monotonic() - began) * 1000:.0f} ms")
    assert holders >= computing, f"{holders} are named, and {computing} compute"

    programs.running["first"].kill()
    await node.until(lambda: first.stopped, "the first pod to be over")
    second = await node.pod("second")
    await node.until(lambda: second.waiting, "the second pod to wait")
    print(f"while the orphan computes: {second.waiting}")
    assert not second.starts, "the second pod started beside the orphan of the first"
    os.kill(programs.left["orphan"], signal.SIGKILL)
    started = await node.until(lambda: second.starts, "the second pod to start")
    print(f"the second pod computed {started:.2f} s after the orphan was killed")

    programs.running["second"].kill()
    print(f"free {await node.free():.2f} s after its program was killed")

    third = await node.pod("third", "unfiled")
    await node.until(lambda: third.starts, "the third pod to start")
    programs.running["third"].kill()
    await node.until(lambda: third.stopped, "the third pod to be over")
    unfiled = programs.left["unfiled"]
    mapped = Path(f"/proc/{unfiled}/maps").read_text().count("/dev/nvidia")
    fourth = await node.pod("fourth")
    await node.until(lambda: fourth.waiting or fourth.starts, "the fourth pod")
    print(
        f"a child without files has {mapped} mappings of nodes; NVML lists {_listed()}; "
        f"the next pod: {fourth.waiting or 'started'}"
    )
    os.kill(unfiled, signal.SIGKILL)
    await node.until(lambda: fourth.starts, "the fourth pod to start")
    programs.running["fourth"].kill()
    await node.free()

    monitor = subprocess.Popen(["nvidia-smi", "-l", "1"], stdout=subprocess.DEVNULL)
    try:
        await node.until(lambda: _nodes(monitor.pid), "nvidia-smi to have nodes open")
        fifth = await node.pod("fifth")
        started = await node.until(lambda: fifth.starts, "a pod to start beside a monitor")
        print(f"a pod started {started:.2f} s beside nvidia-smi, which has {_nodes(monitor.pid)}")
    finally:
        monitor.kill()
        monitor.wait()
    programs.running["fifth"].kill()
    await node.free()


def _nodes(pid: int) -> list[str]:
    """Return NVIDIA's nodes that the process has open."""
    nodes = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            nodes.add(str(each.readlink()))
    return sorted(each for each in nodes if each.startswith("/dev/nvidia"))


def _listed() -> str:
    command = ("nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader")
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@contextlib.contextmanager
def _cgroup2() -> Iterator[Path]:
    """Yield a tree of cgroup v2, mounted where none is."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2":
            yield Path(where)
            return
    with tempfile.TemporaryDirectory(prefix="cgroup2-") as where:
        subprocess.run(["mount", "-t", "cgroup2", "none", where], check=True)
        try:
            yield Path(where)
        finally:
            subprocess.run(["umount", where], check=True)


async def _run(folder: Path, cgroups: Path) -> None:
    plugins, pods, state = (folder / name for name in ("device-plugins", "pod-resources", "state"))
    for each in (plugins, pods, state):
        each.mkdir()
    settings = {
        "stateDir": str(state),
        "host": {"cgroup": str(cgroups)},
        "kubelet": {"pluginDir": str(plugins), "podResourcesSocket": str(pods / "kubelet.sock")},
        "http": {"port": 0},
        "gate": {"wait": "5s"},
    }
    (folder / "config.json").write_text(json.dumps(settings))
    programs = _Programs(cgroups / "kubepods")
    kubelet = Kubelet(plugins, pods / "kubelet.sock", programs)
    await kubelet.start()
    daemon = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "run", "--config", str(folder / "config.json")]
    )
    try:
        await _check(_Node(state, kubelet, programs), daemon)
    finally:
        for pid in programs.left.values():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        daemon.terminate()
        daemon.wait(30)
        await kubelet.close()


def main() -> int:
    """Check the promises, or say what this machine lacks."""
    if os.geteuid() != 0 or not Path("/dev/nvidia0").exists():
        print("gpu: skipped: it takes root, and a GPU with NVIDIA's driver")
        return 0
    folder = Path(tempfile.mkdtemp(prefix="hf-"))
    try:
        with _cgroup2() as cgroups:
            asyncio.run(_run(folder, cgroups))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("gpu: one holder, and free means free")
    return 0


if __name__ == "__main__":
    sys.exit(main())
