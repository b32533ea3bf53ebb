"""Records what a command writes to a terminal, and when; kept as an asciicast v2 file."""

import codecs
import fcntl
import json
import os
import pty
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROWS = 50


class NotRecordedError(Exception):
    """The command failed, or wrote what the picture cannot show."""


class Line(NamedTuple):
    """One line on the terminal, and when it began: seconds after the start of the command."""

    at: float
    text: str


class Recording(NamedTuple):
    """What *command* wrote to a terminal of *columns*: pieces of text, each with its time."""

    command: str
    columns: int
    pieces: tuple[tuple[float, str], ...]

    @property
    def lines(self) -> tuple[Line, ...]:
        """The lines as a terminal shows them that wraps nothing."""
        lines: list[Line] = []
        started, text = 0.0, ""
        for at, piece in self.pieces:
            for character in piece:
                if character == "\n":
                    lines.append(Line(started if text else at, text))
                    text = ""
                elif character != "\r":
                    started = started if text else at
                    text += character
        return (*lines, Line(started, text)) if text else tuple(lines)


def record(command: str, *, columns: int, environment: dict[str, str], folder: Path) -> Recording:
    """Run *command* in *folder* on a pseudo terminal and return what it wrote."""
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
        started = time.monotonic()
        with subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            cwd=folder,
            env=environment,
        ) as process:
            os.close(theirs)
            pieces = tuple(
                (round(time.monotonic() - started, 3), text) for text in _pieces_from(ours)
            )
    finally:
        os.close(ours)
    if process.returncode:
        told = "".join(text for _, text in pieces)
        raise NotRecordedError(f"cannot record {command}: exit {process.returncode}\n{told}")
    for _, text in pieces:
        if not text.replace("\r", "").replace("\n", "").isprintable():
            raise NotRecordedError(f"cannot record {command}: it wrote control codes: {text!r}")
    return Recording(command, columns, pieces)


def _pieces_from(terminal: int) -> Iterator[str]:
    """Yield what is written until the last writer is gone, which the kernel tells as EIO."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    while True:
        try:
            raw = os.read(terminal, 65536)
        except OSError:
            return
        if text := decoder.decode(raw):
            yield text


def dump(recording: Recording) -> str:
    """Return *recording* as the text of an asciicast v2 file."""
    header = {
        "version": 2,
        "width": recording.columns,
        "height": ROWS,
        "command": recording.command,
    }
    events = [[at, "o", text] for at, text in recording.pieces]
    return "".join(f"{json.dumps(entry, ensure_ascii=False)}\n" for entry in [header, *events])


def load(text: str) -> Recording:
    """Return the recording that *text* of an asciicast v2 file keeps."""
    header, *events = map(json.loads, text.splitlines())
    pieces = tuple((at, piece) for at, kind, piece in events if kind == "o")
    return Recording(header["command"], header["width"], pieces)
