"""Finds the container under admission; the kubelet's calls name no pod.

See docs/architecture.md#decisions; ledger/admission.py.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

import structlog

from ascend.chips import count_chips
from ascend.daemon.observable import wait_for_change
from ascend.errors import ApiError, Refusal, Unreachable
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from device_plugin.ledger.admission import Candidate, candidates, newest, oldest_decision
from device_plugin.ledger.handovers import HandOvers
from device_plugin.ledger.node_pods import NodePod, NodePods, is_static, read_pod

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

AT_ONCE_S = 1.0
"""The kubelet admits a pod within milliseconds. One that looks pending for longer may have been rejected without a call
to us, before the API server knows."""

STATIC_AFTER_S = 0.05
"""After this long without a candidate the call may be about a static pod. The watch usually shows a pod earlier."""

PodLister: TypeAlias = Callable[[], Awaitable[Sequence[Pod]]]
"""Lists pods, or raises AscendError."""


class Found(NamedTuple):
    """The container under admission.

    Attributes:
        candidate: a container of a pod.
        is_guess: whether only predicate-time decided, because the kubelet could not be asked.
    """

    candidate: Candidate
    is_guess: bool = False


class AdmittedPodFinder:
    """Finds the container that the kubelet is admitting.

    Args:
        pods: the node's pods.
        handovers: the plugin's ledger.
        kubelet_pods: lists the kubelet's pods; called only if our own data does not decide.
        api_pods: lists the node's pods at the API server; called once for a call that fits no pod.
    """

    def __init__(self, pods: NodePods, handovers: HandOvers, *, kubelet_pods: PodLister, api_pods: PodLister) -> None:
        self._pods = pods
        self._handovers = handovers
        self._kubelet_pods = kubelet_pods
        self._api_pods = api_pods

    async def find(self, count: int, list_after_s: float) -> Found:
        """Find the container under admission; wait for the watch to show one.

        Args:
            count: how many chips the kubelet requests.
            list_after_s: after this long without a candidate, list the node's pods once.

        Raises:
            Refusal: there is no such container.
        """
        waiting = self._candidates(self._pods, count)
        if not waiting:
            try:
                async with asyncio.timeout(list_after_s):
                    waiting = await self._waiting_or_static(count)
            except TimeoutError:
                waiting = await self._waiting_by_list(count)
        if len(waiting) == 1 and self._is_certain(waiting[0], count):
            return Found(waiting[0])
        found = await self._by_kubelet(waiting, count) if waiting else None
        if found is None:
            raise Refusal(Reason.NO_SUCH_POD, f"no pod bound to this node waits for {count_chips(count)}")
        return found

    def still(self, earlier: Candidate) -> Candidate | None:
        """Return the same container, if it still waits."""
        pod = self._pods.get(earlier.pod.uid)
        if pod is None and not self._pods.has_moved_on(earlier.pod.uid):
            pod = earlier.pod  # found by a list, not shown by the watch yet
        waiting = self._candidates([pod] if pod is not None else [], earlier.ask.count)
        return next((each for each in waiting if each.ask == earlier.ask), None)

    def _is_certain(self, only: Candidate, count: int) -> bool:
        """Return whether the only candidate needs no confirmation; after a guess, a pod with chips may be waiting."""
        uid = only.pod.uid
        return (
            not only.begun
            and self._is_new(only)
            and not self._handovers.guessed
            and uid not in self._handovers.uncertain
            and not self._pods.was_deleted_early(count)
            and self._pods.age_s(uid) < AT_ONCE_S
        )

    def _is_new(self, candidate: Candidate) -> bool:
        """Return whether it was not refused before: a refused pod looks pending until the watch shows its rejection."""
        return candidate.pod.uid not in self._handovers.refused

    def _candidates(self, pods: Iterable[NodePod], count: int) -> list[Candidate]:
        return candidates(pods, count, self._handovers.granted, self._handovers.uncertain)

    async def _waiting_or_static(self, count: int) -> list[Candidate]:
        try:
            async with asyncio.timeout(STATIC_AFTER_S):
                return await self._waiting(count)
        except TimeoutError:
            # Before a pod that comes meanwhile is taken for the one under admission.
            with contextlib.suppress(Unreachable):
                self._refuse_static(await self._kubelet_pods(), count)
            return await self._waiting(count)

    def _refuse_static(self, listed: Sequence[Pod], count: int) -> None:
        """Refuse a static pod: no allocator knows of it, so no chips are written on it that others don't get.

        Raises:
            Refusal: a static pod is under admission.
        """
        # Once it is refused, the kubelet lists it as failed.
        static = [each for each in listed if is_static(each)]
        for found in self._candidates(self._as_waiting(static), count):
            raise Refusal(
                Reason.STATIC_POD,
                f"pod {found.pod.key} is a static pod, which the allocator can't place: create it through the API "
                "server",
            )

    async def _waiting(self, count: int) -> list[Candidate]:
        sources = (self._pods.changes, self._handovers.changes)
        while not (waiting := self._candidates(self._pods, count)):
            await wait_for_change(sources, [source.version for source in sources])
        return waiting

    async def _waiting_by_list(self, count: int) -> list[Candidate]:
        try:
            return self._candidates(self._as_waiting(await self._api_pods()), count)
        except (ApiError, Unreachable) as error:
            raise Refusal(
                Reason.API_SERVER_AWAY,
                f"no pod waits for {count_chips(count)}, and the API server can't be asked: {error.message}",
            ) from error

    async def _by_kubelet(self, waiting: Sequence[Candidate], count: int) -> Found | None:
        """Find it by the kubelet's own list; None if that names a pod which is gone."""
        try:
            listed = await self._kubelet_pods()
        except Unreachable as error:
            log.warning("can't ask the kubelet which pod it admits", error=error.message, waiting=len(waiting))
            listed = []
        self._refuse_static(listed, count)
        placed = [each for each in listed if not is_static(each)]
        fits = self._candidates(self._as_waiting(placed), count) + self._deleted_early(placed, count)
        if not fits:
            left = [each for each in waiting if not self._pods.has_moved_on(each.pod.uid)]
            fresh = [each for each in left if self._is_new(each)] or left
            return Found(oldest_decision(fresh), is_guess=True) if fresh else None
        found = newest([each for each in fits if self._is_new(each)] or fits)
        if self._pods.has_moved_on(found.pod.uid):
            return None
        self._pods.forget_deleted_early(found.pod.order)
        return Found(found)

    def _deleted_early(self, listed: Sequence[Pod], count: int) -> list[Candidate]:
        """Return the listed pods that were deleted before they were seen admitted; their progress is unknown."""
        pods = [pod for each in listed if (pod := self._pods.deleted_early(each.uid)) is not None]
        return candidates(pods, count, {}, uncertain={pod.uid for pod in pods})

    def _as_waiting(self, listed: Sequence[Pod]) -> list[NodePod]:
        """Return the pods of a list in our order; those not known yet come last.

        A list may be older than the watch. A pod whose end the watch has shown must not come back by it: its hand-over
        is dropped, so it would look pending, and the waiting pod's call would get its chips.
        """
        waiting = []
        for pod in listed:
            if not self._pods.has_moved_on(pod.uid):
                known = self._pods.get(pod.uid)
                waiting.append(read_pod(pod, known.order if known is not None else self._pods.next_order))
        return waiting
