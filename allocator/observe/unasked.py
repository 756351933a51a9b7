"""Events on waiting pods for which their scheduler does not call: why they wait.

kube-scheduler asks an extender only about nodes that have passed its own filters, and it counts chips itself. So it
never calls for a pod if too few chips are free on every node, or none has the CPU, or all are tainted. What it says of
these pods is only its own half. So the leader looks at them itself, and says by the allocator's rules which nodes lack
what; or, if the chips are there, that it is the scheduler that refuses the pod.
"""

import asyncio
import math
from collections.abc import Callable, Collection
from typing import Final, TypeAlias

import msgspec

from allocator.decision.engine import DecisionEngine
from allocator.decision.filtered import Filtered
from allocator.decision.unplaced import judge, why_unplaced
from allocator.gangs.obstacles import UNTRIED_S
from allocator.rules.job import JobKey
from allocator.rules.request import ChipRequest
from allocator.rules.scheduled import verdict_on, was_asked
from ascend.errors import Refusal
from ascend.fair import in_turn
from ascend.kube.objects import NodeRequirements, Pod
from ascend.turn import Turn

PERIOD_S: Final = 5.0
"""How often the pods are looked at; a pod is judged from the second time on that it was seen refused and unasked."""
BEHIND_S: Final = 15.0
"""How long a pod has to be refused by its scheduler although it fits: kube-scheduler tries it again after 10 s."""
AT_ONCE: Final = 32
"""The most gangs and different requests that are judged in one look; the others come first in the next one."""
_REST: Final = 19
"""The pause after a look, as a multiple of its duration: at most 5 % of a core."""

_Key: TypeAlias = JobKey | tuple[ChipRequest, NodeRequirements, int] | str
"""A gang; single pods with the same request, node selector and priority; or a pod with an invalid request."""


class _Unasked(msgspec.Struct, gc=False):
    since_s: float
    judged_s: float = -math.inf


class UnaskedPods:
    """Looks at the pods that no scheduler asks for.

    Args:
        engine: judges pods.
        told: called with a pod and why it waits; returns whether that was recorded, or was before.
        schedulers: the names of the schedulers that are served.
        monotonic: the clock.
    """

    def __init__(
        self,
        engine: DecisionEngine,
        told: Callable[[Pod, Refusal], bool],
        *,
        schedulers: Collection[str],
        monotonic: Callable[[], float],
    ) -> None:
        self._cluster = engine.cluster
        self._ledger = engine.ledger
        self._engine = engine
        self._told = told
        self._schedulers = frozenset(schedulers)
        self._monotonic = monotonic
        self._unasked: dict[str, _Unasked] = {}

    async def run(self) -> None:
        """Look at them until cancelled. Call it once this allocator leads."""
        while True:
            started_s = self._monotonic()
            await self.look()
            await asyncio.sleep(max(PERIOD_S, _REST * (self._monotonic() - started_s)))

    async def look(self) -> None:
        """Look at all of them once; other tasks run meanwhile."""
        turn, now_s = Turn(), self._monotonic()
        judged: dict[_Key, Filtered | Refusal] = {}
        full: set[str] = set()
        for pod in in_turn(await self._due(now_s), lambda pod: pod.metadata.namespace):
            await turn.share()
            if pod.metadata.namespace in full:
                continue
            key = self._key(pod)
            if key not in judged:
                if len(judged) >= AT_ONCE:
                    continue
                judged[key] = await judge(self._cluster, self._engine, pod)
            if self._cluster.pods.get(pod.uid) is not pod:
                continue  # it has changed meanwhile
            refusal = self._why(pod, judged[key], now_s)
            if refusal is None or self._told(pod, refusal):
                self._unasked[pod.uid].judged_s = now_s
            else:
                full.add(pod.metadata.namespace)  # its Events are limited

    async def _due(self, now_s: float) -> list[Pod]:
        """The pods to be judged, in the order of their last judgement."""
        turn, known, due = Turn(), self._unasked, list[Pod]()
        self._unasked = {}
        for pod in list(self._cluster.waiting):
            await turn.share()
            if self._is_asked(pod):
                continue
            noted = self._unasked[pod.uid] = known.get(pod.uid) or _Unasked(now_s)
            patience_s = UNTRIED_S if verdict_on(pod) is None else PERIOD_S
            if now_s - noted.since_s >= patience_s:
                due.append(pod)
        return sorted(due, key=lambda pod: self._unasked[pod.uid].judged_s)

    def _is_asked(self, pod: Pod) -> bool:
        """Whether its scheduler asks for a pod, or the pod is none of the allocator's, or about to be placed."""
        if pod.spec.scheduler_name not in self._schedulers or not self._engine.handles(pod):
            return True
        verdict = verdict_on(pod)
        return (verdict is not None and was_asked(verdict)) or self._ledger.get(pod.uid) is not None

    def _key(self, pod: Pod) -> _Key:
        if (gang := self._engine.gang_of(pod)) is not None:
            return gang.key
        try:
            return self._engine.request_of(pod), pod.spec.node_requirements, pod.priority
        except Refusal:
            return pod.uid

    def _why(self, pod: Pod, judged: Filtered | Refusal, now_s: float) -> Refusal | None:
        """Why a pod waits; None if its scheduler only has not tried it again yet."""
        fits = isinstance(judged, Filtered) and judged.fitting
        if fits and now_s - self._unasked[pod.uid].since_s < BEHIND_S:
            return None
        return why_unplaced(self._engine, pod, judged)
