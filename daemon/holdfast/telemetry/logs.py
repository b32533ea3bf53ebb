"""Sets up structlog: JSON lines, or readable lines on a terminal; both on stderr."""

import logging
import sys
import threading
import traceback
from types import TracebackType
from typing import TextIO

import structlog
from structlog.typing import EventDict, ExcInfo, Processor, WrappedLogger

from holdfast.model.text import printable

log = structlog.get_logger(__name__)


def set_up_logs(level: str, form: str) -> None:
    """Log from *level* on; *form* is ``json``, ``text``, or ``auto`` (text on a terminal).

    Warnings and errors that libraries log through the standard library have the same form, and so
    do errors that end the process or a thread.
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
        last = [
            _as_printed,
            structlog.dev.ConsoleRenderer(colors=terminal, exception_formatter=_traceback),
        ]
    structlog.configure(
        processors=[*before, *last],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
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
    sys.excepthook = _process_ended
    threading.excepthook = _thread_ended


def _process_ended(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    log.critical("daemon stopped by an unexpected error", exc_info=(kind, error, trace))


def _thread_ended(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None:
        name = args.thread.name if args.thread is not None else None
        error = (args.exc_type, args.exc_value, args.exc_traceback)
        log.critical("thread stopped by an unexpected error", thread=name, exc_info=error)


def _as_printed(_logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
    """Escape texts for readable lines. JSON and repr escape the rest themselves."""
    return {
        key: printable(value) if isinstance(value, str) else value for key, value in event.items()
    }


def _traceback(out: TextIO, error: ExcInfo) -> None:
    """Write *error* without the values of variables, which can be long or confidential.

    Each line is indented, so that none can be mistaken for a log line.
    """
    lines = "".join(traceback.format_exception(*error)).rstrip("\n").split("\n")
    out.writelines(f"\n    {printable(line)}" for line in lines)
