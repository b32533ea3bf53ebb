"""Sets up structlog: JSON lines for programs, readable lines on a terminal; both on stderr."""

import logging
import sys

import structlog
from structlog.typing import Processor


def set_up_logs(level: str, form: str) -> None:
    """Log from *level* on; *form* is ``json``, ``text``, or ``auto``: text on a terminal alone.

    What libraries and asyncio tell through the standard library comes out in the same form, from
    warnings on.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    terminal = sys.stderr.isatty()
    before: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[Processor] = [
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(),
    ]
    if form == "text" or (form == "auto" and terminal):
        # Tracebacks without the values of variables: they can be long, and nobody's business.
        plain = structlog.dev.plain_traceback
        last = [structlog.dev.ConsoleRenderer(colors=terminal, exception_formatter=plain)]
    structlog.configure(
        processors=[*before, *last],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=before,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(number, logging.WARNING), force=True)
    logging.captureWarnings(capture=True)
