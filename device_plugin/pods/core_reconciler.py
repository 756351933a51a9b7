"""Keeps the ledger of AI cores as the kubelet's ledger has it: which pod has which vNPU or chips.

After a restart the vNPUs of pods are known by their annotations (AscendReal); those of a pod whose claim was not
written are found by the chip and the template that the allocator wrote on it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import structlog

from ascend.chips import chip_name
from ascend.errors import Unreachable
from ascend.kube.objects import Pod
from device_plugin.device_types import CORES
from device_plugin.driver import VirtualNpu
from device_plugin.kubelet.pod_resources import KubeletLedger, read_ledger
from device_plugin.ledger.cores import CoreHandOver, CoreLedger, core_handover, moved
from device_plugin.ledger.handovers import HandOver
from device_plugin.ledger.node_pods import NodePod
from device_plugin.metrics import Metrics
from device_plugin.pods.annotation_repairs import AnnotationRepairs, Restore
from device_plugin.pods.cut_vnpus import CutVnpus
from device_plugin.pods.reconciler import MISMATCH, WITHOUT, Announce

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class CoreReconciler:
    """Lets the kubelet's ledger decide which pod has what.

    Args:
        socket: the kubelet's pod-resources socket.
        ledger: of AI cores.
        vnpus: what the driver has.
        kubelet_pods: returns the kubelet's own list of pods.
        others: returns the vNPUs of pods that request static vNPUs, as pairs of chip and id.
        claim: writes a claim on the pod.
        restore: writes it again, after somebody has changed it.
        metrics: counts mismatches.
        announce: receives what does not match, once per pod and reason.

    Attributes:
        is_settled: whether the kubelet's ledger, when it was read last, left nothing unexplained.
    """

    def __init__(
        self,
        socket: Path,
        ledger: CoreLedger,
        vnpus: CutVnpus,
        *,
        kubelet_pods: Callable[[], Awaitable[list[Pod]]],
        others: Callable[[], set[tuple[int, int]]],
        claim: Callable[[HandOver], None],
        restore: Restore,
        metrics: Metrics,
        announce: Announce,
    ) -> None:
        self._socket = socket
        self._ledger = ledger
        self._vnpus = vnpus
        self._kubelet_pods = kubelet_pods
        self._others = others
        self._claim = claim
        self._metrics = metrics
        self._announce = announce
        self.is_settled = False
        self._announced: set[tuple[str, str]] = set()
        self._orphans: set[str] = set()
        self._guessed: set[str] = set()
        self._repairs = AnnotationRepairs(ledger.pods, ledger.handovers, restore, announce, metrics)
        self._settling = asyncio.Lock()

    async def settle(self) -> bool:
        """Let the kubelet's ledger decide which pod has what; return False if it can't be read."""
        async with self._settling:
            return await self._settle()

    def unsettled(self) -> frozenset[str]:
        """Return the uids of pods whose state the kubelet's ledger has to tell."""
        ledger = self._ledger
        unconfirmed = {each.uid for each in ledger.pods if each.past_admission} & ledger.handovers.unconfirmed
        missing = {each.uid for each in ledger.handovers if ledger.pods.get(each.uid) is None}
        found = {*ledger.handovers.kept, *unconfirmed, *missing, *(pod.uid for pod in self._unexplained())}
        return frozenset(found if self.is_settled else {*found, ""})

    async def forget_lost(self) -> None:
        """Let pods wait again that a new kubelet does not know, because the old one died before it stored them."""
        doubtful = [
            pod
            for pod in self._ledger.pods
            if pod.uid in self._ledger.handovers and pod.live and not pod.past_admission
        ]
        ledger = await self._read() if doubtful else None
        for pod in doubtful if ledger is not None else ():
            known = self._ledger.handovers.get(pod.uid)
            if known is not None and ledger is not None and not _ids(ledger, pod.key) & set(known.kubelet_ids):
                log.info("the kubelet does not know a hand-over", pod=pod.key, pod_uid=pod.uid)
                self._ledger.handovers.drop(pod.uid)

    def repair(self) -> float | None:
        """Write annotations again that somebody changed; return in how many seconds to look again, None if never."""
        return self._repairs.look()

    def verify(self) -> None:
        """Tell the pods whose vNPUs the driver did not list when it was last asked about their chips."""
        for handover in self._ledger.handovers.cores():
            pod, vnpu = self._ledger.pods.get(handover.uid), handover.vnpu
            if pod is None or vnpu is None or not self._vnpus.is_known(vnpu.phy_id) or vnpu in self._vnpus:
                continue
            why = f"the driver no longer has its vNPU {vnpu.vdev_id}"
            if (other := self._vnpus.replacing(vnpu)) is not None:
                why += f", but one of {other.template or 'an unknown size'} with its id"
            self._announce_without(pod, why)

    def may_be_mistaken(self, vnpu: VirtualNpu) -> bool:
        """Return whether a pod can have this vNPU although another is taken for its own: they look alike."""
        self._guessed &= {each.uid for each in self._ledger.holding}
        return any(
            each.uid in self._guessed and (each.chips, each.template) == ((vnpu.phy_id,), vnpu.template)
            for each in self._ledger.holding
        )

    async def _settle(self) -> bool:
        admitted = {pod.uid for pod in self._ledger.pods if pod.past_admission}
        before = dict(self._ledger.handovers.answers)
        ledger = await self._read()
        if ledger is None:
            self.is_settled = False
            return False
        known = await self._known(ledger, admitted)
        if known is not None and (again := await self._read()) is not None:
            ledger = again  # a pod that the kubelet knew before has its entry in this one
        answers = self._ledger.handovers.answers
        newer = {number for ids in answers if answers[ids] is not before.get(ids) for number in ids}
        self._release(ledger, newer)
        for pod in sorted(self._ledger.pods, key=lambda pod: (not pod.claimed, not pod.past_admission, pod.order)):
            ids = _ids(ledger, pod.key)
            if pod.live and pod.count and not newer & ids and pod.key not in ledger.ambiguous:
                self._confirm(
                    pod, ledger, ids, is_known=pod.uid in admitted or (known is not None and pod.uid in known)
                )
        held = {key: _ids(ledger, key) for key in ledger.pods}
        self.is_settled = (
            not newer
            and not self._unexplained()
            and all(self._ledger.explains(key, frozenset(ids)) for key, ids in held.items() if ids)
        )
        found = frozenset(number for ids in held.values() for number in ids)
        self._ledger.took(found, self._ledger.left)
        return True

    def _unexplained(self) -> list[NodePod]:
        """Return live pods that may have cores, and are not known to have some."""
        return [
            pod
            for pod in self._ledger.pods
            if pod.live
            and pod.count
            and (pod.past_admission or pod.claimed)
            and pod.uid not in self._ledger.handovers
            and (pod.uid, WITHOUT) not in self._announced
            and not self._has_by_claim(pod)
        ]

    def _has_by_claim(self, pod: NodePod) -> bool:
        """Return whether a pod has what its claim names, although the kubelet's ledger does not show it.

        That has no regular init containers (docs/spec/kubelet.md#pod-resources-api).
        """
        vnpu = claimed_vnpu(pod)
        if vnpu is None:
            return pod.claimed and pod.given is not None
        return vnpu in self._vnpus

    async def _read(self) -> KubeletLedger | None:
        try:
            return await read_ledger(self._socket, CORES)
        except Unreachable as error:
            log.warning("can't read the kubelet's ledger", error=error.message)
            return None

    async def _known(self, ledger: KubeletLedger, admitted: set[str]) -> set[str] | None:
        """Return the uids of the kubelet's pods, if an entry may be that of an earlier pod with the same name."""
        doubtful = (
            pod
            for pod in self._ledger.pods
            if pod.live and pod.uid not in admitted and pod.uid not in self._ledger.handovers
        )
        if not any(_ids(ledger, pod.key) for pod in doubtful):
            return None
        try:
            return {pod.uid for pod in await self._kubelet_pods()}
        except Unreachable as error:
            log.info("can't ask the kubelet which pods it knows", error=error.message)
            return None

    def _release(self, ledger: KubeletLedger, newer: set[int]) -> None:
        """Forget what pods had that have ended by the watch and by the kubelet's ledger."""
        handovers = self._ledger.handovers
        missing = {each.uid for each in handovers if self._ledger.pods.get(each.uid) is None}
        for each in [each for each in handovers.cores() if each.uid in missing & self._orphans]:
            # The watch has had a second to show the pod.
            if not _ids(ledger, each.pod) & set(each.kubelet_ids):
                handovers.drop(each.uid)
        self._orphans = missing
        for uid, each in [*handovers.kept.items()]:
            pod = self._ledger.pods.get(uid)
            if pod is not None and pod.live:
                continue
            ids = _ids(ledger, each.pod) & set(each.kubelet_ids)
            heir = any(other.pod == each.pod and ids <= set(other.kubelet_ids) for other in handovers)
            if not ids or (heir and each.pod not in ledger.ambiguous) or (ids and ids <= newer):
                self._ledger.forget(each)

    def _confirm(self, pod: NodePod, ledger: KubeletLedger, ids: set[int], *, is_known: bool) -> None:
        known = self._ledger.handovers.get(pod.uid)
        if pod.past_admission and known is not None and ids == set(known.kubelet_ids):
            self._ledger.handovers.unconfirmed.discard(pod.uid)
        elif not ids:
            is_told = known is None and pod.past_admission and is_known and pod.key in ledger.pods
            if is_told and not self._has_by_claim(pod):
                self._announce_without(pod, "the kubelet did not know the resource when it admitted the pod")
        elif len(ids) == pod.count and is_known and (known is None or pod.past_admission):
            self._enter(pod, ids, known)

    def _enter(self, pod: NodePod, ids: set[int], known: HandOver | None) -> None:
        """Enter what a pod has for its ids in the kubelet's ledger, which are not those that are known."""
        holding = (each for each in self._ledger.holding if each.uid != pod.uid)
        other = next((each for each in holding if set(each.kubelet_ids) == ids), None)
        if other is not None and other.pod == pod.key:
            return  # the entry belongs to an earlier or later pod of the name
        own = tuple(sorted(ids))
        answer = self._ledger.handovers.answers.get(frozenset(ids))
        if other is not None:
            self._take_over(pod, other)
        elif isinstance(answer, CoreHandOver) and answer.uid != pod.uid and not self._is_given(answer):
            self._take_over(pod, answer)  # another pod has taken over what this one was taken to have
        elif isinstance(known, CoreHandOver):
            self._ledger.handovers.add(core_handover(pod, own, known.chips, known.template, known.vnpu))
        else:
            self._adopt(pod, own)

    def _is_given(self, answer: CoreHandOver) -> bool:
        """Return whether the vNPU or the chips of an answer are those of a pod that is known to have them."""
        if answer.vnpu is not None:
            return self._ledger.owns(answer.vnpu)
        return any(not each.template and set(each.chips) & set(answer.chips) for each in self._ledger.holding)

    def _take_over(self, pod: NodePod, other: CoreHandOver) -> None:
        """The call that was answered for another pod was about this one."""
        log.warning("a hand-over belongs to another pod", pod=other.pod, pod_uid=other.uid, real=pod.key)
        self._metrics.mismatches.inc()
        mine = moved(other, pod)
        current = self._ledger.handovers.get(other.uid)
        if current is None or set(current.kubelet_ids) == set(other.kubelet_ids):
            self._ledger.handovers.kept.pop(other.uid, None)
            self._ledger.handovers.move(other.uid, mine)
        else:  # the other pod has got its own meanwhile
            self._ledger.handovers.add(mine)
        self._claim(mine)
        if pod.grant is None or (mine.chips, mine.template) != (pod.grant.chips, pod.template):
            self._announce_once(
                pod,
                MISMATCH,
                f"it was given {mine.name}, but the allocator wrote something else on it: the kubelet could not be "
                "asked which of several pods it admitted",
            )

    def _adopt(self, pod: NodePod, ids: tuple[int, ...]) -> None:
        """Enter what a pod was given before a restart of the plugin."""
        kept, claimed = self._ledger.handovers.kept.get(pod.uid), self._standing_claim(pod)
        if kept is not None:
            handover: CoreHandOver | None = core_handover(pod, ids, kept.chips, kept.template, kept.vnpu)
        elif claimed is not None and not self._ledger.owns(claimed):
            handover = core_handover(pod, ids, (claimed.phy_id,), claimed.template, claimed)
        else:
            handover = self._granted(pod, ids)
        if handover is None:
            return  # what it has is unknown: nothing is given back as long as it lives
        log.info("adopted from the kubelet's ledger", pod=pod.key, pod_uid=pod.uid, given=handover.name)
        self._ledger.handovers.add(handover)
        if handover.name and claimed is None:
            self._claim(handover)

    def _standing_claim(self, pod: NodePod) -> VirtualNpu | None:
        """Return the vNPU that a pod's claim names, unless the pod's other annotation and the driver contradict it.

        If only the annotation does, one of the two was changed, and the pod may have the vNPU.
        """
        claimed = claimed_vnpu(pod)
        if (
            claimed is None
            or pod.grant is None
            or (pod.grant.chips, pod.template)
            == (
                (claimed.phy_id,),
                claimed.template,
            )
        ):
            return claimed
        if claimed not in self._vnpus:
            return None
        what = f"it has the vNPU {claimed.vdev_id}, but its annotation {CORES.resource} says otherwise"
        self._announce_once(pod, MISMATCH, what)
        return claimed

    def _granted(self, pod: NodePod, ids: tuple[int, ...]) -> CoreHandOver | None:
        """Return what a pod without a claim has by what the allocator wrote; None if that is unknown."""
        if pod.grant is None or pod.problem is not None:
            return None
        if not pod.template:
            return core_handover(pod, ids, pod.grant.chips, "", None)
        chip = pod.grant.chips[0]
        if not self._vnpus.is_known(chip):
            return None
        vnpu = self._likely(pod, chip)
        if vnpu is None:
            self._announce_without(pod, f"the driver has no vNPU of {pod.template} on {chip_name(chip)} for it")
        return core_handover(pod, ids, pod.grant.chips, pod.template, vnpu)

    def _likely(self, pod: NodePod, chip: int) -> VirtualNpu | None:
        """Return a vNPU that a pod without a claim can have.

        All that fit are alike but for whether a container has them: a pod whose containers run has one that a container
        has, if there is such a one.
        """
        fits = [
            each
            for each in self._vnpus.on(chip)
            if each.template == pod.template
            and not self._ledger.owns(each)
            and (each.phy_id, each.vdev_id) not in self._others()
            and not self._vnpus.is_not_given(each)
        ]
        if sum(each.in_container == pod.past_admission for each in fits) != 1:
            self._guessed.add(pod.uid)
        return min(fits, key=lambda each: (each.in_container != pod.past_admission, each.vdev_id), default=None)

    def _announce_without(self, pod: NodePod, why: str) -> None:
        self._announce_once(pod, WITHOUT, f"it runs without its vNPU or chips: {why}; delete the pod")
        without = [self._ledger.pods.get(uid) for uid, reason in self._announced if reason == WITHOUT]
        self._metrics.count_without(CORES.resource, sum(each is not None and each.live for each in without))

    def _announce_once(self, pod: NodePod, reason: str, sentence: str) -> None:
        if (pod.uid, reason) not in self._announced:
            self._announced = {each for each in self._announced if self._ledger.pods.get(each[0]) is not None}
            self._announced.add((pod.uid, reason))
            log.warning("a pod's chips do not match", pod=pod.key, pod_uid=pod.uid, reason=reason, error=sentence)
            self._announce(pod, reason, sentence)


def claimed_vnpu(pod: NodePod) -> VirtualNpu | None:
    """Return the vNPU that a live pod's claim names, as the driver has it; None if it names none."""
    if pod.given is None or pod.claimed_vnpu is None:
        return None
    return replace(VirtualNpu.named(pod.claimed_vnpu), vfg_id=pod.given.group)


def _ids(ledger: KubeletLedger, key: str) -> set[int]:
    return {number for held in ledger.pods.get(key, {}).values() for number in held}
