"""Lets pods come and go for a long time, and judges whether what the daemon uses grows.

    python -m bench.soak --minutes 60 --output build/soak.json

Writes the samples as JSON, and a plot of them as PNG beside it. Exits with 1 where something grows,
where kubelet refuses a pod for good, or where the daemon ends; what was seen until then is written.
"""

import argparse
import asyncio
import contextlib
import json
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict

from bench.crowd import crowd
from bench.plot import Panel, draw
from bench.rig import SOON, TPU, Place, Rig, cpu_seconds, resident_mib, rig
from bench.trend import rise
from simulated.pods import Pod

CHIPS = 64
_PROCESSES, _FILES = 2000, 20
_PAUSE = 0.2
"""Seconds from one pod to the next."""
_SAMPLE = 5.0
_RUNS_FOR = 0.5
_AT_ONCE = CHIPS // 2
"""Pods that the scheduler has on the node at most: a slow machine gets fewer than one each pause."""
_LIMIT = 600.0
"""Seconds for one pod to start, on a machine that is slower than its pods come."""
_LOOK = 0.02
"""Seconds between two looks at a pod that is waited for: there are many at once."""
_WARM_UP = 0.25
"""The share of the time that is not judged: caches and the history fill meanwhile."""


class Sample(Struct, frozen=True, kw_only=True):
    """What was seen at one moment, `at` in seconds from the start.

    `start_ms` and `pods_per_second` are of the pods that started since the sample before, `refusals`
    of their starts; `waiting` are those that have not started yet, `releasing` the locks of pods
    that have ended. `cpu_wait_percent` is how long the daemon's loop waited for a CPU: where it is
    more than a few percent, the machine is what is measured.
    """

    at: float
    rss_mib: float
    fds: int
    threads: int
    cpu_percent: float
    start_ms: float
    pods_per_second: float
    waiting: int
    refusals: int
    releasing: int
    cpu_wait_percent: float


class Quantity(Struct, frozen=True, kw_only=True):
    """A field of the samples; what is judged may rise by `at_most` over the judged time."""

    name: str
    label: str
    at_most: float | None = None


QUANTITIES = (
    Quantity(name="rss_mib", label="resident memory, MiB", at_most=1.0),
    Quantity(name="fds", label="open files", at_most=4.0),
    Quantity(name="threads", label="threads", at_most=1.0),
    Quantity(name="cpu_percent", label="CPU, % of a core", at_most=10.0),
    Quantity(name="start_ms", label="pod submitted to running, ms", at_most=200.0),
    Quantity(name="pods_per_second", label="pods started each second"),
    Quantity(name="waiting", label="pods that have not started yet"),
    Quantity(name="refusals", label="container starts refused, to be tried again"),
    Quantity(name="releasing", label="devices of pods that have ended"),
    Quantity(name="cpu_wait_percent", label="the daemon's loop waits for a CPU, %"),
)


def main() -> None:
    """Run, write both files, and print a line for each quantity and one for all."""
    parser = argparse.ArgumentParser(description="Let pods come and go, and see what grows.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--output", type=Path, default=Path("build/soak.json"))
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    asked = parser.parse_args()
    place = Place(state=asked.output.absolute().parent / "soak", python=asked.python.absolute())
    shutil.rmtree(place.state, ignore_errors=True)
    place.state.mkdir(parents=True)
    samples: list[Sample] = []
    problem = ""
    try:
        asyncio.run(_soak(place, asked.minutes * 60, samples))
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - what was seen is written all the same
        problem = f"{type(error).__name__}: {error}"
    shutil.rmtree(place.state, ignore_errors=True)
    asked.output.write_text(json.dumps([asdict(each) for each in samples]) + "\n", "utf-8")
    draw(
        asked.output.with_suffix(".png"),
        title=f"{CHIPS} devices, {_PROCESSES} processes, a pod every {_PAUSE * 1000:g} ms",
        panels=[Panel(label=each.label, points=_points(samples, each.name)) for each in QUANTITIES],
    )
    growing = [each.name for each in QUANTITIES if _grows(each, samples)]
    verdict = f"grows: {', '.join(growing)}" if growing else "flat"
    if problem:
        verdict = f"broken off: {problem}"
    print(f"soak: minutes={asked.minutes:g} samples={len(samples)} verdict={verdict}")
    sys.exit(1 if growing or problem else 0)


