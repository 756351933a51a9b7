"""Makes the plugin's ledger agree with the kubelet's, completes claims, and tells of what does not fit.

Runs once before the plugin registers, and again whenever a pod and the ledger don't explain each other: a pod with
containers (or a claim) that we know of no hand-over to, a hand-over to a pod that the watch does not show, a hand-over
that rests on a guess, or a claim that somebody has changed. While all is explained the kubelet is not asked.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection
from pathlib import Path

import structlog

from ascend.chips import chip_set, join_names, join_names_sorted
from ascend.errors import Unreachable
from device_plugin.kubelet.pod_resources import KubeletLedger, read_ledger
from device_plugin.ledger.adoption import adopt, believe, is_its_own, untangle, without_chips
from device_plugin.ledger.handovers import HandOver, HandOvers
from device_plugin.ledger.node_pods import NodePod, NodePods
from device_plugin.metrics import Metrics

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

RETRY_S = 1.0
"""Between two readings of the kubelet's ledger, at least: it answers a few per second only."""
RETRY_LIMIT_S = 30.0
"""… where one after the other explains nothing."""
FIRST_TRIES = 3

MISMATCH = "NPUAllocationMismatch"
WITHOUT = "NPURunsWithoutChips"

Announce = Callable[[NodePod, str, str], None]
"""Told of a pod: a reason in a word, and a sentence for people."""


