"""The floors under the figures: a sync, an interpreter, a bare plugin, one look at every file."""

import asyncio
import contextlib
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from msgspec import Struct

from bench.figures import Floor
from bench.rig import CHIPS, TPU, Place, Rig
from holdfast._pb.deviceplugin.v1beta1 import api_pb2 as api
from simulated.stage import running

_PAGE = b"\0" * 4096
_SCRIPT = Path(__file__).with_name("bareplugin.py")
DAEMON = "import holdfast.cli, holdfast.app.daemon"
"""A program that imports what the daemon does."""


def timed(call: Callable[[], object]) -> float:
    """Return how many milliseconds *call* takes."""
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000


def thread_cpu(call: Callable[[], object]) -> float:
    """Return how many milliseconds of CPU *call* takes, whoever else has work on this machine."""
    began = time.thread_time()
    call()
    return (time.thread_time() - began) * 1000


class Sync(Struct, frozen=True, kw_only=True):
    """A file that is synced as the ledger's is: one more page at its end, then fdatasync."""

    fd: int
    what: ClassVar[str] = "one fdatasync of 4 KiB more, where the ledger is"

    def __call__(self) -> None:
        """Write the page and sync it."""
        os.write(self.fd, _PAGE)
        os.fdatasync(self.fd)


@contextlib.contextmanager
def synced_file(place: Place) -> Iterator[Sync]:
    """Yield a file to sync, on the ledger's disk."""
    fd = os.open(place.state / "fdatasync", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        yield Sync(fd=fd)
    finally:
        os.close(fd)


def visits(devices: int, *, n: int = 30) -> Floor:
    """Return the CPU time of one look-up in a dict for each of *devices*."""
    table = {str(place): place for place in range(devices)}
    return Floor(
        what="one look-up in a dict for each device, CPU time",
        samples=[thread_cpu(lambda: [table[each] for each in table]) for _ in range(n)],
    )


def walks(proc: Path, *, n: int = 5) -> Floor:
    """Return how long it takes to follow every open file of the processes below *proc* once."""
    return Floor(
        what="stat(2) of every open file of every process once, on one thread",
        samples=[timed(lambda: _walk(proc)) for _ in range(n)],
    )


class Interpreter(Struct, frozen=True, kw_only=True):
    """Runs of a program by the daemon's Python, in milliseconds: how long, and CPU time."""

    what: str
    wall: list[float]
    cpu: list[float]


def interpreter(place: Place, program: str, what: str, *, n: int) -> Interpreter:
    """Run *program* *n* times."""
    runs = [run(place, "-c", program) for _ in range(n)]
    return Interpreter(what=what, wall=[each[0] for each in runs], cpu=[each[1] for each in runs])


def run(place: Place, *arguments: str) -> tuple[float, float]:
    """Run the daemon's Python to its end; return milliseconds by the clock, and of CPU time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = timed(
        lambda: subprocess.run([place.python, *arguments], check=True, stdout=subprocess.DEVNULL)
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return took, used * 1000


class Bare:
    """The process of a bare plugin, and the kubelet that it registers with."""

    def __init__(self, made: Rig, process: "subprocess.Popen[bytes]") -> None:
        """Take a rig whose daemon does not run."""
        self._made = made
        self._process = process

    @property
    def pid(self) -> int:
        """Return its process."""
        return self._process.pid

    async def register(self) -> float:
        """Let kubelet forget it, and return how many milliseconds it takes to register again."""
        self._made.forget_registration()
        return await self._ordered("register", self._made.registered)

    async def change(self) -> float:
        """Return how many milliseconds it takes until kubelet hears that a device is ill."""
        before = len(self._made.healthy(TPU))
        return await self._ordered("list", lambda: len(self._made.healthy(TPU)) < before)

    async def allocate(self) -> float:
        """Return how many milliseconds a call of Allocate takes."""
        request = api.AllocateRequest()
        request.container_requests.add(devices_ids=["bare-0"])
        began = time.perf_counter()
        await self._made.kubelet.devices.plugin(TPU).Allocate(request)
        return (time.perf_counter() - began) * 1000

    async def _ordered(self, order: str, happened: Callable[[], Any]) -> float:
        if self._process.stdin is None:
            raise RuntimeError("no pipe")
        began = time.perf_counter()
        self._process.stdin.write(f"{order}\n".encode())
        self._process.stdin.flush()
        return (await self._made.until(happened, f"the bare plugin: {order}") - began) * 1000


@contextlib.asynccontextmanager
async def bare_plugin(place: Place, *, devices: int = CHIPS) -> AsyncIterator[Bare]:
    """Yield a plugin that is registered with a kubelet of its own."""
    with tempfile.TemporaryDirectory(prefix="hf-", dir="/tmp") as folder:
        async with running(Rig(Path(folder), place, gpus=0, chips=devices)) as made:
            command = [str(place.python), str(_SCRIPT), str(made.kubelet.folder), TPU, str(devices)]
            with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
                bare = Bare(made, process)
                try:
                    await bare.register()
                    yield bare
                finally:
                    process.kill()
                    await asyncio.to_thread(process.wait)


def _walk(proc: Path) -> None:
    for process in proc.glob("[0-9]*"):
        with contextlib.suppress(OSError), os.scandir(process / "fd") as links:
            for link in links:
                with contextlib.suppress(OSError):
                    link.stat()
