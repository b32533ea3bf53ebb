"""What stories are told on: a simulated node, its kubelet, the real daemon, and a clock."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from holdfast.control import ask
from holdfast.errors import HoldfastError
from holdfast.model.text import printable
from simulated.kubelet import Kubelet
from simulated.node import SimulatedNode
from simulated.pods import Phase, Pod
from simulated.podworker import KubeletTimes
from simulated.runtime import Runtime

_LIMIT = 25.0
_LOOK = 0.01
# Where a user waits for minutes, the demo waits for seconds; all else is as on a node.
_SETTINGS: Mapping[str, Any] = {
    "withholdAfter": "2s",
    "kubelet": {
        "question": {"minInterval": "200ms", "settle": "200ms", "idleInterval": "5s"},
    },
    "gate": {"wait": "3s"},
    "reclaim": {
        "letGoGrace": "2s",
        "orphanGrace": "2s",
        "termGrace": "1s",
        "killGrace": "5s",
        "unseenGrace": "2s",
    },
    "http": {"port": 0},
    "log": {"format": "json"},
}


class StoryError(Exception):
    """A step of the story did not happen."""


def play(tell: Callable[[Path], Awaitable[None]]) -> int:
    """Tell a story in a folder of its own; return 0 when every step of it happened."""
    # Short, because a unix socket's path has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="holdfast-", dir="/tmp") as folder:
        try:
            asyncio.run(_to_the_end(tell, Path(folder)))
        except StoryError as error:
            print(f"\nThe story ended early: {printable(str(error))}")
            print((Path(folder) / "daemon.log").read_text()[-4000:])
            return 1
        except KeyboardInterrupt:
            return 130
    return 0


async def _to_the_end(tell: Callable[[Path], Awaitable[None]], folder: Path) -> None:
    await tell(folder)


class Stage:
    """The node, the kubelet and the daemon, and a clock that everything is told by."""

    def __init__(
        self,
        folder: Path,
        node: SimulatedNode,
        *,
        resource: str,
        toolkit: Callable[[Mapping[str, str]], Sequence[str]] | None = None,
        changes: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Build everything below *folder*; nothing runs yet.

        The story is about *resource* on *node*. *changes* are more settings of the daemon, and
        *environment* more of its environment; *toolkit* is as Runtime's.
        """
        self.folder = folder
        self.node = node
        self.resource = resource
        self.runtime = Runtime(node, toolkit=toolkit)
        self.kubelet = Kubelet(
            folder / "plugins",
            folder / "pod-resources.sock",
            self.runtime,
            times=KubeletTimes(retry=3.0),
        )
        self.config = folder / "config.yaml"
        self.state = folder / "state"
        self.daemon: subprocess.Popen[bytes] | None = None
        self._environment = {**os.environ, **(environment or {})}
        self._started = time.monotonic()
        root = self.node.root
        settings = {
            **_SETTINGS,
            **(changes or {}),
            "stateDir": str(self.state),
            "host": {
                "sys": str(root.sys),
                "proc": str(root.proc),
                "dev": str(root.dev),
                "cgroup": str(root.cgroup),
                "etc": str(root.etc),
                "run": str(root.run),
            },
        }
        settings["kubelet"] = {
            "pluginDir": str(folder / "plugins"),
            "podResourcesSocket": str(folder / "pod-resources.sock"),
            **_SETTINGS["kubelet"],
        }
        self.config.write_text(yaml.safe_dump(settings))

    def say(self, text: str) -> None:
        """Tell the reader what just happened, and when."""
        print(f"{time.monotonic() - self._started:6.2f} s  {printable(text)}", flush=True)

    def add(self, text: str) -> None:
        """Tell a line more about what was said last."""
        print(f"          {printable(text)}", flush=True)

    def start_daemon(self) -> None:
        """Start the real daemon."""
        with (self.folder / "daemon.log").open("ab") as log:
            self.daemon = subprocess.Popen(
                [sys.executable, "-m", "holdfast", "run", "--config", str(self.config)],
                stderr=log,
                env=self._environment,
            )

    def kill_daemon(self) -> None:
        """End the daemon as a crash does."""
        if self.daemon is not None:
            self.daemon.kill()
            self.daemon.wait()

    def stop_daemon(self) -> None:
        """End the daemon as a node does."""
        if self.daemon is not None and self.daemon.poll() is None:
            self.daemon.terminate()
            self.daemon.wait(10)

    def healthy(self) -> int:
        """Return how many devices kubelet would grant."""
        endpoint = self.kubelet.devices.endpoints.get(self.resource)
        return len(endpoint.healthy) if endpoint is not None else 0

    async def locks(self) -> dict[str, str]:
        """Return the state of each lock, as the daemon tells it."""
        with contextlib.suppress(OSError, HoldfastError):
            rows = await asyncio.to_thread(ask, self.state, "locks")
            return {row["device"].rpartition("/")[2]: row["state"] for row in rows}
        return {}

    async def until(
        self, happened: Callable[[], bool | Awaitable[bool]], what: str, limit: float = _LIMIT
    ) -> None:
        """Return when *happened*; raise StoryError after *limit* seconds."""
        end = time.monotonic() + limit
        while True:
            answer = happened()
            if isinstance(answer, Awaitable):
                answer = await answer
            if answer:
                return
            if self.daemon is not None and self.daemon.poll() is not None:
                raise StoryError(f"the daemon ended by itself while we waited until {what}")
            if time.monotonic() > end:
                raise StoryError(f"{limit:g} s went by and it was not so that {what}")
            await asyncio.sleep(_LOOK)

    async def until_running(self, pod: Pod) -> None:
        """Return when the pod's program runs with its devices."""
        await self.until(lambda: pod.phase is not Phase.PENDING, f"pod {pod.spec.name} runs")
        if pod.phase is Phase.FAILED:
            raise StoryError(f"pod {pod.spec.name} failed: {pod.message}")
        if self.runtime.failures:
            raise StoryError(f"a program could not open its device: {self.runtime.failures[0]}")


@contextlib.asynccontextmanager
async def running(stage: Stage) -> AsyncIterator[Stage]:
    """Run the node, its kubelet and the daemon until the block ends."""
    keeper = asyncio.create_task(stage.node.run())
    try:
        await stage.kubelet.start()
        stage.start_daemon()
        yield stage
    finally:
        await asyncio.to_thread(stage.stop_daemon)
        await stage.kubelet.close()
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)
        stage.node.close()


async def stay(stage: Stage) -> None:
    """Leave it all running, and say how to look at it."""
    print(
        f"\nIt all keeps running. In another terminal:\n"
        f"  {sys.executable} -m holdfast status --state-dir {stage.state}\n"
        f"  {sys.executable} -m holdfast history --state-dir {stage.state}\n"
        f"  tail -f {stage.folder / 'daemon.log'}\n"
        "Ctrl-C ends it."
    )
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()


async def tell_history(stage: Stage) -> None:
    """Tell how the device that was reclaimed last came back."""
    rows = await asyncio.to_thread(ask, stage.state, "history", limit=200)
    story = json.loads(json.dumps(rows))
    device = next(row["device"] for row in reversed(story) if row["from"] == "reclaiming")
    stage.say(f"What `holdfast history {device}` tells of it:")
    for row in story:
        if row["device"] == device:
            stage.add(f"{row['from']} -> {row['to']}: {short(row['evidence'])}")


def short(text: str) -> str:
    """Return what the daemon itself said of a text that kubelet passes on."""
    return text.rpartition(" desc = ")[2]
