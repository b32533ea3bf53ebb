"""Sets up structlog: JSON lines for programs, readable lines on a terminal; both on stderr."""

import logging
import sys

import structlog


def set_up_logs(level: str, form: str) -> None:
    """Log from *level* on; *form* is ``json``, ``text``, or ``auto``: text on a terminal alone."""
    readable = form == "text" or (form == "auto" and sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer() if readable else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
