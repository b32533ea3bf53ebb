"""Measures what design and users count on, and holds it against the budgets.

    python -m bench.run --output build/bench.json [FIGURE…]

The ledgers lie beside the output, so that commits are those of that disk.
"""

import argparse
import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench import crowded, daemon, decisions, gpu_health, growth, withgpus
from bench.figures import Figure, save, show
from bench.rig import Place
from holdfast.telemetry.logs import set_up_logs

_MEASURES: dict[Callable[[Place], Awaitable[list[Figure]]], tuple[str, ...]] = {
    decisions.allocate: ("fdatasync", "allocate"),
    decisions.preferred: (
        "preferred_4_of_8_tpu",
        "preferred_8_of_16_tpu",
        "preferred_1_of_8",
        "preferred_2_of_8",
        "preferred_4_of_8",
        "preferred_2_of_16",
        "preferred_4_of_16",
        "preferred_8_of_16",
    ),
    growth.beat: ("beat_8", "beat_64", "beat_256", "beat_1024", "beat_exponent"),
    crowded.gate: ("prestart_free", "allocate_rpc"),
    crowded.gate_huge: ("prestart_free_5000",),
    crowded.scan: ("scan_5000", "scan_5000_loop_late"),
    daemon.start: (
        "start_to_registered",
        "python_start",
        "python_imports",
        "reregister",
        "rss_mib_tpu",
    ),
    withgpus.start: ("start_to_registered_8_gpus", "rss_mib"),
    daemon.last_exit: ("exit_to_free",),
    daemon.pod_kill: ("pod_kill_to_free",),
    gpu_health.xid_to_unhealthy: ("xid_to_unhealthy",),
    crowded.idle: ("idle_cpu_percent",),
    crowded.idle_many: ("idle_cpu_percent_256",),
    crowded.idle_huge: ("idle_cpu_percent_5000",),
    crowded.waiting: ("waiting_cpu_percent",),
}


def main() -> None:
    """Measure, print the table, and write the file."""
    known = [name for names in _MEASURES.values() for name in names]
    parser = argparse.ArgumentParser(description="Measure holdfast against its budgets.")
    parser.add_argument("--output", type=Path, default=Path("build/bench.json"))
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=", ".join(known))
    asked = parser.parse_args()
    if unknown := set(asked.figures) - set(known):
        parser.error(f"no such figure: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    wanted = set(asked.figures or known)
    place = Place(state=asked.output.absolute().parent / "bench", python=asked.python.absolute())
    figures = asyncio.run(_measure(wanted, place))
    print(show(figures))
    save(figures, asked.output)


async def _measure(wanted: set[str], place: Place) -> list[Figure]:
    found: list[Figure] = []
    with Path(os.devnull).open("w") as nowhere:
        with contextlib.redirect_stderr(nowhere):
            set_up_logs("info", "json")  # what is logged costs time in the daemon, too
        for measure, names in _MEASURES.items():
            if wanted.isdisjoint(names):
                continue
            print(f"measuring {', '.join(names)} …", flush=True)
            shutil.rmtree(place.state, ignore_errors=True)
            place.state.mkdir(parents=True)
            found += await measure(place)
    shutil.rmtree(place.state, ignore_errors=True)
    return found


if __name__ == "__main__":
    main()
