"""Converts the fault events of the library, in its own threads."""

import ctypes
from collections.abc import Callable
from typing import Any

import structlog

from device_plugin.driver import Assertion, FaultEvent
from device_plugin.driver.dcmi.structures import Event, EventHandler

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_FAULT = 0
_NO_FAULT = 0
"""The driver's lists of codes are filled up with it (docs/spec/dcmi.md#behaviour-of-the-driver)."""
_MOST_TOLD = 16
_ASSERTIONS: dict[int, Assertion] = {0: "recover", 1: "occur", 2: "once"}

_HANDLERS: list[Any] = []
"""The library may call a handler until the process ends, so all are kept."""


def make_handler(on_event: Callable[[FaultEvent], None]) -> "ctypes._FuncPointer":
    """Return a callback for the library, kept alive because even a failed subscription may refer to it."""
    handler = EventHandler(_relay(on_event))
    _HANDLERS.append(handler)
    return handler


def _relay(on_event: Callable[[FaultEvent], None]) -> Callable[[Any], None]:
    """Return the callback for the library: it converts events, and lets no exception into C."""
    told: set[int] = set()

    def relay(pointer: Any) -> None:
        try:
            event: Event | None = pointer.contents if pointer else None
            if event is None or event.type != _FAULT:
                return
            fault = event.dms_event
            assertion = _ASSERTIONS.get(fault.assertion)
            if assertion is None or fault.event_id == _NO_FAULT:
                # Each kind is told once: a driver that sends such events may send thousands a second.
                kind = -1 if assertion is not None else fault.assertion
                if kind not in told and len(told) < _MOST_TOLD:
                    told.add(kind)
                    log.warning(
                        "events like this are ignored: a fault needs a code, and an assertion from 0 to 2",
                        code=f"{fault.event_id:X}",
                        assertion=fault.assertion,
                    )
                return
            on_event(FaultEvent(fault.deviceid, fault.event_id, assertion, fault.severity))
        except Exception:
            log.exception("an event is lost")

    return relay
