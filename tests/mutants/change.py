"""What a change of the source is: a piece of one file, and what stands there instead."""

from msgspec import Struct


class Change(Struct, frozen=True, kw_only=True):
    """One small change of one file.

    `start` and `end` are offsets in the file's bytes. `function` is the dotted name of the function
    or class around it, empty at the top of the module. `was` and `becomes` are the lines that it
    touches, before and after, with single spaces: together with file and function they name the
    change, and go on to name it when other lines of the file change.
    """

    file: str
    function: str
    line: int
    start: int
    end: int
    new: str
    was: str
    becomes: str

    @property
    def name(self) -> tuple[str, str, str, str]:
        """Return what the change is called in the list of equivalent ones."""
        return (self.file, self.function, self.was, self.becomes)

    def apply(self, source: str) -> str:
        """Return *source* with the change."""
        data = source.encode()
        return (data[: self.start] + self.new.encode() + data[self.end :]).decode()

    def __str__(self) -> str:
        """Return where it is and what it does."""
        return f"{self.file}:{self.line} {self.function}: {self.was!r} -> {self.becomes!r}"
