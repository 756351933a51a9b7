"""Resets the groups of chips of this node: looks at them, and carries out what ``GroupReset`` commands."""

import asyncio
from collections.abc import Callable, Mapping

import structlog

from ascend.chips import ChipSet, chip_ids, chip_set, join_names
from ascend.daemon.observable import Observable, wait_for_change
from ascend.errors import AscendError
from device_plugin.chips.call_thread import CallThread
from device_plugin.driver import ChipFacts, Inventory
from device_plugin.driver.resetting import ResettingDriver, one_by_one, reset_groups
from device_plugin.health.moment import Moment, present_moment
from device_plugin.health.snapshot import Snapshot
from device_plugin.kubelet.pod_resources import read_ledger
from device_plugin.metrics import Metrics
from device_plugin.reset.group_reset import GroupReset
from device_plugin.reset.host import Knowledge, ResetHost
from device_plugin.reset.reset_info import EarlierResets, read_resets, write_resets
from device_plugin.reset.steps import (
    Command,
    ResetBudget,
    ResetOptions,
    ResetPhase,
    View,
    lasting,
    members,
    obstacles,
    wanting,
)
from device_plugin.reset.users import Users

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

INITIALIZE_S = 20.0
"""How long the driver may take to be initialized again."""

_RESULTS: Mapping[str, str] = {
    "NPUReset": "succeeded",
    "NPUResetFailed": "failed",
    "NPUResetCancelled": "cancelled",
}


