"""Gets a refused pod looked at again once it would fit.

kube-scheduler tries a pod that its extender refused again when it sees nodes or pods change, and otherwise after five
minutes (k/k:pkg/scheduler/backend/queue). It does not see what we see: reports are ConfigMaps, and reservations end in
memory. And where both see a change, it may well ask before our watch has shown it to us. So we remember whom we refused
everywhere; when such a pod would fit, and has not been asked about for a while, a changed annotation on it makes the
scheduler look again. The while doubles with every such time, because the node it fits on may be none of its candidates.
The pods of a gang are not made to wait the first time: what they lacked was the last one of them, and that is there.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from allocator.decide import DecisionEngine
from allocator.metrics import AllocatorMetrics
from allocator.rules.request import Ask
from allocator.state.cluster import Cluster
from ascend.annotations import RECONSIDERED
from ascend.errors import ApiError, NotFound, Unreachable
from ascend.kube.client import KubeClient
from ascend.kube.objects import PODS, Pod

log = structlog.get_logger()

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 300.0
PERIOD_S = 0.5
AT_ONCE = 16
"""Pods reconsidered in one period; each of them costs the scheduler a cycle."""
_REST = 9
"""So many times as long as a look at all of them has taken, none is taken: others have work to do, too."""
_REST_LIMIT_S = 30.0
_BREATH_S = 0.005
"""After so long others have a turn on the loop; one pod may take as long as hundreds of others."""
FORGET_S = 600.0
"""A pod that was never seen and not asked about for so long is gone."""


@dataclass(slots=True)
class _Refused:
    uid: str
    namespace: str
    name: str
    ask: Ask
    gang: bool
    asked_s: float
    wait_s: float = FIRST_WAIT_S

    @property
    def hangs_on_peers(self) -> bool:
        """Whether what it asks for may change with what becomes of the other pods of its job."""
        return self.gang or self.ask.distributed or self.ask.minds_network

    @property
    def is_new_gang(self) -> bool:
        return self.gang and self.wait_s == FIRST_WAIT_S


class Reconsideration:
    """Remembers refused pods and has them reconsidered.

    Args:
        client: the API server.
        cluster: what is seen.
        engine: knows what pods ask for.
        metrics: counts.
        monotonic: the clock for waits.
        now_ns: the wall clock, Unix nanoseconds; it makes the annotation's value a new one.
    """

    def __init__(
        self,
        client: KubeClient,
        cluster: Cluster,
        engine: DecisionEngine,
        metrics: AllocatorMetrics,
        *,
        monotonic: Callable[[], float],
        now_ns: Callable[[], int],
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._engine = engine
        self._metrics = metrics
        self._monotonic = monotonic
        self._now_ns = now_ns
        self._refused: dict[str, _Refused] = {}

    def __len__(self) -> int:
        return len(self._refused)

    def refused(self, pod: Pod) -> None:
        """A pod was asked about and fits nowhere."""
        known, ask, gang = self._refused.get(pod.uid), self._engine.ask(pod), self._engine.is_of_gang(pod)
        if known is None:
            namespace = pod.metadata.namespace
            self._refused[pod.uid] = _Refused(pod.uid, namespace, pod.name, ask, gang, self._monotonic())
        else:
            known.ask, known.gang, known.asked_s = ask, gang, self._monotonic()

    def accepted(self, uid: str) -> None:
        """A pod was asked about and fits."""
        self._refused.pop(uid, None)

    async def run(self) -> None:
        """Have pods reconsidered until cancelled."""
        rest_s = PERIOD_S
        while True:
            await asyncio.sleep(rest_s)
            begun_s = self._monotonic()
            due = await self._due()
            rest_s = min(max(PERIOD_S, _REST * (self._monotonic() - begun_s)), _REST_LIMIT_S)
            for pod in due:
                await self._touch(pod)

    async def _due(self) -> list[_Refused]:
        now_s = self._monotonic()
        due: list[_Refused] = []
        fits: dict[Ask, bool] = {}

        def may_fit(each: _Refused, seen: Pod | None) -> bool:
            if seen is not None and each.hangs_on_peers:
                return self._engine.may_fit(seen)
            if each.ask not in fits:
                fits[each.ask] = self._cluster.index.best(each.ask) is not None
            return fits[each.ask]

        breathed_s = now_s
        for each in list(self._refused.values()):
            if self._monotonic() - breathed_s > _BREATH_S:
                await asyncio.sleep(0)
                breathed_s = self._monotonic()
            if self._refused.get(each.uid) is not each:
                continue  # accepted meanwhile
            seen = self._cluster.pods.get(each.uid)
            silent_s = now_s - each.asked_s
            if (seen is None and silent_s > FORGET_S) or (
                seen is not None and (seen.spec.node_name or not seen.is_live)
            ):
                del self._refused[each.uid]
            elif (silent_s >= each.wait_s or each.is_new_gang) and may_fit(each, seen):
                due.append(each)
        return due[:AT_ONCE]

    async def _touch(self, pod: _Refused) -> None:
        pod.asked_s = self._monotonic()
        pod.wait_s = min(2 * pod.wait_s, LONGEST_WAIT_S)
        body = {"metadata": {"uid": pod.uid, "annotations": {RECONSIDERED: str(self._now_ns())}}}
        try:
            await self._client.patch(PODS, pod.name, body, namespace=pod.namespace)
        except NotFound:
            self._refused.pop(pod.uid, None)
            return
        except (ApiError, Unreachable) as error:
            log.warning("could not have a pod reconsidered", pod=f"{pod.namespace}/{pod.name}", error=str(error))
            return
        self._metrics.reconsidered.inc()
        log.info("had a pod reconsidered", pod=f"{pod.namespace}/{pod.name}", pod_uid=pod.uid, request=pod.ask.chips)
