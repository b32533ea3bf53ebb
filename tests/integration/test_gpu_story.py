"""The demo's story of GPUs, told as a user would have it told."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.nvml import build


def _tell(repository: Path, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    path = f"{repository / 'daemon'}:{repository / 'tests'}"
    return subprocess.run(
        [sys.executable, "-m", "simulated", "--gpus"],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_c_compiler_the_demo_says_what_is_missing_and_how_to_get_it(
    repository: Path, tmp_path: Path
) -> None:
    told = _tell(repository, {"PATH": str(tmp_path)})

    assert told.returncode == 3
    assert "no C compiler (cc, gcc, clang)" in told.stdout
    assert "apt-get install gcc" in told.stdout
    assert "`make demo` without ARGS=--gpus" in told.stdout
    assert told.stderr == ""


@pytest.mark.slow
def test_every_step_of_the_story_happens(repository: Path, tmp_path: Path) -> None:
    build(tmp_path)  # skips where there is no compiler

    told = _tell(repository, {})

    assert told.returncode == 0, told.stdout
    assert "The end. Every step happened." in told.stdout
