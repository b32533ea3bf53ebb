"""`python -m image`: builds the image as the tests do, and says where it is."""

import sys

from image.building import WORK, made
from vm.parts import LackingError


def main() -> int:
    try:
        image = made(tell=lambda words: print(f"image: {words}", flush=True))
    except LackingError as error:
        print(f"cannot build the image: {error}", file=sys.stderr)
        return 1
    print(f"image: {WORK / 'holdfast.tar'}, its files below {image.root}, listed in {image.sbom}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
