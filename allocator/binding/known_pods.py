"""Finds the pods that calls name, as the API server has them: the caller's word on a pod does not count.

A caller names a pod by namespace, name and uid, and all three must be right. Mostly the informer has the pod. If the
caller's watch is ahead of the informer's, the API server is asked once; the rate of such reads is limited, in all and
for each namespace, because a caller can invent any number of pods. No refusal tells a uid, or a name, that the caller
did not have.
"""

import asyncio
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from allocator.binding.binding import PodRef
from allocator.state.cluster import Cluster
from ascend.errors import AscendError, NotFound, Refusal, Unreachable
from ascend.fair import FairRate
from ascend.kube.client import KubeClient
from ascend.kube.objects import PODS, Pod
from ascend.reasons import Reason

READ_TIMEOUT_S: Final = 2.0
"""For a pod that the informer has not seen yet; the API server waits 5 s for a webhook."""

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
"""A name that an object can have; others, as `..`, would change the path of a request."""


@dataclass(frozen=True, slots=True)
class ReadLimit:
    """How often the API server is asked for pods that the informer has not seen.

    One namespace may have half of the burst and of the rate (``ascend.fair``).

    Attributes:
        at_once: the most reads in flight; further ones wait.
        per_s: the most reads per second, on average.
        burst: how many may follow each other at once.
    """

    at_once: int
    per_s: float
    burst: int


FOR_SCHEDULERS: Final = ReadLimit(at_once=16, per_s=1000.0, burst=1000)
"""For calls that only the allowed clients can make: in one namespace about the speed of the fastest scheduler."""

FOR_ANYONE: Final = ReadLimit(at_once=4, per_s=20.0, burst=40)
"""For webhooks, which any client may call where the API server presents no certificate."""


class KnownPods:
    """Finds pods.

    Args:
        client: the API server.
        cluster: nodes, pods and jobs, as the informers have seen them.
        schedulers: the names of the schedulers that are served.
        limit: of reads.
        monotonic: the clock.
        called: told of each pod for which its scheduler has called.
    """

    def __init__(
        self,
        client: KubeClient,
        cluster: Cluster,
        *,
        schedulers: Collection[str],
        limit: ReadLimit,
        monotonic: Callable[[], float],
        called: Callable[[Pod], None] = lambda _pod: None,
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._schedulers = frozenset(schedulers)
        self._called = called
        self._rate = FairRate(limit.burst, 1 / limit.per_s, monotonic)
        self._slots = asyncio.Semaphore(limit.at_once)

    def find_seen(self, ref: PodRef) -> Pod | None:
        """The pod as the informer has it; None for an unseen pod, and for a plain pod (``state/plain_pods.py``).

        Raises:
            Refusal: the pod with this uid has another name.
        """
        pod = self._cluster.pods.get(ref.uid)
        if pod is not None and (pod.name != ref.name or pod.metadata.namespace != ref.namespace):
            raise unknown(ref)
        return pod

    async def find(self, ref: PodRef, *, version: str = "") -> Pod | None:
        """The pod; None if the pod requests nothing from the allocator.

        Args:
            ref: the pod.
            version: the resourceVersion that the caller has seen; empty if that is unknown. If it is newer than the
                informer's, the pod is read.

        Raises:
            Refusal: there is no such pod, or it was deleted.
            ApiError: the API server refuses to read it.
            Unreachable: it can't be read, or too many others are being read.
        """
        pod = self.find_seen(ref)
        if pod is None:
            return None if ref.uid in self._cluster.plain else await self.read(ref)
        if not _is_newer(version, pod):
            return pod
        try:
            return await self.read(ref)
        except Refusal:
            raise
        except AscendError:
            return self.find_seen(ref) or pod  # the informer sees the change soon

    async def read(self, ref: PodRef) -> Pod:
        """The pod as the API server has it, or as the informer has seen it meanwhile.

        Args:
            ref: the pod; with an empty uid that of its name, as in a Binding made by hand.

        Raises:
            Refusal: there is no such pod, or it was deleted.
            ApiError: the API server refuses to read it.
            Unreachable: it can't be read, or too many others are being read.
        """
        if self._cluster.is_gone(ref.uid):
            raise Refusal(Reason.POD_GONE, f"pod {ref.key} was deleted")
        if not _is_possible(ref):
            raise unknown(ref)
        if not self._rate.take(ref.namespace):
            raise Unreachable(f"pod {ref.key}: the informer has not seen it, and too many other pods are being read")
        try:
            async with asyncio.timeout(READ_TIMEOUT_S), self._slots:
                pod = await self._client.get(PODS, ref.name, ref.namespace, timeout_s=READ_TIMEOUT_S)
        except TimeoutError:
            raise Unreachable(f"pod {ref.key} could not be read within {READ_TIMEOUT_S:.3g} s") from None
        except NotFound:
            raise unknown(ref) from None
        if ref.uid not in {"", pod.uid} or pod.key != ref.key:
            raise unknown(ref)
        seen = self._cluster.pods.get(pod.uid)
        return pod if seen is None or _is_newer(pod.metadata.resource_version, seen) else seen

    def is_served_plain(self, ref: PodRef) -> bool:
        """Whether a plain pod of a served scheduler has this uid; only the API server knows whether its name is right.

        Its Binding names the uid, so it is made for that pod or for none.
        """
        plain = self._cluster.plain.get(ref.uid)
        return plain is not None and plain.served and _is_possible(ref)

    def require_served(self, pod: Pod) -> None:
        """Accept a pod of a scheduler that is served.

        Raises:
            Refusal: it names another one.
        """
        name = pod.spec.scheduler_name
        if name not in self._schedulers:
            served = ", ".join(sorted(self._schedulers))
            raise Refusal(
                Reason.SCHEDULER_NOT_SERVED,
                f"pod {pod.key} names the scheduler {name[:64]!r}, which is not in scheduler_names ({served})",
            )
        self._called(pod)


def unknown(ref: PodRef) -> Refusal:
    """The refusal for a pod of which only its caller knows; the same for a wrong uid as for a wrong name."""
    uid = f" with uid {ref.uid[:64]!r}" if ref.uid else ""
    return Refusal(Reason.POD_UNKNOWN, f"the API server has no pod {ref.key[:320]}{uid}")


def _is_possible(ref: PodRef) -> bool:
    return _NAME.fullmatch(ref.namespace) is not None and _NAME.fullmatch(ref.name) is not None


def _is_newer(version: str, pod: Pod) -> bool:
    """Whether a resourceVersion is newer than a pod's; the API server's are decimal numbers that grow."""
    known = pod.metadata.resource_version
    return version != known and version.isdecimal() and known.isdecimal() and _order(version) > _order(known)


def _order(version: str) -> tuple[int, str]:
    return len(version), version
