"""Records the calls of the driver's libraries without what identifies a machine: addresses, serial numbers, processes.

A record can be published, and tests/dcmi/replay.py makes the fake library answer as it says.
"""

import ctypes
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from device_plugin.driver.dcmi.calls import text_of
from device_plugin.driver.dcmi.dividing_calls import DividingCalls
from device_plugin.driver.dcmi.errors import DcmiError
from device_plugin.driver.dcmi.lingqu import LingquDriver
from device_plugin.driver.dcmi.structures import IpAddress

LEFT_OUT: Final = frozenset(
    {
        *("soc_die", "u_addr", "container_id", "proc_id", "proc_mem_usage", "token", "token_max"),
        *("additional_param", "additional_info", "reserve", "reserved", "resv"),
    }
)
"""Fields of structures that no record has."""


class Call(msgspec.Struct, omit_defaults=True):
    """A call of a function of the driver's library.

    Attributes:
        function: its name.
        arguments: the numbers it was given, and the fields that were set of structures it was given.
        code: what it returned; None if it has not returned.
        answer: what it wrote, by argument: numbers, texts, and structures by field. Zeros at the end of a list and of a
            structure's fields are left out, and so are the fields ``LEFT_OUT``.
        took_ms: its duration in milliseconds.
    """

    function: str
    arguments: list[Any]
    code: int | None = None
    answer: list[Any] = []
    took_ms: float = 0.0


class RecordingCalls(DividingCalls):
    """The functions of the library, each call of which is recorded.

    Args:
        library: the loaded library.
        record: gets the calls in the order in which they begin.
    """

    def __init__(self, library: ctypes.CDLL, record: list[Call]) -> None:
        super().__init__(library, lambda _name, _seconds: None)
        self._record = record

    def _time_call(self, name: str, *arguments: Any, target: tuple[int, ...] = ()) -> None:
        def call() -> int:
            try:
                super(RecordingCalls, self)._time_call(name, *arguments, target=target)
            except DcmiError as error:
                failed.append(error)
                return error.code
            return 0

        failed: list[DcmiError] = []
        recorded(self._record, name, arguments, call)
        if failed:
            raise failed[0]


class RecordingLingqu(LingquDriver):
    """The switches of this server; each call of their library is recorded.

    Args:
        record: gets the calls.
    """

    def __init__(self, record: list[Call]) -> None:
        super().__init__()
        self._record = record

    def list_faults(self) -> None:
        """Read the present faults for the record.

        Raises:
            DriverError: they can't be read.
        """
        self.open()
        self.read()

    def _invoke(self, function: Callable[..., int], name: str, *arguments: Any) -> int:
        return recorded(self._record, name, arguments, lambda: function(*arguments))


def recorded(record: list[Call], name: str, arguments: Sequence[Any], call: Callable[[], int]) -> int:
    """Make a call and record it from its start on; return the library's code."""
    given = [argument.value if isinstance(argument, ctypes.c_uint) else argument for argument in arguments]
    inputs = (value if isinstance(value, int) else _plain(value) for value in given if not _is_output(value))
    made = Call(name, [value for value in inputs if value not in ({}, {"ip_type": 0})])
    record.append(made)
    began_s = time.perf_counter()
    code = call()
    made.took_ms = round((time.perf_counter() - began_s) * 1000, 3)
    if code == 0:
        made.answer = [_plain(value) for value in given if not isinstance(value, int)]
    made.code = code
    return code


def _is_output(argument: Any) -> bool:
    return not isinstance(getattr(argument, "_obj", argument), int | ctypes.Structure)


def _plain(value: Any) -> Any:
    """A value of ctypes as JSON has it."""
    value = getattr(value, "_obj", value)  # what byref() points to
    match getattr(value, "value", value):
        case IpAddress() as address:
            raw = bytes(address.u_addr.ip6)
            kind = "link-local" if raw.startswith((b"\xfe\x80", b"\xa9\xfe")) else "usable"
            found: Any = {"ip_type": address.ip_type} | ({"address": kind} if any(raw) else {})
        case ctypes.Structure() as structure:
            fields = {name: _plain(getattr(structure, name)) for name, *_ in structure._fields_ if name not in LEFT_OUT}
            found = {name: value for name, value in fields.items() if value not in (0, "", [], {})}
        case ctypes.Array() as array:
            found = _trimmed([_plain(element) for element in array])
        case bytes() as text:
            found = text_of(text)
        case float() as number:
            found = number if math.isfinite(number) else None
        case found:
            pass
    return found


def _trimmed(values: list[Any]) -> list[Any]:
    while values and values[-1] in (0, {}):
        values.pop()
    return values
