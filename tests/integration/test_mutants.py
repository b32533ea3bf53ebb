"""A small random sample of `make mutants`: no change of a rule may go unnoticed."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(1500)  # eight runs of pytest, each on a copy of the source
def test_no_change_of_a_small_sample_of_the_rules_survives(repository: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "mutants", "--settled", "--file", "model/", "--number", "8"],
        cwd=repository / "tests",
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.splitlines()[-1].startswith("mutants: tried=8 ")
    assert ran.stdout.endswith("survived=0\n")
