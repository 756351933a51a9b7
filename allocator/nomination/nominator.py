"""Nominates nodes for pending pods, so that kube-scheduler filters one node instead of all.

kube-scheduler filters a pod with ``status.nominatedNodeName`` on that node alone, extenders included, and looks at the
others only if it does not fit there. So a pending pod is decided as soon as the informer sees it: its chips are
reserved, and the node is written on its status. ``filter`` then finds the reservation. If the scheduler turns the node
down for a reason that the allocator does not know, it calls ``filter`` with other nodes, and the answer is one of them.

Only pods right ahead of the scheduler are nominated: a window of them, in the order of its queue. A longer window would
reserve chips long before they are used, and a burst of pods would become a burst of requests. The first pod is left to
the scheduler, which takes it before a nomination could reach it. After that the nominations stay ahead of the
scheduler, because a pod whose nomination comes too late costs it as much as many nominated pods: ``filter`` is answered
once the next pods are nominated, but waits no longer than the scheduler takes to filter one pod on all nodes.

A nomination that the scheduler has made itself, for a pod that preempts others, is never overwritten.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import Final

from allocator.binding.lapsed import LapsedHolds
from allocator.decision.engine import DecisionEngine
from allocator.metrics import AllocatorMetrics
from allocator.nomination.candidates import Candidates
from allocator.nomination.cleaner import Cleaner
from allocator.nomination.line import Lines
from allocator.nomination.nomination import Nomination, failure_of, is_ours
from allocator.nomination.options import NominationOptions
from allocator.nomination.pace import Pace
from allocator.nomination.precedence import in_the_way
from allocator.nomination.window import Window
from allocator.nomination.writes import Writes
from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from allocator.state.reservation import Stage
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.turn import Turn

PERIOD_S: Final = 1.0
"""How often nominations are checked."""
SETTLE_S: Final = 5.0
"""After its filter call a pod should be bound within this time; then its nomination of another node is cleared."""


class Nominator:
    """Nominates nodes for the pods of the schedulers that are served.

    Args:
        cluster: nodes, pods and jobs.
        ledger: the reservations.
        engine: decides.
        writes: writes nominations.
        metrics: counts them.
        lapsed: the pods that their schedulers have accepted on a node and count there only while they are nominated.
        options: what is nominated.
        monotonic: the clock.
    """

    def __init__(
        self,
        *,
        cluster: Cluster,
        ledger: Ledger,
        engine: DecisionEngine,
        writes: Writes,
        metrics: AllocatorMetrics,
        lapsed: LapsedHolds,
        options: NominationOptions,
        monotonic: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._engine = engine
        self._writes = writes
        self._metrics = metrics
        self._lapsed = lapsed
        self._options = options
        self._monotonic = monotonic
        self._line = Lines()
        self._taken: dict[str, float] = {}  # the pod that the scheduler is about to filter, and since when
        self._left: dict[str, bool] = {}  # pods left to the scheduler, and whether it has filtered them
        self._nominations: dict[str, Nomination] = {}
        self._unfiltered = Window(options.window)
        self._cleaner = Cleaner(cluster, writes, metrics)
        self._candidates = Candidates(cluster, engine, monotonic)
        self._pace = Pace(monotonic)
        self.freed: Callable[[], None] = lambda: None
        """Called when the window has room again."""
        self._wake = asyncio.Event()

    @property
    def has_room(self) -> bool:
        """Whether the window has room for another pod."""
        return self._unfiltered.has_room

    def has_room_for(self, namespace: str) -> bool:
        """Whether the window has room for a pod of a namespace, which must not fill it alone."""
        return self._unfiltered.has_room_for(namespace)

    def pod_applied(self, pod: Pod) -> None:
        """A pod was added or has changed."""
        known = self._nominations.get(pod.uid)
        if (node := self._lapsed.node_of(pod.uid)) is not None:
            self._keep(pod, node)
            return
        if not self._options.nominates:
            return
        if known is None and self._cleaner.applied(pod):
            return
        if not self._options.serves(pod):
            self._forget(pod.uid)
            if known is not None:
                self._end(pod, known)
            return
        nominated = pod.status.nominated_node_name
        if known is not None:
            self._follow(pod, known)
        elif is_ours(pod):
            self._adopt(pod)
        elif not (pod.spec.scheduling_gates or pod.uid in self._left or pod.uid in self._taken):
            if nominated or self._is_small():
                self._leave(pod.uid)
            else:
                self._line.add(pod)
                self._wake.set()

    def pod_deleted(self, pod: Pod) -> None:
        """A pod was deleted."""
        self._cleaner.keep(pod.uid)
        self._forget(pod.uid)
        self._drop(pod.uid)

    def filtered(self, pod: Pod, names: Collection[str]) -> None:
        """The scheduler calls ``filter`` for a pod, with these nodes."""
        if not self._options.nominates:
            return
        self._pace.filtered(all_nodes=len(names) > 1)
        self._forget(pod.uid)
        self._left[pod.uid] = True
        nomination = self._nominations.get(pod.uid)
        if nomination is not None:
            self._unfiltered.remove(pod.uid)
            nomination.filtered, nomination.since_s = True, self._monotonic()
            if nomination.node not in names:
                self._candidates.avoid(nomination.node)
        self._wake.set()
        self.freed()

    async def stay_ahead(self) -> None:
        """Wait until the pods that the scheduler filters next are nominated. Call it before answering ``filter``."""
        if self._options.nominates:
            self._metrics.nomination_waits.inc(await self._pace.wait(self._is_behind))
            self._pace.answered(has_next=bool(self._unfiltered or self._taken or self._line))

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
        given_up = in_the_way(
            pod, names, self._unfiltered, cluster=self._cluster, ledger=self._ledger, engine=self._engine
        )
        for uid in given_up:
            self._withdraw(uid)
        return bool(given_up)

    async def renominate(self, uid: str) -> None:
        """Nominate a node for a pod that was refused before, if it fits now; the window does not apply."""
        pod = self._cluster.pods.get(uid)
        if pod is None or not self._options.serves(pod) or pod.status.nominated_node_name:
            return
        if not self._options.nominates or self._is_small():
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
        return self._write(pod, held.node)

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
                self._check()
                checked_s = self._monotonic()

    async def _advance(self) -> None:
        turn = Turn()
        while self.has_room and (uid := self._line.pop(self.has_room_for)) is not None:
            pod = self._cluster.pods.get(uid)
            if pod is not None and self._options.serves(pod) and not pod.status.nominated_node_name:
                await self._decide(pod)
            await turn.share()

    async def _decide(self, pod: Pod) -> None:
        if not (self._unfiltered or self._taken):
            self._taken[pod.uid] = self._monotonic()
            return
        await self.prepare(pod)
        if pod.uid in self._left:
            return  # its scheduler has filtered it meanwhile
        try:
            self.nominate(pod)
        except Refusal:
            self._leave(pod.uid)
            return
        for peer in self._peers(pod):
            # They were refused while the gang was not complete.
            if self._left.get(peer.uid) is False and self._ledger.get(peer.uid) is not None:
                del self._left[peer.uid]
                self._line.add(peer)

    def _peers(self, pod: Pod) -> Iterator[Pod]:
        if self._engine.is_of_gang(pod):
            yield from self._cluster.jobs.job_of(pod).pods.values()

    def _keep(self, pod: Pod, node: str) -> None:
        """Nominate a pod, whose scheduler has accepted it on a node, for as long as it is not bound."""
        known = self._nominations.get(pod.uid)
        if pod.status.nominated_node_name == node:
            self._adopt_on(pod, node, filtered=True)
        elif known is None or known.written or known.node != node:
            self._write(pod, node, filtered=True)

    def _adopt_on(self, pod: Pod, node: str, *, filtered: bool) -> None:
        """Follow a nomination that is there."""
        namespace = pod.metadata.namespace
        nomination = Nomination(
            pod.uid, node, self._monotonic(), failure_of(pod), written=True, filtered=filtered, namespace=namespace
        )
        self._nominations[pod.uid] = nomination
        if filtered:
            self._unfiltered.remove(pod.uid)
        else:
            self._unfiltered.add(nomination)

    def _write(self, pod: Pod, node: str, *, filtered: bool = False) -> "asyncio.Task[bool]":
        namespace = pod.metadata.namespace
        nomination = Nomination(
            pod.uid, node, self._monotonic(), failure_of(pod), filtered=filtered, namespace=namespace
        )
        self._forget(pod.uid)
        self._cleaner.keep(pod.uid)
        self._nominations[pod.uid] = nomination
        if not filtered:
            self._unfiltered.add(nomination)
        return self._writes.start(self._post(nomination), f"nominate {pod.key}")

    async def _post(self, nomination: Nomination) -> bool:
        def current() -> Pod | None:
            """The pod, if the nomination is still worth a request."""
            pod = self._cluster.pods.get(nomination.uid)
            is_known = self._nominations.get(nomination.uid) is nomination
            is_late = nomination.uid not in self._unfiltered and nomination.uid not in self._lapsed
            if pod is None or not is_known or is_late:
                return None
            # Its scheduler may have nominated a node since the decision.
            return None if pod.status.nominated_node_name and not is_ours(pod) else pod

        written = await self._writes.nominate(current, nomination.node)
        self._metrics.nominations.labels("written" if written else "dropped").inc()
        if not written and self._nominations.get(nomination.uid) is nomination:
            # Its chips stay reserved: the scheduler is about to filter it.
            self._drop(nomination.uid)
            self._leave(nomination.uid)
        return written

    def _adopt(self, pod: Pod) -> None:
        """Keep the nomination of a former leader, or of a lost answer, if its node still fits; else replace it."""
        node = pod.status.nominated_node_name
        try:
            candidates = None if self._engine.is_of_gang(pod) else (node,)
            held = self._engine.place(pod, candidates)
        except Refusal:
            self._leave(pod.uid)
            self._cleaner.clear(pod, node, "stale")
            return
        if held.node != node:
            self._write(pod, held.node)
            return
        self._adopt_on(pod, node, filtered=self._left.get(pod.uid, False))

    def _follow(self, pod: Pod, nomination: Nomination) -> None:
        """A nominated pod has changed."""
        if pod.status.nominated_node_name == nomination.node:
            nomination.written = True
            self._pace.progressed()
            if failure_of(pod) == nomination.failure:
                return
        elif not nomination.written:
            return
        # The scheduler found no node for it, and may have nominated one where it preempts others.
        if not nomination.filtered:
            self._engine.release(pod.uid)
        self._drop(pod.uid)
        self._leave(pod.uid)
        self._cleaner.clear(pod, nomination.node, "refused")

    def _end(self, pod: Pod, nomination: Nomination) -> None:
        """A nominated pod was bound, or does not need a node any more."""
        self._drop(pod.uid)
        if pod.spec.node_name:
            is_there = pod.spec.node_name == nomination.node
            self._metrics.nominations.labels("bound" if is_there else "elsewhere").inc()
            if not is_there:
                self._cleaner.clear(pod, nomination.node, "elsewhere")

    def _check(self) -> None:
        """Clear nominations of which nothing will come."""
        now_s = self._monotonic()
        for uid in self._lapsed:
            if (pod := self._cluster.pods.get(uid)) is not None:
                self._keep(pod, self._lapsed.node_of(uid) or "")
        self._cleaner.retry()
        for uid in [uid for uid, since_s in self._taken.items() if now_s - since_s > self._ledger.ttl_s]:
            self._leave(uid)
        for uid in [uid for uid in self._left if uid not in self._cluster.pods]:
            del self._left[uid]  # the informer has never seen it
        for nomination in tuple(self._nominations.values()):
            uid, held = nomination.uid, self._ledger.get(nomination.uid)
            if nomination.filtered and now_s - nomination.since_s < SETTLE_S:
                continue
            if held is not None and held.node == nomination.node:
                record = self._cluster.nodes.get(held.node)
                if record is not None and record.node is not None:
                    continue
            if held is not None and held.stage not in {Stage.RESERVED, Stage.PLANNED}:
                continue  # its Binding is in flight
            self._withdraw(uid)

    def _withdraw(self, uid: str) -> None:
        """Release what is reserved for a nominated pod, and clear its nomination."""
        nomination, pod, held = self._nominations[uid], self._cluster.pods.get(uid), self._ledger.get(uid)
        if held is not None and held.node == nomination.node:
            self._engine.release(uid)
        self._drop(uid)
        self._leave(uid)
        if pod is not None:
            self._cleaner.clear(pod, nomination.node, "stale")

    def _drop(self, uid: str) -> None:
        self._nominations.pop(uid, None)
        self._unfiltered.remove(uid)
        self._pace.progressed()
        self._wake.set()

    def _leave(self, uid: str) -> None:
        """Leave a pod to the scheduler."""
        self._taken.pop(uid, None)
        self._left.setdefault(uid, False)

    def _forget(self, uid: str) -> None:
        self._line.remove(uid)
        self._taken.pop(uid, None)
        self._left.pop(uid, None)

    def _is_small(self) -> bool:
        """Whether filtering all nodes takes less time than a nomination."""
        return len(self._cluster.nodes) < self._options.from_nodes
