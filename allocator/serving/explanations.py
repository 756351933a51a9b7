"""Who is told why a pod waits, and how often: the questions of tenants, which the API server brings.

A question is a PodExplanation with the pod's name and uid, created in the pod's namespace in a dry run. The API server
has authenticated who asks, whatever the credentials are, and sends who it is: no token of a user comes here. Who asks
has to know the uid, as everyone may reach the port of the webhooks and invent a question, and must have the right to
get the pod. Whether there is no such pod or that right is missing, the answer is the same.

Of each namespace one question is answered at a time, a few in a second are refused for a missing right, as each of them
costs the API server a review, and all answers take a small part of a core, so that nobody can delay the calls of
schedulers or the questions of others.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec

from allocator.binding.binding import PodRef
from allocator.decision.engine import DecisionEngine
from allocator.decision.explained import Explained, explain
from ascend.errors import Refusal, Unreachable
from ascend.kube.client import KubeClient
from ascend.kube.objects import PODS, Pod
from ascend.rate_limiters import TokenBucket
from ascend.reasons import Reason

ANSWER_S: Final = 4.0
"""Within this time a question is answered; the API server waits for 5 s."""
REFUSAL_S: Final = 0.2
"""How long a refusal takes at least: users can be invented."""
_REST: Final = 19
"""The pause after an answer, as a multiple of the time that it took: at most 5 % of a core."""


class Asker(msgspec.Struct, frozen=True):
    """Who asks, as the API server has authenticated them (authentication.k8s.io/v1, UserInfo)."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, Any] = {}


class Explanations:
    """Answers tenants.

    Args:
        engine: judges pods.
        client: the API server, which knows who may get a pod.
        monotonic: the clock.
    """

    def __init__(self, engine: DecisionEngine, client: KubeClient, monotonic: Callable[[], float]) -> None:
        self._cluster = engine.cluster
        self._engine = engine
        self._client = client
        self._monotonic = monotonic
        self._asking: set[str] = set()
        self._one = asyncio.Lock()
        self._time = TokenBucket(0, _REST, monotonic)

    async def answer(self, ref: PodRef, asker: Asker) -> Explained:
        """Answer why a pod waits.

        Raises:
            Refusal: no such pod requests chips, or who asks may not get it.
            ApiError: the API server refused to say whether they may.
            Unreachable: it did not answer, or there are other questions.
        """
        pod = self._cluster.pods.get(ref.uid)
        if pod is None or PodRef.of(pod) != ref or not self._engine.handles(pod):
            raise _unknown(ref)
        where, again = ref.namespace, "ask again in some seconds, or see the pod's last Event"
        if where in self._asking:
            raise Unreachable(f"pod {ref.key}: another question about namespace {where} is being answered; {again}")
        self._asking.add(where)
        try:
            async with asyncio.timeout(ANSWER_S):
                if not await self._may_get(ref, asker):
                    await asyncio.sleep(REFUSAL_S)
                    raise _unknown(ref)
                async with self._one:
                    return await self._explain(pod)
        except TimeoutError:
            raise Unreachable(f"pod {ref.key}: too many questions why pods wait; {again}") from None
        finally:
            self._asking.discard(where)

    async def _may_get(self, ref: PodRef, asker: Asker) -> bool:
        subject = {"user": asker.username, "uid": asker.uid, "groups": asker.groups, "extra": asker.extra}
        return await self._client.may("get", PODS.plural, namespace=ref.namespace, name=ref.name, subject=subject)

    async def _explain(self, pod: Pod) -> Explained:
        await asyncio.sleep(self._time.spend(0))
        started_s = self._monotonic()
        try:
            return await explain(pod, self._cluster, self._engine)
        finally:
            self._time.spend(self._monotonic() - started_s)


def _unknown(ref: PodRef) -> Refusal:
    why = "is not there or requests no chips, or you may not get it"
    return Refusal(Reason.POD_UNKNOWN, f"pod {ref.key[:320]} with uid {ref.uid[:64]!r} {why}")
