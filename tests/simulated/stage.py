"""A simulated node, its kubelet and the real daemon: what demo, tests and benchmarks run on."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import yaml

from forked import Forked
from holdfast.control import ask
from holdfast.errors import HoldfastError
from simulated.dramanager import DraManager
from simulated.kubelet import Kubelet
from simulated.node import SimulatedNode
from simulated.podworker import KubeletTimes
from simulated.runtime import Runtime
from waiting import pauses, until

_STOP_LIMIT = 120.0
"""Seconds after which a daemon that was told to stop is taken to hang."""
_FOLDERS = ("sys", "proc", "dev", "cgroup", "etc", "run")


class Stage:
    """A node, its kubelet, and the daemon as `holdfast run` starts it; nothing runs at first.

    *settings* are those of the daemon; what names the node's folders and sockets is added to them.
    What is changed in `settings` applies from the next `start` on.
    """

    look, rarest = 0.01, 0.05
    """Seconds between two looks of `until`: at first, and after a long wait."""
    limit = 60.0
    """Seconds after which `until` gives up; only a failure meets it."""

    def __init__(
        self,
        folder: Path,
        node: SimulatedNode,
        runtime: Runtime,
        *,
        settings: Mapping[str, Any],
        times: KubeletTimes | None = None,
        environment: Mapping[str, str] | None = None,
        state: Path | None = None,
        python: Path | str = sys.executable,
        dra: DraManager | None = None,
    ) -> None:
        """Build all below *folder*, whose path is short: a socket's may have 107 bytes.

        The daemon is run by *python*, with *environment* added to ours, and keeps its *state*
        below *folder* unless told otherwise. Claims are kubelet's *dra*'s.
        """
        self.folder = folder
        self.node = node
        self.runtime = runtime
        self.kubelet = Kubelet(folder / "dp", folder / "pr.sock", runtime, times=times, dra=dra)
        self.state = state or folder / "state"
        self.config = folder / "config.yaml"
        self.settings: dict[str, Any] = {
            **settings,
            "stateDir": str(self.state),
            "host": {name: str(getattr(node.root, name)) for name in _FOLDERS},
            "kubelet": {
                "pluginDir": str(self.kubelet.folder),
                "podResourcesSocket": str(folder / "pr.sock"),
                **settings.get("kubelet", {}),
            },
        }
        self._python = python
        # So that one that hangs can be made to log where each of its threads is.
        shown = {"PYTHONFAULTHANDLER": "1"}
        self._environment = {**os.environ, **shown, **(environment or {})}
        self._process: subprocess.Popen[bytes] | Forked | None = None

    @property
    def process(self) -> subprocess.Popen[bytes] | Forked:
        """Return the daemon's process, which has been started."""
        if self._process is None:
            raise AssertionError("the daemon was not started")
        return self._process

    @property
    def log(self) -> str:
        """Return what the daemon has logged."""
        file = self.folder / "daemon.log"
        return file.read_text() if file.exists() else ""

    def start(self) -> float:
        """Start the daemon; return when, by `time.perf_counter`."""
        self.config.write_text(yaml.safe_dump(self.settings))
        with (self.folder / "daemon.log").open("ab") as log:
            began = time.perf_counter()
            self._process = self.launch(log, "run", "--config", str(self.config))
        return began

    def launch(self, log: BinaryIO, *arguments: str) -> subprocess.Popen[bytes] | Forked:
        """Run `holdfast` with *arguments* in a process of its own, which writes to *log*."""
        return subprocess.Popen(
            [self._python, "-m", "holdfast", *arguments], stderr=log, env=self._environment
        )

    async def start_and_register(self, resource: str) -> None:
        """Start the daemon, and return when kubelet has heard its devices of *resource*."""
        # What the former one sent last may come only now.
        await until(lambda: not self.kubelet.listens, what="kubelet to see the streams' end")
        before = self.heard(resource)
        self.start()
        await self.until(lambda: self.heard(resource) > before, "the daemon to register")

    def heard(self, resource: str) -> int:
        """Return how many messages on *resource* kubelet has had."""
        return len(self.kubelet.messages.get(resource, ()))

    def configure(self, **changes: Any) -> None:
        """Change the daemon's configuration file, which it follows."""
        self.settings |= changes
        self.config.write_text(yaml.safe_dump(self.settings))

    def kill(self) -> None:
        """End the daemon as a crash does."""
        self.process.kill()
        self.process.wait()

    async def stop(self) -> None:
        """End the daemon as a node does, if it runs."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, _STOP_LIMIT)
        except subprocess.TimeoutExpired as error:
            process.send_signal(signal.SIGABRT)
            process.wait()
            raise AssertionError(f"the daemon does not stop: {self.log[-8000:]}") from error

    def healthy(self, resource: str) -> set[str]:
        """Return the devices of *resource* that kubelet would grant."""
        endpoint = self.kubelet.devices.endpoints.get(resource)
        return endpoint.healthy if endpoint is not None else set()

    async def asked(self, question: str, **rest: Any) -> Any:
        """Return the daemon's answer on its control socket, None while it has none."""
        with contextlib.suppress(OSError, HoldfastError):
            return await asyncio.to_thread(ask, self.state, question, **rest)
        return None

    async def locks(self) -> dict[str, str]:
        """Return the state of each locked device by its id."""
        rows = await self.asked("locks") or ()
        return {
            row["device"].rpartition("/")[2]: row["state"]
            for row in rows
            if row["state"] not in {"queued", "admin"}
        }

    async def until(
        self,
        happened: Callable[[], object | Awaitable[object]],
        what: str | Callable[[], str],
    ) -> float:
        """Return when *happened* was seen, by `time.perf_counter`.

        Raise AssertionError, which names *what*, when the limit is over or the daemon ends.
        """
        end = time.perf_counter() + self.limit
        looks = pauses(self.look, self.rarest)
        while True:
            answer = happened()
            if isinstance(answer, Awaitable):
                answer = await answer
            if answer:
                return time.perf_counter()
            self._check_daemon()
            if time.perf_counter() > end:
                text = what if isinstance(what, str) else what()
                moves = await self.asked("history", limit=40) or ()
                raise AssertionError(
                    "\n".join([f"waited {self.limit:g} s in vain for {text}", *map(str, moves)])
                )
            await asyncio.sleep(next(looks))

    def _check_daemon(self) -> None:
        """Raise AssertionError when the daemon has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            raise AssertionError(f"the daemon ended by itself; its log ends:\n{self.log[-3000:]}")


AnyStage = TypeVar("AnyStage", bound=Stage)


@contextlib.asynccontextmanager
async def running(stage: AnyStage) -> AsyncIterator[AnyStage]:
    """Run the node and its kubelet, and whatever daemon is started, until the block ends."""
    keeper = asyncio.create_task(stage.node.run())
    try:
        await stage.kubelet.start()
        yield stage
    finally:
        await stage.stop()
        await stage.kubelet.close()
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)
        stage.node.close()
