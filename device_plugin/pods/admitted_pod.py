"""Finds out whom the kubelet is asking for: its calls name no pod (design, decision 2; ``rules/admission.py``)."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

import structlog

from ascend.daemon.observable import first_change
from ascend.errors import ApiError, Refusal, Unreachable
from ascend.kube.objects import Pod
from device_plugin.ledger.admission import Candidate, candidates, newest, oldest_decision
from device_plugin.ledger.handovers import HandOvers
from device_plugin.ledger.node_pods import NodePod, NodePods, read_pod

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

AT_ONCE_S = 1.0
"""The kubelet takes up a pod within milliseconds. One that looks as if it had waited for longer may have been turned
away by it without our being asked, and the API server does not know yet."""

PodLister: TypeAlias = Callable[[], Awaitable[Sequence[Pod]]]
"""Lists pods, or raises AscendError."""


class Found(NamedTuple):
    """Whom the kubelet is asking for.

    Attributes:
        candidate: a container of a pod.
        is_guess: the kubelet could not be asked; the documented rule alone says so.
    """

    candidate: Candidate
    is_guess: bool = False


class AdmittedPodFinder:
    """Knows the container that the kubelet is admitting.

    Args:
        pods: the node's pods.
        handovers: the ledger.
        kubelet_pods: lists the pods the kubelet knows; asked only where it is not plain whom it admits.
        api_pods: lists the node's pods at the API server; asked once for a call that no pod fits.
    """

    def __init__(self, pods: NodePods, handovers: HandOvers, *, kubelet_pods: PodLister, api_pods: PodLister) -> None:
        self._pods = pods
        self._handovers = handovers
        self._kubelet_pods = kubelet_pods
        self._api_pods = api_pods

    async def find(self, count: int, list_after_s: float) -> Found:
        """The container the kubelet is admitting; waits for the watch to show one.

        Args:
            count: how many chips it asks for.
            list_after_s: after so long without one, list the node's pods once and then give up.

        Raises:
            Refusal: there is none.
        """
        try:
            async with asyncio.timeout(list_after_s):
                waiting = await self._waiting(count)
        except TimeoutError:
            waiting = await self._waiting_by_list(count)
        if len(waiting) == 1 and self._is_plain(waiting[0], count):
            return Found(waiting[0])
        found = await self._by_kubelet(waiting, count) if waiting else None
        if found is None:
            raise Refusal("NoSuchPod", f"no pod bound to this node waits for {count} chips")
        return found

    def still(self, earlier: Candidate) -> Candidate | None:
        """The same container, if it still waits."""
        pod = self._pods.get(earlier.pod.uid)
        if pod is None and not self._pods.has_moved_on(earlier.pod.uid):
            pod = earlier.pod  # found by a list, our watch has yet to show it
        waiting = self._candidates([pod] if pod is not None else [], earlier.ask.count)
        return next((each for each in waiting if each.ask == earlier.ask), None)

    def _is_plain(self, only: Candidate, count: int) -> bool:
        """Whether the only candidate needs no second opinion; a pod that was handed chips by a guess may be waiting."""
        uid = only.pod.uid
        return (
            not only.begun
            and self._is_new(only)
            and not self._handovers.guessed
            and uid not in self._handovers.uncertain
            and not self._pods.was_torn_away(count)
            and self._pods.age_s(uid) < AT_ONCE_S
        )

    def _is_new(self, candidate: Candidate) -> bool:
        """Not refused before: a refused pod looks as if it waited until its rejection is on the watch."""
        return candidate.pod.uid not in self._handovers.turned_away

    def _candidates(self, pods: Iterable[NodePod], count: int) -> list[Candidate]:
        return candidates(pods, count, self._handovers.granted, self._handovers.uncertain)

    async def _waiting(self, count: int) -> list[Candidate]:
        sources = (self._pods.changes, self._handovers.changes)
        while True:
            versions = [source.version for source in sources]
            if waiting := self._candidates(self._pods, count):
                return waiting
            await first_change(sources, versions)

    async def _waiting_by_list(self, count: int) -> list[Candidate]:
        try:
            return self._candidates(self._as_waiting(await self._api_pods()), count)
        except (ApiError, Unreachable) as error:
            raise Refusal(
                "ApiServerAway", f"no pod waits for {count} chips, and the API server can't be asked: {error.message}"
            ) from error

    async def _by_kubelet(self, waiting: Sequence[Candidate], count: int) -> Found | None:
        """Whom the kubelet admits by its own list; None where that is a pod which is gone."""
        try:
            listed = await self._kubelet_pods()
        except Unreachable as error:
            log.warning("can't ask the kubelet which pod it admits", error=error.message, waiting=len(waiting))
            listed = []
        fits = self._candidates(self._as_waiting(listed), count) + self._torn_away(listed, count)
        if not fits:
            left = [each for each in waiting if not self._pods.has_moved_on(each.pod.uid)]
            fresh = [each for each in left if self._is_new(each)] or left
            return Found(oldest_decision(fresh), is_guess=True) if fresh else None
        found = newest([each for each in fits if self._is_new(each)] or fits)
        if self._pods.has_moved_on(found.pod.uid):
            return None
        self._pods.settle(found.pod.order)
        return Found(found)

    def _torn_away(self, listed: Sequence[Pod], count: int) -> list[Candidate]:
        """Those listed that were deleted on their way in; which of their containers are through, nobody remembers."""
        pods = [pod for each in listed if (pod := self._pods.torn_away(each.uid)) is not None]
        return candidates(pods, count, {}, uncertain={pod.uid for pod in pods})

    def _as_waiting(self, listed: Sequence[Pod]) -> list[NodePod]:
        """Pods from a list, with the order we know them by; those we don't know yet came last.

        A list may be older than our watch. A pod we have seen end must not come back by it: its hand-over is forgotten,
        so it would look as if it waited, and its chips would be given to the pod that really does.
        """
        waiting = []
        for pod in listed:
            if not self._pods.has_moved_on(pod.uid):
                known = self._pods.get(pod.uid)
                waiting.append(read_pod(pod, known.order if known is not None else self._pods.next_order))
        return waiting
