"""Draw the pictures of docs/pictures anew: `python -m pictures [--record]`."""

import argparse
import sys

from pictures.all import FOLDER, PICTURES, record_demo, record_looks
from pictures.recording import NotRecordedError


def main() -> int:
    """Draw all; with --record run what they show first; return 1 when that fails."""
    parser = argparse.ArgumentParser(prog="pictures", description=__doc__)
    parser.add_argument(
        "--record",
        action="store_true",
        help="run the demo and the commands, and record them, first",
    )
    if parser.parse_args().record:
        try:
            record_demo()
            record_looks()
        except NotRecordedError as error:
            print(error)
            return 1
    for name, draw in PICTURES.items():
        path = FOLDER / f"{name}.svg"
        path.write_text(draw(), "utf-8")
        print(f"docs/pictures/{path.name}: {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
