"""Finds the container under admission; the kubelet's calls name no pod.

See docs/architecture.md#decisions; ledger/admission.py.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import structlog

from ascend.daemon.observable import wait_for_change
from ascend.errors import ApiError, Refusal, TimedOut, Unreachable
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from device_plugin.ledger.admission import AdmissionCandidate, Listing, candidates, newest, oldest_decision
from device_plugin.ledger.allocations import Allocations
from device_plugin.ledger.node_pods import NodePod, NodePods, is_static

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

ASK_AGAIN_S = 0.1
"""How long to wait for a change before the kubelet is asked again, if its list has no pod that the call fits."""

PodLister: TypeAlias = Callable[[], Awaitable[Sequence[Pod]]]
"""Lists pods, or raises AscendError."""


class Found(NamedTuple):
    """The container under admission.

    Attributes:
        candidate: a container of a pod.
        is_guess: whether only predicate-time decided, because the kubelet could not be asked.
    """

    candidate: AdmissionCandidate
    is_guess: bool = False


class AdmittedPodFinder:
    """Finds the container that the kubelet is admitting.

    Args:
        pods: the node's pods.
        allocations: the plugin's ledger.
        kubelet_pods: lists the kubelet's pods.
        api_pods: lists the node's pods at the API server; called once for a call that fits no pod, if the kubelet can't
            be asked.
    """

    def __init__(
        self, pods: NodePods, allocations: Allocations, *, kubelet_pods: PodLister, api_pods: PodLister
    ) -> None:
        self._pods = pods
        self._allocations = allocations
        self._kubelet_pods = kubelet_pods
        self._api_pods = api_pods
        self._listings: dict[str, Listing] = {}
        self._readings = 0
        self._is_silent = False  # the kubelet has not answered for as long as it was asked

    def begin(self) -> None:
        """Note a new list of pods by the kubelet, which may have just started."""
        self._listings.clear()

    async def find(self, count: int, limit_s: float) -> Found:
        """Find the container under admission.

        Args:
            count: how many chips the kubelet requests.
            limit_s: how long to wait for a pod that the call fits, and to ask a kubelet again that does not answer in
                time; without the kubelet's list, the node's pods are then listed once.

        Raises:
            Refusal: there is no such container.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + limit_s
        try:
            candidate = await self._by_kubelet(count, until_s)
        except Unreachable as error:
            log.warning("can't ask the kubelet which pod it admits", error=error.message)
            return await self._by_guess(count, until_s - loop.time())
        if candidate is None or self._pods.has_moved_on(candidate.pod.uid):
            raise self._no_such_pod(count)
        return Found(candidate)

    def still(self, earlier: AdmissionCandidate) -> AdmissionCandidate | None:
        """Return the same container, if it still waits."""
        pod = self._pods.get(earlier.pod.uid)
        if pod is None and not self._pods.has_moved_on(earlier.pod.uid):
            pod = earlier.pod  # listed by the kubelet, not shown by the watch yet
        waiting = self._candidates([pod] if pod is not None else [], earlier.ask.count, skips=True)
        return next((candidate for candidate in waiting if candidate.ask == earlier.ask), None)

    async def _by_kubelet(self, count: int, until_s: float) -> AdmissionCandidate | None:
        """Find it by the kubelet's list; None if that has no such container until then.

        Raises:
            Refusal: it is a container of a static pod.
            Unreachable: the kubelet can't be asked.
        """
        sources = (self._pods.changes, self._allocations.changes)
        loop = asyncio.get_running_loop()
        while True:
            versions = [source.version for source in sources]
            try:
                listed = await self._kubelet_pods()
            except TimedOut as error:
                if self._is_silent or loop.time() >= until_s:
                    self._is_silent = True
                    raise
                log.info("asking the kubelet again which pod it admits", error=error.message)
                continue
            self._is_silent = False
            self._readings += 1
            self._listings = {pod.uid: self._listing(pod) for pod in listed}
            if fits := self._candidates(self._in_admission(listed), count, skips=True):
                _refuse_static(fits, {listed_pod.uid for listed_pod in listed if is_static(listed_pod)})
                return newest(fits, self._listings)
            if loop.time() >= until_s:
                return None
            # An allocation can belong to another pod, which the kubelet's ledger tells soon.
            await wait_for_change(sources, versions, within_s=min(ASK_AGAIN_S, until_s - loop.time()))

    async def _by_guess(self, count: int, limit_s: float) -> Found:
        """Find the pod without the kubelet: by the watch, or else by a list of the API server."""
        try:
            async with asyncio.timeout(limit_s):
                waiting = await self._waiting(count)
        except TimeoutError:
            waiting = await self._waiting_by_list(count)
        # A refused pod looks pending until the watch shows its rejection.
        fresh = [candidate for candidate in waiting if candidate.pod.uid not in self._allocations.refused] or waiting
        if not fresh:
            raise self._no_such_pod(count)
        return Found(oldest_decision(fresh), is_guess=True)

    def _candidates(self, pods: Iterable[NodePod], count: int, *, skips: bool = False) -> list[AdmissionCandidate]:
        return candidates(pods, count, self._allocations.granted, skips=skips)

    async def _waiting(self, count: int) -> list[AdmissionCandidate]:
        sources = (self._pods.changes, self._allocations.changes)
        while not (waiting := self._candidates(self._pods, count)):
            await wait_for_change(sources, [source.version for source in sources])
        return waiting

    async def _waiting_by_list(self, count: int) -> list[AdmissionCandidate]:
        try:
            listed = await self._api_pods()
        except (ApiError, Unreachable) as error:
            raise Refusal(
                Reason.API_SERVER_AWAY,
                f"no pod waits for {self._pods.device_type.count(count)}, and neither the kubelet nor the API server "
                f"can be asked: {error.message}",
            ) from error
        return self._candidates((pod for shown in listed if (pod := self._read(shown)) is not None), count)

    def _no_such_pod(self, count: int) -> Refusal:
        wanted = self._pods.device_type.count(count)
        return Refusal(Reason.NO_SUCH_POD, f"no pod bound to this node waits for {wanted}")

    def _listing(self, pod: Pod) -> Listing:
        version = pod.metadata.resource_version
        return self._listings.get(pod.uid) or Listing(self._readings, int(version) if version.isdecimal() else 0)

    def _in_admission(self, listed: Iterable[Pod]) -> Iterator[NodePod]:
        """Yield the listed pods that may be under admission, also those deleted meanwhile."""
        for shown in listed:
            if (pod := self._read(shown) or self._pods.deleted_early(shown.uid)) is not None:
                yield pod

    def _read(self, listed: Pod) -> NodePod | None:
        """Return a pod of a list in our order; one not known yet comes last.

        A list may be older than the watch. A pod whose end the watch has shown must not come back by it: its allocation
        is dropped, so it would look pending, and the waiting pod's call would get its chips.
        """
        if self._pods.has_moved_on(listed.uid):
            return None
        known = self._pods.get(listed.uid)
        return self._pods.read(listed, known.order if known is not None else self._pods.next_order)


def _refuse_static(fits: Iterable[AdmissionCandidate], static: Collection[str]) -> None:
    """Refuse a static pod: no allocator knows static pods, so nobody reserves chips for them."""
    # The kubelet lists it as failed as soon as it is rejected, so one that fits is under admission.
    for found in fits:
        if found.pod.uid in static:
            raise Refusal(
                Reason.STATIC_POD,
                f"pod {found.pod.key} is a static pod, which the allocator can't place: create it through the API "
                "server",
            )
