"""What is wrong with one thing at present, which the log tells once."""

from structlog.typing import FilteringBoundLogger


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
