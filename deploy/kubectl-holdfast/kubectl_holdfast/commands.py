"""The commands: one question to many nodes, `top`, and what changes a single node."""

import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubectl_holdfast.daemons import FleetError
from kubectl_holdfast.kubectl import DaemonSelection, Kubectl
from kubectl_holdfast.picturefile import save
from kubectl_holdfast.plot import NodeRecords, plot
from kubectl_holdfast.reports import (
    VIEWS,
    Report,
    State,
    blocks,
    complaints,
    document,
    exit_status,
    judged,
    lines,
    summary,
    totals,
)
from kubectl_holdfast.tables import WIDTH, cut
from kubectl_holdfast.text import printable

_WHY = "why"
_CLEAR = "\r\x1b[K"
_HOME, _REST = "\x1b[H", "\x1b[J"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """How the daemons are asked: which, how many at a time, and in which form it is shown.

    `output` is empty, ``wide`` or ``json``.
    """

    kubectl: Kubectl
    which: DaemonSelection
    parallel: int
    output: str = ""


def show(asking: Query, question: Sequence[str]) -> int:
    """Print what all nodes answer to *question*; return the exit status."""
    # It is a text of the daemon's own, with a form for people.
    text = question[0] == _WHY and asking.output != "json"
    words = [*question, "--output", "wide"] if text and asking.output else question
    reports = asyncio.run(_look(asking, words, progress=sys.stderr.isatty(), text=text))
    _say_all(asking, question[0], reports)
    _refuse_unknown(reports)
    return exit_status(reports)


def draw(asking: Query, question: Sequence[str], file: str, since: float | None) -> int:
    """Draw the answers of all nodes to *question*, about their history, into *file*.

    The last *since* seconds, or from the first record on. Return the exit status.
    """
    reports = asyncio.run(_look(asking, question, progress=sys.stderr.isatty()))
    _refuse_unknown(reports)
    now = time.time()
    nodes = [
        NodeRecords(name=each.daemon.node, rows=_rows(each), problem=each.reason)
        for each in sorted(reports, key=lambda each: each.daemon.node)
        if each.state is not State.NOT_FOUND
    ]
    drawn = plot(nodes, None if since is None else now - since, now)
    if file == "-":
        sys.stdout.buffer.write(drawn.encode())  # whatever the terminal's encoding
    else:
        if problem := save(Path(file), drawn):
            raise FleetError(problem)
        _say(f"wrote {file}")
    _say(*complaints(reports), summary(reports), error=True)
    return exit_status(reports)


def _rows(report: Report) -> Sequence[dict[str, Any]]:
    return report.answer.content or () if report.lines else ()


def _refuse_unknown(reports: Sequence[Report]) -> None:
    """Raise FleetError where no node has what was asked about."""
    if reports and all(each.state is State.NOT_FOUND for each in reports):
        what = reports[0].reason.partition(": ")[0]
        raise FleetError(f"{what}: no node that was asked has it; `locks` lists what there is")


def top(asking: Query, every: float) -> int:
    """Show the devices of all nodes, each *every* seconds, until an interrupt.

    Once where the output is no terminal.
    """
    if not sys.stdout.isatty() or asking.output:
        return show(asking, ["devices"])
    try:
        asyncio.run(_follow(asking, every))
    except KeyboardInterrupt:
        _say("")
    return 0


def change(asking: Query, order: Sequence[str]) -> int:
    """Carry out *order* on the one node that is asked; return its exit status."""
    (daemon,) = asyncio.run(asking.kubectl.daemons(asking.which))
    if daemon.problem:
        raise FleetError(f"cannot ask {daemon.node}: {daemon.problem}")
    return asking.kubectl.hand_over(daemon, order)


def complain(text: str) -> None:
    """Print an error."""
    _say(f"kubectl holdfast: {text}", error=True)


async def _look(
    asking: Query, question: Sequence[str], *, progress: bool, text: bool = False
) -> list[Report]:
    """Ask all nodes. *progress* is one line that is written over, and cleared at the end."""

    def tell(text: str) -> None:
        if progress:
            print(_CLEAR + text, end="", file=sys.stderr, flush=True)

    try:
        tell("finding the daemons")
        daemons = await asking.kubectl.daemons(asking.which)
        answers = await asking.kubectl.ask(
            daemons,
            question,
            text=text,
            parallel=asking.parallel,
            told=lambda done: tell(f"{done} of {len(daemons)} nodes have answered"),
        )
    finally:
        tell("")
    return judged(answers, VIEWS[question[0]], time.time())


def _say_all(asking: Query, question: str, reports: Sequence[Report]) -> None:
    if asking.output == "json":
        print(json.dumps(document(reports), indent=2))
        return
    if question == _WHY:
        _say(*blocks(reports))
    else:
        _say(*lines(reports, VIEWS[question], wide=asking.output == "wide"))
    _say(*complaints(reports), summary(reports), error=True)


async def _follow(asking: Query, every: float) -> None:
    shown: list[str] = []
    last: list[str] = []
    while True:
        size = shutil.get_terminal_size()
        try:
            reports = await _look(asking, ["devices"], progress=False)
        except FleetError as error:
            picture = [*last[: size.lines - 2], cut(printable(str(error)), size.columns)]
        else:
            picture = last = _picture(reports, size)
        if picture != shown:
            print(
                _HOME + "".join(f"{each}\x1b[K\n" for each in picture) + _REST, end="", flush=True
            )
            shown = picture
        await asyncio.sleep(every)


def _picture(reports: Sequence[Report], size: os.terminal_size) -> list[str]:
    """Return what fits on a screen of *size*: totals, and the nodes, the worst first."""
    width = min(WIDTH, size.columns)
    head = [cut(printable(each), width) for each in (totals(reports), summary(reports))]
    nodes = lines(reports, VIEWS["devices"], width=width)
    room = max(2, size.lines - len(head) - 1)
    if len(nodes) > room:
        nodes = [*nodes[: room - 1], f"and {len(nodes) - room + 1} more"]
    return [*head, *nodes]


def _say(*texts: str, error: bool = False) -> None:
    for text in texts:
        print(printable(text), file=sys.stderr if error else sys.stdout)
