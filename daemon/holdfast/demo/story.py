"""The main job as a story, told while it happens, with the real daemon on a simulated node."""

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import yaml

from holdfast.control import ask
from holdfast.demo.kubelet import Kubelet, KubeletTimes
from holdfast.demo.node import SimulatedNode
from holdfast.demo.pods import Container, Phase, Pod, PodSpec, Workload
from holdfast.demo.runtime import Runtime
from holdfast.errors import HoldfastError

_TPU = "google.com/tpu"
_CHIPS = 4
_LIMIT = 25.0
_LOOK = 0.01
# Where a user waits for minutes, the demo waits for seconds; all else is as on a node.
_SETTINGS = {
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


def main(*, keep: bool = False) -> int:
    """Tell the story; return 0 when every step happened. *keep*: then leave it all running."""
    # Short, because a unix socket's path has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="holdfast-", dir="/tmp") as folder:
        try:
            asyncio.run(_tell(Path(folder), keep=keep))
        except StoryError as error:
            print(f"\nThe story ended early: {error}")
            print((Path(folder) / "daemon.log").read_text()[-4000:])
            return 1
        except KeyboardInterrupt:
            return 130
    return 0


class Stage:
    """The node, the kubelet and the daemon, and a clock that everything is told by."""

    def __init__(self, folder: Path) -> None:
        """Build everything below *folder*; nothing runs yet."""
        self.folder = folder
        self.node = SimulatedNode(folder / "node", chips=_CHIPS)
        self.runtime = Runtime(self.node)
        self.kubelet = Kubelet(
            folder / "plugins",
            folder / "pod-resources.sock",
            self.runtime,
            times=KubeletTimes(retry=3.0),
        )
        self.config = folder / "config.yaml"
        self.state = folder / "state"
        self.daemon: subprocess.Popen[bytes] | None = None
        self._started = time.monotonic()
        root = self.node.root
        settings = {
            **_SETTINGS,
            "stateDir": str(self.state),
            "host": {
                "sys": str(root.sys),
                "proc": str(root.proc),
                "dev": str(root.dev),
                "cgroup": str(root.cgroup),
                "etc": str(root.etc),
            },
        }
        settings["kubelet"] = {
            "pluginDir": str(folder / "plugins"),
            "podResourcesSocket": str(folder / "pod-resources.sock"),
            **_SETTINGS["kubelet"],  # type: ignore[dict-item]
        }
        self.config.write_text(yaml.safe_dump(settings))

    def say(self, text: str) -> None:
        """Tell the reader what just happened, and when."""
        print(f"{time.monotonic() - self._started:6.2f} s  {text}", flush=True)

    def start_daemon(self) -> None:
        """Start the real daemon."""
        with (self.folder / "daemon.log").open("ab") as log:
            self.daemon = subprocess.Popen(
                [sys.executable, "-m", "holdfast", "run", "--config", str(self.config)], stderr=log
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
        """Return how many chips kubelet would grant."""
        endpoint = self.kubelet.books.endpoints.get(_TPU)
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


async def _tell(folder: Path, *, keep: bool) -> None:
    async with _stage(folder) as stage:
        await _appear(stage)
        orphan = await _leave_an_orphan(stage)
        await _crash(stage)
        second = await _wait_and_start(stage, orphan)
        await _withhold_and_return(stage, second)
        stage.say("The end. Every step happened.")
        if keep:
            await _stay(stage)


@contextlib.asynccontextmanager
async def _stage(folder: Path) -> AsyncIterator[Stage]:
    stage = Stage(folder)
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


async def _appear(stage: Stage) -> None:
    stage.say("A node with four TPU v5e chips; kubelet runs, and the holdfast daemon starts.")
    await stage.until(lambda: stage.healthy() == _CHIPS, "kubelet has four healthy chips")
    stage.say(f"The daemon has registered {_TPU}: four chips appear, all healthy.")


async def _leave_an_orphan(stage: Stage) -> int:
    pod = await stage.kubelet.submit(_pod("pod-a", chips=2, runs_for=1.0, orphan=1))
    await stage.until_running(pod)
    held = sorted(await stage.locks())
    stage.say(f"Pod A asked for two chips, got {' and '.join(held)}, and its program runs.")
    await stage.until(lambda: pod.stopped, "pod A is over")
    await stage.until(
        lambda: len(stage.node.members(pod.uid)) == 1, "pod A left one process behind"
    )
    members = stage.node.members(pod.uid)
    stage.say(
        f"Pod A is over for kubelet, but a process it left behind (pid {members[0]}) still holds "
        "a chip. Any other plugin would grant it now."
    )
    return members[0]


async def _crash(stage: Stage) -> None:
    stage.kill_daemon()
    stage.say("The daemon is killed with SIGKILL, and started again.")
    stage.start_daemon()
    await stage.until(lambda: stage.healthy() == _CHIPS, "the daemon has registered again")

    async def remembered() -> bool:
        return "releasing" in (await stage.locks()).values()

    await stage.until(remembered, "the ledger still has pod A's lock")
    stage.say("It is back, and its ledger still knows which chip pod A is not done with.")


async def _wait_and_start(stage: Stage, orphan: int) -> Pod:
    pod = await stage.kubelet.submit(_pod("pod-b", chips=4, runs_for=2.0, orphan=1))
    if pod.phase is Phase.FAILED:
        raise StoryError(f"pod B was refused: {pod.message}")
    stage.say("Pod B asks for all four. It is admitted at once, and waits at the gate.")
    await stage.until(lambda: f"pid {orphan} " in pod.waiting, "pod B is told whom it waits for")
    stage.say(f"Pod B is told: {_short(pod.waiting)}")
    await stage.until(lambda: not stage.node.has(orphan), "the orphan is ended")
    ended = time.monotonic()
    stage.say(
        "Kubelet and the runtime have let go of pod A for long enough: the orphan is ended "
        "(SIGTERM, which it ignored, then SIGKILL)."
    )
    await stage.until_running(pod)
    later = (time.monotonic() - ended) * 1000
    stage.say(f"Pod B starts {later:.0f} ms later, on four chips that the kernel says are free.")
    return pod


async def _withhold_and_return(stage: Stage, pod: Pod) -> None:
    await stage.until(lambda: pod.stopped, "pod B is over")
    members = stage.node.members(pod.uid)
    stage.say(f"Pod B is over, and left pid {members[0]} on a chip. Nobody waits for it this time.")
    await stage.until(lambda: stage.healthy() == 0, "pod B's chips leave the offer")
    stage.say(
        "They have not come free in time, so they leave the offer, all four: while a process of "
        "pod B lives, it could open any of them again."
    )
    await stage.until(lambda: stage.healthy() == _CHIPS, "the chips are offered again")
    stage.say("The holder is gone and the kernel agrees: all four are offered again.")
    rows = await asyncio.to_thread(ask, stage.state, "history", limit=200)
    story = json.loads(json.dumps(rows))
    chip = next(row["device"] for row in reversed(story) if row["from"] == "reclaiming")
    stage.say(f"What `holdfast history {chip}` tells of it:")
    for row in story:
        if row["device"] == chip:
            print(f"          {row['from']} -> {row['to']}: {_short(row['evidence'])}")


async def _stay(stage: Stage) -> None:
    print(
        f"\nIt all keeps running. In another terminal:\n"
        f"  {sys.executable} -m holdfast status --state-dir {stage.state}\n"
        f"  {sys.executable} -m holdfast history --state-dir {stage.state}\n"
        f"  tail -f {stage.folder / 'daemon.log'}\n"
        "Ctrl-C ends it."
    )
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()


def _pod(name: str, *, chips: int, runs_for: float, orphan: int) -> PodSpec:
    workload = Workload(runs_for=runs_for, orphan=orphan)
    return PodSpec(name=name, containers=(Container(limits={_TPU: chips}, workload=workload),))


def _short(text: str) -> str:
    return text.rpartition(" desc = ")[2]
