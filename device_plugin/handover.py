"""Answers the kubelet: which devices to prefer for the pod it admits, and what to give its container.

The kubelet admits one pod at a time and waits for us, so every answer has a hard cap (``CAP_S``). Normally no round
trip to the API server lies on the way: our watch has shown the pod, and the claim is written behind the answer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from ascend.chips import ChipSet, chip_set, join_names, parse_chip_name
from ascend.errors import ApiError, AscendError, InvalidValue, Refusal, Unreachable
from ascend.kube.objects import Pod
from device_plugin.rules.admission import candidates, chips_for, oldest_decision, steer
from device_plugin.rules.pod import NodePod, read_pod
from device_plugin.rules.snapshot import Snapshot
from device_plugin.state.grants import HandOver, HandOvers
from device_plugin.state.observable import Observable
from device_plugin.state.pods import NodePods

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

CAP_S = 4.0
"""The longest the kubelet is made to wait for an Allocate."""
PREFER_CAP_S = 1.0
"""The longest it is made to wait for a preference, which may be empty."""
LIST_AFTER_S = 2.0
"""How long Allocate waits for the watch to show the pod before it asks the API server once."""

PodLister = Callable[[], Awaitable[Sequence[Pod]]]
"""Lists pods, or raises AscendError."""


class HandOverDesk:
    """Where an admission call is matched with a pod and answered.

    Args:
        snapshots: the node's chips.
        pods: the node's pods.
        handovers: the ledger.
        kubelet_pods: lists the pods the kubelet knows; asked only when several pods wait for as many chips.
        api_pods: lists the node's pods at the API server; asked once when no pod fits the call.
        on_handover: told of every hand-over, to write the claim.
    """

    def __init__(
        self,
        *,
        snapshots: Observable[Snapshot | None],
        pods: NodePods,
        handovers: HandOvers,
        kubelet_pods: PodLister,
        api_pods: PodLister,
        on_handover: Callable[[HandOver], None],
    ) -> None:
        self._snapshots = snapshots
        self._pods = pods
        self._handovers = handovers
        self._kubelet_pods = kubelet_pods
        self._api_pods = api_pods
        self._on_handover = on_handover
        self._one_at_a_time = asyncio.Lock()
        self._preferred: tuple[str, ChipSet] | None = None

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], count: int) -> list[str]:
        """The device ids for the pod under admission; empty on any doubt, never an error (design, decision 2)."""
        self._preferred = None
        try:
            async with asyncio.timeout(PREFER_CAP_S), self._one_at_a_time:
                pod = await self._under_admission(count)
                names = steer(self._chips_for(pod), available, must_include)
        except (AscendError, TimeoutError) as error:
            log.info("no preference", count=count, error=str(error) or "no pod in time")
            return []
        if names:
            self._preferred = (pod.uid, chip_set(map(parse_chip_name, names)))
        return names

    async def allocate(self, device_ids: Sequence[str]) -> HandOver:
        """Hand the chips written on the pod under admission over to it.

        Args:
            device_ids: what the kubelet chose.

        Raises:
            Refusal: it gets none; the sentence is for the pod's owner.
        """
        try:
            async with asyncio.timeout(CAP_S), self._one_at_a_time:
                return await self._allocate(device_ids)
        except TimeoutError:
            raise Refusal("TimedOut", f"no decision within {CAP_S:.0f} s") from None

    async def _allocate(self, device_ids: Sequence[str]) -> HandOver:
        try:
            kubelet_ids = tuple(parse_chip_name(device_id) for device_id in device_ids)
        except InvalidValue as error:
            raise Refusal("UnknownDevice", error.message) from error
        pod = self._recognise(kubelet_ids)
        if pod is None:
            try:
                pod = await self._under_admission(len(kubelet_ids), list_after_s=LIST_AFTER_S)
            except Refusal:
                # Only now: as long as a pod may be waiting, the ids may be its, left by one that has ended.
                if (earlier := self._repeated(kubelet_ids)) is not None:
                    return earlier
                raise
        try:
            handover = HandOver(pod.uid, pod.key, self._chips_for(pod), kubelet_ids)
        except Refusal:
            self._handovers.turned_away.add(pod.uid)
            raise
        finally:
            self._preferred = None
        self._handovers.add(handover)
        self._on_handover(handover)
        log.info(
            "handed over",
            pod=pod.key,
            pod_uid=pod.uid,
            chips=join_names(handover.chips),
            kubelet_ids=join_names(kubelet_ids),
        )
        return handover

    def _recognise(self, kubelet_ids: Sequence[int]) -> NodePod | None:
        """The pod whose set of chips we just told the kubelet to choose."""
        if self._preferred is None or self._preferred[1] != chip_set(kubelet_ids):
            return None
        pod = self._pods.get(self._preferred[0])
        return pod if pod is not None and pod.live and pod.uid not in self._handovers else None

    def _repeated(self, kubelet_ids: Sequence[int]) -> HandOver | None:
        """The answer already given: the kubelet asks again for a container whose answer it has lost."""
        asked = chip_set(kubelet_ids)
        return next((each for each in self._handovers if chip_set(each.kubelet_ids) == asked), None)

    async def _under_admission(self, count: int, list_after_s: float | None = None) -> NodePod:
        """The pod the kubelet is admitting; waits for the watch to show one.

        Args:
            count: how many chips its container asks for.
            list_after_s: after so long without one, list the node's pods once and then give up; None waits on.

        Raises:
            Refusal: there is none.
        """
        try:
            async with asyncio.timeout(list_after_s):
                waiting = await self._waiting(count)
        except TimeoutError:
            waiting = await self._waiting_by_list(count)
        if len(waiting) == 1 and self._is_new(waiting[0]) and count not in self._pods.torn_away:
            return waiting[0]
        if waiting:
            waiting = await self._known_to_kubelet(waiting, count)
        if not waiting:
            raise Refusal("NoSuchPod", f"no pod bound to this node waits for {count} chips")
        return oldest_decision([pod for pod in waiting if self._is_new(pod)] or waiting)

    def _is_new(self, pod: NodePod) -> bool:
        """Not refused before: a refused pod looks as if it waited until its rejection is on the watch."""
        return pod.uid not in self._handovers.turned_away

    async def _waiting(self, count: int) -> list[NodePod]:
        while True:
            version = self._pods.changes.version
            if waiting := candidates(self._pods, count, self._granted()):
                return waiting
            await self._pods.changes.newer_than(version)

    async def _waiting_by_list(self, count: int) -> list[NodePod]:
        try:
            return candidates(self._as_waiting(await self._api_pods()), count, self._granted())
        except (ApiError, Unreachable) as error:
            raise Refusal(
                "NoSuchPod", f"no pod waits for {count} chips, and the API server can't be asked: {error.message}"
            ) from error

    async def _known_to_kubelet(self, waiting: Sequence[NodePod], count: int) -> list[NodePod]:
        """Those the kubelet lists: none means that it admits a pod that is gone. Where it can't be asked, all."""
        try:
            listed = await self._kubelet_pods()
        except Unreachable as error:
            log.warning("can't ask the kubelet which pod it admits", error=error.message, waiting=len(waiting))
            return [pod for pod in waiting if not self._pods.has_moved_on(pod.uid)]
        return candidates(self._as_waiting(listed), count, self._granted())

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

    def _granted(self) -> set[str]:
        return {each.uid for each in self._handovers}

    def _chips_for(self, pod: NodePod) -> tuple[int, ...]:
        snapshot = self._snapshots.value
        if snapshot is None:
            raise Refusal("NotReady", "the driver has not been read yet")
        others = {each.pod: each.held for each in self._handovers if each.uid != pod.uid}
        return chips_for(pod, snapshot, others, self._pods)
