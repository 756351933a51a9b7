"""Holds new pods back by a scheduling gate until they have a place, so that waiting pods cost their scheduler nothing.

A webhook adds the gate. Once the pod's chips are reserved (for a gang: those of its whole plan) the pod is nominated
and the gate lifted, so its scheduler filters it once, on one node. A gated pod is let through without a place if only
its scheduler can help it: it could preempt others, its request is invalid, or it has waited so long that an autoscaler
should see it as unschedulable.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import structlog

from allocator.decision.engine import DecisionEngine
from allocator.metrics import AllocatorMetrics
from allocator.nomination.entry import is_served
from allocator.nomination.line import Line
from allocator.nomination.nominator import Nominator
from allocator.nomination.writes import Writes
from allocator.rules.job import JobKey
from allocator.rules.request import ChipRequest
from allocator.rules.victims import NEVER
from allocator.settings import Settings
from ascend.errors import Refusal
from ascend.fair import in_turn
from ascend.kube.objects import NodeRequirements, Pod, unix_seconds
from ascend.reasons import Category, Reason
from ascend.turn import Turn

log = structlog.get_logger()

PERIOD_S: Final = 0.5
FULL_PERIOD_S: Final = 5.0
"""How often gated pods are judged although neither nodes nor pods have changed: pod groups may have."""
THROUGH_AT_ONCE: Final = 8
"""The most pods with one request that are let through to preempt others, and not bound yet."""
TOLD_AT_ONCE: Final = 16
_REST: Final = 9
"""The pause after each pass, as a multiple of the time spent on pods that don't fit; at least the duration of the pass,
and at most ``PERIOD_S``."""
_LEAST_S: Final = 0.01

_Key: TypeAlias = JobKey | tuple[ChipRequest, NodeRequirements, int]
"""A gang, or single pods with the same request, node selector and priority: where one fits, the others fit."""


@dataclass(slots=True, eq=False)
class _Group:
    """Gated pods that are judged together.

    Attributes:
        line: the pods.
        untold: the pods without an Event that says why they wait.
        through: the uids of the pods that were let through and are not bound yet.
        size: the number of its pods, with those whose gate is being lifted.
    """

    line: Line = field(default_factory=Line)
    untold: dict[str, None] = field(default_factory=dict)
    through: set[str] = field(default_factory=set)
    size: int = 0


class Gates:
    """Lifts gates.

    Args:
        engine: decides.
        nominator: nominates.
        writes: writes gates.
        metrics: counts lifted gates.
        waits: called with a gated pod that has to wait, and why; returns whether that was recorded.
        settings: what is gated.
        monotonic: the clock.
        now_s: the wall clock, Unix seconds.
    """

    def __init__(
        self,
        engine: DecisionEngine,
        nominator: Nominator,
        writes: Writes,
        metrics: AllocatorMetrics,
        *,
        waits: Callable[[Pod, Refusal], bool],
        settings: Settings,
        monotonic: Callable[[], float],
        now_s: Callable[[], float],
    ) -> None:
        self._cluster = engine.cluster
        self._engine = engine
        self._nominator = nominator
        self._writes = writes
        self._metrics = metrics
        self._waits = waits
        self._settings = settings
        self._monotonic = monotonic
        self._now_s = now_s
        self._groups: dict[_Key, _Group] = {}
        self._keys: dict[str, _Key] = {}  # by uid of a gated pod, or of one that was let through
        self._running: dict[str, int] = {}  # the priorities of the bound pods, by uid
        self._priorities: Counter[int] = Counter()
        self._changes = 0
        self._is_cut_short = False  # the window was full
        self._wake = asyncio.Event()

    def wants(self, pod: Pod) -> bool:
        """Whether a pod that is being created gets the gate.

        A single pod that fits at once does not on a small cluster: filtering all nodes takes less time than the
        requests that nominate it and lift the gate.
        """
        waits = (
            pod.requests_chips and not pod.spec.node_name and pod.spec.scheduler_name in self._settings.scheduler_names
        )
        if self._settings.nominate != "gated" or not waits:
            return False
        if len(self._cluster.nodes) >= self._settings.gate_from_nodes or self._engine.is_of_gang(pod):
            return True
        return not self._engine.may_fit(pod)

    def look(self) -> None:
        """Something has changed that may let gated pods go."""
        self._changes += 1
        if self._groups:
            self._wake.set()

    def pod_applied(self, pod: Pod) -> None:
        """A pod was added or has changed."""
        self.look()
        self._note_running(pod)
        if pod.spec.scheduling_gates and not pod.is_gated and pod.is_live and not pod.is_terminating:
            if pod.uid not in self._keys:
                self._add(pod)
        elif not (pod.spec.node_name or pod.spec.scheduling_gates) and pod.uid in self._keys:
            self._on_gate_gone(pod.uid)
        else:
            self._forget(pod.uid)

    def pod_deleted(self, pod: Pod) -> None:
        """A pod was deleted."""
        self.look()
        self._on_end(pod.uid)
        self._forget(pod.uid)

    async def run(self) -> None:
        """Lift gates until cancelled."""
        seen, full_s = (-1, -1), self._monotonic()
        while True:
            self._wake.clear()
            now, now_s = (self._cluster.index.version, self._changes), self._monotonic()
            wasted_s = 0.0
            if self._groups and (self._is_cut_short or now != seen or now_s - full_s >= FULL_PERIOD_S):
                seen, full_s = now, now_s
                wasted_s = await self._pass()
            rest_s = max(_LEAST_S, _REST * wasted_s, self._monotonic() - now_s)
            await asyncio.sleep(min(rest_s, PERIOD_S))
            with suppress(TimeoutError):
                async with asyncio.timeout(PERIOD_S):
                    await self._wake.wait()

    def _add(self, pod: Pod) -> None:
        if self._settings.nominate != "gated" or not is_served(pod, self._settings):
            self._lift(pod, "off")
            return
        try:
            request = self._engine.request_of(pod)
        except Refusal:
            self._lift(pod, "invalid")  # its scheduler refuses it
            return
        if self._engine.is_of_gang(pod):
            key: _Key = self._cluster.jobs.job_of(pod).key
        else:
            key = (request, pod.spec.node_requirements, pod.priority)
        group = self._groups.setdefault(key, _Group())
        group.size += 1
        group.line.add(pod)
        group.untold[pod.uid] = None
        self._keys[pod.uid] = key
        self._wake.set()

    def _on_gate_gone(self, uid: str) -> None:
        """The gate of a pod is gone; a pod that was let through is counted until it is bound."""
        group = self._groups[self._keys[uid]]
        if uid in group.through:
            group.line.remove(uid)
            group.untold.pop(uid, None)
        else:
            self._forget(uid)

    def _forget(self, uid: str) -> None:
        if (key := self._keys.pop(uid, None)) is not None:
            group = self._groups[key]
            group.line.remove(uid)
            group.untold.pop(uid, None)
            group.through.discard(uid)
            group.size -= 1
            if not group.size:
                del self._groups[key]

    async def _pass(self) -> float:
        """Judge the first pods of all groups; returns the seconds spent on pods that don't fit."""
        turn, wasted_s = Turn(), 0.0
        self._is_cut_short = False
        for key in self._in_order():
            group = self._groups.get(key)
            while group is not None and (pod := self._head(group)) is not None:
                if not self._nominator.has_room:
                    self._is_cut_short = True
                    return wasted_s
                if not self._nominator.has_room_for(pod.metadata.namespace):
                    self._is_cut_short = True
                    break  # others are behind it
                await self._nominator.prepare(pod)
                if self._head(group) is not pod:
                    continue  # it has changed meanwhile
                started_s = self._monotonic()
                try:
                    written = self._nominate(pod)
                except Refusal as refusal:
                    self._on_refusal(group, pod, refusal.without_frames())
                    wasted_s += self._monotonic() - started_s
                    break
                group.line.remove(pod.uid)
                self._lift(pod, "placed", written)
                await turn.share()
            await turn.share()
        return wasted_s

    def _nominate(self, pod: Pod) -> "asyncio.Task[bool]":
        try:
            return self._nominator.nominate(pod)
        except Refusal:
            if not self._nominator.make_room(pod):
                raise
            return self._nominator.nominate(pod)

    def _in_order(self) -> Iterator[_Key]:
        """The groups in the order of their first pods, of namespaces in turn: one may have thousands."""
        heads = [(key, self._head(group)) for key, group in self._groups.items()]
        waiting = [(key, pod) for key, pod in heads if pod is not None]
        waiting.sort(key=lambda item: (-item[1].priority, item[1].metadata.creation_timestamp or ""))
        return (key for key, _ in in_turn(waiting, lambda item: item[1].metadata.namespace))

    def _head(self, group: _Group) -> Pod | None:
        while (uid := group.line.first) is not None:
            pod = self._cluster.pods.get(uid)
            if pod is not None:
                return pod
            group.line.remove(uid)
        return None

    def _on_refusal(self, group: _Group, pod: Pod, refusal: Refusal) -> None:
        """The first pod of a group fits nowhere."""
        waits_for_turn = refusal.reason is Reason.GANG_STEPPED_BACK
        if waits_for_turn and self._engine.gangs.queue.first is self._cluster.jobs.job_of(pod):
            self._let_through(group, "refused", len(group.line))
        elif refusal.reason.category is not Category.INCOMPLETE:
            if not waits_for_turn and self._may_preempt(pod):
                self._let_through(group, "preempts", THROUGH_AT_ONCE)
            elif self._has_waited(pod):
                self._let_through(group, "limit", len(group.line))
        self._tell(group, pod, refusal)

    def _tell(self, group: _Group, pod: Pod, refusal: Refusal) -> None:
        """Tell pods of a group why they wait, of namespaces in turn: their Events are limited."""
        told = 0
        full: set[str] = set()
        for uid in list(group.untold):
            seen = self._cluster.pods.get(uid)
            if seen is None or uid not in group.line:
                del group.untold[uid]
                continue
            if seen.metadata.namespace in full:
                continue
            told += 1
            if self._waits(seen, self._why(seen, pod, refusal)):
                del group.untold[uid]
            else:
                full.add(seen.metadata.namespace)
            if told >= TOLD_AT_ONCE:
                return

    def _why(self, pod: Pod, first: Pod, refusal: Refusal) -> Refusal:
        # The sentence about the first pod of the group names it.
        return Refusal(refusal.reason, refusal.message.replace(f"pod {first.key}:", f"pod {pod.key}:"))

    def _let_through(self, group: _Group, why: str, limit: int) -> None:
        head = self._head(group)
        whole = head is not None and self._engine.is_of_gang(head)
        while (whole or len(group.through) < limit) and (pod := self._head(group)) is not None:
            if why == "limit" and not whole and not self._has_waited(pod):
                return
            group.line.remove(pod.uid)
            group.through.add(pod.uid)
            self._lift(pod, why)

    def _may_preempt(self, pod: Pod) -> bool:
        return pod.spec.preemption_policy != NEVER and pod.priority > min(self._priorities, default=pod.priority)

    def _has_waited(self, pod: Pod) -> bool:
        created_s, limit_s = unix_seconds(pod.metadata.creation_timestamp), self._settings.gate_limit_s
        return limit_s > 0 and created_s is not None and self._now_s() - created_s >= limit_s

    def _lift(self, pod: Pod, why: str, written: "asyncio.Task[bool] | None" = None) -> None:
        self._writes.start(self._remove_gate(pod, why, written), f"lift the gate of {pod.key}")

    async def _remove_gate(self, pod: Pod, why: str, written: "asyncio.Task[bool] | None") -> bool:
        def current() -> Pod | None:
            seen = self._cluster.pods.get(pod.uid)
            return seen if seen is not None and seen.spec.scheduling_gates and not seen.spec.node_name else None

        if written is not None:
            # If the nomination was not written, the chips are reserved nevertheless.
            await asyncio.wait({written})
        lifted = await self._writes.lift(current)
        if lifted:
            self._metrics.gates_lifted.labels(why).inc()
            log.debug("lifted the gate of a pod", pod=pod.key, pod_uid=pod.uid, why=why)
        elif (seen := current()) is not None:
            self._forget(seen.uid)
            await asyncio.sleep(PERIOD_S)
            if (seen := current()) is not None:
                self._add(seen)
        return lifted

    def _note_running(self, pod: Pod) -> None:
        is_running = bool(pod.spec.node_name) and pod.is_live and not pod.is_terminating and pod.requests_chips
        known = self._running.get(pod.uid)
        if is_running and known is None:
            self._running[pod.uid] = pod.priority
            self._priorities[pod.priority] += 1
        elif not is_running and known is not None:
            self._on_end(pod.uid)

    def _on_end(self, uid: str) -> None:
        priority = self._running.pop(uid, None)
        if priority is not None:
            self._priorities[priority] -= 1
            if not self._priorities[priority]:
                del self._priorities[priority]
