"""The reset of one group of chips, step by step.

No input or output and no clock: a caller looks, carries out the command it gets, and says what came of it.

A group is reset only after its chips were withheld: they are unhealthy for the kubelet and reported as recovering, so
that no pod can get one. Then everything is checked once more. So a pod that was being admitted is either seen to hold
its chip, which ends the attempt, or is refused (docs/hot-reset.md#steps).
"""

from collections.abc import Mapping, Sequence

from ascend.chips import ChipSet, chip_ids, chip_name, chip_set, join_names
from device_plugin.reset.steps import (
    BOOT_LIMIT_S,
    CALL_LIMIT_S,
    DRY_RUN,
    LAG_S,
    LIST_LIMIT_S,
    POLL_S,
    RECHECK_S,
    SAY_AGAIN_S,
    SETTLE_S,
    SLOW_POLL_S,
    UNKNOWN_USERS,
    VERIFY_LIMIT_S,
    Announce,
    Command,
    ResetBudget,
    ResetPhase,
    View,
)


class GroupReset:
    """The chips that are reset together.

    Args:
        chips: their physical ids.
        budget: how often they may be reset.
        announce: receives every step, for people.
        idle_s: how long they must have been idle.
        dry_run: whether the reset is only announced.
        one_by_one: whether a call of the driver resets a chip alone (docs/spec/faults.md#reset-groups).
    """

    def __init__(
        self,
        chips: ChipSet,
        budget: ResetBudget,
        announce: Announce,
        *,
        idle_s: float,
        dry_run: bool = False,
        one_by_one: bool = False,
    ) -> None:
        self.chips = chips
        self.budget = budget
        self._announce = announce
        self.idle_s = idle_s
        self.dry_run = dry_run
        self.phase = ResetPhase.IDLE
        self.since_s = 0.0
        """When the phase began."""
        self.missing: ChipSet = 0
        """The chips that have not started after a reset, or after the start of this program."""
        self.manual: ChipSet = 0
        """The chips that people have to reset, as far as known."""
        self.hangs = False
        """Whether the driver does not return from the reset."""
        self.attempted = False
        """Whether the present steps are those of a reset that the driver was asked for."""
        self.target = -1
        """The chip that the driver is asked to reset."""
        self.called: ChipSet = 0
        """The chips that calls of the present attempt have reset, or failed to."""
        self.waits_for = ""
        """Why the group is not being reset although a chip of it should be, as a sentence."""
        self._named = join_names(chip_ids(chips))
        self._wanting: Mapping[int, str] = {}
        self._scope: ChipSet = 0  # the chips that the present steps are about
        self._one_by_one = one_by_one
        self._failure = ""  # of the last call
        self._earlier_failure = ""  # of the calls before it
        self._idle_s: float | None = None  # since when nobody uses the chips
        self._checked_s = 0.0  # the next check is not before this
        self._settled_s: float | None = None  # since when the kubelet can't choose the chips
        self._is_counted = False  # whether the reset that comes next is counted already
        self._asked = False  # whether a command is being carried out
        self._ask_s = 0.0  # the next command is not before this
        self._next_s = 0.0
        self._said: tuple[str, float] = ("", 0.0)

    @property
    def withheld(self) -> ChipSet:
        """The chips that no pod may get."""
        return self.missing | self._scope

    @property
    def muted(self) -> ChipSet:
        """The chips whose state says nothing about them: they are being reset, or start."""
        if self.phase in {ResetPhase.RESETTING, ResetPhase.STARTING, ResetPhase.INITIALIZING}:
            return self.missing | self._scope
        return self.missing

    @property
    def is_busy(self) -> bool:
        """Whether no other group may be reset meanwhile: the driver resets one at a time."""
        return self.attempted or self.phase in {ResetPhase.WITHHELD, ResetPhase.CONFIRMING}

    def next_s(self) -> float | None:
        """Return when the next look is due if nothing changes; None if none is."""
        if self.phase is ResetPhase.IDLE and not (self._wanting or self.missing):
            return None
        return self._next_s

    # Looks.

    def look(self, view: View, now_s: float) -> Command | None:
        """Return what has to be done now, if anything."""
        self._wanting = view.wanting
        self._next_s = now_s + POLL_S
        match self.phase:
            case ResetPhase.IDLE:
                return self._look_idle(view, now_s)
            case ResetPhase.WITHHELD:
                return self._look_withheld(view, now_s)
            case ResetPhase.RESETTING:
                self._look_resetting(now_s)
            case ResetPhase.STARTING:
                return self._ask(Command.POLL, now_s)
            case ResetPhase.INITIALIZING:
                return self._ask(Command.INITIALIZE, now_s)
            case ResetPhase.VERIFYING:
                return self._verify(view, now_s)
        return None

    def _look_idle(self, view: View, now_s: float) -> Command | None:
        self.manual &= ~view.healthy
        if self.missing:
            self._next_s = max(self._ask_s, now_s)
            return self._ask(Command.POLL, now_s)
        if not view.wanting:
            self._idle_s, self.waits_for = None, ""
            self.budget.on_success()
            return None
        self._next_s = self._due_s(view, now_s)
        if self._next_s > now_s:
            return None
        self._enter(ResetPhase.CHECKING, now_s)
        return self._ask(Command.CHECK, now_s)

    def _due_s(self, view: View, now_s: float) -> float:
        """Return when the next check is due, and say why it is not now."""
        later_s = now_s + POLL_S
        if view.obstacles:
            self._idle_s = None
            self._wait_for("; ".join(view.obstacles), now_s)
            return later_s
        if self._idle_s is None:
            self._idle_s = now_s
        if self.budget.is_spent(now_s):
            self.manual |= chip_set(view.wanting)
            self._wait_for("the limit of resets per hour is reached", now_s)
            return self.budget.due_s(now_s)
        due_s = max(self._idle_s + self.idle_s, self.budget.due_s(now_s), self._checked_s)
        if due_s > now_s:
            return due_s
        if view.busy:
            self._wait_for("another reset is under way", now_s)
            return later_s
        return due_s

    def _look_withheld(self, view: View, now_s: float) -> Command | None:
        if why := self._why_not(view):
            self._release(why, now_s)
            return None
        if not (view.closed and view.listed) or view.admitting:
            self._settled_s = None
            if now_s >= self.since_s + LIST_LIMIT_S:
                self._release(f"the kubelet could not be sent the list of devices within {LIST_LIMIT_S:g} s", now_s)
            return None
        if self._settled_s is None:
            self._settled_s = now_s
        # The reset is counted, and written on the Node, before the driver is called: the plugin may end in between.
        if not self._is_counted:
            self._is_counted = True
            self.budget.spend(now_s)
        if now_s < self._settled_s + SETTLE_S:
            self._next_s = self._settled_s + SETTLE_S
            return None
        if not view.recorded:
            if now_s >= self.since_s + LIST_LIMIT_S:
                self._release(
                    f"the Node could not be written within {LIST_LIMIT_S:g} s, and after a restart of the plugin the "
                    "reset would not count for the limit per hour",
                    now_s,
                )
            return None
        self._enter(ResetPhase.CONFIRMING, now_s)
        return self._ask(Command.CHECK, now_s)

    def _look_resetting(self, now_s: float) -> None:
        if not self.hangs and now_s >= self.since_s + CALL_LIMIT_S:
            self.hangs = True
            self.manual |= self.chips
            self._say(
                "NPUResetFailed",
                f"the driver has not returned from the reset of {self._named} for {CALL_LIMIT_S:g} s; they stay "
                "withheld, and no other chip is reset",
                warning=True,
            )

    def _verify(self, view: View, now_s: float) -> Command | None:
        unread = self._scope & ~self.missing & ~view.read
        if (unread or view.held_back) and now_s < self.since_s + VERIFY_LIMIT_S:
            return None
        if view.wanting and not self._failure and now_s < self.since_s + LAG_S:
            return None
        if unread:
            self.manual |= unread
            self._failure = self._failure or f"{join_names(chip_ids(unread))} can't be read after it"
        if self.attempted and self._untried_chips(view):
            self._enter(ResetPhase.CONFIRMING, now_s)
            return self._ask(Command.CHECK, now_s)
        self._end(view, now_s)
        return None

    # What came of the commands.

    def on_check(self, found: Sequence[str] | None, view: View, now_s: float) -> Command | None:
        """Take over what others say: the kubelet's ledger, and the processes that the driver lists.

        Args:
            found: who holds chips of the group, as sentences; None if somebody could not be asked.
            view: what is known at this moment.
            now_s: the present.
        """
        self._asked, self._wanting = False, view.wanting
        why = UNKNOWN_USERS if found is None else "; ".join(found) or self._why_not(view)
        match self.phase:
            case ResetPhase.CHECKING:
                self._enter(ResetPhase.IDLE, now_s)
                self._checked_s = now_s + RECHECK_S
                if why:
                    self._idle_s = None
                    self._wait_for(why, now_s)
                elif self.dry_run:
                    self._checked_s = now_s + max(self.idle_s, RECHECK_S)
                    self._wait_for(DRY_RUN, now_s, "NPUResetPlanned")
                elif view.busy:
                    self._wait_for("another reset is under way", now_s)
                else:
                    self._withhold(view, now_s)
            case ResetPhase.CONFIRMING:
                if not why and not (view.closed and view.listed and not view.busy):
                    why = "it was not withheld all the time"
                if not why and self._untried_chips(view):
                    return self._begin(view, now_s)
                if not self.attempted:
                    self._release(why, now_s)
                else:
                    self._end(view, now_s, why)
        return None

    def was_reset(self, error: str, now_s: float) -> None:
        """Take over that the driver has returned from the reset; ``error`` is empty if it succeeded."""
        self._asked, self.hangs = False, False
        self._failure = f"the driver did not reset it: {error}" if error else ""
        self.missing = self.chips
        self._enter(ResetPhase.STARTING, now_s)

    def on_reading(self, started: ChipSet, now_s: float) -> None:
        """Take over which chips of the group have started."""
        self._asked = False
        back, self.missing = self.missing & started, self.missing & ~started
        self._ask_s = now_s + (POLL_S if self.phase is ResetPhase.STARTING else SLOW_POLL_S)
        if self.phase is ResetPhase.IDLE and back:
            self._scope = back
            self._enter(ResetPhase.INITIALIZING, now_s)
        elif self.phase is ResetPhase.STARTING:
            late = now_s >= self.since_s + BOOT_LIMIT_S
            if self.missing and late:
                late_names = join_names(chip_ids(self.missing))
                self._failure = self._failure or f"{late_names} did not start within {BOOT_LIMIT_S:g} s"
            if not self.missing or late:
                self._enter(ResetPhase.INITIALIZING, now_s)

    def on_initialization(self, error: str, now_s: float) -> None:
        """Take over that the driver was initialized again; ``error`` is empty if that succeeded."""
        self._asked, self._ask_s = False, now_s + POLL_S
        if not error:
            self._enter(ResetPhase.VERIFYING, now_s)
        elif now_s >= self.since_s + VERIFY_LIMIT_S:
            self._failure = self._failure or f"the driver can't be initialized after it: {error}"
            self._enter(ResetPhase.VERIFYING, now_s)

    def found_starting(self, missing: ChipSet, now_s: float) -> None:
        """Withhold chips that may not have started, until they have.

        They were not listed by the driver until now, or this program was restarted during a reset.
        """
        missing &= self.chips & ~self.withheld
        if missing and self.phase in {ResetPhase.IDLE, ResetPhase.CHECKING, ResetPhase.STARTING}:
            self.missing |= missing
            self._scope |= missing
            named = join_names(chip_ids(missing))
            self._say("NPUStarting", f"{named} has not started yet and is withheld until it has")
            self._enter(ResetPhase.STARTING, now_s)

    # Steps.

    def _withhold(self, view: View, now_s: float) -> None:
        self._settled_s = None
        self._scope, self.waits_for = self.chips, ""
        self._say("NPUWithheld", f"{self._named}: withheld from pods, to be reset because of {_wanting(view.wanting)}")
        self._enter(ResetPhase.WITHHELD, now_s)

    def _begin(self, view: View, now_s: float) -> Command:
        self.target = min(self._untried_chips(view))
        if self.attempted:
            self._earlier_failure, self._failure = self._earlier_failure or self._failure, ""
            faults = _wanting({self.target: view.wanting[self.target]})
            self._say("NPUResetStarted", f"{self._named}: nobody uses it, resetting next {faults}")
        else:
            self._is_counted = False
            faults = _wanting(view.wanting)
            self._say("NPUResetStarted", f"{self._named}: nobody uses it, resetting because of {faults}")
        self.called |= 1 << self.target if self._one_by_one else self.chips
        self._enter(ResetPhase.RESETTING, now_s)
        self.attempted = self._asked = True
        return Command.RESET

    def _untried_chips(self, view: View) -> list[int]:
        """Return the chips for which the driver has not been called in this attempt."""
        return [chip for chip in view.wanting if not self.called >> chip & 1]

    def _end(self, view: View, now_s: float, why: str = "") -> None:
        """Finish; ``why`` says what prevents the reset of the remaining chips."""
        self._failure = self._earlier_failure or self._failure
        if view.wanting and not self._failure:
            left = join_names(self._untried_chips(view))
            self._failure = f"{left} is not reset, {why}" if why else f"after it there is {_wanting(view.wanting)}"
        self._finish(chip_set(view.wanting), now_s)

    def _release(self, why: str, now_s: float) -> None:
        self._say("NPUResetCancelled", f"{self._named}: not reset, {why}")
        self._idle_s, self._checked_s, self._scope = None, now_s + RECHECK_S, 0
        if self._is_counted:
            self._is_counted = False
            self.budget.give_back()
        self._enter(ResetPhase.IDLE, now_s)

    def _finish(self, wanting: ChipSet, now_s: float) -> None:
        named = join_names(chip_ids(self._scope))
        if self._failure or self.missing:
            if self.attempted:
                self.budget.on_failure(now_s)
            self.manual |= wanting | self.missing
            rest = f"; {join_names(chip_ids(self.missing))} stays withheld until it has started" if self.missing else ""
            self._say("NPUResetFailed", f"{named}: {self._failure or 'not all have started'}{rest}", warning=True)
        else:
            self.budget.on_success()
            self.manual &= ~self._scope
            self._say("NPUReset", f"{named}: started again, and without the fault")
        self._idle_s, self._failure, self._earlier_failure = None, "", ""
        self.attempted, self.called, self._scope = False, 0, 0
        self._enter(ResetPhase.IDLE, now_s)
        self._ask_s = now_s + SLOW_POLL_S

    def _why_not(self, view: View) -> str:
        if view.obstacles:
            return "; ".join(view.obstacles)
        return "" if view.wanting else "its fault has cleared"

    def _enter(self, phase: ResetPhase, now_s: float) -> None:
        self.phase, self.since_s, self._asked = phase, now_s, False
        self._next_s = self._ask_s = now_s

    def _ask(self, command: Command, now_s: float) -> Command | None:
        if self._asked or now_s < self._ask_s:
            return None
        self._asked = True
        return command

    def _say(self, reason: str, sentence: str, *, warning: bool = False) -> None:
        self._announce(reason, sentence, warning)

    def _wait_for(self, why: str, now_s: float, reason: str = "NPUResetWaiting") -> None:
        """Note why the group is not reset, and announce it unless that was done not long ago."""
        if not self._wanting:
            return
        self.waits_for = why
        said, said_s = self._said
        if why != said and (not said or now_s >= said_s + SAY_AGAIN_S or reason != "NPUResetWaiting"):
            self._said = (why, now_s)
            self._say(reason, f"{_wanting(self._wanting)} needs a reset of {self._named}: {why}")


def _wanting(wanting: Mapping[int, str]) -> str:
    return "; ".join(f"{chip_name(chip)}: {faults}" for chip, faults in sorted(wanting.items()))
