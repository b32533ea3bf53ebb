"""Writes the picture of a history: to a file that is whole at any moment, or as output."""

import time
from pathlib import Path

import click

from holdfast.cli.picturefile import save
from holdfast.cli.plot import NodeRecords, plot
from holdfast.cli.tables import Rows, say
from holdfast.errors import HoldfastError

_OUTPUT = Path("-")


def draw(file: Path, rows: Rows, since: float | None) -> None:
    """Draw *rows* into *file*: the last *since* seconds, or from the first row on.

    Raises HoldfastError where it cannot be written.
    """
    now = time.time()
    drawn = plot([NodeRecords(rows=rows)], None if since is None else now - since, now)
    if file == _OUTPUT:
        click.echo(drawn.encode(), nl=False)
        return
    if problem := save(file, drawn):
        raise HoldfastError(problem)
    say(f"wrote {file}")
