"""Makes the plugin's ledger agree with the kubelet's, and completes claims that a crash left unwritten.

Runs once before the plugin registers, and again whenever a pod and the ledger don't explain each other: a pod with
containers (or a claim) that we know of no hand-over to, a hand-over to a pod that the watch does not show, or a claim
that somebody has changed.
"""

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path

import structlog

from ascend.chips import chip_ids, chip_set, join_names
from ascend.errors import Unreachable
from device_plugin.kubelet.pod_resources import read_ledger
from device_plugin.rules.pod import NodePod
from device_plugin.state.grants import HandOver, HandOvers
from device_plugin.state.pods import NodePods

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

RETRY_S = 1.0
FIRST_TRIES = 3


class Reconciler:
    """Keeps hand-overs complete and drops those of pods that are gone.

    Args:
        socket: the kubelet's pod-resources socket.
        pods: the node's pods.
        handovers: the plugin's ledger.
        claim: writes a claim where the pod carries none.
    """

    def __init__(
        self, socket: Path, *, pods: NodePods, handovers: HandOvers, claim: Callable[[HandOver], None]
    ) -> None:
        self._socket = socket
        self._pods = pods
        self._handovers = handovers
        self._claim = claim
        self._well_claimed: set[str] = set()

    async def restore(self) -> None:
        """Rebuild the ledger after a start; where the kubelet does not answer, believe the pods' claims."""
        for _ in range(FIRST_TRIES):
            if not any(pod.live and pod.count for pod in self._pods) or await self._adopt():
                return
            await asyncio.sleep(RETRY_S)
        for pod in self._unexplained():
            if pod.claimed:
                log.warning("believing a claim, the kubelet's ledger is not to be had", pod=pod.key)
                chips = chip_ids(pod.held)
                self._handovers.add(HandOver(pod.uid, pod.key, chips, chips))

    async def run(self) -> None:
        """Follow the pods until cancelled."""
        suspects: set[str] = set()
        while True:
            version = self._pods.changes.version
            self._mend_claims()
            orphans = self._orphans()
            if self._unexplained() or orphans:
                # An orphan may be a hand-over made a moment ago, to a pod our watch will show: it gets a second look.
                await self._adopt(drop=orphans & suspects)
                suspects = orphans
                await asyncio.sleep(RETRY_S)
            else:
                suspects = set()
                await self._pods.changes.newer_than(version)

    async def forget_lost(self) -> None:
        """Drop hand-overs that a new kubelet does not know: the old one died before it wrote them down.

        It admits such a pod again, and the pod must then be found waiting.
        """
        doubtful = {pod.uid for pod in self._pods if pod.uid in self._handovers and pod.live and not pod.past_admission}
        if doubtful:
            await self._adopt(drop=doubtful)

    def _mend_claims(self) -> None:
        """Write again what somebody has changed: whoever reads AscendReal would take the pod's chips for free."""
        well_claimed = set()
        for pod in self._pods:
            handover = self._handovers.get(pod.uid)
            if handover is None or not pod.live:
                continue
            if pod.claimed and pod.real == handover.chip_set:
                well_claimed.add(pod.uid)
            elif pod.uid in self._well_claimed:
                log.warning("mending a claim that was changed", pod=pod.key, pod_uid=pod.uid)
                self._claim(handover)
        self._well_claimed = well_claimed

    def _unexplained(self) -> list[NodePod]:
        """Live pods that ask for chips, with containers or a claim, but without a hand-over."""
        return [
            pod
            for pod in self._pods
            if pod.live and pod.count and (pod.past_admission or pod.claimed) and pod.uid not in self._handovers
        ]

    def _orphans(self) -> set[str]:
        """Hand-overs to pods that the watch has not shown, or no longer shows."""
        return {each.uid for each in self._handovers if self._pods.get(each.uid) is None}

    async def _adopt(self, drop: Collection[str] = ()) -> bool:
        """Enter what the kubelet has and we have not; drop those of ``drop`` that it has not. False if it is silent."""
        try:
            ledger = await read_ledger(self._socket)
        except Unreachable as error:
            log.warning("can't read the kubelet's ledger", error=error.message)
            return False
        for uid in drop:
            handover = self._handovers.get(uid)
            if handover is not None and handover.pod not in ledger:
                log.info("the kubelet knows nothing of a hand-over", pod=handover.pod, pod_uid=uid)
                self._handovers.drop(uid)
        for pod in self._pods:
            kubelet_ids = ledger.get(pod.key)
            if kubelet_ids is None or pod.uid in self._handovers or not pod.live:
                continue
            chips = self._given(pod, kubelet_ids)
            handover = HandOver(pod.uid, pod.key, chips, kubelet_ids)
            self._handovers.add(handover)
            log.info("adopted from the kubelet's ledger", pod=pod.key, pod_uid=pod.uid, chips=join_names(chips))
            if not pod.claimed or pod.real != handover.chip_set:
                self._claim(handover)
        return True

    @staticmethod
    def _given(pod: NodePod, kubelet_ids: tuple[int, ...]) -> tuple[int, ...]:
        """What the pod was given: as the allocator wrote, where the kubelet says the same; else as claimed.

        Annotations can be changed by the pod's author, the kubelet's ledger can't.
        """
        if pod.grant is not None and pod.grant.chip_set == chip_set(kubelet_ids):
            return pod.grant.chips
        if pod.claimed and pod.real.bit_count() == len(kubelet_ids):
            return chip_ids(pod.real)
        if pod.problem is None and pod.grant is not None:
            return pod.grant.chips
        log.warning("a pod holds devices without a usable annotation", pod=pod.key, problem=pod.problem)
        return kubelet_ids
