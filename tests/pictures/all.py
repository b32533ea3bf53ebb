"""Which pictures there are, and what each is drawn from."""

import json
import os
from pathlib import Path

from holdfast.cli.plot import Node, plot
from pictures import architecture, lockstates, recording, terminal

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
_RECORDS = FOLDER / "history.jsonl"


def record_demo() -> None:
    """Run `make demo` and keep what it wrote, and when, and the records of its history."""
    # A make that runs this one would speak between the lines, and colours are not drawn.
    mute = {"MAKEFLAGS": "--silent", "MAKELEVEL": "0", "TERM": "dumb", "NO_COLOR": "1"}
    recorded = recording.record(
        "make demo",
        columns=100,
        environment={**os.environ, **mute, "ARGS": f"--records {_RECORDS}"},
        folder=FOLDER.parents[1],
    )
    (FOLDER / "demo.cast").write_text(recording.dump(recorded), "utf-8")


def demo() -> str:
    """Return the terminal of `make demo`, as it was recorded."""
    recorded = recording.load((FOLDER / "demo.cast").read_text("utf-8"))
    return terminal.svg(
        recorded, title="make demo: the story of two pods, an orphan and four chips"
    )


def lock_states() -> str:
    """Return the states of a lock and the moves between them, by the daemon's table."""
    return lockstates.draw(FOLDER / "lock-states.toml")


def rooms() -> str:
    """Return the rooms of the daemon and what goes between them."""
    return architecture.draw(FOLDER / "architecture.toml", FOLDER.parents[1])


def history() -> str:
    """Return who had which chip when in `make demo`, as `holdfast history --plot` draws it."""
    rows = [json.loads(line) for line in _RECORDS.read_text("utf-8").splitlines()]
    return plot([Node(rows=rows)], None, rows[-1]["at"] + 1)


PICTURES = {"demo": demo, "history": history, "lock-states": lock_states, "architecture": rooms}
