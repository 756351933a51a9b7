"""The switches of an A3 server, through ``liblingqu-dcmi.so`` (docs/spec/dcmi.md#switches)."""

import ctypes
import time
from collections.abc import Callable
from ctypes import c_char, c_int, c_ubyte, c_uint, c_ulong, c_ushort
from typing import Any

import structlog

from ascend.errors import DriverError
from ascend.fabric_switches import SwitchFault
from device_plugin.driver.dcmi.library import load

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

NAME = "liblingqu-dcmi.so"
MAX_FAULTS = 128
"""The longest list that the library is asked for."""

_NONE_32 = 0xFFFFFFFF
_NONE_16 = 0xFFFF
_PEERS = {0: "cpu", 1: "npu", 2: "L2"}


class LingquEvent(ctypes.Structure):
    """``LqDcmiEvent``: a fault, or an event about one."""

    _fields_ = (
        ("event_type", c_int),
        ("sub_type", c_uint),
        ("peer_port_device", c_ushort),
        ("peer_port_id", c_ushort),
        ("switch_chip_id", c_ushort),
        ("switch_port_id", c_ushort),
        ("severity", c_ubyte),
        ("assertion", c_ubyte),
        ("reserved", c_char * 6),
        ("event_serial_num", c_uint),
        ("notify_serial_num", c_uint),
        ("alarm_raised_time", c_ulong),
        ("additional_param", c_ubyte * 40),
        ("additional_info", c_char * 32),
    )


class LingquEventFilter(ctypes.Structure):
    """``LqDcmiEventFilter``; all zero for every event."""

    _fields_ = (
        ("filter_flag", c_uint),
        ("event_type_id", c_int),
        ("event_id", c_uint),
        ("severity", c_ubyte),
        ("chip_id", c_uint),
    )


EventHandler = ctypes.CFUNCTYPE(None, ctypes.POINTER(LingquEvent))

_HANDLERS: list[Any] = []
"""The library may call a handler until the process ends, so all are kept."""


class LingquDriver:
    """The switches of this server."""

    def __init__(self) -> None:
        self._library: ctypes.CDLL | None = None

    def open(self) -> None:
        """Load and initialise the library; see ``SwitchDriver``."""
        if self._library is None:
            self._library = load(None, name=NAME)
        self._call("lq_dcmi_init")

    def read(self) -> tuple[SwitchFault, ...]:
        """Return the present faults; see ``SwitchDriver``."""
        found = c_uint(0)
        events = (LingquEvent * MAX_FAULTS)()
        self._call("lq_dcmi_get_fault_info", c_uint(MAX_FAULTS), ctypes.byref(found), events)
        if found.value > MAX_FAULTS:
            raise DriverError(f"lq_dcmi_get_fault_info lists {found.value} faults, more than the {MAX_FAULTS} it may")
        return tuple(fault for fault in map(fault_of, events[: found.value]) if fault.assertion)

    def subscribe(self, on_event: Callable[[SwitchFault], None]) -> None:
        """Announce faults that occur or end from now on, from threads of the library; see ``SwitchDriver``."""

        def receive(event: Any) -> None:
            try:
                on_event(fault_of(event.contents))
            except Exception:
                log.exception("an event about a switch can't be used")  # an exception can't go through C

        handler = EventHandler(receive)
        _HANDLERS.append(handler)  # first: even a call that fails may have kept it
        self._call("lq_dcmi_subscribe_fault_event", LingquEventFilter(), handler)

    def _call(self, name: str, *arguments: Any) -> None:
        if self._library is None:
            raise DriverError("the switches are read before the library is loaded")
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise DriverError(f"{NAME} has no function {name}", reason="LibraryUnusable") from None
        if code := self._invoke(function, name, *arguments):
            raise DriverError(f"{name} failed: error {code}")

    def _invoke(self, function: Callable[..., int], _name: str, *arguments: Any) -> int:
        return function(*arguments)


def fault_of(event: LingquEvent) -> SwitchFault:
    """Return a fault with its code as the fault rules name it (docs/spec/dcmi.md#switches).

    A fault without a time gets the present one.
    """
    is_of_port = event.switch_port_id != _NONE_16
    peer = _PEERS.get(event.peer_port_device, "na") if is_of_port else "na"
    fault = "na" if event.sub_type == _NONE_32 else str(event.sub_type)
    return SwitchFault(
        event_type=event.event_type & _NONE_32,
        assembled_fault_code=f"[0x{event.event_type & _NONE_32:08x},{fault},{peer},na]",
        peer_port_device=event.peer_port_device,
        peer_port_id=event.peer_port_id,
        switch_chip_id=event.switch_chip_id,
        switch_port_id=event.switch_port_id,
        severity=event.severity,
        assertion=event.assertion,
        alarm_raised_time=event.alarm_raised_time or time.time_ns() // 1_000_000,
    )
