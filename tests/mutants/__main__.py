"""Change the source line by line and see that a test notices: `python -m mutants [options]`."""

import argparse
import random
import sys
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

from mutants.change import Change
from mutants.changes import changes
from mutants.equivalent import FILE, equivalents, stale
from mutants.scope import SETTLED, concerned_tests, files
from mutants.trial import Copy, Outcome

_REPOSITORY = Path(__file__).resolve().parents[2]


def main(arguments: list[str]) -> int:
    """Print what survived and a last line with the counts; return 1 where something survived."""
    asked = _parse(arguments)
    everything = [
        change
        for file in files(_REPOSITORY)
        for change in changes(file, (_REPOSITORY / file).read_text())
    ]
    known = equivalents(FILE.read_text())
    outlived = stale(known, everything)
    if outlived:
        print(f"cannot use {FILE.name}: no such change any more: {outlived[0]}", file=sys.stderr)
        return 1
    wanted = [change for change in everything if _is_wanted(change, asked)]
    if not wanted:
        print(f"cannot try a change: no file has {asked.file!r} in its name", file=sys.stderr)
        return 1
    if asked.number and asked.number < len(wanted):
        seed = asked.seed if asked.seed is not None else random.randrange(1 << 32)
        print(f"mutants: a sample of {asked.number} of {len(wanted)} (SEED={seed})", flush=True)
        wanted = random.Random(seed).sample(wanted, asked.number)
    equivalent = sum(change.name in known for change in wanted)
    tried = [change for change in wanted if change.name not in known]
    # A sample is part of a run of all tests, or follows one.
    tests = {file: _judges(file, unit=asked.unit) for file in {each.file for each in tried}}
    if not asked.number and (told := _fails_unchanged(tests)):
        print(f"cannot judge by tests that fail without a change:\n{told}", file=sys.stderr)
        return 1
    counts = _try_all(tried, tests, asked.jobs)
    survived = counts[Outcome.SURVIVED]
    print(
        f"mutants: tried={len(wanted)} killed={counts[Outcome.KILLED]} "
        f"equivalent={equivalent} survived={survived}"
    )
    return min(survived, 1)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("--number", type=int, default=0, help="try a random sample of this size")
    parser.add_argument("--seed", type=int, help="draw the same sample again")
    parser.add_argument("--file", default="", help="only files with this in their name")
    parser.add_argument(
        "--settled", action="store_true", help="only the files of which no change may survive"
    )
    parser.add_argument(
        "--unit",
        action="store_true",
        help="judge by unit tests alone where there are some: quick, and stricter",
    )
    parser.add_argument("--jobs", type=int, default=2, help="how many changes are tried at once")
    return parser.parse_args(arguments)


def _is_wanted(change: Change, asked: argparse.Namespace) -> bool:
    return asked.file in change.file and (not asked.settled or change.file in SETTLED)


def _judges(file: str, *, unit: bool) -> list[str]:
    """Return the tests that judge *file*: never none, for which pytest would run all there are."""
    every = concerned_tests(file, _REPOSITORY)
    alone = [each for each in every if each.startswith("tests/unit/")] if unit else []
    return alone or every


def _fails_unchanged(tests: Mapping[str, list[str]]) -> str:
    """Return what pytest says where a test fails on the source as it is; else nothing."""
    with Copy(_REPOSITORY) as copy:
        return copy.try_without_change(sorted({each for some in tests.values() for each in some}))


def _try_all(wanted: list[Change], tests: Mapping[str, list[str]], jobs: int) -> Counter[Outcome]:
    """Try each change, the quickest tests of each first; print those that survive."""
    copies: SimpleQueue[Copy] = SimpleQueue()
    counts: Counter[Outcome] = Counter()
    with ExitStack() as opened:
        for _ in range(jobs):
            copies.put(opened.enter_context(Copy(_REPOSITORY)))
        pool = opened.enter_context(ThreadPoolExecutor(jobs))
        outcomes = pool.map(lambda change: _try(change, tests[change.file], copies), wanted)
        for change, outcome in zip(wanted, outcomes, strict=True):
            counts[outcome] += 1
            if outcome is Outcome.SURVIVED:
                print(f"SURVIVED {change}", flush=True)
    return counts


def _try(change: Change, tests: list[str], copies: SimpleQueue[Copy]) -> Outcome:
    copy = copies.get()
    try:
        return copy.try_change(change, tests)
    finally:
        copies.put(copy)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
