"""What a guard is for `make guards`: the edits that remove it, and the tests that then fail."""

from collections.abc import Mapping

from msgspec import Struct


class Edit(Struct, frozen=True):
    """The name of a guard, text that occurs once in a file, and what to put there to remove it."""

    guard: str
    old: str
    new: str


class Guard(Struct, frozen=True, kw_only=True):
    """A guard as docs/guards.md has it, with its edits by their files below daemon/holdfast.

    The edits are several where two guards stand behind each other: each alone would hold. `tests`
    are names of test functions with their file; of one with parameters, one case has to fail.
    """

    name: str
    why: str
    edits: Mapping[str, tuple[Edit, ...]]
    tests: tuple[str, ...]
