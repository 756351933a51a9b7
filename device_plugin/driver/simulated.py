"""A driver that reads its chips from a JSON file (``simulated_file``): for demos, tests, and clusters without NPUs."""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ascend.chips import chip_ids
from ascend.errors import DriverError
from device_plugin.driver import (
    NO_CARD,
    ChipFacts,
    ChipState,
    Division,
    FaultEvent,
    Inventory,
    VirtualNpu,
    not_ready_sentence,
)
from device_plugin.driver.resetting import reset_group
from device_plugin.driver.simulated_cuts import CutFile, free_of
from device_plugin.driver.simulated_events import CodeHistory, Codes, announce
from device_plugin.driver.simulated_file import SimulatedChip, SimulatedState, read_state
from device_plugin.driver.simulated_resets import SimulatedResets, partners
from device_plugin.driver.simulated_telemetry import SimulatedTelemetry
from device_plugin.driver.telemetry import Label, Reading, Values

NETWORK_FAULT = 0x110001024
"""The fault of an unhealthy network: no rule delays it, and by default its level is PreSeparateNPU."""


@dataclass(frozen=True, slots=True)
class _Table:
    """The driver's table of cards as of its initialization, as with the real driver.

    Attributes:
        absent: chips that were off the bus.
        unready_cards: cards with a chip that did not answer.
    """

    absent: frozenset[int]
    unready_cards: frozenset[int]


