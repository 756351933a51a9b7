"""Discovers the chips of a server, all cards at the same time; a card that hangs has its last answer."""

import itertools
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import structlog

from ascend.annotations import UNKNOWN
from ascend.errors import DriverError
from device_plugin.driver import ChipFacts, Inventory, not_ready_sentence
from device_plugin.driver.dcmi.dividing_calls import DividingCalls
from device_plugin.driver.dcmi.survey import (
    OptionalFacts,
    Surveyed,
    server_type,
    survey_card,
    survey_missing,
    survey_unlisted,
)

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_MISSES = 2
"""So many initializations must have missed a chip: one can miss a chip that is fine, as if a call timed out."""


class Discovery:
    """The chips of this server as discovered so far.

    Args:
        sysfs: where sysfs is mounted.
        card_deadline_s: how long a discovery waits for a card; after that, its last answer is used.
    """

    def __init__(self, sysfs: Path, card_deadline_s: float) -> None:
        self._sysfs = sysfs
        self._card_deadline_s = card_deadline_s
        self._facts = OptionalFacts()
        self._surveys: dict[int, threading.Thread] = {}
        self._surveyed: dict[int, tuple[Surveyed, ...]] = {}
        self._problems: dict[int, str] = {}
        self._known: dict[int, Surveyed] = {}
        self.initializations = 0
        """How often the library has been initialized."""
        self._noted = 0  # of these
        self._missed: dict[int, int] = {}  # how many of them have missed a chip; 0 while it is listed

    def is_gone(self, chip: ChipFacts) -> bool:
        """Return whether a chip that was listed before has dropped: no call can tell of it any more."""
        return not chip.is_listed and self._missed.get(chip.phy_id, 0) >= _MISSES

    def with_logic_id(self, logic_id: int) -> list[int]:
        """Return the physical ids of the chips with this logic id."""
        return [phy_id for phy_id, chip in self._known.items() if chip.facts.logic_id == logic_id]

    def _note_missed(self, chips: Iterable[ChipFacts]) -> None:
        is_new, self._noted = self.initializations != self._noted, self.initializations
        for chip in chips:
            if chip.is_listed:
                self._missed[chip.phy_id] = 0
            elif is_new and chip.phy_id in self._missed:
                self._missed[chip.phy_id] += 1

    def inventory(self, calls: DividingCalls) -> Inventory:
        """Survey the chips of all cards.

        Raises:
            DriverError: no chip of the 910 family answers; says why.
        """
        table = calls.cards()
        version = self._facts.get("driver version", calls.version, "")
        cards = [card for card in dict.fromkeys(table) if card >= 0]
        self._survey(calls, cards)
        chips: dict[int, Surveyed] = {}
        repeated = 0
        for surveyed in itertools.chain.from_iterable(self._surveyed.get(card, ()) for card in cards):
            facts = surveyed.facts
            if (other := chips.setdefault(facts.phy_id, surveyed)) is not surveyed:
                repeated += 1
                log.error(
                    "two chips have the same physical id",
                    phy_id=facts.phy_id,
                    card=facts.card_id,
                    kept=other.facts.card_id,
                )
        not_ready = sum(card < 0 for card in table)
        problems = _problems(not_ready, len(table), (self._problems.get(card, "") for card in cards))
        found = [chips[phy_id] for phy_id in sorted(chips)]
        kind = server_type(found) if found else None
        if kind is None:
            raise DriverError(_why_no_chip(problems, found))
        per_card = max(len(self._surveyed.get(card, ())) for card in cards)
        unlisted, unidentified = survey_unlisted(calls, found, self._known, per_card * (len(cards) + not_ready))
        chips |= {chip.facts.phy_id: chip for chip in unlisted if chip.facts.phy_id not in chips}
        missing = survey_missing(self._known, chips)
        chips |= missing
        self._known |= chips
        self._note_missed(chip.facts for chip in chips.values())
        super_pod = next((chip.super_pod for chip in found if chip.super_pod is not None), None)
        return Inventory(
            chip_type=kind,
            chips=tuple(chips[phy_id].facts for phy_id in sorted(chips)),
            driver_version=version,
            ai_cores=next((chip.ai_cores for chip in found if chip.ai_cores), 0),
            board_id=next((chip.board_id for chip in found if chip.board_id), 0),
            super_pod_id=super_pod.super_pod_id if super_pod is not None else UNKNOWN,
            server_index=super_pod.server_index if super_pod is not None else UNKNOWN,
            # In the table, a die that was not ready beside a ready one has the id of the first chip.
            not_ready=not_ready + repeated + len(missing),
            unidentified=unidentified,
            problems=problems,
        )

    def _survey(self, calls: DividingCalls, cards: list[int]) -> None:
        """Survey all cards at the same time, each in a thread. A card that hangs keeps its thread."""

        def survey(card: int) -> None:
            known = self._surveyed.get(card, ())
            try:
                self._surveyed[card], problem = survey_card(calls, self._facts, card, known, self._sysfs)
            except DriverError as error:
                problem = error.message
            self._note_problem(card, problem)

        for card in cards:
            running = self._surveys.get(card)
            if running is None or not running.is_alive():
                self._surveys[card] = threading.Thread(target=survey, args=(card,), name=f"card {card}", daemon=True)
                self._surveys[card].start()
        deadline_s = time.monotonic() + self._card_deadline_s
        for card in cards:
            self._surveys[card].join(max(0.0, deadline_s - time.monotonic()))
            if self._surveys[card].is_alive():
                self._note_problem(card, f"card {card} has not answered for {self._card_deadline_s:g} s")

    def _note_problem(self, card: int, problem: str) -> None:
        before = self._problems.get(card, "")
        self._problems[card] = problem
        if problem and problem != before:
            log.error("a card can't be read", card=card, error=problem)


def _problems(not_ready: int, cards: int, of_cards: Iterable[str]) -> tuple[str, ...]:
    problems = sorted({*of_cards} - {""})
    if not_ready:
        problems.insert(0, not_ready_sentence(not_ready, cards))
    return tuple(problems)


def _why_no_chip(problems: Iterable[str], found: Sequence[Surveyed]) -> str:
    if found:
        names = sorted({f"{chip.facts.chip_name!r} on board {chip.board_id or 0:#x}" for chip in found})
        return f"no chip of the 910 family: {', '.join(names)}"
    sentences = "; ".join(problems)
    return f"no card can be read: {sentences}" if sentences else "the driver lists no card"
