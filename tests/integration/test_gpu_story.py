"""The demo's story of GPUs, told as a user would have it told; test_wheel.py tells all of it."""

import os
import subprocess
import sys
from pathlib import Path


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
