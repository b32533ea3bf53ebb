"""Measures what design and users count on, beside floors and against the reach of each figure.

    python -m bench.run --output build/bench.json [FIGURE…]

The ledgers lie beside the output, so that commits are those of that disk. Exits with 1 where a
figure could not be measured; the others are measured all the same.
"""

import argparse
import asyncio
import contextlib
import os
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from bench import (
    allocate,
    beat,
    claims,
    crowded,
    daemon,
    gpu_health,
    left,
    preference,
    reload,
    replicas,
    slices,
)
from bench.figures import Figure, brief, save, show
from bench.growth import SIZES
from bench.rig import Place
from holdfast.telemetry.logs import set_up_logs

Measure = Callable[[Place], Awaitable[list[Figure]]]

_MEASURES: dict[Measure, tuple[str, ...]] = {
    beat.beat: (
        *(f"beat_{size}" for size in SIZES),
        "beat_exponent",
        *(f"offers_{size}" for size in SIZES),
        "offers_exponent",
    ),
    allocate.allocate: (
        "fdatasync",
        "allocate",
        "allocate_64",
        "allocate_256",
        "allocate_512",
        "allocate_1024",
        "allocate_exponent",
    ),
    replicas.allocate_replica: ("allocate_gpu", "allocate_replica"),
    allocate.allocate_pending: ("allocate_400_pending", "allocate_pending_growth"),
    preference.preferred: (
        "preferred_4_of_8_tpu",
        "preferred_8_of_16_tpu",
        "preferred_1_of_8",
        "preferred_2_of_8",
        "preferred_4_of_8",
        "preferred_2_of_16",
        "preferred_4_of_16",
        "preferred_8_of_16",
        "preferred_2_of_8_vf",
        "preferred_16_of_64",
        "preferred_64_of_256",
        "preferred_256_of_1024",
        "preferred_exponent",
    ),
    daemon.command_line: ("cli_help",),
    daemon.start: (
        "start_to_registered",
        "start_cpu",
        "python_start",
        "python_imports",
        "reregister",
        "rss_mib_tpu",
    ),
    daemon.start_with_gpus: ("start_to_registered_8_gpus", "rss_mib"),
    daemon.many_devices: ("rss_mib_512_peak",),
    daemon.allocate_cpu: tuple(f"allocate_cpu_{devices}" for devices in daemon.ALLOCATED),
    reload.reload: ("reload_applied", "reload_restart"),
    daemon.last_exit: ("exit_to_free",),
    daemon.pod_kill: ("pod_kill_to_free",),
    gpu_health.xid_to_unhealthy: ("xid_to_unhealthy",),
    crowded.gate: ("prestart_free", "allocate_rpc"),
    crowded.gate_huge: ("prestart_free_5000",),
    crowded.scan: ("scan_5000", "scan_5000_loop_late"),
    slices.publish: ("dra_publish_64", "dra_health_to_taint"),
    claims.prepare: ("dra_prepare_free", "dra_unprepare_to_free"),
    claims.memory: ("dra_rss_mib",),
    crowded.idle: ("idle_cpu_percent", "idle_cpu_percent_256", "loop_stall_256"),
    left.left: ("left_cpu_percent_256", "loop_stall_256_open", "let_go_cpu_256"),
    crowded.idle_huge: ("idle_cpu_percent_5000", "gate_wait_cpu_percent"),
}
_LIMIT = 300.0
"""Seconds after which a measure is given up: one that hangs does not keep the others."""


def main() -> None:
    """Measure, print the table, and write the file."""
    known = [name for names in _MEASURES.values() for name in names]
    parser = argparse.ArgumentParser(description="Measure holdfast against what it should reach.")
    parser.add_argument("--output", type=Path, default=Path("build/bench.json"))
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=", ".join(known))
    asked = parser.parse_args()
    if unknown := set(asked.figures) - set(known):
        parser.error(f"no such figure: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    wanted = set(asked.figures or known)
    place = Place(state=asked.output.absolute().parent / "bench", python=asked.python.absolute())
    began = time.monotonic()
    with Path(os.devnull).open("w") as nowhere:
        with contextlib.redirect_stderr(nowhere):
            set_up_logs("info", "json")  # what is logged costs time in the daemon, too
        measures = [each for each in _MEASURES.items() if not wanted.isdisjoint(each[1])]
        figures, failures = asyncio.run(measure_each(measures, place, asked.output))
    print(show(figures))
    missed = [each.name for each in figures if each.within is False]
    print(
        f"bench: figures={len(figures)} failed={','.join(failures) or 'none'} "
        f"missed={','.join(missed) or 'none'} seconds={time.monotonic() - began:.0f}"
    )
    sys.exit(1 if failures else 0)


async def measure_each(
    measures: Sequence[tuple[Measure, Sequence[str]]], place: Place, output: Path
) -> tuple[list[Figure], dict[str, str]]:
    """Return the figures, and by name why the others could not be measured.

    Say how it goes, and write *output* after each measure: a run that is broken off is not lost.
    """
    found: list[Figure] = []
    failures: dict[str, str] = {}
    for number, (measure, names) in enumerate(measures, start=1):
        print(f"[{number}/{len(measures)}] {', '.join(names)}", end=" … ", flush=True)
        shutil.rmtree(place.state, ignore_errors=True)
        place.state.mkdir(parents=True)
        began = time.monotonic()
        try:
            async with asyncio.timeout(_LIMIT):
                new = await measure(place)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other figures are measured
            reason = f"{type(error).__name__}: {error}"
            failures |= dict.fromkeys(names, reason)
            print(f"FAILED after {time.monotonic() - began:.1f} s: {reason}", flush=True)
        else:
            found += new
            print(f"{time.monotonic() - began:.1f} s", flush=True)
            print("".join(f"    {brief(each)}\n" for each in new), end="", flush=True)
        save(found, failures, output)
    shutil.rmtree(place.state, ignore_errors=True)
    return found, failures


if __name__ == "__main__":
    main()
