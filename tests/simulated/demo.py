"""What the stories of `make demo` are told with: a stage, a clock, and the terminal."""

import asyncio
import contextlib
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import HostError
from holdfast.model.text import printable
from simulated.dramanager import DraManager
from simulated.node import SimulatedNode
from simulated.pods import Phase, Pod, PodSpec
from simulated.podworker import KubeletTimes
from simulated.runtime import Runtime
from simulated.stage import Stage

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
_COLUMNS = 100
_LACKS = 3
_FURTHER = 12 * " "
"""What the further rows of a line begin with: two columns more than its text."""


class StoryError(AssertionError):
    """A step of the story did not happen."""


def play(tell: Callable[[Path], Coroutine[Any, Any, None]], *, instead: str = "") -> int:
    """Tell a story in a folder of its own; return 0 when every step of it happened.

    Return 3, with what the machine lacks and what to do *instead* on the terminal.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-", dir="/tmp") as folder:
        try:
            asyncio.run(tell(Path(folder)))
        except AssertionError as error:
            print(f"\nThe story ended early: {printable(str(error))}")
            print((Path(folder) / "daemon.log").read_text()[-4000:])
            return 1
        except HostError as error:
            print(f"{error}.", instead, sep="\n")
            return _LACKS
        except KeyboardInterrupt:
            return 130
    return 0


class Demo(Stage):
    """A stage on which a story of *resource* is told, with the time of each step."""

    limit = 25.0

    def __init__(
        self,
        folder: Path,
        node: SimulatedNode,
        *,
        resource: str,
        toolkit: Callable[[Mapping[str, str]], Sequence[str]] | None = None,
        changes: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        cdi: Path | None = None,
        dra: DraManager | None = None,
    ) -> None:
        """Build everything below *folder*; *changes* are more settings.

        *toolkit* and *cdi* are as Runtime's, *dra* is as Stage's.
        """
        super().__init__(
            folder,
            node,
            Runtime(node, toolkit=toolkit, cdi=cdi),
            settings={**_SETTINGS, **(changes or {})},
            times=KubeletTimes(retry=3.0, sync=2.0, unprepare=2.0),
            environment=environment,
            dra=dra,
        )
        # Makefile has gRPC say less on the terminal; the daemon's log is as on a node.
        self._environment.pop("GRPC_VERBOSITY", None)
        self.resource = resource
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """Tell the reader what just happened, and when."""
        _print(f"{time.monotonic() - self._began:6.2f} s  ", text)

    def add(self, text: str) -> None:
        """Tell a line more about what was said last."""
        _print(10 * " ", text)

    def offered(self) -> int:
        """Return how many devices kubelet would grant."""
        return len(self.healthy(self.resource))

    async def until_running(self, pod: Pod) -> None:
        """Return when the pod's program runs with its devices."""
        await self.until(lambda: pod.phase is not Phase.PENDING, f"pod {pod.spec.name} to run")
        if pod.phase is Phase.FAILED:
            raise StoryError(f"pod {pod.spec.name} failed: {pod.message}")
        if self.runtime.failures:
            raise StoryError(f"a program could not open its device: {self.runtime.failures[0]}")

    async def crash(self, *, devices: int, which: str) -> None:
        """Kill the daemon, start it again, and see that it knows pod A's lock of *which*."""
        self.kill()
        self.say("The daemon is killed with SIGKILL, and started again.")
        await self.start_and_register(self.resource)
        await self.until(lambda: self.offered() == devices, "the devices to be offered again")

        async def remembered() -> bool:
            return "releasing" in (await self.locks()).values()

        await self.until(remembered, "the ledger to have pod A's lock")
        self.say(f"It is back, and its ledger still knows which {which} pod A is not done with.")

    async def wait_for_orphan(self, spec: PodSpec, orphan: int, *, asks: str) -> tuple[Pod, float]:
        """Submit pod B, which waits until *orphan* of pod A is ended; return it once it runs.

        Also return how many milliseconds after the orphan's end it did. *asks*: what it asks for.
        """
        pod = await self.kubelet.submit(spec)
        if pod.phase is Phase.FAILED:
            raise StoryError(f"pod B was refused: {pod.message}")
        self.say(f"Pod B asks for {asks}. It is admitted at once, and waits at the gate.")
        await self.until(
            lambda: f"pid {orphan})" in pod.waiting, "pod B to be told whom it waits for"
        )
        self.say(f"Pod B is told: {short(pod.waiting)}")
        await self.until(lambda: not self.node.has(orphan), "the orphan to be ended")
        ended = time.monotonic()
        self.say(
            "Kubelet and the runtime have let go of pod A for long enough: the orphan is ended "
            "(SIGTERM, which it ignored, then SIGKILL)."
        )
        await self.until_running(pod)
        return pod, (time.monotonic() - ended) * 1000

    async def tell_history(self) -> None:
        """Tell how the device that was reclaimed last came back."""
        rows = await self.asked("history", limit=200)
        device = next(row["device"] for row in reversed(rows) if row["from"] == "reclaiming")
        self.say(f"What `holdfast history {device}` tells of it:")
        for row in rows:
            if row["device"] == device:
                self.add(f"{row['from']} -> {row['to']}: {short(row['evidence'])}")

    async def stay(self, *commands: str) -> None:
        """Leave it all running, and say how to look at it: by *commands*, too."""
        print(
            f"\nIt all keeps running. In another terminal:\n"
            f"  export PATH={Path(sys.executable).parent}:$PATH\n"
            f"  export HOLDFAST_STATE_DIR={self.state}\n"
            "  holdfast status\n"
            f"{''.join(f'  {command}{chr(10)}' for command in commands)}"
            f"  tail -f {self.folder / 'daemon.log'}\n"
            "Ctrl-C ends it.",
            flush=True,
        )
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


def _print(start: str, text: str) -> None:
    """Print *text* after *start*, in rows that fit a terminal."""
    print(
        textwrap.fill(
            printable(text),
            _COLUMNS,
            initial_indent=start,
            subsequent_indent=_FURTHER,
            break_on_hyphens=False,
        ),
        flush=True,
    )


def short(text: str) -> str:
    """Return what the daemon itself said of a text that kubelet passes on."""
    return text.rpartition(" desc = ")[2]
