"""Judges the chips anew whenever something about them changes, and announces every change of health.

What changes: the driver's word, an operator's edit, the rules, which chips pods hold, and time itself (a debounce that
ends, a release, a driver that stays silent).
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

import structlog

from ascend.chips import ChipSet, chip_ids, chip_name, chip_set, join_names
from ascend.daemon.observable import Observable, first_change
from device_plugin.chips.scanner import present_moment
from device_plugin.driver import ChipFacts, ChipState, FaultEvent, Inventory
from device_plugin.health.fault_rules import FaultRules
from device_plugin.health.health_book import HealthBook
from device_plugin.health.snapshot import Chip, Moment, Snapshot, UpgradeReason, take
from device_plugin.ledger.handovers import HandOvers, running_chips, used_chips
from device_plugin.ledger.node_pods import NodePods
from device_plugin.metrics import Metrics

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_SHOWN, _MOST = 60, 5
"""So much of a slip is shown, and so many of them."""

FIRST_S = 1.0
"""How long the first judgement waits for chips that have not answered yet."""

Announce = Callable[[str, str, bool], None]
"""Told a reason (CamelCase), a sentence, and whether it is a warning."""


class HealthMonitor:
    """Owns the book of the chips' health and publishes what it says.

    Args:
        book: the state.
        snapshots: where to publish; None until the first judgement.
        pods: the node's pods; a chip in use may be kept where an idle one is not.
        handovers: what they were handed.
        metrics: counts.
        announce: told of changes, for people to see on the Node.
        moment: the clocks.
    """

    def __init__(
        self,
        book: HealthBook,
        snapshots: Observable[Snapshot | None],
        *,
        pods: NodePods,
        handovers: HandOvers,
        metrics: Metrics,
        announce: Announce,
        moment: Callable[[], Moment] = present_moment,
    ) -> None:
        self._book = book
        self._snapshots = snapshots
        self._pods = pods
        self._handovers = handovers
        self._metrics = metrics
        self._announce = announce
        self._moment = moment
        self._server: Inventory | None = None
        self._known: dict[int, ChipFacts] = {}
        self._states: dict[int, ChipState] = {}
        self._told: Observable[None] = Observable(None)
        self._all_read = asyncio.Event()
        self._began = False
        self._strangers: ChipSet = 0  # taken out, and not of this node
        self._next_s: float | None = None

    def discovered(self, server: Inventory, at: Moment) -> None:
        """The chips there are.

        One that is cut into virtual chips can't be given whole, so it is not ours; one that is cut only now stays
        listed, as unhealthy.
        """
        ours = [chip for chip in server.chips if not chip.vnpus or chip.phy_id in self._known]
        for chip in server.chips:
            if chip.vnpus and chip.phy_id not in self._known:
                log.info("not offered, it is cut into virtual chips", chip=chip_name(chip.phy_id))
        self._known |= {chip.phy_id: chip for chip in ours}
        self._server = server
        self._book.discovered(ours, at, cut=chip_set(chip.phy_id for chip in ours if chip.vnpus))
        self._tell()

    def polled(self, phy_id: int, state: ChipState, at: Moment) -> None:
        """How a chip is. The same as before is no reason to judge anew."""
        if phy_id not in self._known:
            return
        self._book.polled(phy_id, state, at)
        snapshot = self._snapshots.value
        if self._states.get(phy_id) != state or not _is_healthy(snapshot, phy_id):
            self._states[phy_id] = state
            self._tell()

    def announced(self, event: FaultEvent, at: Moment) -> None:
        """A fault came or went."""
        log.info(
            "the driver announces a fault",
            logic_id=event.logic_id,
            code=f"{event.code:08X}",
            assertion=event.assertion,
            severity=event.severity,
        )
        self._book.announced(event, at)
        self._tell()

    def configure(self, rules: FaultRules) -> None:
        """Judge by other rules."""
        self._book.configure(rules)
        self._tell()

    def tune(self, *, hold_s: float, stale_s: float) -> None:
        """Settings were read again."""
        self._book.tune(hold_s=hold_s, stale_s=stale_s)
        self._tell()

    def restore(
        self,
        *,
        manually_separated: ChipSet,
        reasons: Mapping[int, Sequence[UpgradeReason]],
        awaiting: ChipSet = 0,
        network_awaiting: ChipSet = 0,
        harmless: Mapping[int, Collection[int]],
    ) -> None:
        """Take up what an earlier plugin had written down."""
        self._book.restore(
            manually_separated=manually_separated,
            reasons=reasons,
            awaiting=awaiting,
            network_awaiting=network_awaiting,
            harmless=harmless,
            at=self._moment(),
        )
        self._tell()

    def edited(self, added: ChipSet, removed: ChipSet) -> None:
        """An operator has taken chips out, or lets such in again."""
        if added:
            log.warning("taken out by an operator", chips=join_names(chip_ids(added)))
            self._book.separate(added, self._moment())
        if removed:
            log.info("let in by an operator", chips=join_names(chip_ids(removed)))
            self._book.release(removed, self._moment())
        self._tell_now()

    def misnamed(self, entries: Sequence[str]) -> None:
        """An operator has written something that is no chip's name where chips are taken out."""
        shown = ", ".join(repr(entry if len(entry) <= _SHOWN else f"{entry[:_SHOWN]}…") for entry in entries[:_MOST])
        log.warning("taken out by an operator, but no chip of this node", entries=shown)
        sentence = f"ManuallySeparateNPU: {shown} is no chip of this node; it stays there, and takes nothing out"
        self._announce("NPUSeparationUnknown", sentence, True)  # noqa: FBT003 - a callback's plain word

    def readmit(self, chips: ChipSet, network: ChipSet) -> None:
        """An operator lets recovered chips in again."""
        log.info("readmitted by an operator", chips=join_names(chip_ids(chips)), ports=join_names(chip_ids(network)))
        self._book.readmit(chips, network, self._moment())
        self._tell_now()

    async def run(self) -> None:
        """Judge until cancelled."""
        while self._server is None:
            await self._told.newer_than(self._told.version)
        try:
            async with asyncio.timeout(FIRST_S):
                await self._all_read.wait()
        except TimeoutError:
            unread = join_names(sorted(self._known.keys() - self._states.keys()))
            log.warning("going on without chips that have not been read", chips=unread)
        self._began = True
        sources = (self._told, self._pods.changes, self._handovers.changes)
        while True:
            versions = [source.version for source in sources]
            self._judge(self._server)
            wait_s = None if self._next_s is None else max(self._next_s - self._moment().mono_s, 0.0)
            await first_change(sources, versions, wait_s)

    def _tell(self) -> None:
        if self._server is not None and self._known.keys() <= self._states.keys():
            self._all_read.set()
        self._told.set(None)

    def _tell_now(self) -> None:
        """As ``_tell``, and judge before anybody can write a report that says otherwise."""
        self._tell()
        if self._began and self._server is not None:
            self._judge(self._server)

    def _judge(self, server: Inventory) -> None:
        assessment = self._book.assess(running_chips(self._pods, self._handovers), self._moment())
        self._next_s = assessment.next_s
        strangers = assessment.manually_separated & ~chip_set(self._known)
        if new := strangers & ~self._strangers:
            self.misnamed([chip_name(chip_id) for chip_id in chip_ids(new)])
        self._strangers = strangers
        used = used_chips(self._pods, self._handovers)
        before, snapshot = self._snapshots.value, take(server, self._known, assessment, used)
        if snapshot != before:
            self._snapshots.set(snapshot)
            self._announce_changes(before, snapshot)

    def _announce_changes(self, before: Snapshot | None, now: Snapshot) -> None:
        """Tell of every chip whose health changed; many at once are one announcement."""
        earlier = {chip.chip_id: chip for chip in before.chips} if before is not None else {}
        changes: dict[tuple[str, bool], list[Chip]] = {}
        for chip in now.chips:
            old = earlier.get(chip.chip_id)
            # A chip never seen before that is well is no news.
            if chip.healthy != (old.healthy if old is not None else True):
                changes.setdefault(("NPURecovered" if chip.healthy else "NPUUnhealthy", not chip.healthy), []).append(
                    chip
                )
                to = "healthy" if chip.healthy else "unhealthy"
                why = chip.verdict.reason or (old.verdict.reason if old is not None else "")
                self._metrics.transitions.labels(to=to, reason=why).inc()
            network = chip.verdict.network_healthy
            if network != (old.verdict.network_healthy if old is not None else True):
                reason = "NPUNetworkRecovered" if network else "NPUNetworkUnhealthy"
                changes.setdefault((reason, not network), []).append(chip)
                self._metrics.transitions.labels(
                    to="network_healthy" if network else "network_unhealthy", reason="Network"
                ).inc()
        for (reason, warning), chips in changes.items():
            sentence = "; ".join(_sentence(chip, reason) for chip in chips)
            (log.warning if warning else log.info)("chip health changed", reason=reason, chips=sentence)
            self._announce(reason, sentence, warning)


def _is_healthy(snapshot: Snapshot | None, phy_id: int) -> bool:
    return snapshot is not None and bool(snapshot.healthy >> phy_id & 1)


def _sentence(chip: Chip, reason: str) -> str:
    name = chip_name(chip.chip_id)
    match reason:
        case "NPUUnhealthy":
            return f"{name}: {chip.verdict.sentence}"
        case "NPUNetworkUnhealthy":
            codes = ", ".join(f"{fault.name} ({fault.level.wire})" for fault in chip.verdict.network_faults)
            return f"{name}: {codes or 'waiting to be readmitted'}"
        case _:
            return f"{name} is well again"
