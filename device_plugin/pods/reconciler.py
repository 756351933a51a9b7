"""Keeps the plugin's ledger and the kubelet's in agreement, completes claims, and announces what does not match.

Runs once before the plugin registers, and again once for every pod that is seen admitted: the calls for its containers
named no pod, and the kubelet's ledger tells which pod they were about. It also runs for a pod with containers (or a
claim) but no hand-over, for a hand-over to a pod that the watch does not show, and for a claim that somebody changed.
Otherwise the kubelet is not asked.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Protocol

import structlog

from ascend.chips import ChipSet, chip_ids, chip_set
from ascend.daemon.observable import wait_for_change
from ascend.errors import Unreachable
from ascend.kube.objects import Pod
from device_plugin.kubelet.pod_resources import KubeletLedger, read_ledger
from device_plugin.ledger.adoption import adopt, believable, believe, explains, is_its_own, without_chips
from device_plugin.ledger.handovers import HandOver, HandOvers
from device_plugin.ledger.node_pods import NodePod, NodePods
from device_plugin.metrics import Metrics
from device_plugin.pods.annotation_repairs import AnnotationRepairs, Restore

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


class Keeps(Protocol):
    """Keeps the ledger of a type of devices as the kubelet has it."""

    async def restore(self) -> None:
        """Rebuild the ledger after a start."""

    async def catch_up(self) -> None:
        """Add what another instance of the plugin gave to pods since this one rebuilt its ledger."""

    async def forget_lost(self) -> None:
        """Drop hand-overs that a new kubelet does not know."""

    async def run(self) -> None:
        """Follow the pods until cancelled."""


class Reconciler:
    """Keeps hand-overs complete and drops those of pods that are gone.

    Args:
        socket: the kubelet's pod-resources socket.
        kubelet_pods: returns the kubelet's own list of pods.
        pods: the node's pods.
        handovers: the plugin's ledger.
        claim: writes a claim on the pod.
        restore: writes it again, after somebody has changed it.
        metrics: counts mismatches.
        announce: receives what does not match, once per pod and reason.
    """

    def __init__(
        self,
        socket: Path,
        *,
        kubelet_pods: Callable[[], Awaitable[list[Pod]]],
        pods: NodePods,
        handovers: HandOvers,
        claim: Callable[[HandOver], None],
        restore: Restore,
        metrics: Metrics,
        announce: Announce = lambda _pod, _reason, _sentence: None,
    ) -> None:
        self._socket = socket
        self._kubelet_pods = kubelet_pods
        self._pods = pods
        self._device_type = pods.device_type
        self._handovers = handovers
        self._claim = claim
        self._metrics = metrics
        self._announce = announce
        self._repairs = AnnotationRepairs(pods, handovers, restore, announce, metrics)
        self._announced: set[tuple[str, str]] = set()
        self._believed: set[str] = set()
        """Uids of pods that have a hand-over by their claim only."""
        self._disputed: set[str] = set()
        """Uids of pods whose claim is contradicted by that of another pod."""

    async def restore(self) -> None:
        """Rebuild the ledger after a start; if the kubelet does not answer, believe the pods' claims."""
        for attempt in range(FIRST_TRIES):
            if attempt:
                await asyncio.sleep(RETRY_S)
            if not any(pod.live and pod.count for pod in self._pods) or await self._settle():
                break
        else:
            for pod in self._unexplained():
                if believable(pod):
                    log.warning("believing a claim, the kubelet's ledger can't be read", pod=pod.key)
                    self._handovers.add(believe(pod))
                    self._handovers.unconfirmed.add(pod.uid)

    async def catch_up(self) -> None:
        """Add what another instance of the plugin gave to pods since this one rebuilt its ledger."""
        if any(pod.live and pod.count and pod.uid not in self._handovers for pod in self._pods):
            await self._settle()

    async def run(self) -> None:
        """Follow the pods until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_annotations())
            tasks.create_task(self._follow_ledger())

    async def _follow_annotations(self) -> None:
        sources = (self._pods.changes, self._handovers.changes)
        while True:
            versions = [source.version for source in sources]
            due_in_s = self._repairs.look()
            self._announce_mismatches()
            await wait_for_change(sources, versions, within_s=due_in_s)

    async def _follow_ledger(self) -> None:
        loop = asyncio.get_running_loop()
        sources = (self._pods.changes, self._handovers.changes)
        suspects: dict[str, HandOver] = {}
        tried: set[str] = set()
        wait_s, read_s = RETRY_S, -RETRY_S
        while True:
            versions = [source.version for source in sources]
            orphans = self._orphans()
            unresolved = orphans.keys() | {pod.uid for pod in self._unexplained()} | self._unsettled()
            if not unresolved:
                suspects, tried = {}, set()
                await wait_for_change(sources, versions)
                continue
            due_s = read_s + (wait_s if unresolved == tried else RETRY_S)
            if loop.time() < due_s:
                await wait_for_change(sources, versions, within_s=due_s - loop.time())
                continue
            # An orphan may be a new hand-over to a pod that the watch is about to show: it is dropped the second time.
            await self._settle({uid: each for uid, each in orphans.items() if suspects.get(uid) is each})
            wait_s = min(2 * wait_s, RETRY_LIMIT_S) if unresolved == tried else RETRY_S
            suspects, tried, read_s = orphans, unresolved, loop.time()

    async def forget_lost(self) -> None:
        """Drop hand-overs that a new kubelet does not know, because the old one died before it stored them.

        The new kubelet admits such a pod again, and the pod must be found waiting.
        """
        doubtful = [pod for pod in self._pods if pod.uid in self._handovers and pod.live and not pod.past_admission]
        ledger = await self._read() if doubtful else None
        if ledger is None:
            return
        for pod in doubtful:
            held = ledger.pods.get(pod.key, {})
            if pod.key not in ledger.ambiguous and is_its_own(pod, held, admitted=False):
                self._handovers.add(adopt(pod, held, self._handovers.answers, admitted=False))
            else:
                log.info("the kubelet does not know a hand-over", pod=pod.key, pod_uid=pod.uid)
                self._handovers.drop(pod.uid)

    def _announce_mismatches(self) -> None:
        """Announce pods whose chips differ from the kubelet's ledger; forget announcements of pods that are gone."""
        self._announced = {(uid, reason) for uid, reason in self._announced if self._pods.get(uid) is not None}
        self._count_without()
        for handover in self._handovers:
            pod = self._pods.get(handover.uid)
            if pod is not None and not handover.matches_kubelet:
                given = self._device_type.join(handover.chips)
                counted = self._device_type.join_sorted(handover.kubelet_ids)
                self._announce_once(
                    pod,
                    MISMATCH,
                    f"it was given {given} as the allocator decided, but the kubelet's ledger has {counted}",
                )

    def _announce_once(self, pod: NodePod, reason: str, sentence: str) -> None:
        if (pod.uid, reason) not in self._announced:
            self._announced.add((pod.uid, reason))
            log.warning("a pod's chips do not match", pod=pod.key, pod_uid=pod.uid, reason=reason, error=sentence)
            self._announce(pod, reason, sentence)

    def _count_without(self) -> None:
        known = [self._pods.get(uid) for uid, reason in self._announced if reason == WITHOUT]
        without = sum(pod is not None and pod.live for pod in known)
        self._metrics.count_without(self._device_type.resource, without)

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
            and pod.uid not in self._disputed
        ]

    def _orphans(self) -> dict[str, HandOver]:
        """Return hand-overs to pods that the watch has not shown, or no longer shows, by uid."""
        return {each.uid: each for each in self._handovers if self._pods.get(each.uid) is None}

    def _unsettled(self) -> set[str]:
        """Return admitted pods whose hand-overs have not been compared with the kubelet's ledger."""
        return {pod.uid for pod in self._pods if pod.past_admission and pod.uid in self._handovers.unconfirmed}

    async def _read(self) -> KubeletLedger | None:
        try:
            return await read_ledger(self._socket, self._device_type)
        except Unreachable as error:
            log.warning("can't read the kubelet's ledger", error=error.message)
            return None

    async def _settle(self, drop: Mapping[str, HandOver] | None = None) -> bool:
        """Let the kubelet's ledger decide which pod each hand-over is to.

        Args:
            drop: the hand-overs to drop if the ledger does not have them, by uid.

        Returns:
            False if the ledger can't be read.
        """
        # What the watch shows as admitted now was in the kubelet's ledger before that is read.
        admitted = {pod.uid for pod in self._pods if pod.past_admission}
        before = self._handovers.answers
        ledger, known = await self._read_with_pods()
        if ledger is None:
            return False
        answers = self._handovers.answers
        # The ledger may be older than calls that were answered meanwhile.
        newer = chip_set(chip for ids in answers if answers[ids] is not before.get(ids) for chip in ids)
        for uid, handover in (drop or {}).items():
            if self._handovers.get(uid) is handover and not _is_in(ledger, handover):
                log.info("the kubelet does not know a hand-over", pod=handover.pod, pod_uid=uid)
                self._handovers.drop(uid)
        found = [
            (pod, truth)
            for pod in self._pods
            if (known is None or pod.uid in known or pod.uid in admitted)
            and (truth := self._truth(pod, ledger, newer, admitted=pod.uid in admitted))
        ]
        for pod, truth in found:
            self._take_from_others(pod, truth, {each.uid for _, each in found})
        for pod, truth in found:
            calls = [answers.get(frozenset(part.kubelet_ids)) for part in truth.parts]
            self._enter(pod, truth, mistaken=any(call is not None and call.uid != pod.uid for call in calls))
        self._enter_claims(ledger, admitted)
        return True

    def _enter_claims(self, ledger: KubeletLedger, admitted: Collection[str]) -> None:
        """Enter what admitted pods claim for which the kubelet's ledger has nothing: its checkpoint can be lost.

        A claim is weaker than a hand-over, and of two claims to a chip neither is entered: both pods hold it.
        """
        self._believed &= {each.uid for each in self._handovers}
        self._disputed &= {pod.uid for pod in self._pods}
        claims = [
            pod
            for pod in self._unexplained()
            if pod.uid in admitted and believable(pod) and ledger.pods.get(pod.key) == {}
        ]
        known = chip_set(chip for each in self._handovers for chip in each.chips)
        for pod in claims:
            names = self._device_type.join(chip_ids(pod.real))
            if pod.real & known:
                self._announce_without(pod, [ask.container for ask in pod.container_requests])
            elif any(pod.real & other.real for other in claims if other is not pod):
                self._disputed.add(pod.uid)
                self._tell(pod, f"its claim has {names}, that of another pod too, and the kubelet's ledger has nothing")
            else:
                self._handovers.add(believe(pod))
                self._believed.add(pod.uid)
                self._tell(
                    pod,
                    f"it keeps {names}, which its claim has, but the kubelet's ledger has nothing for it: was the "
                    "kubelet's checkpoint lost? If its containers were started since, delete the pod",
                )

    def _tell(self, pod: NodePod, sentence: str) -> None:
        self._metrics.mismatches.inc()
        self._announce_once(pod, MISMATCH, sentence)

    async def _read_with_pods(self) -> tuple[KubeletLedger | None, set[str] | None]:
        """Read the kubelet's ledger, and the uids of the pods it knows if an entry may be that of an earlier pod.

        The ledger has no uids. A kubelet that knows a pod has an entry for it in a ledger that is read later, and two
        for two pods of a name. The uids are None if they don't matter, or can't be read.
        """
        ledger = await self._read()
        if ledger is None or not any(
            ledger.pods.get(pod.key) and not pod.past_admission and pod.uid not in self._handovers for pod in self._pods
        ):
            return ledger, None
        try:
            known = {pod.uid for pod in await self._kubelet_pods()}
        except Unreachable as error:
            log.info("can't ask the kubelet which pods it knows", error=error.message)
            return ledger, None
        return await self._read(), known

    def _truth(self, pod: NodePod, ledger: KubeletLedger, newer: ChipSet, *, admitted: bool) -> HandOver | None:
        """Return what a pod was given according to the kubelet's ledger; None if that is known, or not known yet."""
        held, known = ledger.pods.get(pod.key), self._handovers.get(pod.uid)
        if held is None or pod.key in ledger.ambiguous or not pod.live or not pod.count:
            return None
        if newer & chip_set(chip for ids in held.values() for chip in ids):
            return None
        if known is None or (admitted and held and not explains(known, held)):
            return self._adopted(pod, held, admitted=admitted)
        if admitted:
            self._handovers.unconfirmed.discard(pod.uid)
        return None

    def _adopted(self, pod: NodePod, held: dict[str, tuple[int, ...]], *, admitted: bool) -> HandOver | None:
        # Of a pod that is not seen admitted yet, the entry may be that of an earlier pod whose deletion has been seen.
        others = [*self._handovers, *(() if admitted else self._handovers.answers.values())]
        if any(each.uid != pod.uid and each.pod == pod.key and explains(each, held) for each in others):
            return None  # the entry belongs to an earlier or later pod of the name
        if admitted and (lacking := without_chips(pod, held)):
            if not held and believable(pod):
                return None  # judged after all that the ledger has
            self._announce_without(pod, lacking)
            if not held:
                return None
        if not is_its_own(pod, held, admitted=admitted):
            return None
        return adopt(pod, held, self._handovers.answers, admitted=admitted)

    def _take_from_others(self, pod: NodePod, truth: HandOver, settled: Collection[str]) -> None:
        """Drop what was given to other pods by the calls that were about this one, and what was only believed."""
        # A kubelet that lost its checkpoint may give ids again: only the pod of the last answer for them was mistaken.
        answers = self._handovers.answers
        ids = {frozenset(part.kubelet_ids) for part in truth.parts if part.keeps}
        for other in [each for each in self._handovers if each.uid not in settled]:
            if other.uid in self._believed:
                is_wrong = bool(other.chip_set & truth.chip_set)
            else:
                same = (frozenset(part.kubelet_ids) for part in other.parts)
                is_wrong = any(each in ids and answers.get(each, other).uid == other.uid for each in same)
            if is_wrong:
                log.warning("a hand-over belongs to another pod", pod=other.pod, pod_uid=other.uid, real=pod.key)
                self._handovers.drop(other.uid)

    def _enter(self, pod: NodePod, truth: HandOver, *, mistaken: bool) -> None:
        """Enter what a pod was given.

        Args:
            pod: the pod.
            truth: what it was given.
            mistaken: whether a call for it was taken for another pod's.
        """
        self._handovers.add(truth)
        chips = self._device_type.join(truth.chips)
        log.info("adopted from the kubelet's ledger", pod=pod.key, pod_uid=pod.uid, chips=chips)
        swapped = mistaken and (pod.grant is None or truth.chip_set != pod.grant.chip_set)
        if swapped or not truth.matches_kubelet:
            self._metrics.mismatches.inc()
        if swapped:
            written = self._device_type.join(pod.grant.chips) if pod.grant is not None else "nothing"
            self._announce_once(
                pod,
                MISMATCH,
                f"it was given {chips}, but the allocator wrote {written} on it: the kubelet could "
                "not be asked which of several pods it admitted",
            )
        elif pod.problem is not None or (pod.grant is None and not pod.claimed):
            log.warning("a pod holds devices without a usable annotation", pod=pod.key, problem=pod.problem)
        if not pod.claimed or pod.real != truth.chip_set:
            self._claim(truth)

    def _announce_without(self, pod: NodePod, lacking: Collection[str]) -> None:
        one = len(lacking) == 1
        self._announce_once(
            pod,
            WITHOUT,
            f"container{'' if one else 's'} {', '.join(lacking)} request{'s' if one else ''} {self._device_type.nouns} "
            f"and run{'s' if one else ''} without: the kubelet did not know the resource when it admitted the pod; "
            "delete the pod",
        )
        self._count_without()


def _is_in(ledger: KubeletLedger, handover: HandOver) -> bool:
    """Return whether the entry of a pod's name has the ids of this hand-over, and not of another pod of the name."""
    ids = chip_set(chip for held in ledger.pods.get(handover.pod, {}).values() for chip in held)
    return bool(ids) and not ids & ~chip_set(handover.kubelet_ids)
