"""Makes the findings of one area; a finding that is not OK cannot be made without its remedy."""

from msgspec import Struct

from holdfast.doctor.finding import Finding, Level


class Area(Struct, frozen=True):
    """What a group of checks is about. Each check is named by a literal, which the docs list."""

    name: str

    def ok(self, *, check: str, reason: str) -> Finding:
        """Return that *check* found all as it should be."""
        return Finding(area=self.name, check=check, level=Level.OK, reason=reason)

    def warn(self, *, check: str, reason: str, remedy: str) -> Finding:
        """Return that something works less well, or cannot be told from here."""
        return self._finding(check, Level.WARN, reason, remedy)

    def fail(self, *, check: str, reason: str, remedy: str) -> Finding:
        """Return that something that was asked for cannot work until it is mended."""
        return self._finding(check, Level.FAIL, reason, remedy)

    def _finding(self, check: str, level: Level, reason: str, remedy: str) -> Finding:
        return Finding(area=self.name, check=check, level=level, reason=reason, remedy=remedy)
