"""A small sample of `make mutants`: no change of a rule may go unnoticed."""

import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from mutants.scope import SETTLED


@pytest.mark.slow
@pytest.mark.timeout(1500)  # eight runs of pytest, each on a copy of the source
def test_no_change_of_a_small_sample_of_the_rules_survives(repository: Path) -> None:
    # Each state of the rules has a sample of its own, so that the same commit is judged alike twice.
    rules = b"".join((repository / file).read_bytes() for file in sorted(SETTLED))
    sample = ("--number", "8", "--seed", str(zlib.crc32(rules)))
    ran = subprocess.run(
        [sys.executable, "-m", "mutants", "--settled", "--file", "model/", *sample],
        cwd=repository / "tests",
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.splitlines()[-1].startswith("mutants: tried=8 ")
    assert ran.stdout.endswith("survived=0\n")
