"""Makes kube-scheduler requeue a refused pod once it would fit.

kube-scheduler retries a pod that its extender refused when it sees nodes or pods change, and otherwise after five
minutes (k/k:pkg/scheduler/backend/queue). It does not see everything the allocator sees: reports are ConfigMaps, and
reservations end in memory. And even if both see a change, it may retry before the allocator's informer has seen the
change. So the allocator remembers the pods it refused. When one of them would fit, and its scheduler has not retried it
for some time, a changed annotation on the pod makes the scheduler retry it. That time doubles with each attempt,
because the node on which the pod fits may not be one of its candidates. The pods of a gang don't wait the first time:
they lacked only the last of them, which exists now. And those of a gang whose turn it is wait a second: others wait for
that gang.

On a full cluster kube-scheduler does not call ``filter`` for a pod, only ``preempt``, and no annotation makes it retry
the pod. So those that may not preempt before their gang is complete, and those for which victims were chosen together
with a peer's, are retried in another way: a pod for which all nodes have too few chips by number is retried if a pod
ends or a node grows (k/k:pkg/scheduler/framework/plugins/noderesources/fit.go, EventsToRegister), and the end of a
nomination counts like the end of a pod for all pods of the same or a lower priority, since kube-scheduler accounts for
nominated pods on their nodes (k/k:pkg/scheduler/eventhandlers.go, hasNominatedNodeNameChanged). So one of the pods is
nominated for a node that does not exist, which takes room from no other pod, and the nomination is cleared at once.
"""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Final

import msgspec
import structlog

from allocator.binding.binding import PodRef
from allocator.decision.engine import DecisionEngine
from allocator.gangs.gradual import MANY
from allocator.metrics import AllocatorMetrics
from allocator.rules.job import JobKey
from allocator.rules.request import ChipRequest
from ascend.annotations import REQUEUED
from ascend.errors import ApiError, Conflict, NotFound, Refusal, Unreachable
from ascend.fair import in_turn
from ascend.kube.client import KubeClient
from ascend.kube.objects import PODS, Pod
from ascend.rate_limiters import doubled_s
from ascend.turn import Turn

log = structlog.get_logger()

FIRST_WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 300.0
PERIOD_S: Final = 0.5
AT_ONCE: Final = 16
"""The most pods requeued in one period, of namespaces in turn; each costs the scheduler a cycle."""
FORGET_S: Final = 600.0
"""A pod that the informers never saw, and that was not retried for this time, is dropped."""

NOWHERE: Final = "none.ascend-affinity.io"
"""The name of a node that does not exist."""

_REST: Final = 9
"""The pause after each pass over all pods, as a multiple of the duration of the pass."""
_REST_LIMIT_S: Final = 30.0


class _Refused(msgspec.Struct, gc=False):
    ref: PodRef
    request: ChipRequest
    is_of_gang: bool
    tried_s: float
    requeues: int = 0
    is_due: bool = False
    may_preempt: bool = False
    """Whether it is retried once its gang is complete, though it does not fit: it may preempt then."""

    @property
    def depends_on_peers(self) -> bool:
        """Whether the pod's request may change with its peers."""
        return self.is_of_gang or self.request.distributed or self.request.needs_network

    @property
    def is_new_gang(self) -> bool:
        return self.is_of_gang and not self.requeues

    @property
    def wait_s(self) -> float:
        """The seconds from its last try until it is requeued."""
        return doubled_s(FIRST_WAIT_S, 1 + self.requeues, LONGEST_WAIT_S)

    def on_requeue(self, now_s: float) -> None:
        """Note a requeue; if the scheduler doesn't refuse the pod again, the next one comes after twice the wait."""
        self.tried_s, self.is_due = now_s, False
        self.requeues += 1


