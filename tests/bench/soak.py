"""Lets pods come and go for a long time, and judges whether what the daemon uses grows.

    python -m bench.soak --minutes 60 --output build/soak.json

Writes the samples as JSON, and a plot of them as PNG beside it. Exits with 1 where something grows.
"""

import argparse
import asyncio
import json
import os
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
from bench.rig import SOON, Place, Rig, cpu_seconds, resident_mib, rig

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
_WARM_UP = 0.25
"""The share of the time that is not judged: caches and the history fill meanwhile."""


class Sample(Struct, frozen=True, kw_only=True):
    """What was seen at one moment: `at` in seconds from the start, `start_ms` of the pods since."""

    at: float
    rss_mib: float
    fds: int
    threads: int
    cpu_percent: float
    start_ms: float
    pods: int


class Quantity(Struct, frozen=True, kw_only=True):
    """Something that must not grow: by how much it may over the judged part of the run."""

    name: str
    label: str
    at_most: float


QUANTITIES = (
    Quantity(name="rss_mib", label="resident memory, MiB", at_most=1.0),
    Quantity(name="fds", label="open files", at_most=4.0),
    Quantity(name="threads", label="threads", at_most=1.0),
    Quantity(name="cpu_percent", label="CPU, % of a core", at_most=10.0),
    Quantity(name="start_ms", label="pod submitted to running, ms", at_most=200.0),
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
    samples = asyncio.run(_soak(place, asked.minutes * 60))
    shutil.rmtree(place.state, ignore_errors=True)
    asked.output.write_text(json.dumps([asdict(each) for each in samples]) + "\n", "utf-8")
    draw(
        asked.output.with_suffix(".png"),
        title=f"{CHIPS} devices, {_PROCESSES} processes, a pod every {_PAUSE * 1000:g} ms",
        panels=[Panel(label=each.label, points=_points(samples, each.name)) for each in QUANTITIES],
    )
    growing = [each.name for each in QUANTITIES if _tell(each, samples) > each.at_most]
    verdict = f"grows: {', '.join(growing)}" if growing else "flat"
    print(f"soak: minutes={asked.minutes:g} pods={samples[-1].pods} verdict={verdict}")
    sys.exit(1 if growing else 0)


async def _soak(place: Place, seconds: float) -> list[Sample]:
    samples: list[Sample] = []
    with crowd(_PROCESSES, _FILES) as pids:
        async with rig(place, chips=CHIPS, kubelet={"question": SOON}) as made:
            for pid in pids:
                made.node.add_process(pid, "/system.slice/crowd.service")
            made.limit = _LIMIT
            churn = _Churn(made)
            running = asyncio.create_task(churn.run())
            began = last = time.monotonic()
            used = cpu_seconds(made.process.pid)
            while (at := time.monotonic() - began) < seconds and not running.done():
                await asyncio.sleep(min(_SAMPLE, max(0.1, seconds - at)))
                now, used_now = time.monotonic(), cpu_seconds(made.process.pid)
                took, churn.took = churn.took, []
                samples.append(
                    Sample(
                        at=now - began,
                        rss_mib=resident_mib(made.process.pid),
                        fds=len(os.listdir(f"/proc/{made.process.pid}/fd")),  # noqa: PTH208 - only counted
                        threads=len(os.listdir(f"/proc/{made.process.pid}/task")),  # noqa: PTH208 - as above
                        cpu_percent=100 * (used_now - used) / (now - last),
                        start_ms=statistics.median(took) if took else 0.0,
                        pods=churn.pods,
                    )
                )
                last, used = now, used_now
                if len(samples) % 12 == 0:
                    print(f"soak: {_line(samples[-1])}", flush=True)
            running.cancel()
            for done in await asyncio.gather(running, return_exceptions=True):
                if isinstance(done, Exception):
                    raise done
    return samples


class _Churn:
    """Submits pods one after the other, each for one device, and waits until they run."""

    def __init__(self, made: Rig) -> None:
        self._made = made
        self.pods = 0
        self.took: list[float] = []

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                due = time.monotonic() + _PAUSE
                if len(self._made.kubelet.active()) < _AT_ONCE:
                    group.create_task(self._one())
                await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _one(self) -> None:
        began = time.perf_counter()
        pod = await self._made.submit(1, runs_for=_RUNS_FOR)
        await self._made.until(lambda: pod.starts > 0, "the pod to run")
        self.took.append((time.perf_counter() - began) * 1000)
        self.pods += 1


def growth(points: Sequence[tuple[float, float]]) -> float:
    """Return by how much the straight line through *points* rises from the first to the last."""
    if len(points) < 2:
        return 0.0
    slope, _ = statistics.linear_regression(*zip(*points, strict=True))
    return slope * (points[-1][0] - points[0][0])


def _tell(quantity: Quantity, samples: Sequence[Sample]) -> float:
    judged = samples[int(len(samples) * _WARM_UP) :]
    rises = growth(_points(judged, quantity.name))
    first, last = getattr(judged[0], quantity.name), getattr(judged[-1], quantity.name)
    hours = (judged[-1].at - judged[0].at) / 3600 or 1.0
    print(
        f"{quantity.label}: from {first:.1f} to {last:.1f}; the line through all rises by "
        f"{rises:.2f}, {rises / hours:.2f} an hour; at most {quantity.at_most:g} is flat"
    )
    return rises


def _points(samples: Sequence[Sample], name: str) -> list[tuple[float, float]]:
    return [(each.at, float(getattr(each, name))) for each in samples]


def _line(sample: Sample) -> str:
    return ", ".join(
        f"{name}={value:.1f}" if isinstance(value, float) else f"{name}={value}"
        for name, value in asdict(sample).items()
    )


if __name__ == "__main__":
    main()
