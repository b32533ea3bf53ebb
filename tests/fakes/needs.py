"""What a machine must have for some tests, which are skipped where it lacks that."""

import os
import shutil

import pytest


def root_with(program: str, *, to: str) -> pytest.MarkDecorator:
    """Return the mark of a test that needs root and a *program* of util-linux *to* do something."""
    return pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which(program) is None,
        reason=f"to {to} needs root and {program} (util-linux)",
    )
