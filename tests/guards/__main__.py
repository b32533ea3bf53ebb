"""Prove each guard of a reclaim, or the one that is named: `python -m guards [NAME]`."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from guards.guard import Guard
from guards.removal import NotProvenError, prove
from guards.table import read_guards

_REPOSITORY = Path(__file__).resolve().parents[2]


def main(names: list[str]) -> int:
    """Print a line for each guard and test; return how many guards were not proven."""
    guards = read_guards(_REPOSITORY)
    unknown = set(names) - {guard.name for guard in guards}
    if unknown:
        known = ", ".join(guard.name for guard in guards)
        print(f"cannot prove guard {unknown.pop()}: there is none of this name; known: {known}")
        return 1
    wanted = [guard for guard in guards if not names or guard.name in names]
    noticed = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for proven, text in pool.map(_proved, wanted):
            noticed += proven
            print(text, flush=True)
    print(f"guards: removed={len(wanted)} noticed={noticed}")
    return min(len(wanted) - noticed, 1)


def _proved(guard: Guard) -> tuple[bool, str]:
    """Return whether its tests notice that *guard* is removed, and what to say of it."""
    try:
        return True, "\n".join(prove(guard, _REPOSITORY))
    except NotProvenError as error:
        return False, f"{guard.name}: NOT PROVEN: {error}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
