"""What `make sizes` counts as code."""

from sizes import Size, size_of

_MODULE = '''"""A docstring
of two lines."""

import os
from sys import (
    path,
)

# A comment.
LISTED = (
    os.name,  # counts
    path,
)


def answer() -> str:
    """One line."""
    return """a string
that is no docstring"""
'''


def test_blank_lines_comments_docstrings_and_imports_are_no_code() -> None:
    assert size_of(_MODULE) == Size(modules=1, lines=19, code=7)


def test_sizes_add_up() -> None:
    assert Size(1, 10, 5).plus(Size(2, 20, 7)) == Size(3, 30, 12)
