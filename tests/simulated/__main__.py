"""`make demo`: the daemon's main job as a story, on a simulated node; no root, no hardware."""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from simulated import drastory, gpustory, sharingstory, story


def main() -> int:
    """Tell the story; return 0 when every step of it happened."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--gpus", action="store_true", help="NVIDIA GPUs; needs a C compiler")
    which.add_argument("--dra", action="store_true", help="ResourceClaims; needs openssl")
    which.add_argument(
        "--sharing",
        action="store_true",
        help="GPUs by number, by share, by slice and by claim; needs a C compiler and openssl",
    )
    parser.add_argument("--keep", action="store_true", help="leave everything running at the end")
    parser.add_argument(
        "--records", type=Path, metavar="FILE", help="keep the history's records there, as JSON"
    )
    options = parser.parse_args()
    if options.records and (options.gpus or options.dra or options.sharing):
        parser.error("--records is for the story of chips")
    tell: Callable[..., int] = partial(story.main, records=options.records)
    if options.gpus:
        tell = gpustory.main
    elif options.dra:
        tell = drastory.main
    elif options.sharing:
        tell = sharingstory.main
    return tell(keep=options.keep)


if __name__ == "__main__":
    sys.exit(main())
