"""The health of all chips: told of events, readings and operators, it says who is fit for use and until when."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from ascend.chips import ChipSet, chip_ids, chip_set
from device_plugin.driver import ChipFacts, ChipState, FaultEvent
from device_plugin.health.chip_health import ChipHealth, Policy
from device_plugin.health.damping import Damping
from device_plugin.health.fault_rules import FaultRules
from device_plugin.health.snapshot import NO_CODE, Assessment, FaultRecord, Moment, UpgradeReason, Verdict

__all__ = ["NO_CODE", "Assessment", "FaultRecord", "HealthBook", "Moment", "Readmission", "UpgradeReason", "Verdict"]

Readmission: TypeAlias = Literal["automatic", "manual"]
"""Who puts a chip back into use once its faults are gone (``autoStowing``, spec/node-agent.md §5.7)."""


class HealthBook:
    """The health of the node's chips (spec/node-agent.md §4); no clock of its own, every call says when it is.

    A fault takes effect at once, whether an event announces it or a reading finds it. Its end takes effect once the
    chip has been clear for its hold, which doubles with each relapse.

    Args:
        rules: of the site.
        hold_s: how long a recovered chip is watched before it is used again, the first time.
        hold_limit_s: at most.
        stale_s: a chip not read for so long is not known to be healthy.
        readmission: who puts a recovered chip back into use.
    """

    def __init__(
        self,
        rules: FaultRules,
        *,
        hold_s: float = 1.0,
        hold_limit_s: float = 300.0,
        stale_s: float = 10.0,
        readmission: Readmission = "automatic",
    ) -> None:
        self._policy = Policy(rules, Damping(hold_s, hold_limit_s), stale_s, readmission == "manual")
        self._chips: dict[int, ChipHealth] = {}
        self._phy_ids: dict[int, int] = {}  # by logic id
        self._now: Moment | None = None

    def configure(self, rules: FaultRules) -> None:
        """Other rules hold from now on: what is present is judged anew."""
        before, self._policy = self._policy, replace(self._policy, rules=rules)
        if self._now is not None:
            for chip in self._chips.values():
                chip.settle(self._now.mono_s, before)
                chip.configure(rules, self._now)

    def tune(
        self, *, hold_s: float | None = None, stale_s: float | None = None, readmission: Readmission | None = None
    ) -> None:
        """Settings were read again; None leaves one as it is."""
        policy = self._policy
        damping = policy.damping if hold_s is None else replace(policy.damping, hold_s=hold_s)
        self._policy = Policy(
            policy.rules,
            damping,
            policy.stale_s if stale_s is None else stale_s,
            policy.manual if readmission is None else readmission == "manual",
        )

    def restore(
        self,
        *,
        manually_separated: ChipSet,
        reasons: Mapping[int, Sequence[UpgradeReason]],
        awaiting: ChipSet,
        network_awaiting: ChipSet,
        harmless: Mapping[int, Collection[int]],
        at: Moment,
    ) -> None:
        """What was so before a restart; the site's rules must be known by now, and no chip read.

        Whoever is in ``manually_separated`` is separated, with or without a reason; reasons of manual separation of
        others are dropped, an operator released them meanwhile (spec/node-agent.md §4.8, §8.13). How serious a code is
        that no table has only its event tells, and the reading that finds it again does not: ``harmless`` are those,
        by physical id, that the earlier report said nothing has to be done about.

        Raises:
            ValueError: a chip was read before: a fault that had ended by then would never end.
        """
        if any(chip.was_read for chip in self._chips.values()):
            raise ValueError("what was so before a restart comes after the first reading")
        self._turn_to(at)
        waiting = awaiting | network_awaiting
        for phy_id in sorted({*chip_ids(manually_separated | waiting), *reasons, *harmless}):
            chip = self._chips.setdefault(phy_id, ChipHealth())
            bit = chip_set((phy_id,))
            separated = bool(manually_separated & bit)
            chip.restore(reasons.get(phy_id, ()), separated=separated, at=at, policy=self._policy)
            chip.restore_harmless(harmless.get(phy_id, ()), self._policy.rules)
            chip.restore_waiting(own=bool(awaiting & bit), network=bool(network_awaiting & bit))

    def discovered(self, chips: Iterable[ChipFacts], at: Moment, *, cut: ChipSet = 0) -> None:
        """The chips that exist. A new one is not healthy before it is read; one that is gone stays, and goes stale.

        Args:
            chips: the chips.
            at: when.
            cut: those of them that can't be given whole any more.
        """
        self._turn_to(at)
        self._phy_ids = {}
        for facts in chips:
            self._phy_ids[facts.logic_id] = facts.phy_id
            chip = self._chips.setdefault(facts.phy_id, ChipHealth())
            chip.discovered, chip.cut = True, bool(cut & chip_set((facts.phy_id,)))

    def announced(self, event: FaultEvent, at: Moment) -> bool:
        """The driver announced a fault's coming or going.

        Returns:
            Whether the chip is known; an event of another is ignored.
        """
        now = self._turn_to(at)
        phy_id = self._phy_ids.get(event.logic_id)
        if phy_id is None:
            return False
        chip = self._chips[phy_id]
        chip.settle(now.mono_s, self._policy)
        chip.announce(event, at, self._policy)
        chip.settle(now.mono_s, self._policy)
        return True

    def polled(self, phy_id: int, state: ChipState, at: Moment) -> None:
        """A chip was read; a chip that was never discovered is ignored.

        Args:
            phy_id: the chip.
            state: what was read.
            at: when the reading was *started*: what was announced after that stays.
        """
        now = self._turn_to(at)
        chip = self._chips.get(phy_id)
        if chip is None or not chip.discovered:
            return
        chip.settle(now.mono_s, self._policy)
        chip.read(state, at, self._policy)
        chip.settle(now.mono_s, self._policy)

    def separate(self, chips: ChipSet, at: Moment) -> None:
        """An operator takes chips out of use; any physical id can be, discovered or not."""
        self._turn_to(at)
        for phy_id in chip_ids(chips):
            self._chips.setdefault(phy_id, ChipHealth()).separate(at)

    def release(self, chips: ChipSet, at: Moment) -> None:
        """An operator puts separated chips back into use: at once where nothing else bars them."""
        now = self._turn_to(at)
        for phy_id in chip_ids(chips):
            chip = self._chips.get(phy_id)
            if chip is not None and chip.is_separated:
                chip.settle(now.mono_s, self._policy)
                chip.release(now.mono_s, self._policy)

    def readmit(self, chips: ChipSet, network: ChipSet, at: Moment) -> None:
        """An operator readmits chips that have recovered, and networks of chips."""
        now = self._turn_to(at)
        for phy_id in chip_ids(chips | network):
            chip = self._chips.get(phy_id)
            if chip is not None:
                bit = chip_set((phy_id,))
                chip.settle(now.mono_s, self._policy)
                chip.readmit(own=bool(chips & bit), network=bool(network & bit))

    def assess(self, used: ChipSet, at: Moment) -> Assessment:
        """The health of all chips now.

        Args:
            used: the chips that pods run with; a fault of level PreSeparateNPU leaves them alone.
            at: now.
        """
        now_s = self._turn_to(at).mono_s
        verdicts = {}
        for phy_id, chip in sorted(self._chips.items()):
            chip.settle(now_s, self._policy)
            if chip.discovered:
                in_use = bool(used & chip_set((phy_id,)))
                verdicts[phy_id] = chip.verdict(now_s, self._policy, used=in_use)
        times = [chip.next_s(now_s, self._policy) for chip in self._chips.values()]
        reasons = {phy_id: chip.reasons() for phy_id, chip in sorted(self._chips.items())}
        return Assessment(
            chips=verdicts,
            manually_separated=self._those(lambda chip: chip.is_separated),
            upgrade_reasons={phy_id: why for phy_id, why in reasons.items() if why},
            awaiting_readmission=self._those(lambda chip: chip.awaits),
            network_awaiting_readmission=self._those(lambda chip: chip.network_awaits),
            next_s=min((time for time in times if time is not None), default=None),
        )

    def _those(self, condition: Callable[[ChipHealth], bool]) -> ChipSet:
        return chip_set(phy_id for phy_id, chip in self._chips.items() if condition(chip))

    def _turn_to(self, at: Moment) -> Moment:
        """Now, as far as told: what is told late does not turn the clock back."""
        self._now = at if self._now is None else max(self._now, at)
        return self._now
