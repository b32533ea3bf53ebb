"""Runs the tests that concern a change in a copy of the source that has it."""

import compileall
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from py_compile import PycInvalidationMode
from types import TracebackType
from typing import Self

from mutants.change import Change

_COPIED = ("daemon", "tests", "proto", "docs", "deploy")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "build")
_ALL_PASSED, _SOME_FAILED, _INTERRUPTED, _FELL_OVER = 0, 1, 2, 3
_NO_CONFTEST = "while loading conftest"
_PATIENCE = 600.0
"""Seconds for the tests of one change. A change can make a loop endless: that is noticed, too."""


class Outcome(Enum):
    """What became of a change."""

    KILLED = "killed"
    SURVIVED = "survived"


class Copy:
    """A copy of the source in which one change after another is tried."""

    def __init__(self, repository: Path) -> None:
        self._repository = repository
        self._folder = tempfile.TemporaryDirectory(prefix="hf-")
        self._root = Path(self._folder.name)

    def __enter__(self) -> Self:
        for name in _COPIED:
            source, target = self._repository / name, self._root / name
            shutil.copytree(source, target, symlinks=True, ignore=_LEFT_OUT)
        for name in ("pyproject.toml", "README.md", "CHANGELOG.md"):
            shutil.copy(self._repository / name, self._root)
        # Each run, and each daemon in it, would compile all of it anew. By its hash the one file
        # that is changed never passes for what was compiled before, whatever its time and size.
        compileall.compile_dir(
            self._root / "daemon", quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._folder.cleanup()

    def try_without_change(self, tests: Sequence[str]) -> str:
        """Return what pytest says where the unchanged source fails *tests*; else nothing."""
        code, told = self._run(tests)
        return told if code != _ALL_PASSED else ""

    def try_change(self, change: Change, tests: Sequence[str]) -> Outcome:
        """Return whether one of *tests* fails with *change*.

        Raise RuntimeError where pytest could not run them at all.
        """
        file = self._root / change.file
        source = file.read_text()
        file.write_text(change.apply(source))
        try:
            code, told = self._run(tests)
        finally:
            file.write_text(source)
        if code == _ALL_PASSED:
            return Outcome.SURVIVED
        # A module that cannot be imported any more ends the collection, or the read of a conftest:
        # noticed as well. So is what
        # pytest cannot tell of a failure, as where servers that were never stopped are collected
        # while it reads a source (https://github.com/python/cpython/issues/106905).
        if code in {_SOME_FAILED, _INTERRUPTED, _FELL_OVER} or _NO_CONFTEST in told:
            return Outcome.KILLED
        raise RuntimeError(f"cannot run the tests of {change}: pytest ended with {code}:\n{told}")

    def _run(self, tests: Sequence[str]) -> tuple[int, str]:
        path = os.pathsep.join(str(self._root / name) for name in ("daemon", "tests"))
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": ""}
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
        # A session of its own: what a test of an endless loop started is ended with it.
        running = subprocess.Popen(
            command,
            cwd=self._root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            told, _ = running.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            running.communicate()
            return _SOME_FAILED, f"not done in {_PATIENCE:g} s"
        return running.returncode, told[-3000:]
