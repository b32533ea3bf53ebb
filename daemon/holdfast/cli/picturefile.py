"""Writes the file of a picture, which is whole at any moment.

It needs the standard library alone: kubectl-holdfast has this very file by a link, as the plot.
"""

import stat
from contextlib import suppress
from pathlib import Path
from secrets import token_hex


def save(file: Path, drawn: str) -> str:
    """Make *drawn* all that *file* says, at once; return why that cannot be, empty where it is."""
    try:
        _replace(file, drawn)
    except OSError as error:
        return (
            f"cannot write {file}: {error.strerror}; name a file in a folder that you may write "
            "to, or - for the standard output"
        )
    return ""


def _replace(file: Path, text: str) -> None:
    # What is no regular file, such as /dev/stdout, would be replaced by one.
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(file.lstat().st_mode):
            raise OSError(0, "it is there and is not a regular file")
    temporary = file.parent / f".{token_hex(16)}"  # nobody can have made one of that name before
    try:
        temporary.write_text(text, "utf-8")
        temporary.replace(file)
    finally:
        with suppress(OSError):
            temporary.unlink()
