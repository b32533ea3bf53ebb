"""Which pictures there are, and what each is drawn from."""

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

from holdfast.cli.plot import NodeRecords, plot
from pictures import architecture, lockstates, recording, terminal
from simulated.demo import Demo
from simulated.node import SimulatedNode
from simulated.stage import running
from simulated.story import leave_one_waiting

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
LOOKS = (
    "holdfast status",
    "holdfast devices",
    "holdfast locks",
    "holdfast holders",
    "holdfast why default/pod-d",
    "holdfast history 0000:00:05.0",
)
"""The commands that show something of a node; the doctor would show the machine that records."""
_COLUMNS = 100
_MUTE = {"TERM": "dumb", "NO_COLOR": "1"}
"""Colours are not drawn."""
_RECORDS = FOLDER / "history.jsonl"


def record_demo() -> None:
    """Run `make demo` and keep what it wrote, and when, and the records of its history."""
    # A make that runs this one would speak between the lines.
    mute = {"MAKEFLAGS": "--silent", "MAKELEVEL": "0", **_MUTE}
    recorded = recording.record(
        "make demo",
        columns=_COLUMNS,
        environment={**os.environ, **mute, "ARGS": f"--records {_RECORDS}"},
        folder=FOLDER.parents[1],
    )
    (FOLDER / "demo.cast").write_text(recording.dump(recorded), "utf-8")


def record_looks() -> None:
    """Keep what each of LOOKS shows of the node that `make demo ARGS=--keep` leaves."""
    with tempfile.TemporaryDirectory(prefix="holdfast-", dir="/tmp") as folder:
        asyncio.run(_record_looks(Path(folder)))


async def _record_looks(folder: Path) -> None:
    stage = Demo(folder, SimulatedNode(folder / "node", chips=4), resource="google.com/tpu")
    async with running(stage):
        stage.start()
        await stage.until(lambda: stage.offered() == 4, "four chips to be offered")
        await leave_one_waiting(stage)
        typed = (f"printf '$ %s\\n' '{look}'; {look}; echo" for look in LOOKS[1:])
        programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {"PATH": programs, "HOLDFAST_STATE_DIR": str(stage.state), **_MUTE}
        recorded = await asyncio.to_thread(
            recording.record,
            "; ".join([LOOKS[0], "echo", *typed]),
            columns=_COLUMNS,
            environment={**os.environ, **environment},
            folder=folder,
        )
    (FOLDER / "look.cast").write_text(recording.dump(recorded._replace(command=LOOKS[0])), "utf-8")


def look() -> str:
    """Return the terminal in which LOOKS were typed, as it was recorded."""
    recorded = recording.load((FOLDER / "look.cast").read_text("utf-8"))
    return terminal.svg(recorded, title="What holdfast shows of a node on which a pod waits")


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
    return plot([NodeRecords(rows=rows)], None, rows[-1]["at"] + 1)


PICTURES = {
    "demo": demo,
    "look": look,
    "history": history,
    "lock-states": lock_states,
    "architecture": rooms,
}
