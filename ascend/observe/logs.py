"""Logs: one JSON object per line on standard output; human-readable lines on a terminal.

Modules log through ``structlog.get_logger()`` with an event sentence and key-value pairs. Records of the standard
library's logging, with ``extra``, have the same format. What strangers have named is escaped: a line never holds a
control character, and a value never ends a line.
"""

import json
import logging
import sys
from contextlib import suppress
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
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        lambda _logger, _method, event: {"component": component, **event},
    ]
    shown = (_shown, structlog.dev.ConsoleRenderer()) if stream.isatty() else (_json,)
    rendered: list[Processor] = [structlog.processors.format_exc_info, *shown]
    handler = logging.StreamHandler(stream)
    foreign: list[Processor] = [structlog.stdlib.ExtraAdder(), *shared]
    handler.setFormatter(
        ProcessorFormatter(foreign_pre_chain=foreign, processors=[ProcessorFormatter.remove_processors_meta, *rendered])
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    set_level(level)
    for library in ("aiohttp", "asyncio", "grpc"):
        logging.getLogger(library).setLevel(logging.WARNING)
    structlog.configure(
        # Not through the standard library, which takes several times as long for a line; each Binding has one.
        processors=[_above_level, *shared, *rendered],
        wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET),
        logger_factory=lambda *_: _Lines(handler),
        cache_logger_on_first_use=True,
    )


class _Lines:
    """Writes lines to the stream of a handler; as there, an error of the stream ends nothing."""

    def __init__(self, handler: "logging.StreamHandler[TextIO]") -> None:
        self._handler = handler

    def msg(self, line: str) -> None:
        self._handler.acquire()
        try:
            with suppress(OSError, ValueError):
                self._handler.stream.write(f"{line}\n")
                self._handler.stream.flush()
        finally:
            self._handler.release()

    debug = info = warning = error = critical = msg


_ROOT: Final = logging.getLogger()
_LEVELS: Final = logging.getLevelNamesMapping()


def _above_level(_logger: Any, method: str, event: EventDict) -> EventDict:
    if _LEVELS[method.upper()] < _ROOT.level:
        raise structlog.DropEvent
    return event


_ENCODE: Final = json.JSONEncoder(default=repr).encode


def _json(_logger: Any, _method: str, event: EventDict) -> str:
    """DEL is the one control character that JSON leaves."""
    return escaped_json(_ENCODE(event))


def _shown(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """The values for a terminal; those of lists and objects are shown by their ``repr``, which escapes."""

    def shown(key: str, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return printable_lines(value) if key == "exception" else printable(value)

    return {printable(key): shown(key, value) for key, value in event.items()}
