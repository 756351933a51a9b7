"""Logs: one JSON object per line on standard output; human-readable lines on a terminal.

Modules log through ``structlog.get_logger()`` with an event sentence and key-value pairs. Records of the standard
library's logging, with ``extra``, have the same format.
"""

import logging
import sys
from typing import TextIO

import structlog
from structlog.stdlib import ProcessorFormatter


def set_level(level: str) -> None:
    """Set the lowest level that the process logs."""
    logging.getLogger().setLevel(level.upper())


def configure_logs(component: str, *, level: str = "INFO", stream: TextIO = sys.stdout) -> None:
    """Configure logging for the process; call it once, at its start. The program's name is on every line."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        lambda _logger, _method, event: {"component": component, **event},
    ]
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if stream.isatty() else structlog.processors.JSONRenderer()
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[ProcessorFormatter.remove_processors_meta, structlog.processors.format_exc_info, renderer],
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