class Reconciler:
    """Keeps hand-overs complete and drops those of pods that are gone.

    Args:
        socket: the kubelet's pod-resources socket.
        pods: the node's pods.
        handovers: the plugin's ledger.
        claim: writes a claim on the pod.
        metrics: counts.
        announce: told of what does not fit, once per pod and reason.
    """

    def __init__(
        self,
        socket: Path,
        *,
        pods: NodePods,
        handovers: HandOvers,
        claim: Callable[[HandOver], None],
        metrics: Metrics,
        announce: Announce = lambda _pod, _reason, _sentence: None,
    ) -> None:
        self._socket = socket
        self._pods = pods
        self._handovers = handovers
        self._claim = claim
        self._metrics = metrics
        self._announce = announce
        self._well_claimed: set[str] = set()
        self._without: set[str] = set()
        self._announced: set[tuple[str, str]] = set()

    async def restore(self) -> None:
        """Rebuild the ledger after a start; where the kubelet does not answer, believe the pods' claims."""
        for attempt in range(FIRST_TRIES):
            if attempt:
                await asyncio.sleep(RETRY_S)
            if not any(pod.live and pod.count for pod in self._pods) or await self._adopt():
                break
        else:
            for pod in self._unexplained():
                if pod.claimed:
                    log.warning("believing a claim, the kubelet's ledger is not to be had", pod=pod.key)
                    self._handovers.add(believe(pod))
        # A regular init container may have its chips without the ledger's telling.
        self._handovers.uncertain |= {
            pod.uid for pod in self._pods if pod.live and not pod.past_admission and len(pod.asks) > 1
        }

    async def run(self) -> None:
        """Follow the pods until cancelled."""
        loop = asyncio.get_running_loop()
        suspects: set[str] = set()
        tried: set[str] = set()
        wait_s, read_s = RETRY_S, -RETRY_S
        while True:
            version = self._pods.changes.version
            self._mend_claims()
            self._announce_mismatches()
            orphans = self._orphans()
            puzzle = orphans | {pod.uid for pod in self._unexplained()} | self._doubtful()
            if not puzzle:
                suspects, tried = set(), set()
                await self._pods.changes.newer_than(version)
                continue
            due_s = read_s + (wait_s if puzzle == tried else RETRY_S)
            if loop.time() < due_s:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(due_s):
                        await self._pods.changes.newer_than(version)
                continue
            # An orphan may be a hand-over made a moment ago, to a pod our watch will show: it gets a second look.
            await self._adopt(drop=orphans & suspects)
            wait_s = min(2 * wait_s, RETRY_LIMIT_S) if puzzle == tried else RETRY_S
            suspects, tried, read_s = orphans, puzzle, loop.time()

    async def forget_lost(self) -> None:
        """Drop hand-overs that a new kubelet does not know: the old one died before it wrote them down.

        It admits such a pod again, and the pod must then be found waiting. How far the old one had come with a pod of
        several containers is not certain from its ledger.
        """
        doubtful = [pod for pod in self._pods if pod.uid in self._handovers and pod.live and not pod.past_admission]
        ledger = await self._read() if doubtful else None
        if ledger is None:
            return
        for pod in doubtful:
            held = ledger.pods.get(pod.key, {})
            if pod.key not in ledger.ambiguous and is_its_own(pod, held, admitted=False):
                self._handovers.add(adopt(pod, held, admitted=False))
            else:
                log.info("the kubelet knows nothing of a hand-over", pod=pod.key, pod_uid=pod.uid)
                self._handovers.drop(pod.uid)
            if len(pod.asks) > 1:
                self._handovers.uncertain.add(pod.uid)

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

    def _announce_mismatches(self) -> None:
        """Tell of pods of which the kubelet believes something else, and forget what was told of pods that are gone."""
        self._announced = {(uid, reason) for uid, reason in self._announced if self._pods.get(uid) is not None}
        self._without = {uid for uid in self._without if (pod := self._pods.get(uid)) is not None and pod.live}
        self._metrics.without_chips.set(len(self._without))
        for handover in self._handovers:
            pod = self._pods.get(handover.uid)
            if pod is not None and not handover.matches_kubelet:
                self._tell(
                    pod,
                    MISMATCH,
                    f"it was given {join_names(handover.chips)}, as placed, but the kubelet's own ledger has "
                    f"{join_names_sorted(handover.kubelet_ids)} for it",
                )

    def _tell(self, pod: NodePod, reason: str, sentence: str) -> None:
        if (pod.uid, reason) not in self._announced:
            self._announced.add((pod.uid, reason))
            log.warning("a pod is not as it should be", pod=pod.key, pod_uid=pod.uid, reason=reason, error=sentence)
            self._announce(pod, reason, sentence)

    def _unexplained(self) -> list[NodePod]:
        """Live pods that ask for chips, with containers or a claim, but without a hand-over."""
        return [
            pod
            for pod in self._pods
            if pod.live
            and pod.count
            and (pod.past_admission or pod.claimed)
            and pod.uid not in self._handovers
            and pod.uid not in self._without
        ]

    def _orphans(self) -> set[str]:
        """Hand-overs to pods that the watch has not shown, or no longer shows."""
        return {each.uid for each in self._handovers if self._pods.get(each.uid) is None}

    def _doubtful(self) -> set[str]:
        """Admitted pods that were handed chips by a guess."""
        return {pod.uid for pod in self._pods if pod.past_admission and pod.uid in self._handovers.guessed}

    async def _read(self) -> KubeletLedger | None:
        try:
            return await read_ledger(self._socket)
        except Unreachable as error:
            log.warning("can't read the kubelet's ledger", error=error.message)
            return None

    async def _adopt(self, drop: Collection[str] = ()) -> bool:
        """Enter what the kubelet has and we have not; drop those of ``drop`` that it has not. False if it is silent."""
        # What the watch shows admitted now was in the ledger before the ledger is read.
        admitted = {pod.uid for pod in self._pods if pod.past_admission}
        doubtful = self._doubtful()
        ledger = await self._read()
        if ledger is None:
            return False
        if doubtful:
            self._correct(ledger, admitted)
            self._handovers.guessed -= doubtful
        keys = {pod.key for pod in self._pods}
        for uid in drop:
            handover = self._handovers.get(uid)
            # The ledger has names only: the entry is another pod's if the watch shows another one of the name.
            if handover is not None and (handover.pod not in ledger.pods or handover.pod in keys):
                log.info("the kubelet knows nothing of a hand-over", pod=handover.pod, pod_uid=uid)
                self._handovers.drop(uid)
        for pod in self._pods:
            if pod.key in ledger.pods and pod.key not in ledger.ambiguous:
                self._adopt_pod(pod, ledger.pods[pod.key], admitted=pod.uid in admitted)
        if not self._unexplained() and not self._handovers.guessed:
            self._handovers.astray.clear()
        return True

    def _correct(self, ledger: KubeletLedger, admitted: Collection[str]) -> None:
        """Enter each pod's chips under its own name, where the guess at whom the kubelet admitted was wrong."""
        parts = [*self._handovers.astray, *(part for handover in self._handovers for part in handover.parts)]
        for pod in self._pods:
            handover, held = self._handovers.get(pod.uid), ledger.pods.get(pod.key)
            if handover is None or not held or pod.uid not in admitted or pod.key in ledger.ambiguous:
                continue
            if all(set(part.kubelet_ids) == set(held.get(part.container, ())) for part in handover.parts if part.keeps):
                continue
            if (truth := untangle(pod, held, parts)) is not None:
                self._enter_truth(pod, truth)
            else:
                log.warning("what a pod was given can't be told", pod=pod.key, pod_uid=pod.uid)

    def _take_back(self, pod: NodePod, held: dict[str, tuple[int, ...]]) -> bool:
        """Whether what this pod has was answered for another one; it is entered under this one's name then."""
        donors = [each for uid in self._handovers.guessed if (each := self._handovers.get(uid)) is not None]
        parts = [*self._handovers.astray, *(part for donor in donors for part in donor.parts)]
        truth = untangle(pod, held, parts)
        if truth is None:
            return False
        for donor in donors:
            if chip_set(donor.kubelet_ids) & chip_set(truth.kubelet_ids):
                log.warning("a hand-over was another pod's", pod=donor.pod, pod_uid=donor.uid, real=pod.key)
                self._handovers.drop(donor.uid)
        self._enter_truth(pod, truth)
        return True

    def _enter_truth(self, pod: NodePod, truth: HandOver) -> None:
        before = self._handovers.get(pod.uid)
        self._handovers.add(truth)
        if before is not None:
            self._handovers.stray(before.parts)
        self._claim(truth)
        self._metrics.mismatches.inc()
        written = join_names(pod.grant.chips) if pod.grant is not None else "nothing"
        self._tell(
            pod,
            MISMATCH,
            f"it was given {join_names(truth.chips)}, and {written} is written on it: the kubelet could not be asked "
            "which of several pods it admitted",
        )

    def _adopt_pod(self, pod: NodePod, held: dict[str, tuple[int, ...]], *, admitted: bool) -> None:
        if pod.uid in self._handovers or not pod.live or not pod.count:
            return
        if admitted and (lacking := without_chips(pod, held)):
            self._without.add(pod.uid)
            self._metrics.without_chips.set(len(self._without))
            self._tell(
                pod,
                WITHOUT,
                f"container {', '.join(lacking)} asks for chips and runs without: the kubelet did not know the resource"
                " when it admitted the pod; delete the pod",
            )
            if not held:
                return
        if not is_its_own(pod, held, admitted=admitted) or (admitted and self._take_back(pod, held)):
            return
        handover = adopt(pod, held, admitted=admitted)
        self._handovers.add(handover)
        log.info("adopted from the kubelet's ledger", pod=pod.key, pod_uid=pod.uid, chips=join_names(handover.chips))
        if not handover.matches_kubelet:
            self._metrics.mismatches.inc()
        if pod.problem is not None or pod.grant is None:
            log.warning("a pod holds devices without a usable annotation", pod=pod.key, problem=pod.problem)
        if not pod.claimed or pod.real != chip_set(handover.chips):
            self._claim(handover)