class SimulatedDriver:
    """Reads the file again whenever it has changed.

    Args:
        path: the file.
        cuts: the file of the vNPUs that are cut while pods run; by default beside the other.
    """

    def __init__(self, path: Path, cuts: Path | None = None) -> None:
        self._path = path
        self._cuts = CutFile(cuts or path.parent / f"{path.stem}.cuts.json")
        self._content: SimulatedState | None = None
        self._table: _Table | None = None
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
            self._table = _initialize(content.inventory, content.chips)
        server = _listed(content.inventory, self._table)
        cut = {chip.phy_id: self._cuts.of(chip.phy_id, content.server.cuts.in_containers) for chip in server.chips}
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
        events = self._read().server.events
        return ChipState(
            self._codes.shown(events.code_delay_s if events is not None else 0.0).get(chip.phy_id, ()),
            dropped=simulated.health == "Unhealthy" and not simulated.fault_codes,
            fatal=not simulated.reachable,
        )

    def measure(self, chip: ChipFacts, reading: Reading) -> Values:
        """Return what the file says, or plausible values of an idle chip; see ``MeasuringDriver``."""
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
        """Return a name, a die id and a PCI address that belong to the chip's ids; see ``MeasuringDriver``."""
        self._chip(chip)
        match label:
            case Label.MODEL_NAME:
                return f"{chip.chip_name}-Ascend-V1"
            case Label.VDIE_ID:
                return f"{chip.phy_id:08X}-00000000-00000000-00000000-00000000"
            case Label.PCIE_BUS_INFO:
                return f"0000:{chip.card_id:02X}:{chip.device_id:02X}.0"

    def subscribe(self, on_event: Callable[[FaultEvent], None]) -> None:
        """Announce changes of the fault codes, if the file has ``events``; see ``Driver``."""
        if self._answer().server.events is None:
            raise DriverError("simulated chips announce no events")
        announce(self._new_codes, on_event)

    def _new_codes(self, noted: int) -> tuple[list[Codes], int, float]:
        with contextlib.suppress(DriverError):
            self._read()
        events = self._content.server.events if self._content is not None else None
        return *self._codes.since(noted), events.delay_s if events is not None else 0.0

    def partner_cards(self, server: Inventory) -> dict[int, int | None]:
        """Return the pairs of cards of an A3 server, or raise DriverError as ``discover`` does."""
        return partners(self._read().inventory, server)

    def users(self, chip: ChipFacts) -> tuple[int, ...]:
        """Return the processes of a chip in the file; see ``ResettingDriver``."""
        return self._chip(chip).processes

    def reset(self, chip: ChipFacts) -> None:
        """Reset a chip with the chips of its reset group; see ``ResettingDriver``."""
        self._chip(chip)
        content = self._answer()
        time.sleep(content.server.reset.delay_s)
        if content.server.reset.error:
            raise DriverError(content.server.reset.error)
        group = reset_group(content.inventory, chip, self.partner_cards(content.inventory))
        self._resets.begin(self._read().chips, chip_ids(group or 0), content.server.reset)
        self._note_codes(content.chips)

    def division(self, chip: ChipFacts) -> Division:
        """Return how a chip is cut; see ``DividingDriver``."""
        self._chip(chip)
        content = self._answer()
        given = next(simulated.vnpus for simulated in content.inventory.chips if simulated.phy_id == chip.phy_id)
        cut = self._cuts.of(chip.phy_id, content.server.cuts.in_containers)
        free = free_of([vnpu.template for vnpu in cut], given, content.inventory.ai_cores)
        return Division((*given, *cut), *free)

    def create_vnpu(self, chip: ChipFacts, template: str) -> VirtualNpu:
        """Cut a vNPU out of a chip in the file; see ``DividingDriver``."""
        self._chip(chip)
        content = self._answer()
        time.sleep(content.server.cuts.delay_s)
        if content.server.cuts.error:
            raise DriverError(content.server.cuts.error)
        others = {simulated.phy_id: simulated.vnpus for simulated in content.inventory.chips}
        return self._cuts.create(chip.phy_id, template, cores=content.inventory.ai_cores, others=others)

    def destroy_vnpu(self, chip: ChipFacts, vdev_id: int) -> None:
        """Give the parts of a vNPU back to its chip; see ``DividingDriver``."""
        self._chip(chip)
        content = self._answer()
        time.sleep(content.server.cuts.delay_s)
        if content.server.cuts.destroy_error:
            raise DriverError(content.server.cuts.destroy_error)
        if vdev_id in content.server.cuts.in_containers:
            raise DriverError(f"simulated vNPU {vdev_id} is in use by a container")
        self._cuts.destroy(chip.phy_id, vdev_id)

    def has_started(self, chip: ChipFacts) -> bool:
        """Return whether a chip has started since its last reset; see ``ResettingDriver``."""
        return self._chip(chip).ready and self._resets.has_started(chip.phy_id)

    def _chip(self, chip: ChipFacts) -> SimulatedChip:
        simulated = self._answer().chips.get(chip.phy_id)
        if simulated is None:
            raise DriverError(f"simulated chips in {self._path}: there is no chip {chip.phy_id}")
        if not chip.is_listed:
            raise DriverError("the driver does not list its card")
        return simulated

    def _answer(self) -> SimulatedState:
        content = self._read()
        time.sleep(content.server.delay_s)
        if content.server.error:
            raise DriverError(content.server.error)
        return replace(content, chips=self._resets.apply(content.chips))

    def _read(self) -> SimulatedState:
        # Threads may call this at the same time: each uses what another has read, or reads the same again.
        content = read_state(self._path, self._content)
        if content is not self._content:
            self._note_codes(content.chips)
            self._content = content
        return content

    def _note_codes(self, chips: Mapping[int, SimulatedChip]) -> None:
        self._codes.note({chip_id: _fault_codes(chip) for chip_id, chip in self._resets.apply(chips).items()})


def _fault_codes(chip: SimulatedChip) -> tuple[int, ...]:
    codes = tuple(int(code, 16) for code in chip.fault_codes)
    return tuple(dict.fromkeys((*codes, NETWORK_FAULT) if chip.network_health == "Unhealthy" else codes))


def _initialize(server: Inventory, chips: Mapping[int, SimulatedChip]) -> _Table:
    """Fill the table.

    Args:
        server: all chips of the server.
        chips: the state of each, by physical id.
    """
    absent = frozenset(phy_id for phy_id, chip in chips.items() if not chip.present)
    unready = (facts.card_id for facts in server.chips if facts.phy_id not in absent and not chips[facts.phy_id].ready)
    return _Table(absent, frozenset(unready))


def _listed(server: Inventory, table: _Table) -> Inventory:
    """Return the server as the driver lists it."""
    found = [facts for facts in server.chips if facts.phy_id not in table.absent]
    chips = tuple(
        replace(facts, card_id=NO_CARD, device_id=NO_CARD) if facts.card_id in table.unready_cards else facts
        for facts in found
    )
    not_ready = len(table.unready_cards)
    problems = (not_ready_sentence(not_ready, len({facts.card_id for facts in found})),) if not_ready else ()
    return replace(server, chips=chips, not_ready=not_ready, problems=problems)
