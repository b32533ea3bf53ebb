"""`python -m matrix [--number N] [--minutes M] [--seed S[.PLACE]]`: what is accepted works."""

import argparse
import asyncio
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from matrix import changes, chart, drawn, run, space, ways
from matrix.oracle import ViolationError
from matrix.space import Choice
from simulated import nvml

_DRAWN = 5
"""How many combinations are held at one place against the chart, or against the ways to give them."""
_KINDS = ("pairs", "pairs", "change", "random", "refused", "change", "label", "chart", "ways")
"""What the numbers from 0 on are, over and over."""


@dataclass
class Tally:
    """How many were tried. `refused` are those that the settings do not accept, with their key."""

    combinations: int = 0
    changes: int = 0
    refused: int = 0
    violations: list[str] = field(default_factory=list)


def tried(seed: int, only: int | None = None) -> Iterator[tuple[int, str, Choice]]:
    """Yield each number with what is tried there; *only* one of them, if one is given."""
    pairs = space.by_pairs(random.Random(seed))
    place = 0
    while only is None or place <= only:
        kind = _KINDS[place % len(_KINDS)]
        chance = random.Random(f"{seed}.{place}")
        choice = next(pairs) if kind == "pairs" else space.at_random(chance, keep=0.85)
        if only in {None, place}:
            yield place, kind, space.usable(choice)
        place += 1


def afterwards(place: str) -> random.Random:
    """Return what decides on all that happens at *place* after its choice was drawn.

    By the choice's own seed a change would be to the very same choice.
    """
    return random.Random(f"{place}, then")


async def one(kind: str, choice: Choice, library: Path, chance: random.Random, tally: Tally) -> str:
    """Try one; return what describes it. Raise ViolationError where a promise was not kept."""
    if kind == "label":
        tally.changes += 1
        await changes.labels(chance)
        return "labels"
    if kind == "change":
        tally.changes += 1
        after = changes.another(choice, chance)
        try:
            tally.refused += not await changes.changes(choice, after, library, chance)
        except AssertionError as error:
            raise ViolationError(f"{error}\n  to {space.told(after)}") from error
    elif kind == "chart":
        for _ in range(_DRAWN):  # nothing is started
            tally.combinations += 1
            by = chance.choice(("file", "document"))
            any_ = {**space.at_random(chance, keep=0.5), "node.by": by}
            path = chance.choice(
                [name for name, each in space.axes().items() if space.DRAWN in each]
            )
            any_[path] = drawn.any_value(path, chance)
            apart = [each for each in space.in_document(any_) if chance.random() < 0.5]
            own = {name: each for name, each in any_.items() if name not in apart}
            refused = [drawn.refusal(space.tree(each)) for each in (any_, own)]
            chart.judge(any_, next(filter(None, refused), None), apart)
    elif kind == "ways":
        for _ in range(_DRAWN):
            tally.combinations += 1
            ways.judge(chance)
    elif kind == "refused":
        tally.combinations += 1
        await run.refuses(space.plain(), chance.choice(space.WRONG), library)
    else:
        tally.combinations += 1
        tally.refused += not await run.serves(choice, library, chance)
    return kind


async def attempt(place: str, kind: str, choice: Choice, library: Path, tally: Tally) -> None:
    """Try one, and note the violation if there is one."""
    try:
        await one(kind, choice, library, afterwards(place), tally)
    except AssertionError as error:
        text = f"matrix: SEED={place} ({kind}) {error}\n  of {space.told(choice)}"
        runs = re.sub(r"(.)\1{15,}", lambda run: f"{run[1]}{{{len(run[0])}}}", text)
        tally.violations.append(runs)


def main() -> int:
    """Run, print, and return 1 where a promise was not kept."""
    parser = argparse.ArgumentParser(prog="matrix", description=__doc__)
    parser.add_argument("--number", type=int, default=100, help="of combinations and changes")
    parser.add_argument("--minutes", type=float, help="instead of a number")
    parser.add_argument("--seed", default="", help="as it was printed; S.PLACE tries that one")
    options = parser.parse_args()
    first, _, only = (options.seed or str(random.randrange(1 << 16))).partition(".")
    end = time.monotonic() + 60 * options.minutes if options.minutes else None
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="hm-") as folder, asyncio.Runner() as runner:
        library = nvml.build(Path(folder))
        for place, kind, choice in tried(int(first), int(only) if only else None):
            if time.monotonic() > end if end is not None else place >= options.number and not only:
                break
            before = len(tally.violations)
            runner.run(attempt(f"{first}.{place}", kind, choice, library, tally))
            print(
                *tally.violations[before:],
                sep="\n",
                end="\n" if tally.violations[before:] else "",
                flush=True,
            )
    print(
        f"matrix: combinations={tally.combinations} changes={tally.changes} "
        f"refused={tally.refused} violations={len(tally.violations)} (SEED={first})"
    )
    return int(bool(tally.violations))


if __name__ == "__main__":
    sys.exit(main())
