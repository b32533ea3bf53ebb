"""Prove each guard of a reclaim, or the one that is named: `python -m guards [NAME]`."""

import sys
from pathlib import Path

from guards.removal import NotProvenError, prove
from guards.table import GUARDS

_REPOSITORY = Path(__file__).resolve().parents[2]


def main(names: list[str]) -> int:
    """Print a line for each guard and test; return how many guards were not proven."""
    unknown = set(names) - {guard.name for guard in GUARDS}
    if unknown:
        known = ", ".join(guard.name for guard in GUARDS)
        print(f"cannot prove guard {unknown.pop()}: there is none of this name; known: {known}")
        return 1
    wanted = [guard for guard in GUARDS if not names or guard.name in names]
    failed = 0
    for guard in wanted:
        try:
            lines = prove(guard, _REPOSITORY)
        except NotProvenError as error:
            failed += 1
            lines = [f"{guard.name}: NOT PROVEN: {error}"]
        print("\n".join(lines), flush=True)
    print(f"guards: removed={len(wanted)} noticed={len(wanted) - failed}")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
