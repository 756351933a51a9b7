"""The file of the simulated driver, which may be edited while the plugin runs.

::

    {"product": "910A",
     "delay_s": 0.0,
     "error": "",
     "chips": [{"id": 0, "health": "Healthy", "network_health": "Healthy", "fault_codes": [],
                "ip": "10.20.0.1", "super_device_id": 0, "delay_s": 0.0}, …]}

``product`` is 910A, 910B or A3. An unhealthy chip has the faults listed; if none is listed, it has dropped off the bus.
An unhealthy network is one more fault. ``delay_s`` delays the driver's answers (or the readings of one chip), ``error``
makes every call fail with that text. Only ``product``, ``chips`` and the chips' ids are required. A server may have
``driver_version``, ``super_pod_id``, ``server_index``, ``switch_faults`` (``simulated_switches``), ``reset``
(``simulated_resets``) and, if the driver announces faults, ``events`` (such as ``{"delay_s": 1.5, "code_delay_s": 0}``,
``simulated_events``), a chip ``chip_name``, ``numa_node``, ``hbm_mb``, ``processes``, ``vnpus`` (such as
``[{"id": 100, "template": "vir02", "in_container": false}]``) and ``telemetry`` (``simulated_telemetry``). vNPUs that
are cut while pods run are in a file of their own (``simulated_cuts``).

As with the real driver, a chip has three more states. With ``"ready": false`` it is being reset: it does not answer,
and if the driver is initialized meanwhile, its card is not listed until the driver is initialized again. With
``"present": false`` it is off the bus: the next initialization does not find it at all. With ``"reachable": false`` the
driver calls its health fatal and keeps its fault codes.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from ascend.annotations import UNKNOWN
from ascend.base_device_infos import ChipAddress
from ascend.chips import MAX_CHIP_ID
from ascend.errors import DriverError, InvalidValue
from device_plugin.driver import (
    ChipFacts,
    ChipType,
    Inventory,
    VirtualNpu,
)
from device_plugin.driver.simulated_cuts import SimulatedCuts
from device_plugin.driver.simulated_events import SimulatedEvents
from device_plugin.driver.simulated_resets import FaultyChip, SimulatedReset
from device_plugin.driver.simulated_switches import SimulatedSwitchFault
from device_plugin.driver.simulated_telemetry import SimulatedTelemetry

Health = Literal["Healthy", "Unhealthy"]
Delay = Annotated[float, msgspec.Meta(ge=0, le=3600)]
SuperDeviceId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]

_CODE = re.compile(r"[0-9A-Fa-f]{1,16}")


@dataclass(frozen=True, slots=True)
class _Kind:
    """The chips of a product."""

    chip_type: ChipType
    chip_name: str
    ai_cores: int
    board_id: int
    hbm_mb: int
    chips_per_card: int = 1


_KINDS = {
    "910A": _Kind("Ascend910", "910A", ai_cores=32, board_id=0, hbm_mb=32768),
    "910B": _Kind("Ascend910B", "910B3", ai_cores=20, board_id=0x30, hbm_mb=65536),
    "A3": _Kind("Ascend910A3", "Ascend910", ai_cores=24, board_id=0xB0, hbm_mb=65536, chips_per_card=2),
}


class SimulatedVirtualNpu(msgspec.Struct, forbid_unknown_fields=True):
    """A virtual NPU in the file."""

    id: Count
    template: str = ""
    in_container: bool = False


class SimulatedChip(FaultyChip, forbid_unknown_fields=True):
    """A chip in the file."""

    id: int
    network_health: Health = "Healthy"
    ip: str = ""
    super_device_id: SuperDeviceId = 0
    delay_s: Delay = 0.0
    chip_name: str = ""
    numa_node: Count | None = None
    hbm_mb: Count | None = None
    vnpus: tuple[SimulatedVirtualNpu, ...] = ()
    ready: bool = True
    present: bool = True
    reachable: bool = True
    telemetry: SimulatedTelemetry | None = None
    processes: tuple[Count, ...] = ()


class SimulatedServer(msgspec.Struct, forbid_unknown_fields=True):
    """The content of the file."""

    product: str
    chips: list[SimulatedChip]
    super_pod_id: int = UNKNOWN
    server_index: int = UNKNOWN
    delay_s: Delay = 0.0
    error: str = ""
    driver_version: str = "simulated"
    switch_faults: list[SimulatedSwitchFault] | None = None
    events: SimulatedEvents | None = None
    reset: SimulatedReset = SimulatedReset()
    cuts: SimulatedCuts = SimulatedCuts()


@dataclass(frozen=True, slots=True)
class SimulatedState:
    """The file as last read.

    Attributes:
        identity: tells whether the file has changed since.
        server: its content.
        inventory: the server and its chips as a driver lists them.
        chips: the chips, by physical id.
    """

    identity: tuple[int, ...]
    server: SimulatedServer
    inventory: Inventory
    chips: Mapping[int, SimulatedChip]


def read_state(path: Path, known: SimulatedState | None) -> SimulatedState:
    """Read the file, unless it is as known.

    Raises:
        DriverError: it is missing or malformed.
    """
    try:
        if known is not None and known.identity == _identity(path.stat()):
            return known
        with path.open("rb") as file:
            identity = _identity(os.fstat(file.fileno()))
            server = msgspec.json.decode(file.read(), type=SimulatedServer)
        chips: dict[int, SimulatedChip] = {}
        for chip in server.chips:
            if chip.id in chips:
                raise InvalidValue(f"id {chip.id} occurs twice")
            _check(chip)
            chips[chip.id] = chip
        if (kind := _KINDS.get(server.product)) is None:
            raise InvalidValue(f"product {server.product!r} is not one of {[*_KINDS]}")
    except OSError as error:
        raise DriverError(f"simulated chips in {path}: {error.strerror}") from error
    except (InvalidValue, ValueError) as error:  # ValueError: not valid JSON, or not UTF-8
        raise DriverError(f"simulated chips in {path}: {error}") from error
    inventory = Inventory(
        chip_type=kind.chip_type,
        chips=tuple(_facts(chips[chip_id], kind) for chip_id in sorted(chips)),
        driver_version=server.driver_version,
        ai_cores=kind.ai_cores,
        board_id=kind.board_id,
        super_pod_id=server.super_pod_id,
        server_index=server.server_index,
    )
    return SimulatedState(identity, server, inventory, chips)


def _check(chip: SimulatedChip) -> None:
    if not 0 <= chip.id <= MAX_CHIP_ID:
        raise InvalidValue(f"id {chip.id} is not within 0..{MAX_CHIP_ID}")
    for code in chip.fault_codes:
        if _CODE.fullmatch(code) is None:
            raise InvalidValue(f"chip {chip.id}: fault code {code!r} is not hex")


def _facts(chip: SimulatedChip, kind: _Kind) -> ChipFacts:
    return ChipFacts(
        phy_id=chip.id,
        logic_id=chip.id,
        card_id=chip.id // kind.chips_per_card,
        device_id=chip.id % kind.chips_per_card,
        chip_name=chip.chip_name or kind.chip_name,
        address=ChipAddress(chip.ip, chip.super_device_id),
        numa_node=chip.numa_node,
        hbm_mb=kind.hbm_mb if chip.hbm_mb is None else chip.hbm_mb,
        vnpus=tuple(VirtualNpu(vnpu.id, chip.id, vnpu.template, in_container=vnpu.in_container) for vnpu in chip.vnpus),
    )


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
