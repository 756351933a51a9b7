"""Resets beside random faults, admissions, deletions, restarts of the plugin, and a driver that fails or hangs."""

from dataclasses import dataclass, field

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ascend.chips import ChipSet, chip_ids, chip_set
from device_plugin.reset.group_reset import GroupReset
from device_plugin.reset.steps import Command, ResetBudget, ResetPhase, View

GROUPS = (0b00001111, 0b11110000)
ALL = 0b11111111
CHIPS = st.integers(0, 7)
IDLE_S = 30.0


@dataclass
class Node:
    """The truth: what the kubelet, its pods and the driver do, whatever the plugin knows."""

    held: dict[int, ChipSet] = field(default_factory=dict)
    """The chips of each admitted pod."""
    choosing: list[ChipSet] = field(default_factory=list)
    """What the kubelet has chosen for pods that it admits at this moment."""
    offered: ChipSet = ALL
    """The healthy chips in the list that the kubelet works with."""
    sent: ChipSet = ALL
    """Those in the last list it was sent."""
    faulty: ChipSet = 0
    down: ChipSet = 0
    """The chips that have not started."""
    resetting: ChipSet = 0
    """The chips of a reset that the driver has not returned from."""
    processes: ChipSet = 0
    """The chips used by processes that no known pod explains."""
    pods: int = 0

    @property
    def used(self) -> ChipSet:
        return self.processes | chip_set(chip for chips in self.held.values() for chip in chip_ids(chips))


