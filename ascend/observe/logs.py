"""Logs: one JSON object per line on standard output; human-readable lines on a terminal.

Modules log through ``structlog.get_logger()`` with an event sentence and key-value pairs. Records of the standard
library's logging, with ``extra``, have the same format. What strangers have named is escaped: a line never holds a
control character, and a value never ends a line.
"""

import logging
import sys
from typing import Any, Final, TextIO

import structlog
from structlog.stdlib import ProcessorFormatter
from structlog.typing import EventDict, Processor

from ascend.printable import escaped_json, printable, printable_lines


def set_level(level: str) -> None:
    """Set the lowest level that the process logs."""
    logging.getLogger().setLevel(level.upper())


def configure_logs(component: str, *, level: str = "INFO", stream: TextIO = sys.stdout) -> None:
    """Configure logging for the process; call it once, at its start. The program's name is on every line."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        lambda _logger, _method, event: {"component": component, **event},
    ]
    renderers = (_shown, structlog.dev.ConsoleRenderer()) if stream.isatty() else (_JSON, _escaped)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[ProcessorFormatter.remove_processors_meta, structlog.processors.format_exc_info, *renderers],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    set_level(level)
    for library in ("aiohttp", "asyncio", "grpc"):
        logging.getLogger(library).setLevel(logging.WARNING)
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


_JSON: Final = structlog.processors.JSONRenderer()


def _escaped(_logger: Any, _method: str, line: Any) -> str:
    """DEL is the one control character that JSON leaves."""
    return escaped_json(line)


def _shown(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """The values for a terminal; those of lists and objects are shown by their ``repr``, which escapes."""

    def shown(key: str, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return printable_lines(value) if key == "exception" else printable(value)

    return {printable(key): shown(key, value) for key, value in event.items()}
