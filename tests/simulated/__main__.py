"""`make demo`: the daemon's main job as a story, on a simulated node; no root, no hardware."""

import argparse
import sys

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
    options = parser.parse_args()
    tell = story.main
    if options.gpus:
        tell = gpustory.main
    elif options.dra:
        tell = drastory.main
    elif options.sharing:
        tell = sharingstory.main
    return tell(keep=options.keep)


if __name__ == "__main__":
    sys.exit(main())
