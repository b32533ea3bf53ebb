"""What a guard is for `make guards`: the edit that removes it, and the tests that then fail."""

from msgspec import Struct


class Edit(Struct, frozen=True):
    """Text that occurs once in a file of this repository, and what to put in its place."""

    file: str
    old: str
    new: str


class Guard(Struct, frozen=True, kw_only=True):
    """A guard of a reclaim.

    `edits` are several where two guards stand behind each other: each alone would hold. `tests`
    are names of test functions with their file; of one with parameters, one case has to fail.
    """

    name: str
    why: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]
