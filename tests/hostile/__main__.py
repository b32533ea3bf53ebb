"""`python -m hostile [--short] [NAME...]`: attacks beside the real daemon, and which of them win."""

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hostile.attack import MEMORY, Attack, Result
from hostile.namespaces import gather_crowd, lacks, mount_tree, own_cgroup, own_share, run_inside
from hostile.programs import Programs
from hostile.scene import ANY, Limits, limits, staged
from hostile.table import ATTACKS, SHORT

_QUIET = Attack(name="nobody", on="nothing", run=(), seconds=6.0)
_CANNOT_RUN = 77


def main() -> int:
    """Run the attacks; return 1 when one of them wins, 77 when none can be run here."""
    parser = argparse.ArgumentParser(prog="hostile", description=__doc__)
    parser.add_argument("--inside", type=Path, help="the folder of a run that is inside already")
    parser.add_argument("--short", action="store_true", help=f"only {', '.join(SHORT)}")
    parser.add_argument("names", nargs="*", help="attacks; all without")
    options = parser.parse_args()
    names = [*options.names, *(SHORT if options.short else ())]
    unknown = set(names) - {each.name for each in ATTACKS}
    if unknown:
        parser.error(f"there is no attack {unknown.pop()}")
    if options.inside:
        wanted = [each for each in ATTACKS if not names or each.name in names]
        return asyncio.run(_inside(options.inside, wanted))
    return _outside(names)


def _outside(names: Sequence[str]) -> int:
    # An end by a signal cleans up too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix="hostile-", dir="/tmp"))
    try:
        for name in ("programs", "cgroup", "left"):
            (folder / name).mkdir()
        programs = Programs(folder / "programs")
        problem = lacks() or programs.build()
        if problem:
            return _cannot(problem)
        with own_cgroup(folder / "cgroup") as cgroup, own_share(folder / "share"):
            if isinstance(cgroup, str):
                return _cannot(cgroup)
            return run_inside(cgroup, programs, folder / "left", [str(folder), *names])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _cannot(problem: str) -> int:
    print(f"hostile: NOT RUN: {problem}")
    return _CANNOT_RUN


async def _inside(folder: Path, attacks: Sequence[Attack]) -> int:
    mount_tree(folder / "cgroup")
    gather_crowd(Programs(folder / "programs"))
    quiet = await _one(_QUIET, folder, ANY)
    allowed = limits(quiet)
    print(quiet.row())
    print(
        f"hostile: others may wait {allowed.start:.1f} s for a start, {allowed.release:.1f} s for a "
        f"release; the daemon may have {MEMORY:g} MiB",
        flush=True,
    )
    results = []
    for attack in attacks:
        results.append(await _one(attack, folder, allowed))
        print(results[-1].row(), flush=True)
    for each in results:
        if each.handed_out:
            print(f"hostile: {each.attack.name} won: {each.handed_out}")
    return close(results, failed=bool(quiet.held_up))


async def _one(attack: Attack, folder: Path, allowed: Limits) -> Result:
    own = folder / "run"
    own.mkdir()
    try:
        trees = folder / "cgroup", folder / "share"
        return await staged(attack, own, trees, Programs(folder / "programs"), allowed)
    finally:
        shutil.rmtree(own, ignore_errors=True)


def close(results: Sequence[Result], *, failed: bool) -> int:
    """Print who won, and return the exit status; *failed*: something else went wrong."""
    ran = [each for each in results if not each.skipped]
    for each in results:
        if each.skipped:
            print(f"hostile: {each.attack.name} was not run: {each.skipped}")
    out = sum(bool(each.handed_out) and not each.attack.wins for each in ran)
    up = sum(bool(each.held_up) for each in ran)
    over = sum(each.memory > MEMORY for each in ran)
    print(f"hostile: attacks={len(ran)} handed-out={out} held-up={up} over-memory={over}")
    return int(bool(out or up or over or failed or not ran))


if __name__ == "__main__":
    sys.exit(main())