class HotReset:
    """Resets chips while nobody uses them (docs/hot-reset.md).

    Args:
        driver: resets them.
        chips: reads, judges and reports them.
        known: what the plugin knows by itself.
        options: how and when.
        metrics: counts resets.
        earlier: the Node's annotations.
        moment: returns the present time.
    """

    def __init__(
        self,
        driver: ResettingDriver,
        chips: ResetHost,
        known: Knowledge,
        *,
        options: ResetOptions,
        metrics: Metrics,
        earlier: Mapping[str, str],
        moment: Callable[[], Moment] = present_moment,
    ) -> None:
        self._driver = driver
        self._scanner = chips.scanner
        self._health = chips.health
        self._users = Users(driver, lambda: read_ledger(options.pod_resources_socket))
        self._known = known
        self._announce = chips.announce
        self._metrics = metrics
        self._options = options
        self._earlier = read_resets(earlier)
        self._moment = moment
        self._thread = CallThread("reset")
        self._groups: dict[ChipSet, GroupReset] = {}
        self._known_groups: dict[ChipSet, GroupReset] = {}  # also those with a card that is not listed at present
        self._server: Inventory | None = None
        self._partners: Mapping[int, int | None] = {}
        self._answers: Observable[None] = Observable(None)
        self._applied: tuple[ChipSet, Mapping[str, str]] | None = None

    async def prepare(self) -> None:
        """Find the chips that have not started, before a pod can get one: this program was restarted during a reset."""
        await self._regroup()
        if self._server is not None and not self._options.dry_run:
            started = await self._users.started_chips(self._server.chips)
            self._hold(chip_set(chip.phy_id for chip in self._server.chips) & ~started)
        self._apply()

    async def run(self) -> None:
        """Look after the groups until cancelled."""
        known = self._known
        whole, cut = known.ledgers.whole, known.ledgers.vnpu_changes
        sources = (
            *(known.snapshots, known.advertised, known.written, self._answers),
            *(whole.pods.changes, whole.allocations.changes, cut),
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    versions = [source.version for source in sources]
                    await self._regroup()
                    self._look(tasks)
                    now_s = self._moment().mono_s
                    due = [next_s for group in self._groups.values() if (next_s := group.next_s()) is not None]
                    await wait_for_change(sources, versions, max(min(due) - now_s, 0.0) if due else None)
        finally:
            self._thread.close()
            self._users.close()

    async def _regroup(self) -> None:
        """Follow the list of chips. A group with a chip that another group is busy with waits until that is over."""
        snapshot = self._known.snapshots.value
        if snapshot is None or snapshot.server == self._server:
            return
        server = snapshot.server
        if server.chip_type == "Ascend910A3":
            try:
                self._partners = await self._users.call(lambda: self._driver.partner_cards(server))
            except AscendError as error:
                log.warning("the cards that are reset together are unknown", error=str(error))
                return  # tried again at the next change
        listed = chip_set(chip.phy_id for chip in server.chips if chip.is_listed)
        before, self._server = self._server, server
        kept = {chips: group for chips, group in self._groups.items() if group.withheld or group.is_busy}
        taken = chip_set(chip for chips in kept for chip in chip_ids(chips))
        for chips in reset_groups(server, self._partners):
            if chips not in kept and not chips & taken:
                kept[chips] = self._known_groups.get(chips) or self._new_group(server, chips)
        if kept.keys() != self._groups.keys():
            log.info("reset groups", groups=[join_names(chip_ids(chips)) for chips in kept])
        self._groups = kept
        if before is not None and not self._options.dry_run:
            self._hold(listed & ~chip_set(chip.phy_id for chip in before.chips if chip.is_listed))

    def _hold(self, chips: ChipSet) -> None:
        """Withhold chips until they have started, except the chips of pods."""
        used = chip_set(self._known.ledgers.holders)
        for group in self._groups.values():
            group.found_starting(chips & ~used, self._moment().mono_s)

    def _new_group(self, server: Inventory, chips: ChipSet) -> GroupReset:
        now = self._moment()
        times_s = self._earlier.times_s.get(min(chip_ids(chips)), ())
        earlier = (now.mono_s - max(now.wall_ms / 1000 - time_s, 0.0) for time_s in times_s)
        group = GroupReset(
            chips,
            ResetBudget(self._options.per_hour, earlier),
            self._said,
            idle_s=self._options.idle_s,
            dry_run=self._options.dry_run,
            one_by_one=one_by_one(server),
        )
        group.manual = self._earlier.manual & chips
        self._known_groups[chips] = group
        return group

    def _said(self, reason: str, sentence: str, warning: bool) -> None:  # noqa: FBT001 - a callback's plain word
        (log.warning if warning else log.info)("hot reset", reason=reason, step=sentence)
        if reason in _RESULTS:
            self._metrics.hot_resets.labels(result=_RESULTS[reason]).inc()
        self._announce(reason, sentence, warning)

    # Looking.

    def _look(self, tasks: asyncio.TaskGroup) -> None:
        if any(group.phase is ResetPhase.VERIFYING for group in self._groups.values()):
            self._applied = None  # the readings that have arrived are judged before the look
            self._apply()
        for group in self._groups.values():
            view = self._view(group)
            if view is not None:
                self._carry_out(tasks, group, group.look(view, self._moment().mono_s))
        self._apply()

    def _view(self, group: GroupReset) -> View | None:
        known, snapshot = self._known, self._known.snapshots.value
        if snapshot is None:
            return None
        return View(
            wanting=wanting(snapshot, group.chips & ~group.muted),
            obstacles=obstacles(snapshot, group.chips, known.ledgers.held),
            closed=not snapshot.healthy & group.chips,
            listed=not known.advertised.value & group.chips,
            admitting=known.is_admitting(),
            recorded=self._applied is not None and self._applied[1].items() <= known.written.value.items(),
            busy=any(other.is_busy for other in self._groups.values() if other is not group),
            healthy=snapshot.healthy_by_themselves & ~group.muted & group.chips,
            held_back=any(chip.in_doubt for chip in members(snapshot, group.chips)),
            read=self._scanner.read_since(group.since_s) & group.chips,
        )

    def _apply(self) -> None:
        """Withhold and mute what the groups say, and publish which chips people have to reset."""
        snapshot = self._known.snapshots.value
        if snapshot is None:
            return
        groups = self._groups.values()
        withheld = chip_set(chip for group in groups for chip in chip_ids(group.withheld))
        muted = chip_set(chip for group in groups for chip in chip_ids(group.muted))
        self._scanner.muted = muted
        self._scanner.keeps_table = any(
            group.attempted and group.phase in {ResetPhase.RESETTING, ResetPhase.STARTING} for group in groups
        )
        annotations = self._annotations(snapshot) if not self._options.dry_run else {}
        state = (withheld, annotations)
        if state != self._applied:
            self._applied = state
            self._health.withhold(withheld, annotations)

    def _annotations(self, snapshot: Snapshot) -> dict[str, str]:
        groups = self._known_groups.values()
        manual = lasting(snapshot) | chip_set(chip for group in groups for chip in chip_ids(group.manual))
        self._metrics.manual_resets.set(manual.bit_count())
        now = self._moment()
        times_s = {
            min(chip_ids(group.chips)): [now.wall_ms / 1000 - (now.mono_s - reset) for reset in group.budget.resets]
            for group in groups
            if group.budget.resets
        }
        third_party = [
            device for device in self._earlier.third_party if not snapshot.healthy >> max(device.PhyID, 0) & 1
        ]
        if not (manual or times_s or self._earlier.written):
            return {}
        self._earlier = EarlierResets(tuple(third_party), 0, self._earlier.times_s, written=True)
        return write_resets((chip.facts for chip in snapshot.chips if manual >> chip.chip_id & 1), third_party, times_s)

    # Carrying out.

    def _carry_out(self, tasks: asyncio.TaskGroup, group: GroupReset, command: Command | None) -> None:
        match command:
            case Command.CHECK:
                work = self._check(tasks, group)
            case Command.RESET:
                chip = next(facts for facts in self._facts(group.chips) if facts.phy_id == group.target)
                self._apply()  # before the driver begins
                work = self._reset(group, chip)
            case Command.POLL:
                work = self._poll(group)
            case Command.INITIALIZE:
                work = self._initialize(group)
            case None:
                return
        tasks.create_task(work).add_done_callback(lambda _done: self._answers.set(None))

    async def _check(self, tasks: asyncio.TaskGroup, group: GroupReset) -> None:
        known = {allocation.pod for allocation in self._known.ledgers.whole.allocations}
        found = await self._users.of(self._facts(group.chips), known)
        view = self._view(group)
        if view is not None:
            self._carry_out(tasks, group, group.on_check(found, view, self._moment().mono_s))

    async def _reset(self, group: GroupReset, chip: ChipFacts) -> None:
        try:
            await self._thread.call(lambda: self._driver.reset(chip))
        except AscendError as error:
            group.was_reset(str(error), self._moment().mono_s)
        else:
            group.was_reset("", self._moment().mono_s)

    async def _poll(self, group: GroupReset) -> None:
        started = await self._users.started_chips(self._facts(group.withheld))
        group.on_reading(started, self._moment().mono_s)

    async def _initialize(self, group: GroupReset) -> None:
        error = "another reset is under way" if self._scanner.keeps_table else ""
        try:
            async with asyncio.timeout(INITIALIZE_S):
                if not error:
                    await self._scanner.initialize()
        except TimeoutError:
            error = f"the driver does not answer within {INITIALIZE_S:g} s"
        except AscendError as refused:
            error = str(refused)
        if group.attempted:
            self._health.was_reset(group.called)
        group.on_initialization(error, self._moment().mono_s)

    def _facts(self, chips: ChipSet) -> list[ChipFacts]:
        server = self._server
        return [chip for chip in server.chips if chips >> chip.phy_id & 1] if server is not None else []
