"""The demo's story of claims, told as a user would have it told; test_wheel.py tells all of it."""

import os
import subprocess
import sys
from pathlib import Path


def test_without_openssl_the_demo_says_what_is_missing(repository: Path, tmp_path: Path) -> None:
    path = f"{repository / 'daemon'}:{repository / 'tests'}"
    told = subprocess.run(
        [sys.executable, "-m", "simulated", "--dra"],
        env={**os.environ, "PYTHONPATH": path, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert told.returncode == 3
    assert "cannot make certificates: there is no openssl on the PATH; install it." in told.stdout
    assert "`make demo` without ARGS=--dra" in told.stdout
    assert told.stderr == ""
