"""Removes one guard in a copy of the source, and sees whether its tests notice."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from guards.guard import Guard

SOURCE = Path("daemon/holdfast")
"""What the files of edits are below, in this repository and in a copy of it."""
_COPIED = ("daemon", "tests")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "build")
_RESULT = re.compile(
    r"^(?P<how>PASSED|FAILED|ERROR) (?P<test>[^\s\[]+)(?:\[.*?\])?(?: - (?P<why>.*))?$",
    re.MULTILINE,
)
_WIDE = "500"
"""Columns: pytest cuts the reasons in its summary to the width of the terminal."""


class NotProvenError(Exception):
    """A guard whose removal is not noticed as it should be, with what was seen instead."""


def remove(guard: Guard, root: Path) -> None:
    """Apply the edits of *guard* below *root*; raise NotProvenError where one does not apply."""
    for place, edits in guard.edits.items():
        file = root / SOURCE / place
        for edit in edits:
            text = file.read_text()
            if text.count(edit.old) != 1:
                found = text.count(edit.old)
                raise NotProvenError(f"{place} has {edit.old!r} {found} times, and not once")
            file.write_text(text.replace(edit.old, edit.new))


def prove(guard: Guard, repository: Path) -> list[str]:
    """Return a line for each test of *guard* that fails once the guard is removed.

    Raise NotProvenError where an edit does not apply, a test passes all the same, or it fails by
    anything but an assertion of its own.
    """
    with tempfile.TemporaryDirectory(prefix="hf-") as folder:
        root = Path(folder)
        for name in _COPIED:
            shutil.copytree(repository / name, root / name, symlinks=True, ignore=_LEFT_OUT)
        shutil.copy(repository / "pyproject.toml", root)
        remove(guard, root)
        told = _run(guard, root)
    failures: dict[str, str] = {}
    for result in _RESULT.finditer(told):
        if result["how"] == "FAILED" and "assert" in (result["why"] or "").lower():
            failures[result["test"]] = result["why"]
    missing = [test for test in guard.tests if test not in failures]
    if missing:
        raise NotProvenError(f"without it {missing[0]} does not fail:\n{told[-3000:]}")
    files = ", ".join(guard.edits)
    return [f"{guard.name}: removed in {files}: {test} fails" for test in guard.tests]


def _run(guard: Guard, root: Path) -> str:
    """Return what pytest says of the tests of *guard* below *root*."""
    path = os.pathsep.join(str(root / name) for name in _COPIED)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", *guard.tests],
        cwd=root,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": _WIDE, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.stdout + ran.stderr