async def _soak(place: Place, seconds: float, samples: list[Sample]) -> None:
    """Add to *samples* until the time is over; raise what goes wrong before."""
    with crowd(_PROCESSES, _FILES) as pids:
        async with rig(place, chips=CHIPS, kubelet={"question": SOON}) as made:
            for pid in pids:
                made.node.add_process(pid, "/system.slice/crowd.service")
            made.limit, made.look, made.rarest = _LIMIT, _LOOK, _LOOK
            churn = _Churn(made)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                    group.create_task(churn.run())
                    group.create_task(_watch(made, churn, samples))


async def _watch(made: Rig, churn: "_Churn", samples: list[Sample]) -> None:
    """Take a sample every few seconds."""
    pid = made.process.pid
    began = last = time.monotonic()
    used, waited = cpu_seconds(pid), _cpu_wait(pid)
    while True:
        await asyncio.sleep(_SAMPLE)
        now, used_now, waited_now = time.monotonic(), cpu_seconds(pid), _cpu_wait(pid)
        started, churn.started = churn.started, []
        samples.append(
            Sample(
                at=now - began,
                rss_mib=resident_mib(pid),
                fds=_entries(f"/proc/{pid}/fd"),
                threads=_entries(f"/proc/{pid}/task"),
                cpu_percent=100 * (used_now - used) / (now - last),
                start_ms=statistics.median(each.took for each in started) if started else 0.0,
                pods_per_second=len(started) / (now - last),
                waiting=churn.waiting,
                refusals=sum(each.refusals for each in started),
                releasing=made.lock_states().count("releasing"),
                cpu_wait_percent=100 * (waited_now - waited) / (now - last),
            )
        )
        last, used, waited = now, used_now, waited_now
        if len(samples) % 12 == 0:
            print(f"soak: {_line(samples[-1])}", flush=True)


class _Started(Struct, frozen=True, kw_only=True):
    """A pod that has started: after how many milliseconds, and refusals of the gate."""

    took: float
    refusals: int


class _Churn:
    """Submits pods one after the other, each for one device, and forgets those that have ended."""

    def __init__(self, made: Rig) -> None:
        self._made = made
        self.waiting = 0
        self.started: list[_Started] = []

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                due = time.monotonic() + _PAUSE
                if len(self._made.kubelet.active()) < _AT_ONCE:
                    group.create_task(self._one())
                await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _one(self) -> None:
        began = time.perf_counter()
        self.waiting += 1
        pod = await self._made.submit(1, runs_for=_RUNS_FOR)
        started = await self._made.until(lambda: pod.starts > 0, lambda: _why(pod))
        self.waiting -= 1
        self.started.append(_Started(took=(started - began) * 1000, refusals=pod.refusals))
        await self._made.until(lambda: pod.stopped, "the pod to end")
        self._made.kubelet.delete(pod, force=True)


def _why(pod: Pod) -> str:
    return f"a pod for one {TPU} to start: {pod.waiting or 'kubelet has not tried yet'}"


def _grows(quantity: Quantity, samples: Sequence[Sample]) -> bool:
    judged = samples[int(len(samples) * _WARM_UP) :]
    if len(judged) < 2:
        return False
    points = _points(judged, quantity.name)
    rises = rise(points)
    middle = statistics.median(value for _, value in points)
    limit = "not judged" if quantity.at_most is None else f"at most {quantity.at_most:g} is flat"
    print(f"{quantity.label}: median {middle:.1f}, steady rise {rises:.2f}; {limit}")
    return quantity.at_most is not None and rises > quantity.at_most


def _points(samples: Sequence[Sample], name: str) -> list[tuple[float, float]]:
    return [(each.at, float(getattr(each, name))) for each in samples]


def _cpu_wait(pid: int) -> float:
    """Return for how many seconds the main thread of a process was ready and had no CPU."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


def _entries(folder: str) -> int:
    return sum(1 for _ in Path(folder).iterdir())


def _line(sample: Sample) -> str:
    return ", ".join(
        f"{name}={value:.1f}" if isinstance(value, float) else f"{name}={value}"
        for name, value in asdict(sample).items()
    )


if __name__ == "__main__":
    main()