class Requeuer:
    """Remembers refused pods and requeues them.

    Args:
        client: the API server.
        engine: reads what pods request.
        metrics: counts requeued pods.
        monotonic: the clock for waits.
        now_ns: the wall clock, Unix nanoseconds; makes the value of the annotation unique.
        nominate: nominates a node for the pod with a uid, if it fits; called before the pod is requeued.
    """

    def __init__(
        self,
        client: KubeClient,
        engine: DecisionEngine,
        metrics: AllocatorMetrics,
        *,
        monotonic: Callable[[], float],
        now_ns: Callable[[], int],
        nominate: Callable[[str], Awaitable[None]],
    ) -> None:
        self._nominate = nominate
        self._client = client
        self._cluster = engine.cluster
        self._engine = engine
        self._metrics = metrics
        self._monotonic = monotonic
        self._now_ns = now_ns
        self._refused: dict[str, _Refused] = {}

    def on_refusal(self, pod: Pod) -> None:
        """A pod was filtered and fits on no node."""
        known, request, gang = (
            self._refused.get(pod.uid),
            self._engine.request_of(pod),
            self._engine.is_of_gang(pod),
        )
        if known is None:
            self._refused[pod.uid] = _Refused(PodRef.of(pod), request, gang, self._monotonic())
        else:
            known.request, known.is_of_gang, known.tried_s = request, gang, self._monotonic()
            known.may_preempt = False

    def waits_for_peers(self, pod: Pod) -> None:
        """A pod may not preempt yet, because its gang is incomplete."""
        self.retry(pod, at_once=False)

    def retry(self, pod: Pod, *, at_once: bool = True) -> None:
        """A pod should be scheduled again soon, or once its gang is complete: it does not fit, but may preempt."""
        try:
            self.on_refusal(pod)
        except Refusal:
            return  # its request is invalid
        known = self._refused[pod.uid]
        known.may_preempt, known.is_due = True, at_once

    def on_judgement(self, uid: str) -> None:
        """Preemption was examined for a pod whose gang is complete."""
        if (known := self._refused.get(uid)) is not None:
            known.may_preempt = known.is_due = False

    def on_acceptance(self, uid: str) -> None:
        """A pod was filtered and fits."""
        self._refused.pop(uid, None)

    async def run(self) -> None:
        """Requeue pods until cancelled."""
        rest_s = PERIOD_S
        while True:
            await asyncio.sleep(rest_s)
            started_s = self._monotonic()
            due = await self._due()
            rest_s = min(max(PERIOD_S, _REST * (self._monotonic() - started_s)), _REST_LIMIT_S)
            if preempting := [entry for entry in due if entry.may_preempt]:
                await self._retry(preempting)
            fitting = [entry for entry in due if not entry.may_preempt]
            for entry in islice(in_turn(fitting, lambda refused: refused.ref.namespace), AT_ONCE):
                await self._annotate(entry)

    async def _due(self) -> list[_Refused]:
        now_s, first = self._monotonic(), self._engine.gangs.queue.first
        due: list[_Refused] = []
        fits: dict[ChipRequest | JobKey, bool] = {}
        turn = Turn()
        for entry in list(self._refused.values()):
            await turn.share()  # one pod may take as long as hundreds of others
            if self._refused.get(entry.ref.uid) is not entry:
                continue  # accepted meanwhile
            seen = self._cluster.pods.get(entry.ref.uid)
            silent_s = now_s - entry.tried_s
            wait_s = FIRST_WAIT_S if first is not None and entry.ref.uid in first.pods else entry.wait_s
            if (seen is None and silent_s > FORGET_S) or (
                seen is not None and (seen.spec.node_name or not seen.is_live)
            ):
                del self._refused[entry.ref.uid]
            elif entry.is_due or ((silent_s >= wait_s or entry.is_new_gang) and await self._may_fit(entry, seen, fits)):
                due.append(entry)
        return due

    def _is_complete(self, pod: Pod) -> bool:
        gang = self._engine.gang_of(pod)
        return gang is None or self._engine.gangs.incomplete(gang, pod) is None

    async def _retry(self, due: list[_Refused]) -> None:
        """Make kube-scheduler retry pods that may preempt now."""
        seen = [pod for entry in due if (pod := self._cluster.pods.get(entry.ref.uid)) is not None]
        try:
            for pod in seen:
                if pod.status.nominated_node_name == NOWHERE:  # of a former leader
                    await _clear(self._client, pod)
            waiting = [pod for pod in seen if not pod.status.nominated_node_name]
            if waiting:  # the retry of the first one includes the others
                first = max(waiting, key=lambda pod: (pod.priority, pod.key))
                await trigger(self._client, first)
        except (NotFound, Conflict):
            return  # it is gone or has changed, which the informer sees soon
        except (ApiError, Unreachable) as error:
            log.warning("can't make the scheduler retry pods that may preempt", pods=len(seen), error=str(error))
        else:
            self._metrics.requeued.inc(len(seen))
            log.info("made the scheduler retry pods that may preempt", pods=len(seen))
        for entry in due:
            entry.on_requeue(self._monotonic())

    async def _may_fit(self, entry: _Refused, seen: Pod | None, fits: dict[ChipRequest | JobKey, bool]) -> bool:
        """Whether a pod may fit now; ``fits`` has the answers of this pass for equal requests and large gangs."""
        if seen is not None and entry.may_preempt:
            return self._is_complete(seen)
        gang = self._engine.gang_of(seen) if seen is not None and entry.is_of_gang else None
        if seen is not None and gang is not None and gang.size > MANY:
            if gang.key not in fits:
                fits[gang.key] = await self._engine.plans.may_fit(seen, gang)
            return fits[gang.key] and self._refused.get(entry.ref.uid) is entry  # not accepted meanwhile
        if seen is not None and (entry.depends_on_peers or self._engine.keeps_chips or entry.request.is_spread):
            return self._engine.may_fit(seen)
        if entry.request not in fits:
            fits[entry.request] = self._cluster.index.best(entry.request) is not None
        return fits[entry.request]

    async def _annotate(self, pod: _Refused) -> None:
        pod.on_requeue(self._monotonic())
        ref = pod.ref
        await self._nominate(ref.uid)
        body = {"metadata": {"uid": ref.uid, "annotations": {REQUEUED: str(self._now_ns())}}}
        try:
            await self._client.patch(PODS, ref.name, body, namespace=ref.namespace)
        except NotFound:
            self._refused.pop(ref.uid, None)
            return
        except (ApiError, Unreachable) as error:
            log.warning("can't requeue a pod", pod=ref.key, error=str(error))
            return
        self._metrics.requeued.inc()
        log.info("requeued a pod", pod=ref.key, pod_uid=ref.uid, request=pod.request.chips)


async def trigger(client: KubeClient, pod: Pod) -> None:
    """Make kube-scheduler retry a pod, and all others of the same or a lower priority that it has refused.

    Args:
        client: the API server.
        pod: a pending pod without a nominated node, as last seen.

    Raises:
        ApiError: it has changed since, is gone, or may not be written.
        Unreachable: no answer.
    """
    await _clear(client, await _nominate(client, pod, NOWHERE))


async def _clear(client: KubeClient, pod: Pod) -> None:
    """Clear the nomination for the node that does not exist, if the pod still has it."""
    while pod.status.nominated_node_name == NOWHERE:
        try:
            await _nominate(client, pod, None)
        except Conflict:  # somebody else has changed it meanwhile, perhaps nominated a node
            pod = await client.get(PODS, pod.name, pod.metadata.namespace)
        else:
            return


async def _nominate(client: KubeClient, pod: Pod, node: str | None) -> Pod:
    body = {
        "metadata": {"uid": pod.uid, "resourceVersion": pod.metadata.resource_version},
        "status": {"nominatedNodeName": node},
    }
    return await client.patch(PODS, pod.name, body, namespace=pod.metadata.namespace, subresource="status")
