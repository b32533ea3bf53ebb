"""What a person sees on a terminal: colours, and what is drawn again until Ctrl-C."""

import errno
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from fakes.books import WHOLE, X, drafted, silicon
from holdfast.ledger.store import Store
from holdfast.model.book.queue import settle

_LINES = 5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the state folder of a daemon that is down, whose pod waits for what another has."""
    with closing(Store(tmp_path)) as store:
        draft = drafted()
        draft.allocate(WHOLE, silicon(d0="ab", d1="cd", d2="ef", d3="gh", d4="ij", d5="kl"), pod=X)
        settle(draft)
        draft.allocate(WHOLE, silicon(d0="ab"))
        settle(draft)
        store.write(draft.book, draft.moves)
    return tmp_path


def _on_terminal(
    folder: Path,
    *arguments: str,
    environ: Mapping[str, str] | None = None,
    enough: Callable[[str], bool] = lambda _text: False,
) -> tuple[str, int]:
    """Return what the command writes to its terminal, and how it ends; Ctrl-C once it is *enough*."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, 80, 0, 0))
    child = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *arguments, "--state-dir", str(folder)],
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm", **(environ or {})},
    )
    os.close(theirs)
    said, asked = b"", False
    while part := _read(ours):
        said += part
        if not asked and enough(said.decode(errors="replace")):
            child.send_signal(signal.SIGINT)
            asked = True
    os.close(ours)
    return said.decode(), child.wait(60)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError as error:
        if error.errno != errno.EIO:  # nobody has the other end any more
            raise
        return b""


def test_states_have_colours_on_a_terminal_and_nowhere_else(folder: Path) -> None:
    coloured, code = _on_terminal(folder, "locks")
    assert (code, "\x1b[33mqueued\x1b[0m" in coloured) == (0, True)
    for variable in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        plain, _ = _on_terminal(folder, "locks", environ=variable)
        assert "queued" in plain
        assert "\x1b" not in plain
    piped = subprocess.run(
        [sys.executable, "-m", "holdfast", "locks", "--state-dir", str(folder)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "queued" in piped
    assert "\x1b" not in piped


def test_a_view_is_drawn_again_on_the_same_screen_until_it_is_interrupted(folder: Path) -> None:
    said, code = _on_terminal(
        folder, "locks", "--watch", enough=lambda text: text.count("\x1b[H") >= 2
    )

    assert code == 0
    assert said.endswith("\x1b[?7h"), "lines are wrapped again"
    _, first, second = said.split("\x1b[H")[:3]
    for screen in (first, second):
        assert "DEVICE" in screen
        assert len(screen.splitlines()) <= _LINES, "it fits, whatever there is"
    assert "Traceback" not in said


def test_an_error_is_drawn_and_ends_nothing(tmp_path: Path) -> None:
    said, code = _on_terminal(
        tmp_path, "holders", "-w", enough=lambda text: text.count("cannot reach the daemon") >= 2
    )

    assert code == 0
    assert "cannot reach the daemon" in said