class Resets(RuleBasedStateMachine):
    """Two rings of four chips; after each step every group looks, and its commands are begun."""

    one_by_one = False
    """Whether the driver resets a chip alone."""

    def __init__(self) -> None:
        super().__init__()
        self.node = Node()
        self.now_s = 0.0
        self.budgets = {chips: ResetBudget(2) for chips in GROUPS}
        self.checks: dict[ChipSet, list[str] | None] = {}
        self.initializing: set[ChipSet] = set()
        self.polling: set[ChipSet] = set()
        self.read_s: dict[int, float] = {}
        self._start()
        self.a_fault_occurs(0)

    def _start(self) -> None:
        self.groups = [
            GroupReset(
                chips,
                self.budgets[chips],
                lambda _reason, _sentence, _warning: None,
                idle_s=IDLE_S,
                one_by_one=self.one_by_one,
            )
            for chips in GROUPS
        ]
        for group in self.groups:
            group.found_starting(self.node.down, self.now_s)
        self.checks.clear()
        self.initializing.clear()
        self.polling.clear()

    # The plugin.

    @property
    def withheld(self) -> ChipSet:
        return self.groups[0].withheld | self.groups[1].withheld

    @property
    def healthy(self) -> ChipSet:
        """What the snapshot says: a chip that is down or faulty is unhealthy by itself."""
        return ALL & ~(self.withheld | self.node.faulty | self.node.down | self.node.resetting)

    def view(self, group: GroupReset) -> View:
        holders = [f"pod {pod}" for pod, chips in self.node.held.items() if chips & group.chips]
        return View(
            wanting=dict.fromkeys(chip_ids(self.node.faulty & group.chips), "a fault"),
            obstacles=holders,
            closed=not self.healthy & group.chips,
            listed=not self.node.sent & group.chips,
            recorded=True,
            busy=any(other.is_busy for other in self.groups if other is not group),
            healthy=ALL & ~(self.node.faulty | self.node.down) & group.chips,
            read=chip_set(chip for chip, read_s in self.read_s.items() if read_s >= group.since_s) & group.chips,
        )

    def _settle(self) -> None:
        """Let every group look until none has anything to do."""
        for _ in range(20):
            commands = [(group, group.look(self.view(group), self.now_s)) for group in self.groups]
            for group, command in commands:
                self._begin(group, command)
            if all(command is None for _, command in commands):
                return
        raise AssertionError("the groups do not come to rest")

    def _begin(self, group: GroupReset, command: Command | None) -> None:
        match command:
            case Command.CHECK:
                # The answers are as old as the question: what happens until they arrive is not in them.
                self.checks[group.chips] = ["a process"] if self.node.used & group.chips else []
            case Command.RESET:
                assert not self.node.used & group.chips, "a chip in use is reset"
                assert not self.node.resetting, "the driver is given a reset while it carries out another"
                self.node.resetting = 1 << group.target if self.one_by_one else group.chips
                self.node.down |= self.node.resetting
            case Command.POLL:
                self.polling.add(group.chips)
            case Command.INITIALIZE:
                self.initializing.add(group.chips)

    # What happens.

    @rule(seconds=st.sampled_from([6.0, 31.0]), steps=st.integers(1, 6))
    def things_go_on(self, seconds: float, steps: int) -> None:
        """Without surprises; resets and starts of chips are surprises of their own."""
        for _ in range(steps):
            self.the_list_is_sent()
            self.the_list_arrives()
            for _ in range(len(self.checks)):
                self.a_check_is_answered(answers=True)
            for _ in range(len(self.polling)):
                self.a_poll_is_answered()
            for _ in range(len(self.initializing)):
                self.the_driver_is_initialized("")
            self.chips_are_read()
            self.time_passes(seconds)

    @rule(seconds=st.sampled_from([0.5, 3.0, 30.0, 200.0, 1000.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        self._settle()

    @rule(chip=st.sampled_from([0, 1, 5]))
    def a_fault_occurs(self, chip: int) -> None:
        self.node.faulty |= 1 << chip
        self._settle()

    @rule(chip=st.sampled_from([0, 1, 5]))
    def a_fault_clears(self, chip: int) -> None:
        self.node.faulty &= ~(1 << chip)
        self._settle()

    @rule()
    def the_list_is_sent(self) -> None:
        self.node.sent = self.healthy
        self._settle()

    @rule()
    def the_list_arrives(self) -> None:
        self.node.offered = self.node.sent

    @precondition(lambda self: self.node.offered & ~self.node.used)
    @rule(data=st.data())
    def the_kubelet_chooses(self, data: st.DataObject) -> None:
        free = chip_ids(self.node.offered & ~self.node.used)
        self.node.choosing.append(chip_set(data.draw(st.sets(st.sampled_from(free), min_size=1))))

    @precondition(lambda self: self.node.choosing)
    @rule()
    def the_pod_is_admitted_or_refused(self) -> None:
        chips = self.node.choosing.pop(0)
        if not chips & ~self.healthy and not chips & self.node.used:
            assert not chips & (self.node.resetting | self.node.down), "a pod gets a chip that is being reset"
            self.node.pods += 1
            self.node.held[self.node.pods] = chips
        self._settle()

    @rule(chip=CHIPS)
    def a_process_starts(self, chip: int) -> None:
        """Not where the chip is withheld: the containers of no pod start with it."""
        self.node.processes |= (1 << chip) & self.healthy

    @precondition(lambda self: self.node.processes)
    @rule()
    def the_processes_end(self) -> None:
        self.node.processes = 0

    @precondition(lambda self: self.node.held)
    @rule(data=st.data())
    def a_pod_ends(self, data: st.DataObject) -> None:
        del self.node.held[data.draw(st.sampled_from(sorted(self.node.held)))]
        self._settle()

    @precondition(lambda self: self.checks)
    @rule(answers=st.booleans())
    def a_check_is_answered(self, answers: bool) -> None:  # noqa: FBT001 - a drawn value
        chips, found = self.checks.popitem()
        group = next(each for each in self.groups if each.chips == chips)
        self._begin(group, group.on_check(found if answers else None, self.view(group), self.now_s))
        self._settle()

    @precondition(lambda self: self.node.resetting)
    @rule(outcome=st.sampled_from(["", "the reset failed"]), ends_fault=st.booleans(), stays_down=st.booleans())
    def the_driver_returns(self, outcome: str, ends_fault: bool, stays_down: bool) -> None:  # noqa: FBT001
        chips, self.node.resetting = self.node.resetting, 0
        self.node.faulty &= ~chips if ends_fault and not outcome else ALL
        self.node.down = self.node.down & ~chips | (chips if stays_down else 0)
        for group in self.groups:
            if group.phase is ResetPhase.RESETTING:
                group.was_reset(outcome, self.now_s)
        self._settle()

    @precondition(lambda self: self.node.down & ~self.node.resetting)
    @rule(chip=CHIPS)
    def a_chip_starts(self, chip: int) -> None:
        self.node.down &= ~(1 << chip) | self.node.resetting

    @precondition(lambda self: self.polling)
    @rule()
    def a_poll_is_answered(self) -> None:
        chips = self.polling.pop()
        group = next(each for each in self.groups if each.chips == chips)
        group.on_reading(chips & ~self.node.down, self.now_s)
        self._settle()

    @precondition(lambda self: self.initializing)
    @rule(error=st.sampled_from(["", "no answer"]))
    def the_driver_is_initialized(self, error: str) -> None:
        chips = self.initializing.pop()
        group = next(each for each in self.groups if each.chips == chips)
        group.on_initialization(error, self.now_s)
        self._settle()

    @rule()
    def chips_are_read(self) -> None:
        for group in self.groups:
            for chip in chip_ids(group.chips & ~group.muted & ~self.node.down):
                self.read_s[chip] = self.now_s
        self._settle()

    @precondition(lambda self: not self.node.resetting)
    @rule()
    def the_plugin_restarts(self) -> None:
        self._start()
        self._settle()

    @invariant()
    def no_chip_that_is_being_reset_is_in_use(self) -> None:
        assert not self.node.used & self.node.resetting
        for group in self.groups:
            if group.phase in {ResetPhase.RESETTING, ResetPhase.STARTING, ResetPhase.INITIALIZING}:
                assert not self.node.used & group.withheld

    @invariant()
    def a_chip_that_is_down_after_its_reset_is_withheld(self) -> None:
        assert not self.node.down & ~self.withheld

    @invariant()
    def no_group_is_reset_more_often_than_its_limit(self) -> None:
        for budget in self.budgets.values():
            assert sum(each > self.now_s - 3600.0 for each in budget.resets) <= 2

    def teardown(self) -> None:
        """In the end every chip is back in use, or left to people."""
        for turn in range(24):
            if turn >= 12 and not self.withheld:
                break  # a limit per hour may end, and another reset begin, at any time
            if self.node.resetting:
                self.the_driver_returns("", ends_fault=True, stays_down=True)
            self.node.down &= self.node.resetting
            self.things_go_on(31.0, 4)
        left = chip_set(chip for group in self.groups for chip in chip_ids(group.manual))
        assert not self.node.faulty & ~self.node.used & ~left or any(group.waits_for for group in self.groups)
        for group in self.groups:
            assert group.phase in {ResetPhase.IDLE, ResetPhase.CHECKING}, group.phase
            assert not group.withheld
        assert not left & ~self.node.faulty


TestResets = Resets.TestCase
TestResets.settings = hypothesis_settings(stateful_step_count=60)


class ResetsOneByOne(Resets):
    """The same, with a driver that resets each chip alone."""

    one_by_one = True


TestResetsOneByOne = ResetsOneByOne.TestCase
TestResetsOneByOne.settings = hypothesis_settings(stateful_step_count=60)
