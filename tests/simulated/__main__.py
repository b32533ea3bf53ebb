"""`make demo`: the daemon's main job as a story, on a simulated node; no root, no hardware."""

import argparse
import sys

from simulated import gpustory, story


def main() -> int:
    """Tell the story; return 0 when every step of it happened."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--gpus", action="store_true", help="NVIDIA GPUs; needs a C compiler")
    parser.add_argument("--keep", action="store_true", help="leave everything running at the end")
    options = parser.parse_args()
    tell = gpustory.main if options.gpus else story.main
    return tell(keep=options.keep)


if __name__ == "__main__":
    sys.exit(main())
