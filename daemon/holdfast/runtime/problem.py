"""What is wrong with one thing at present, which the log tells once; and how often of many."""

import contextlib
import math
from collections.abc import Hashable, Iterator

from structlog.typing import FilteringBoundLogger

from holdfast.runtime.clock import Clock

_AT_ONCE, _THEN = 10, 30.0
_FORGOTTEN = 600.0
"""Seconds after which nothing more is known of what the log said of a thing."""


class Problem:
    """The `text` of what is wrong, empty for nothing. A retry that fails alike is not logged."""

    def __init__(
        self,
        log: FilteringBoundLogger,
        event: str,
        *,
        over: str = "",
        text: str = "",
        **fields: object,
    ) -> None:
        """Warn of *event* to *log* when the text becomes another; tell when it is *over*, if named.

        *fields* are those of both. At first it is *text*, which is not logged.
        """
        self.text = text
        self._log = log
        self._event = event
        self._over = over
        self._fields = fields

    def set(self, text: str, **fields: object) -> None:
        """Note that *text* is wrong now, empty for nothing; *fields* are of this event alone.

        The reason in the log is *text*, unless it is one of them.
        """
        before, self.text = self.text, text
        if text and text != before:
            self._log.warning(self._event, **{**self._fields, "reason": text, **fields})
        elif before and not text and self._over:
            self._log.info(self._over, **self._fields, **fields)

    @contextlib.contextmanager
    def noting(self, *kinds: type[Exception]) -> Iterator[None]:
        """Note what of *kinds* is raised in the block, or else that nothing is wrong.

        It is raised no further.
        """
        try:
            yield
        except kinds as error:
            self.set(str(error))
        else:
            self.set("")


class LogLimit:
    """Lets some lines about each thing into the log at once, and then one each 30 s.

    For what is another text each time because of what others do: a pod of which each process ends
    soon must not push out of the log what is said of all else.
    """

    def __init__(self, clock: Clock) -> None:
        """Measure by *clock*."""
        self._clock = clock
        self._lines: dict[Hashable, tuple[int, float]] = {}
        """How many there were about each thing, and when the last was, in monotonic seconds."""

    def allows(self, about: Hashable) -> bool:
        """Tell whether there may be a line about this thing now, and take it as written."""
        now = self._clock.monotonic()
        count, at = self._lines.get(about, (0, -math.inf))
        if count >= _AT_ONCE and now - at < _THEN:
            return False
        known = {each: it for each, it in self._lines.items() if now - it[1] < _FORGOTTEN}
        self._lines = {**known, about: (count + 1 if about in known else 1, now)}
        return True
