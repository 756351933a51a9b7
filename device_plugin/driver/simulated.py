"""A driver that reads its chips from a JSON file: for demos, tests, and clusters without NPUs.

The file may be edited while the plugin runs::

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

import contextlib
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from ascend.annotations import UNKNOWN, ChipAddress
from ascend.chips import MAX_CHIP_ID, chip_ids
from ascend.errors import DriverError
from device_plugin.driver import (
    ChipFacts,
    ChipState,
    ChipType,
    Division,
    FaultEvent,
    Inventory,
    VirtualNpu,
)
from device_plugin.driver.resetting import reset_group
from device_plugin.driver.simulated_cuts import CutFile, SimulatedCuts, free_of
from device_plugin.driver.simulated_events import CodeHistory, Codes, SimulatedEvents, announce
from device_plugin.driver.simulated_resets import FaultyChip, SimulatedReset, SimulatedResets, partners
from device_plugin.driver.simulated_switches import SimulatedSwitchFault
from device_plugin.driver.simulated_table import Table, initialize, listed
from device_plugin.driver.simulated_telemetry import SimulatedTelemetry
from device_plugin.driver.telemetry import Label, Reading, Values

Health = Literal["Healthy", "Unhealthy"]
Delay = Annotated[float, msgspec.Meta(ge=0, le=3600)]
SuperDeviceId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]

NETWORK_FAULT = 0x110001024
"""The fault of an unhealthy network: no rule delays it, and by default its level is PreSeparateNPU."""

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
class _Content:
    """The file as last read."""

    identity: tuple[int, ...]
    inventory: Inventory
    chips: Mapping[int, SimulatedChip]
    delay_s: float
    error: str
    events: SimulatedEvents | None
    reset: SimulatedReset
    cuts: SimulatedCuts


class SimulatedDriver:
    """Reads the file again whenever it has changed.

    Args:
        path: the file.
        cuts: the file of the vNPUs that are cut while pods run; by default beside the other.
    """

    def __init__(self, path: Path, cuts: Path | None = None) -> None:
        self._path = path
        self._cuts = CutFile(cuts or path.parent / f"{path.stem}.cuts.json")
        self._content: _Content | None = None
        self._table: Table | None = None
        self._codes = CodeHistory()
        self._resets = SimulatedResets()

    def discover(self, *, anew: bool = False) -> Inventory:
        """Return the chips in the file.

        Args:
            anew: whether to take notice of cards that have become ready, or have left or joined the bus.

        Raises:
            DriverError: the file is missing or malformed, or simulates a failure.
        """
        content = self._answer()
        if anew or self._table is None:
            self._table = initialize(content.inventory, content.chips)
        server = listed(content.inventory, self._table)
        cut = {chip.phy_id: self._cuts.of(chip.phy_id, content.cuts.in_containers) for chip in server.chips}
        chips = tuple(replace(chip, vnpus=(*chip.vnpus, *cut[chip.phy_id])) for chip in server.chips)
        return replace(server, chips=chips) if any(cut.values()) else server

    def read(self, chip: ChipFacts) -> ChipState:
        """Return the state of a chip in the file.

        Raises:
            DriverError: as for ``discover``, or the chip is not in the file.
        """
        simulated = self._chip(chip)
        time.sleep(simulated.delay_s)
        if not (simulated.ready and simulated.present):
            return ChipState(dropped=True)
        events = self._read().events
        return ChipState(
            self._codes.shown(events.code_delay_s if events is not None else 0.0).get(chip.phy_id, ()),
            dropped=simulated.health == "Unhealthy" and not simulated.fault_codes,
            fatal=not simulated.reachable,
        )

    def measure(self, chip: ChipFacts, reading: Reading) -> Values:
        """Return what the file says, or plausible values of an idle chip.

        Raises:
            NotMeasured: the value is null in the file.
            DriverError: as for ``read``.
        """
        simulated = self._chip(chip)
        answers = simulated.ready and simulated.present and simulated.reachable
        if not answers and reading is not Reading.HEALTH:
            raise DriverError(f"simulated chip {chip.phy_id} does not answer")
        telemetry = simulated.telemetry or SimulatedTelemetry()
        return telemetry.values(
            reading,
            hbm_mb=chip.hbm_mb,
            is_healthy=answers and simulated.health == "Healthy" and not simulated.fault_codes,
            network_is_healthy=simulated.network_health == "Healthy",
        )

    def describe(self, chip: ChipFacts, label: Label) -> str:
        """Return a name, a die id and a PCI address that belong to the chip's ids.

        Raises:
            DriverError: as for ``read``.
        """
        self._chip(chip)
        match label:
            case Label.MODEL_NAME:
                return f"{chip.chip_name}-Ascend-V1"
            case Label.VDIE_ID:
                return f"{chip.phy_id:08X}-00000000-00000000-00000000-00000000"
            case Label.PCIE_BUS_INFO:
                return f"0000:{chip.card_id:02X}:{chip.device_id:02X}.0"

    def subscribe(self, on_event: Callable[[FaultEvent], None]) -> None:
        """Announce changes of the fault codes, if the file has ``events``.

        Raises:
            DriverError: it has none, so changes are found by polling; or as for ``discover``.
        """
        if self._answer().events is None:
            raise DriverError("simulated chips announce no events")
        announce(self._new_codes, on_event)

    def _new_codes(self, noted: int) -> tuple[list[Codes], int, float]:
        with contextlib.suppress(DriverError):
            self._read()
        events = self._content.events if self._content is not None else None
        return *self._codes.since(noted), events.delay_s if events is not None else 0.0

    def partner_cards(self, server: Inventory) -> dict[int, int | None]:
        """Return the pairs of cards of an A3 server, or raise DriverError as ``discover`` does."""
        return partners(self._read().inventory, server)

    def users(self, chip: ChipFacts) -> tuple[int, ...]:
        """Return the processes of a chip in the file.

        Raises:
            DriverError: as for ``read``.
        """
        return self._chip(chip).processes

    def reset(self, chip: ChipFacts) -> None:
        """Reset a chip with the chips of its reset group.

        Raises:
            DriverError: as for ``read``, or the file says that resets fail.
        """
        self._chip(chip)
        content = self._answer()
        time.sleep(content.reset.delay_s)
        if content.reset.error:
            raise DriverError(content.reset.error)
        group = reset_group(content.inventory, chip, self.partner_cards(content.inventory))
        self._resets.begin(self._read().chips, chip_ids(group or 0), content.reset)
        self._note_codes(content.chips)

    def division(self, chip: ChipFacts) -> Division:
        """Return how a chip is cut.

        Raises:
            DriverError: as for ``read``.
        """
        self._chip(chip)
        content = self._answer()
        given = next(simulated.vnpus for simulated in content.inventory.chips if simulated.phy_id == chip.phy_id)
        cut = self._cuts.of(chip.phy_id, content.cuts.in_containers)
        free = free_of([vnpu.template for vnpu in cut], given, content.inventory.ai_cores)
        return Division((*given, *cut), *free)

    def create_vnpu(self, chip: ChipFacts, template: str) -> VirtualNpu:
        """Cut a vNPU out of a chip in the file.

        Raises:
            DriverError: as for ``read``, or the file says that creations fail, or too little is left of the chip.
        """
        self._chip(chip)
        content = self._answer()
        time.sleep(content.cuts.delay_s)
        if content.cuts.error:
            raise DriverError(content.cuts.error)
        others = {simulated.phy_id: simulated.vnpus for simulated in content.inventory.chips}
        return self._cuts.create(chip.phy_id, template, cores=content.inventory.ai_cores, others=others)

    def destroy_vnpu(self, chip: ChipFacts, vdev_id: int) -> None:
        """Give the parts of a vNPU back to its chip.

        Raises:
            DriverError: as for ``read``, or the file says that destructions fail, or it lists the vNPU itself.
        """
        self._chip(chip)
        content = self._answer()
        time.sleep(content.cuts.delay_s)
        if content.cuts.destroy_error:
            raise DriverError(content.cuts.destroy_error)
        if vdev_id in content.cuts.in_containers:
            raise DriverError(f"simulated vNPU {vdev_id} is in use by a container")
        self._cuts.destroy(chip.phy_id, vdev_id)

    def has_started(self, chip: ChipFacts) -> bool:
        """Return whether a chip has started since its last reset.

        Raises:
            DriverError: as for ``read``.
        """
        return self._chip(chip).ready and self._resets.has_started(chip.phy_id)

    def _chip(self, chip: ChipFacts) -> SimulatedChip:
        simulated = self._answer().chips.get(chip.phy_id)
        if simulated is None:
            raise DriverError(f"simulated chips in {self._path}: there is no chip {chip.phy_id}")
        if not chip.is_listed:
            raise DriverError("the driver does not list its card")
        return simulated

    def _answer(self) -> _Content:
        content = self._read()
        time.sleep(content.delay_s)
        if content.error:
            raise DriverError(content.error)
        return replace(content, chips=self._resets.apply(content.chips))

    def _read(self) -> _Content:
        # Threads may call this at the same time: each uses what another has read, or reads the same again.
        try:
            known = self._content
            if known is not None and known.identity == _identity(self._path.stat()):
                return known
            with self._path.open("rb") as file:
                identity = _identity(os.fstat(file.fileno()))
                server = msgspec.json.decode(file.read(), type=SimulatedServer)
        except OSError as error:
            raise DriverError(f"simulated chips in {self._path}: {error.strerror}") from error
        except ValueError as error:  # not valid JSON, or not UTF-8
            raise DriverError(f"simulated chips in {self._path}: {error}") from error
        chips: dict[int, SimulatedChip] = {}
        for chip in server.chips:
            if chip.id in chips:
                raise DriverError(f"simulated chips in {self._path}: id {chip.id} occurs twice")
            self._check(chip)
            chips[chip.id] = chip
        if (kind := _KINDS.get(server.product)) is None:
            raise DriverError(f"simulated chips in {self._path}: product {server.product!r} is not one of {[*_KINDS]}")
        inventory = Inventory(
            chip_type=kind.chip_type,
            chips=tuple(_facts(chips[chip_id], kind) for chip_id in sorted(chips)),
            driver_version=server.driver_version,
            ai_cores=kind.ai_cores,
            board_id=kind.board_id,
            super_pod_id=server.super_pod_id,
            server_index=server.server_index,
        )
        self._note_codes(chips)
        self._content = content = _Content(
            identity, inventory, chips, server.delay_s, server.error, server.events, server.reset, server.cuts
        )
        return content

    def _note_codes(self, chips: Mapping[int, SimulatedChip]) -> None:
        self._codes.note({chip_id: _fault_codes(chip) for chip_id, chip in self._resets.apply(chips).items()})

    def _check(self, chip: SimulatedChip) -> None:
        if not 0 <= chip.id <= MAX_CHIP_ID:
            raise DriverError(f"simulated chips in {self._path}: id {chip.id} is not within 0..{MAX_CHIP_ID}")
        for code in chip.fault_codes:
            if _CODE.fullmatch(code) is None:
                raise DriverError(f"simulated chips in {self._path}: chip {chip.id}: fault code {code!r} is not hex")


def _fault_codes(chip: SimulatedChip) -> tuple[int, ...]:
    codes = tuple(int(code, 16) for code in chip.fault_codes)
    return tuple(dict.fromkeys((*codes, NETWORK_FAULT) if chip.network_health == "Unhealthy" else codes))


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
