"""Nominates nodes for pending pods, so that kube-scheduler filters one node instead of all.

kube-scheduler filters a pod with ``status.nominatedNodeName`` on that node alone, extenders included, and looks at the
others only if it does not fit there. So a pending pod is decided as soon as the informer sees it: its chips are
reserved, and the node is written on its status. ``filter`` then finds the reservation. If the scheduler turns the node
down for a reason that the allocator does not know, it calls ``filter`` with other nodes, and the answer is one of them.

Of pods alone only those right ahead of the scheduler are nominated: a window of them, in the order of its queue. A
longer window would reserve chips long before they are used, and a burst of pods would become a burst of requests. The
first pod is left to the scheduler, which takes it before a nomination could reach it. After that the nominations stay
ahead of the scheduler, because a pod whose nomination comes too late costs it as much as many nominated pods:
``filter`` is answered once the next pods are nominated, but waits no longer than the scheduler takes to filter one pod
on all nodes.

The pods of a gang have their chips as soon as the gang is planned, whenever the scheduler filters them: they are
nominated at once, without regard to the window, those last that the scheduler has refused while the gang was
incomplete.

A nomination that the scheduler has made itself, for a pod that preempts others, is never overwritten.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Final

import structlog

from allocator.binding.lapsed import LapsedHolds
from allocator.decision.engine import DecisionEngine
from allocator.metrics import AllocatorMetrics
from allocator.nomination.ahead import Pace, Window
from allocator.nomination.candidates import Candidates
from allocator.nomination.entry import NOMINATED_STATES, Entry, State, failure_of, is_ours, is_served
from allocator.nomination.line import SEATED, Lines
from allocator.nomination.writes import Writes
from allocator.settings import Settings
from allocator.state.reservation import Stage
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.turn import Turn

log = structlog.get_logger()

PERIOD_S: Final = 1.0
"""How often nominations are checked."""
SETTLE_S: Final = 5.0
"""After its filter call a pod should be bound within this time; then its nomination of another node is cleared."""


class Nominator:
    """Nominates nodes for the pods of the schedulers that are served.

    Args:
        engine: decides.
        writes: writes nominations.
        metrics: counts them.
        lapsed: the pods that their schedulers have accepted on a node and count there only while they are nominated.
        settings: what is nominated.
        monotonic: the clock.
    """

    def __init__(
        self,
        engine: DecisionEngine,
        writes: Writes,
        metrics: AllocatorMetrics,
        lapsed: LapsedHolds,
        settings: Settings,
        *,
        monotonic: Callable[[], float],
    ) -> None:
        self._cluster = engine.cluster
        self._ledger = engine.ledger
        self._engine = engine
        self._writes = writes
        self._metrics = metrics
        self._lapsed = lapsed
        self._settings = settings
        self._nominates = settings.nominate != "off"
        self._monotonic = monotonic
        self._entries: dict[str, Entry] = {}
        # The entries of some states, in order.
        self._line = Lines()
        self._next = ""
        self._unfiltered = Window(settings.nominate_window)
        self._candidates = Candidates(engine, monotonic)
        self._pace = Pace(monotonic)
        self.freed: Callable[[], None] = lambda: None
        """Called when the window has room again."""
        self._wake = asyncio.Event()
        engine.gangs.planned = self._on_plan

    @property
    def has_room(self) -> bool:
        """Whether the window has room for another pod."""
        return self._unfiltered.has_room

    def has_room_for(self, namespace: str) -> bool:
        """Whether the window has room for a pod of a namespace, which must not fill it alone."""
        return self._unfiltered.has_room_for(namespace)

    def pod_applied(self, pod: Pod) -> None:
        """A pod was added or has changed."""
        entry = self._entries.get(pod.uid)
        if (node := self._lapsed.node_of(pod.uid)) is not None:
            self._keep(pod, node, entry)
            return
        if entry is None and not self._nominates:
            return
        if entry is not None and entry.state is State.STALE and pod.status.nominated_node_name == entry.node:
            self._post_clearing(entry)  # the last request came too late for the version it named
        elif not is_served(pod, self._settings):
            self._end(pod, entry)
        elif entry is not None and entry.state is State.STALE:
            self._enter(pod, State.LEFT)
        elif entry is not None and entry.is_nominated:
            self._follow(pod, entry)
        elif is_ours(pod):
            self._adopt(pod, is_filtered=entry is not None and entry.is_filtered)
        elif entry is None and not pod.spec.scheduling_gates:
            if pod.status.nominated_node_name or self._is_small():
                self._enter(pod, State.LEFT)
            else:
                self._enter(pod, State.QUEUED)

    def pod_deleted(self, pod: Pod) -> None:
        """A pod was deleted."""
        self._forget(pod.uid)

    def on_filter(self, pod: Pod, names: Collection[str]) -> None:
        """The scheduler has called ``filter`` for a pod, with these nodes; the answer is decided."""
        if not self._nominates:
            return
        self._pace.on_filter(all_nodes=len(names) > 1)
        entry = self._entries.get(pod.uid)
        if entry is None or not entry.node:
            entry = self._enter(pod, State.LEFT)
        elif entry.is_nominated and entry.node not in names:
            self._candidates.avoid(entry.node)
        entry.is_filtered, entry.since_s = True, self._monotonic()
        self._unfiltered.remove(pod.uid)
        self._wake.set()
        self.freed()

    async def stay_ahead(self) -> None:
        """Wait until the pods that the scheduler filters next are nominated. Call it before answering ``filter``."""
        if self._nominates:
            self._metrics.nomination_waits.inc(await self._pace.wait(self._is_behind))
            self._pace.on_filter_answered(has_next=bool(self._unfiltered or self._next or self._line))

    def _is_behind(self) -> bool:
        pods = map(self._cluster.pods.get, self._unfiltered.unseen())
        if any(pod is not None and not pod.spec.scheduling_gates for pod in pods):  # the scheduler sees no gated pod
            return True
        return self._unfiltered.is_short and bool(self._line)

    def make_room(self, pod: Pod, names: Collection[str] | None = None) -> bool:
        """Release what is reserved for nominated pods of lower priority, if a pod that was refused fits then.

        Only for pods that the scheduler has not filtered yet. kube-scheduler ignores their nominations as well when it
        filters a pod of higher priority.

        Args:
            pod: the pod.
            names: names of the nodes it may be placed on; None for every node that may be nominated.

        Returns:
            Whether it fits now.
        """
        names = self._candidates.of(pod) if names is None and self._unfiltered else names
        given_up = self._candidates.in_the_way(pod, names, self._unfiltered)
        for uid in given_up:
            self._withdraw(self._entries[uid])
        return bool(given_up)

    async def renominate(self, uid: str) -> None:
        """Nominate a node for a pod that was refused before, if it fits now; the window does not apply."""
        pod = self._cluster.pods.get(uid)
        if pod is None or not is_served(pod, self._settings) or pod.status.nominated_node_name:
            return
        if not self._nominates or self._is_small():
            return
        await self.prepare(pod)
        with suppress(Refusal):
            await self.nominate(pod)

    async def prepare(self, pod: Pod) -> None:
        """Plan the gang of a pod piece by piece if it is large, right before ``nominate``."""
        if self._engine.is_of_gang(pod):
            await self._engine.prepare(pod, self._candidates.of(pod))

    def nominate(self, pod: Pod) -> "asyncio.Task[bool]":
        """Reserve chips for a pod and write its nomination in a task; returns the task: whether it was written.

        Raises:
            Refusal: the pod fits nowhere; or it belongs to a gang that tries again with the nodes that its scheduler
                offers for each pod, and a nomination would hide them.
        """
        self._engine.require_first_try(pod)
        held = self._engine.place(pod, self._candidates.of(pod))
        return self._write(pod, held.node, has_seat=bool(held.plan))

    async def run(self) -> None:
        """Nominate until cancelled. Call it once this allocator leads."""
        checked_s = self._monotonic()
        while True:
            self._wake.clear()
            await self._advance()
            with suppress(TimeoutError):
                async with asyncio.timeout(PERIOD_S):
                    await self._wake.wait()
            if self._monotonic() - checked_s >= PERIOD_S:
                await self._check()
                checked_s = self._monotonic()

    async def _advance(self) -> None:
        """Nominate pods alone as far as the window has room, and those with seats as far as few requests wait."""
        turn = Turn()
        while (uid := self._line.pop(self._admits)) is not None:
            await self._decide(uid)
            await turn.share()

    def _admits(self, namespace: str) -> bool:
        return self.has_room_for(namespace) if namespace != SEATED else self._writes.has_room

    async def _decide(self, uid: str) -> None:
        pod, entry = self._cluster.pods.get(uid), self._entries.get(uid)
        if pod is None or entry is None or not is_served(pod, self._settings) or pod.status.nominated_node_name:
            self._forget(uid)
            return
        if not (entry.has_seat or self._unfiltered or self._next):
            self._enter(pod, State.NEXT)
            return
        await self.prepare(pod)
        if entry is not self._entries.get(uid) or entry.state is not State.QUEUED:
            return  # its scheduler has filtered it meanwhile
        try:
            self.nominate(pod)
        except Refusal:
            self._enter(pod, State.LEFT)

    def _on_plan(self, uids: Iterable[str]) -> None:
        """Chips were reserved for pods of a gang, some of which were left to their scheduler before it was complete."""
        if not self._entries or self._is_small():
            return
        for uid in uids:
            entry, pod = self._entries.get(uid), self._cluster.pods.get(uid)
            if entry is not None and not entry.is_nominated and pod is not None and not pod.status.nominated_node_name:
                self._enter(pod, State.QUEUED, has_seat=True)

    def _keep(self, pod: Pod, node: str, entry: Entry | None) -> None:
        """Nominate a pod, whose scheduler has accepted it on a node, for as long as it is not bound."""
        if entry is not None and not (entry.is_filtered and entry.node == node):
            entry = None
        if pod.status.nominated_node_name == node:
            if entry is None or entry.state is not State.SEEN:
                self._enter(pod, State.SEEN, node=node, is_filtered=True)
        elif entry is None or entry.state is not State.ORDERED:
            self._write(pod, node, is_filtered=True)

    def _write(self, pod: Pod, node: str, *, is_filtered: bool = False, has_seat: bool = False) -> "asyncio.Task[bool]":
        entry = self._enter(pod, State.ORDERED, node=node, is_filtered=is_filtered, has_seat=has_seat)
        return self._writes.start(self._post(entry), f"nominate {pod.key}")

    async def _post(self, entry: Entry) -> bool:
        def current() -> Pod | None:
            """The pod, if the nomination is still worth a request."""
            pod = self._cluster.pods.get(entry.uid)
            is_late = entry.is_filtered and entry.uid not in self._lapsed
            if pod is None or self._entries.get(entry.uid) is not entry or is_late:
                return None
            # Its scheduler may have nominated a node since the decision.
            return None if pod.status.nominated_node_name and not is_ours(pod) else pod

        written = await self._writes.nominate(current, entry.node)
        self._metrics.nominations.labels("written" if written else "dropped").inc()
        if not written and self._entries.get(entry.uid) is entry:
            # Its chips stay reserved: the scheduler is about to filter it.
            self._leave(entry)
        if self._line:
            self._wake.set()
        return written

    def _adopt(self, pod: Pod, *, is_filtered: bool) -> None:
        """Keep the nomination of a former leader, or of a lost answer, if its node still fits; else replace it."""
        node = pod.status.nominated_node_name
        try:
            held = self._engine.place(pod, None if self._engine.is_of_gang(pod) else (node,))
        except Refusal:
            self._clear(pod, node, "stale")
            return
        if held.node != node:
            self._write(pod, held.node, has_seat=bool(held.plan))
        else:
            self._enter(pod, State.SEEN, node=node, is_filtered=is_filtered, has_seat=bool(held.plan))

    def _follow(self, pod: Pod, entry: Entry) -> None:
        """A nominated pod has changed."""
        if pod.status.nominated_node_name == entry.node:
            entry.state = State.SEEN
            self._pace.on_progress()
            if failure_of(pod) == entry.failure:
                return
        elif entry.state is State.ORDERED:
            return
        # The scheduler found no node for it, and may have nominated one where it preempts others.
        if not entry.is_filtered:
            self._engine.release(pod.uid)
        self._clear(pod, entry.node, "refused")

    def _end(self, pod: Pod, entry: Entry | None) -> None:
        """A pod was bound, or does not need a node any more."""
        if entry is not None and entry.is_nominated and pod.spec.node_name:
            is_there = pod.spec.node_name == entry.node
            self._metrics.nominations.labels("bound" if is_there else "elsewhere").inc()
            if not is_there and pod.status.nominated_node_name == entry.node:
                self._clear(pod, entry.node, "elsewhere")
                return
        self._forget(pod.uid)

    async def _check(self) -> None:
        """Clear nominations of which nothing will come."""
        turn, now_s = Turn(), self._monotonic()
        for uid in self._lapsed:
            await turn.share()
            pod, node = self._cluster.pods.get(uid), self._lapsed.node_of(uid)
            if pod is not None and node is not None:
                self._keep(pod, node, self._entries.get(uid))
        for entry in tuple(self._entries.values()):
            await turn.share()
            if self._entries.get(entry.uid) is not entry:
                continue
            if entry.state is State.NEXT and now_s - entry.since_s > self._ledger.ttl_s:
                self._leave(entry)
            elif entry.state in {State.LEFT, State.STALE} and entry.uid not in self._cluster.pods:
                self._forget(entry.uid)  # the informer has never seen it
            elif entry.state is State.STALE and self._writes.has_room:
                self._post_clearing(entry)  # the last request may have failed
            elif entry.is_nominated and not self._is_kept(entry, now_s):
                self._withdraw(entry)

    def _is_kept(self, entry: Entry, now_s: float) -> bool:
        """Whether something may still come of a nomination."""
        if entry.is_filtered and now_s - entry.since_s < SETTLE_S:
            return True
        held = self._ledger.get(entry.uid)
        if held is None:
            return False
        record = self._cluster.nodes.get(held.node)
        if held.node == entry.node and record is not None and record.node is not None:
            return True
        return held.stage not in {Stage.RESERVED, Stage.PLANNED}  # its Binding is in flight

    def _withdraw(self, entry: Entry) -> None:
        """Release what is reserved for a nominated pod, and clear its nomination."""
        pod, held = self._cluster.pods.get(entry.uid), self._ledger.get(entry.uid)
        if held is not None and held.node == entry.node:
            self._engine.release(entry.uid)
        if pod is not None:
            self._clear(pod, entry.node, "stale")
        else:
            self._forget(entry.uid)

    def _clear(self, pod: Pod, node: str, why: str) -> None:
        """Leave a pod to its scheduler, and clear the nomination until the informer shows that."""
        if pod.status.nominated_node_name != node:
            self._enter(pod, State.LEFT)
            return
        self._metrics.nominations.labels("cleared").inc()
        log.debug("clears a nomination", pod=pod.key, pod_uid=pod.uid, node=node, why=why)
        self._post_clearing(self._enter(pod, State.STALE, node=node))

    def _post_clearing(self, entry: Entry) -> None:
        def current() -> Pod | None:
            """The pod, if it still has the nomination."""
            pod = self._cluster.pods.get(entry.uid)
            is_stale = self._entries.get(entry.uid) is entry
            return pod if is_stale and pod is not None and pod.status.nominated_node_name == entry.node else None

        self._writes.start(self._writes.nominate(current, ""), f"clear the nomination of {entry.uid}")

    def _leave(self, entry: Entry) -> None:
        """Leave a pod to its scheduler."""
        if (pod := self._cluster.pods.get(entry.uid)) is not None:
            self._enter(pod, State.LEFT)
        else:
            self._forget(entry.uid)

    def _enter(
        self, pod: Pod, state: State, *, node: str = "", is_filtered: bool = False, has_seat: bool = False
    ) -> Entry:
        """Put a pod into a state; in states without a nomination a filtered pod stays filtered."""
        old = self._forget(pod.uid)
        entry = Entry(
            pod.uid,
            pod.metadata.namespace,
            state,
            self._monotonic(),
            is_filtered or (state not in NOMINATED_STATES and old is not None and old.is_filtered),
            node,
            failure_of(pod),
            has_seat,
        )
        self._entries[pod.uid] = entry
        if state is State.QUEUED:
            self._line.add(pod, has_seat=has_seat, is_tried=has_seat and entry.is_filtered)
        elif state is State.NEXT:
            self._next = pod.uid
        elif entry.is_nominated and not is_filtered:
            self._unfiltered.add(entry)
        self._wake.set()
        return entry

    def _forget(self, uid: str) -> Entry | None:
        entry = self._entries.pop(uid, None)
        if entry is not None:
            self._line.remove(uid)
            self._next = self._next if self._next != uid else ""
            self._unfiltered.remove(uid)
            if entry.is_nominated:
                self._pace.on_progress()
                self._wake.set()
        return entry

    def _is_small(self) -> bool:
        """Whether filtering all nodes takes less time than a nomination."""
        return len(self._cluster.nodes) < self._settings.nominate_from_nodes
