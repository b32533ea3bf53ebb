"""Write what is generated from the settings and the chart: `python -m chart`."""

import sys

from chart.generated import inputs, outputs
from chart.rendering import REPOSITORY


def main() -> int:
    """Write each file that is not right, and name it."""
    for files in (inputs, outputs):  # the latter are rendered with the former
        for path, text in files().items():
            if not path.exists() or path.read_text("utf-8") != text:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, "utf-8")
                print(f"wrote {path.relative_to(REPOSITORY)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
