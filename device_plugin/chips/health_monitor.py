"""Judges the chips whenever something about them changes, and announces every change of health.

A judgement can change with the driver's reports, an operator's order, the fault rules, the chips that pods hold, and
time: a debounce or a hold ends, or the driver stays silent.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import structlog

from ascend.chips import ChipSet, chip_ids, chip_name, join_names
from ascend.daemon.observable import Observable, wait_for_change, wait_until
from device_plugin.driver import ChipFacts, ChipState, FaultEvent, Inventory
from device_plugin.health.fault_rules import FaultRules
from device_plugin.health.health_book import HealthBook
from device_plugin.health.moment import Moment, present_moment
from device_plugin.health.snapshot import RESETTING, Chip, EarlierState, Snapshot, Vnpus
from device_plugin.ledger.ledgers import Ledgers
from device_plugin.metrics import Metrics

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_SHOWN, _MAX_SHOWN = 60, 5
"""How many characters of an invalid entry, and how many entries, a message shows."""

FIRST_S = 1.0
"""How long the first judgement waits for chips that have not answered yet."""

Announce = Callable[[str, str, bool], None]
"""Receives a reason (CamelCase), a sentence, and whether it is a warning."""


class HealthMonitor:
    """Feeds the health book and publishes its judgements.

    Args:
        book: the state of the chips' health.
        snapshots: receives each judgement; None until the first one.
        ledgers: what pods hold; a fault can leave a chip in use healthy that it makes unhealthy without a pod.
        metrics: counts transitions.
        announce: receives changes of health, for people to see on the Node.
        by_cores: whether chips are offered by their AI cores: they are cut when pods start, and count as whole.
        moment: returns the present time.
    """

    def __init__(
        self,
        book: HealthBook,
        snapshots: Observable[Snapshot | None],
        *,
        ledgers: Ledgers,
        metrics: Metrics,
        announce: Announce,
        by_cores: bool = False,
        moment: Callable[[], Moment] = present_moment,
    ) -> None:
        self._book = book
        self._snapshots = snapshots
        self._ledgers = ledgers
        self._metrics = metrics
        self._announce = announce
        self._by_cores = by_cores
        self._moment = moment
        self._known: ChipSet = 0
        self._vnpus: dict[int, str] | None = None  # the names of those of each cut chip
        self._states: dict[int, ChipState] = {}
        self._changed: Observable[None] = Observable(None)
        self._running = False
        self._unknown: ChipSet = 0  # separated by an operator, and not on this node
        self._next_s: float | None = None
        self._withheld: tuple[ChipSet, Mapping[str, str]] = (0, {})

    def on_discovery(self, server: Inventory, at: Moment) -> None:
        """Take over a discovery."""
        if self._by_cores:
            server = replace(server, chips=tuple(replace(chip, vnpus=()) for chip in server.chips))
        self._book.on_discovery(server, at)
        self._known = self._book.discovered_chips
        self._announce_vnpus(server)
        self._changed.set(None)

    def _announce_vnpus(self, server: Inventory) -> None:
        """Announce which chips were cut, or cut in another way, since the last discovery."""
        now = {chip.phy_id: _vnpus_of(chip) for chip in server.chips if chip.is_listed}
        before = self._vnpus
        self._vnpus = {**(before or {}), **now}
        for phy_id, names in now.items():
            earlier = before.get(phy_id, "") if before is not None else ""
            if names == earlier:
                continue
            sentence = f"{chip_name(phy_id)} is cut into {names}" if names else f"{chip_name(phy_id)} is no longer cut"
            log.info("chip cut", chips=sentence)
            if before is not None:
                self._announce("NPUCut", sentence, False)  # noqa: FBT003 - a callback's plain word

    def on_reading(self, phy_id: int, state: ChipState, at: Moment) -> None:
        """Take over a reading; an unchanged state of a healthy chip does not cause a new judgement."""
        if not self._known >> phy_id & 1:
            return
        self._book.on_reading(phy_id, state, at)
        snapshot = self._snapshots.value
        is_healthy = snapshot is not None and snapshot.healthy >> phy_id & 1
        if self._states.get(phy_id) != state or not is_healthy:
            self._states[phy_id] = state
            self._changed.set(None)

    def on_event(self, event: FaultEvent, at: Moment) -> None:
        """Take over a fault event."""
        log.info(
            "the driver announces a fault",
            logic_id=event.logic_id,
            code=f"{event.code:08X}",
            assertion=event.assertion,
            severity=event.severity,
        )
        self._book.on_event(event, at)
        self._changed.set(None)

    def events_lost(self) -> None:
        """Rely on readings, because too many events came."""
        self._book.events_lost()
        self._changed.set(None)

    def configure(self, rules: FaultRules) -> None:
        """Apply other fault rules."""
        self._book.configure(rules)
        self._changed.set(None)

    def tune(self, *, hold_s: float, stale_s: float) -> None:
        """Apply settings that were read again."""
        self._book.tune(hold_s=hold_s, stale_s=stale_s)
        self._changed.set(None)

    def restore(self, earlier: EarlierState) -> None:
        """Take over what an earlier plugin reported."""
        if self._by_cores:
            earlier = replace(earlier, known_vnpus={})
        self._book.restore(earlier, self._moment())
        self._known = self._book.discovered_chips
        self._changed.set(None)

    def was_reset(self, chips: ChipSet) -> None:
        """Take over that chips were reset."""
        self._book.was_reset(chips, self._moment())
        self._changed.set(None)

    def withhold(self, chips: ChipSet, annotations: Mapping[str, str]) -> None:
        """Judge at once: the chips of the reset are unhealthy, and the Node gets the annotations of the reset."""
        self._withheld = (chips, annotations)
        self._judge_now()

    def on_separation_edited(self, added: ChipSet, removed: ChipSet) -> None:
        """Separate and release chips, by an operator's edit of ManuallySeparateNPU."""
        if added:
            log.warning("separated by an operator", chips=join_names(chip_ids(added)))
            self._book.separate(added, self._moment())
        if removed:
            log.info("put back into use by an operator", chips=join_names(chip_ids(removed)))
            self._book.release(removed, self._moment())
        self._judge_now()

    def warn_unknown_entries(self, entries: Sequence[str]) -> None:
        """Announce entries of ManuallySeparateNPU that do not name a chip of this node."""
        shown = ", ".join(
            repr(entry if len(entry) <= _SHOWN else f"{entry[:_SHOWN]}…") for entry in entries[:_MAX_SHOWN]
        )
        log.warning("ManuallySeparateNPU names a chip this node does not have", entries=shown)
        if len(entries) == 1:
            sentence = f"ManuallySeparateNPU: {shown} is not a chip of this node; the entry is kept and has no effect"
        else:
            sentence = (
                f"ManuallySeparateNPU: {shown} are not chips of this node; the entries are kept and have no effect"
            )
        self._announce("NPUSeparationUnknown", sentence, True)  # noqa: FBT003 - a callback's plain word

    def readmit(self, chips: ChipSet, network: ChipSet) -> None:
        """Readmit recovered chips, by an operator's edit of the Node's labels."""
        log.info("readmitted by an operator", chips=join_names(chip_ids(chips)), ports=join_names(chip_ids(network)))
        self._book.readmit(chips, network, self._moment())
        self._judge_now()

    async def run(self) -> None:
        """Judge until cancelled."""
        await wait_until(lambda: self._book.server is not None, (self._changed,))
        if not await wait_until(lambda: not self._unread, (self._changed,), FIRST_S):
            log.warning("going on without chips that have not been read", chips=join_names(self._unread))
        self._running = True
        whole = self._ledgers.whole
        sources = (self._changed, whole.pods.changes, whole.allocations.changes, self._ledgers.vnpu_changes)
        while True:
            versions = [source.version for source in sources]
            self._judge()
            wait_s = None if self._next_s is None else max(self._next_s - self._moment().mono_s, 0.0)
            await wait_for_change(sources, versions, wait_s)

    @property
    def _unread(self) -> list[int]:
        server = self._book.server
        readable = (chip.phy_id for chip in (server.chips if server is not None else ()) if chip.is_listed)
        return [phy_id for phy_id in readable if self._known >> phy_id & 1 and phy_id not in self._states]

    def _judge_now(self) -> None:
        """Judge before a report that contradicts the operator can be written."""
        self._changed.set(None)
        if self._running:
            self._judge()

    def _judge(self) -> None:
        at = self._moment()
        present, whole, cores = self._book.vnpus, self._ledgers.whole, self._ledgers.cores
        for device_type in present:
            self._ledgers.serve(device_type)
        with_cores = self._ledgers.with_cores
        vnpus = {
            device_type: Vnpus(
                present.get(device_type, 0),
                ledger.used,
                ledger.running,
                ledger.given,
                with_cores.get(device_type, 0),
                ledger.under_other_ids,
            )
            for device_type, ledger in self._ledgers.vnpus.items()
        }
        before = self._snapshots.value
        # Also of pods from before the setting dynamic_vnpus was changed, one way or the other.
        parts = 0 if self._by_cores else cores.cut  # these are offered as vNPUs
        used, running = whole.used | cores.used & ~parts, whole.running | cores.running & ~parts
        if self._by_cores:
            for device_type, found in vnpus.items():
                used |= device_type.chips(found.used)
                running |= device_type.chips(found.running)
            vnpus = {}
        divided = cores.cut if self._by_cores else 0
        snapshot = self._book.judge(
            at, used=used, running=running, vnpus=vnpus, divided=divided, under_other_ids=whole.under_other_ids
        )
        snapshot = snapshot.withholding(*self._withheld)
        self._next_s = self._book.next_s(at)
        unknown = snapshot.manually_separated & ~snapshot.all_chips
        if new := unknown & ~self._unknown:
            self.warn_unknown_entries([chip_name(phy_id) for phy_id in chip_ids(new)])
        self._unknown = unknown
        if snapshot != before:
            self._snapshots.set(snapshot)
            self._announce_changes(before, snapshot)

    def _announce_changes(self, before: Snapshot | None, now: Snapshot) -> None:
        """Announce every chip whose health changed; several with the same change are one announcement."""
        earlier = {chip.chip_id: chip for chip in before.chips} if before is not None else {}
        changes: dict[tuple[str, bool], list[Chip]] = {}
        for chip in now.chips:
            # A new chip is compared with a healthy one: that it is healthy is not announced.
            old = earlier.get(chip.chip_id, Chip(chip.facts))
            if chip.healthy != old.healthy and RESETTING in {chip.reason, old.reason}:
                to = "healthy" if chip.healthy else "unhealthy"
                self._metrics.transitions.labels(to=to, reason=RESETTING).inc()  # announced as a step of the reset
            elif chip.healthy != old.healthy:
                reason, to = ("NPURecovered", "healthy") if chip.healthy else ("NPUUnhealthy", "unhealthy")
                changes.setdefault((reason, not chip.healthy), []).append(chip)
                self._metrics.transitions.labels(to=to, reason=chip.reason or old.reason).inc()
            if chip.network_healthy != old.network_healthy:
                reason = "NPUNetworkRecovered" if chip.network_healthy else "NPUNetworkUnhealthy"
                changes.setdefault((reason, not chip.network_healthy), []).append(chip)
                to = "network_healthy" if chip.network_healthy else "network_unhealthy"
                self._metrics.transitions.labels(to=to, reason="Network").inc()
        for (reason, warning), chips in changes.items():
            sentence = "; ".join(_sentence(chip, reason) for chip in chips)
            (log.warning if warning else log.info)("chip health changed", reason=reason, chips=sentence)
            self._announce(reason, sentence, warning)


def _vnpus_of(chip: ChipFacts) -> str:
    named = ((virtual, virtual.vnpu) for virtual in chip.vnpus)
    return ", ".join(
        f"the vNPU {virtual.vdev_id} of an unknown size" if vnpu is None else vnpu.name for virtual, vnpu in named
    )


def _sentence(chip: Chip, reason: str) -> str:
    name = chip_name(chip.chip_id)
    match reason:
        case "NPUUnhealthy":
            return f"{name}: {chip.sentence}"
        case "NPUNetworkUnhealthy":
            codes = ", ".join(map(str, chip.network_faults))
            return f"{name}: {codes or 'waiting for an operator to readmit it'}"
        case "NPUNetworkRecovered":
            return f"{name}: its network port is healthy again"
        case _:
            return f"{name} is healthy again"
