"""Writes the picture of a history: to a file that is whole at any moment, or as output."""

import contextlib
import os
import stat
import time
from pathlib import Path
from secrets import token_hex

import click

from holdfast.cli.plot import NodeRecords, plot
from holdfast.cli.tables import Rows, say
from holdfast.errors import HoldfastError
from holdfast.host.files.wholefile import replace_whole

_OUTPUT = Path("-")


def draw(file: Path, rows: Rows, since: float | None) -> None:
    """Draw *rows* into *file*: the last *since* seconds, or from the first row on.

    Raises HoldfastError where it cannot be written.
    """
    now = time.time()
    drawn = plot([NodeRecords(rows=rows)], None if since is None else now - since, now).encode()
    if file == _OUTPUT:
        click.echo(drawn, nl=False)
        return
    try:
        _write(file, drawn)
    except OSError as error:
        raise HoldfastError(
            f"cannot write {file}: {error.strerror}; name a file in a folder that you may write "
            "to, or - for the standard output"
        ) from error
    say(f"wrote {file}")


def _write(file: Path, content: bytes) -> None:
    # What is no regular file, such as /dev/stdout, would be replaced by one.
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(file.lstat().st_mode):
            raise OSError(0, "it is there and is not a regular file")
    # Nobody can have made a file or a link of that name before.
    replace_whole(file, content, temporary=file.with_name(f".{os.getpid()}-{token_hex(8)}"))
