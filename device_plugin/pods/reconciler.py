"""Keeps the plugin's ledger and the kubelet's in agreement, completes claims, and announces what does not match.

Runs once before the plugin registers, and again whenever a pod and the ledger contradict each other: a pod with
containers (or a claim) but no hand-over, a hand-over to a pod that the watch does not show, a hand-over that rests on a
guess, or a claim that somebody changed. As long as nothing contradicts, the kubelet is not asked.
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
"""The shortest time between two readings of the kubelet's ledger; the kubelet limits the rate to a few per second."""
RETRY_LIMIT_S = 30.0
"""The longest time, if one reading after another resolves nothing."""
FIRST_TRIES = 3

MISMATCH = "NPUAllocationMismatch"
WITHOUT = "NPURunsWithoutChips"

Announce = Callable[[NodePod, str, str], None]
"""Receives a pod, a reason (CamelCase), and a sentence."""


class Reconciler:
    """Keeps hand-overs complete and drops those of pods that are gone.

    Args:
        socket: the kubelet's pod-resources socket.
        pods: the node's pods.
        handovers: the plugin's ledger.
        claim: writes a claim on the pod.
        metrics: counts mismatches.
        announce: receives what does not match, once per pod and reason.
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
        self._announced: set[tuple[str, str]] = set()

    async def restore(self) -> None:
        """Rebuild the ledger after a start; if the kubelet does not answer, believe the pods' claims."""
        for attempt in range(FIRST_TRIES):
            if attempt:
                await asyncio.sleep(RETRY_S)
            if not any(pod.live and pod.count for pod in self._pods) or await self._adopt():
                break
        else:
            for pod in self._unexplained():
                if pod.claimed:
                    log.warning("believing a claim, the kubelet's ledger can't be read", pod=pod.key)
                    self._handovers.add(believe(pod))
        # A regular init container can have its chips although the kubelet's ledger does not show it.
        self._handovers.uncertain |= {
            pod.uid for pod in self._pods if pod.live and not pod.past_admission and len(pod.container_requests) > 1
        }

    async def catch_up(self) -> None:
        """Add what another instance of the plugin gave to pods since this one rebuilt its ledger."""
        if any(pod.live and pod.count and pod.uid not in self._handovers for pod in self._pods):
            await self._adopt()

    async def run(self) -> None:
        """Follow the pods until cancelled."""
        loop = asyncio.get_running_loop()
        suspects: set[str] = set()
        tried: set[str] = set()
        wait_s, read_s = RETRY_S, -RETRY_S
        while True:
            version = self._pods.changes.version
            self._repair_claims()
            self._announce_mismatches()
            orphans = self._orphans()
            unresolved = orphans | {pod.uid for pod in self._unexplained()} | self._doubtful()
            if not unresolved:
                suspects, tried = set(), set()
                await self._pods.changes.newer_than(version)
                continue
            due_s = read_s + (wait_s if unresolved == tried else RETRY_S)
            if loop.time() < due_s:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(due_s):
                        await self._pods.changes.newer_than(version)
                continue
            # An orphan may be a new hand-over to a pod that the watch is about to show: it is dropped the second time.
            await self._adopt(drop=orphans & suspects)
            wait_s = min(2 * wait_s, RETRY_LIMIT_S) if unresolved == tried else RETRY_S
            suspects, tried, read_s = orphans, unresolved, loop.time()

    async def forget_lost(self) -> None:
        """Drop hand-overs that a new kubelet does not know, because the old one died before it stored them.

        The new kubelet admits such a pod again, and the pod must be found waiting. How many containers of a pod the old
        kubelet had admitted is uncertain.
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
                log.info("the kubelet does not know a hand-over", pod=pod.key, pod_uid=pod.uid)
                self._handovers.drop(pod.uid)
            if len(pod.container_requests) > 1:
                self._handovers.uncertain.add(pod.uid)

    def _repair_claims(self) -> None:
        """Write claims again that somebody changed: readers of AscendReal would count the pod's chips as free."""
        well_claimed = set()
        for pod in self._pods:
            handover = self._handovers.get(pod.uid)
            if handover is None or not pod.live:
                continue
            if pod.claimed and pod.real == handover.chip_set:
                well_claimed.add(pod.uid)
            elif pod.uid in self._well_claimed:
                log.warning("repairing a claim that was changed", pod=pod.key, pod_uid=pod.uid)
                self._claim(handover)
        self._well_claimed = well_claimed

    def _announce_mismatches(self) -> None:
        """Announce pods whose chips differ from the kubelet's ledger; forget announcements of pods that are gone."""
        self._announced = {(uid, reason) for uid, reason in self._announced if self._pods.get(uid) is not None}
        self._count_without()
        for handover in self._handovers:
            pod = self._pods.get(handover.uid)
            if pod is not None and not handover.matches_kubelet:
                self._announce_once(
                    pod,
                    MISMATCH,
                    f"it was given {join_names(handover.chips)} as the allocator decided, but the kubelet's ledger has "
                    f"{join_names_sorted(handover.kubelet_ids)}",
                )

    def _announce_once(self, pod: NodePod, reason: str, sentence: str) -> None:
        if (pod.uid, reason) not in self._announced:
            self._announced.add((pod.uid, reason))
            log.warning("a pod's chips do not match", pod=pod.key, pod_uid=pod.uid, reason=reason, error=sentence)
            self._announce(pod, reason, sentence)

    def _count_without(self) -> None:
        known = [self._pods.get(uid) for uid, reason in self._announced if reason == WITHOUT]
        self._metrics.without_chips.set(sum(pod is not None and pod.live for pod in known))

    def _unexplained(self) -> list[NodePod]:
        """Return live pods that request chips and have containers or a claim, but no hand-over."""
        return [
            pod
            for pod in self._pods
            if pod.live
            and pod.count
            and (pod.past_admission or pod.claimed)
            and pod.uid not in self._handovers
            and (pod.uid, WITHOUT) not in self._announced
        ]

    def _orphans(self) -> set[str]:
        """Return hand-overs to pods that the watch has not shown, or no longer shows."""
        return {each.uid for each in self._handovers if self._pods.get(each.uid) is None}

    def _doubtful(self) -> set[str]:
        """Return admitted pods that were given chips by a guess."""
        return {pod.uid for pod in self._pods if pod.past_admission and pod.uid in self._handovers.guessed}

    async def _read(self) -> KubeletLedger | None:
        try:
            return await read_ledger(self._socket)
        except Unreachable as error:
            log.warning("can't read the kubelet's ledger", error=error.message)
            return None

    async def _adopt(self, drop: Collection[str] = ()) -> bool:
        """Add what only the kubelet has, drop those of ``drop`` that it does not have. False if it can't be read."""
        # What the watch shows as admitted now was in the kubelet's ledger before that is read.
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
            # The ledger has names only: if the watch shows another pod of the name, the entry belongs to that one.
            if handover is not None and (handover.pod not in ledger.pods or handover.pod in keys):
                log.info("the kubelet does not know a hand-over", pod=handover.pod, pod_uid=uid)
                self._handovers.drop(uid)
        for pod in self._pods:
            if pod.key in ledger.pods and pod.key not in ledger.ambiguous:
                self._adopt_pod(pod, ledger.pods[pod.key], admitted=pod.uid in admitted)
        return True

    def _correct(self, ledger: KubeletLedger, admitted: Collection[str]) -> None:
        """Correct the hand-overs that a wrong guess about the admitted pod has attributed to another pod."""
        parts = [*self._handovers.misattributed, *(part for handover in self._handovers for part in handover.parts)]
        for pod in self._pods:
            handover, held = self._handovers.get(pod.uid), ledger.pods.get(pod.key)
            if handover is None or not held or pod.uid not in admitted or pod.key in ledger.ambiguous:
                continue
            if all(set(part.kubelet_ids) == set(held.get(part.container, ())) for part in handover.parts if part.keeps):
                continue
            if (truth := untangle(pod, held, parts)) is not None:
                self._enter_truth(pod, truth)
            else:
                log.warning("the chips a pod was given are unknown", pod=pod.key, pod_uid=pod.uid)

    def _take_back(self, pod: NodePod, held: dict[str, tuple[int, ...]]) -> bool:
        """Return whether this pod's chips were attributed to other pods; if so, attribute them to this one."""
        donors = [
            each for each in self._handovers if each.uid in self._handovers.guessed or not self._is_admitted(each)
        ]
        parts = [*self._handovers.misattributed, *(part for donor in donors for part in donor.parts)]
        truth = untangle(pod, held, parts)
        if truth is None:
            return False
        for donor in donors:
            if chip_set(donor.kubelet_ids) & chip_set(truth.kubelet_ids):
                log.warning("a hand-over belongs to another pod", pod=donor.pod, pod_uid=donor.uid, real=pod.key)
                self._handovers.drop(donor.uid)
        self._enter_truth(pod, truth)
        return True

    def _is_admitted(self, handover: HandOver) -> bool:
        pod = self._pods.get(handover.uid)
        return pod is not None and pod.past_admission

    def _enter_truth(self, pod: NodePod, truth: HandOver) -> None:
        before = self._handovers.get(pod.uid)
        self._handovers.add(truth)
        if before is not None:
            self._handovers.keep_misattributed(before.parts)
        self._claim(truth)
        self._metrics.mismatches.inc()
        written = join_names(pod.grant.chips) if pod.grant is not None else "nothing"
        self._announce_once(
            pod,
            MISMATCH,
            f"it was given {join_names(truth.chips)}, but the allocator wrote {written} on it: the kubelet could not "
            "be asked which of several pods it admitted, or the watch showed this one too late",
        )

    def _adopt_pod(self, pod: NodePod, held: dict[str, tuple[int, ...]], *, admitted: bool) -> None:
        if pod.uid in self._handovers or not pod.live or not pod.count:
            return
        if admitted and (lacking := without_chips(pod, held)):
            one = len(lacking) == 1
            self._announce_once(
                pod,
                WITHOUT,
                f"container{'' if one else 's'} {', '.join(lacking)} request{'s' if one else ''} chips and "
                f"run{'s' if one else ''} without: the kubelet did not know the resource when it admitted the pod; "
                "delete the pod",
            )
            self._count_without()
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
