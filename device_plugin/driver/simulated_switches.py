"""Switches that are read from the file of the simulated chips.

``switch_faults`` is a list such as ``[{"code": "[0x00f1fef5,155912,npu,na]", "chip": 0, "port": 3}]``; only the code is
required. A file without it is that of a server whose switches can't be read.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec

from ascend.errors import UNREADABLE, DriverError
from ascend.fabric_switches import SwitchFault

_Id = Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]
_Code = Annotated[str, msgspec.Meta(pattern=r"^\[0x[0-9a-f]{8},(na|[0-9]+),(cpu|npu|L2|na),na\]$")]

_PEERS = {"cpu": 0, "npu": 1, "L2": 2}


class SimulatedSwitchFault(msgspec.Struct, forbid_unknown_fields=True):
    """A fault of a switch in the file."""

    code: _Code
    chip: _Id = 0
    port: _Id = 0
    peer_port: _Id = 0
    time_ms: int = 0


class _Server(msgspec.Struct):
    switch_faults: list[SimulatedSwitchFault] | None = None


class SimulatedSwitches:
    """Reads the file at every call.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self) -> None:
        """Check that the file has switches; see ``SwitchDriver``."""
        self.read()

    def read(self) -> tuple[SwitchFault, ...]:
        """Return the faults in the file; see ``SwitchDriver``."""
        try:
            faults = msgspec.json.decode(self._path.read_bytes(), type=_Server).switch_faults
        except (OSError, *UNREADABLE) as error:
            raise DriverError(f"{self._path}: {error}") from error
        if faults is None:
            raise DriverError(f"{self._path} has no switch_faults", reason="LibraryNotFound")
        return tuple(_fault_of(fault) for fault in faults)

    def subscribe(self, on_event: Callable[[SwitchFault], None]) -> None:  # noqa: ARG002 - a driver's signature
        """Refuse: a file announces nothing; see ``SwitchDriver``."""
        raise DriverError("a file announces no faults")


def _fault_of(fault: SimulatedSwitchFault) -> SwitchFault:
    alarm, _, peer, _ = fault.code.strip("[]").split(",")
    return SwitchFault(
        event_type=int(alarm, 16),
        assembled_fault_code=fault.code,
        peer_port_device=_PEERS.get(peer, 0),
        peer_port_id=fault.peer_port,
        switch_chip_id=fault.chip,
        switch_port_id=fault.port,
        severity=2,
        assertion=1,
        alarm_raised_time=fault.time_ms,
    )
