"""The event loop's heartbeat and checks, which the probes read from another thread."""

import time

from msgspec import Struct

from holdfast.model.node.readiness import Check


class Posted(Struct, frozen=True, kw_only=True):
    """One check, and since when it passes or fails (monotonic seconds)."""

    check: Check
    since: float


class Readiness(Struct, frozen=True, kw_only=True):
    """All checks, as published at `at` (monotonic seconds)."""

    posted: tuple[Posted, ...]
    at: float

    @property
    def ready(self) -> bool:
        """Tell whether every check passes."""
        return all(each.check.passes for each in self.posted)


class Board:
    """The loop's heartbeat and the readiness checks. Only the loop writes them."""

    def __init__(self) -> None:
        """Start with a fresh heartbeat and nothing ready."""
        self._beat = time.monotonic()
        self.readiness = Readiness(posted=(), at=self._beat)
        """The latest checks."""
        self.down("the daemon is starting")

    def beat(self) -> None:
        """Record that the loop runs."""
        self._beat = time.monotonic()

    @property
    def silent_for(self) -> float:
        """Return the seconds since the last heartbeat."""
        return time.monotonic() - self._beat

    def down(self, reason: str) -> None:
        """Publish that the daemon is starting or stopping, and its current step."""
        self.publish((Check(name="up", passes=False, reason=reason, public=reason),))

    def publish(self, checks: tuple[Check, ...]) -> None:
        """Replace the checks; a check whose result is the same keeps its age."""
        now = time.monotonic()
        before = {each.check.name: each for each in self.readiness.posted}
        posted = []
        for check in checks:
            was = before.get(check.name)
            same = was is not None and was.check.passes == check.passes
            posted.append(Posted(check=check, since=was.since if was and same else now))
        self.readiness = Readiness(posted=tuple(posted), at=now)
