"""What a look at the node found: one line with its level, its reason and what to do."""

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct


class Level(StrEnum):
    """How bad a finding is."""

    OK = "OK"
    WARN = "WARN"
    """Something works less well, or cannot be told from here."""
    FAIL = "FAIL"
    """Something that the settings ask for cannot work until it is fixed."""


class Finding(Struct, frozen=True, kw_only=True):
    """One fact about the node, with what to do if it is not as it should be."""

    area: str
    """The subject: `kubelet`, `vfio`, `nvidia`, `containerd`, `gvisor`, `memory`, ..."""
    check: str
    """The check's name, the same on every node and in every version: programs filter by it."""
    level: Level
    reason: str
    """What was seen, with the path or value where it was seen."""
    remedy: str = ""
    """What to do; never empty for WARN and FAIL."""


class Check(Struct, frozen=True):
    """Makes the findings of one check. A finding that is not OK cannot be made without a remedy.

    Each check is named by two literals, which docs/doctor.md lists.
    """

    area: str
    name: str

    def ok(self, reason: str) -> Finding:
        """Return that all is as it should be."""
        return self._finding(Level.OK, reason, "")

    def warn(self, reason: str, *, remedy: str) -> Finding:
        """Return that something works less well, or cannot be told from here."""
        return self._finding(Level.WARN, reason, remedy)

    def fail(self, reason: str, *, remedy: str) -> Finding:
        """Return that something that the settings ask for cannot work until it is fixed."""
        return self._finding(Level.FAIL, reason, remedy)

    def warn_or_fail(self, reason: str, *, remedy: str, fails: bool) -> Finding:
        """Return FAIL if it *fails* for sure, or else WARN."""
        return self._finding(Level.FAIL if fails else Level.WARN, reason, remedy)

    def _finding(self, level: Level, reason: str, remedy: str) -> Finding:
        return Finding(area=self.area, check=self.name, level=level, reason=reason, remedy=remedy)


def some(names: Sequence[str], most: int = 3) -> str:
    """Return *names* as a list in a text, the first *most* of them.

    >>> some(("a", "b", "c"), 2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
