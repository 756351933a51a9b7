"""Keeps the ledger of AI cores as the kubelet has it, and gives back the vNPUs that no pod uses.

A vNPU is given back only when its pod has ended by the watch and the kubelet's ledger has no entry for it, when the
driver does not say that a container has it, and while no pod is known that could have it although the plugin does not
know which vNPU it has. After a restart the vNPUs of pods are known by their annotations (AscendReal); those of a pod
whose claim was not written are found by the chip and the template that the allocator wrote on it.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from ascend.chips import chip_name
from ascend.daemon.observable import Observable, wait_for_change
from ascend.errors import DriverError, Unreachable
from ascend.kube.backoff import Backoff
from ascend.kube.objects import Pod
from device_plugin.device_types import CORES
from device_plugin.driver import VirtualNpu
from device_plugin.driver.dividing import Division
from device_plugin.kubelet.pod_resources import KubeletLedger, read_ledger
from device_plugin.ledger.cores import CoreHandOver, CoreLedger, core_handover, moved
from device_plugin.ledger.handovers import HandOver
from device_plugin.ledger.node_pods import NodePod
from device_plugin.metrics import Metrics
from device_plugin.pods.cutter import Cutter
from device_plugin.pods.reconciler import FIRST_TRIES, MISMATCH, RETRY_S, WITHOUT, Announce

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

LOOK_S: Final = 60.0
"""How often the driver is asked for vNPUs if there is no other reason."""
RETRY_LIMIT_S: Final = 30.0
"""The longest wait before another attempt to resolve something."""
CALL_S: Final = 5.0
"""How long the driver may take for an answer, outside a call of the kubelet."""
HANDING_OVER_S: Final = 6.0
"""How long an instance of the plugin before this one may still answer a call, and the kubelet may take to note that."""
IN_USE: Final = "NPUSegmentInUse"


class CoreKeeper:
    """Keeps hand-overs complete, and gives back what nobody uses.

    Args:
        socket: the kubelet's pod-resources socket.
        ledger: of AI cores.
        cutter: makes the driver's calls.
        kubelet_pods: returns the kubelet's own list of pods.
        chips: returns the physical ids of the node's chips that may be asked about.
        others: returns the vNPUs of pods that request static vNPUs, as pairs of chip and id.
        claim: writes a claim on the pod.
        metrics: counts mismatches.
        announce: receives what does not match, once per pod and reason.
        announce_node: receives what is wrong with the node: a reason, a sentence, and whether it is a warning.
    """

    def __init__(
        self,
        socket: Path,
        ledger: CoreLedger,
        cutter: Cutter,
        *,
        kubelet_pods: Callable[[], Awaitable[list[Pod]]],
        chips: Callable[[], list[int]],
        others: Callable[[], set[tuple[int, int]]],
        claim: Callable[[HandOver], None],
        metrics: Metrics,
        announce: Announce,
        announce_node: Callable[[str, str, bool], None],
    ) -> None:
        self._socket = socket
        self._ledger = ledger
        self._cutter = cutter
        self._kubelet_pods = kubelet_pods
        self._chips = chips
        self._others = others
        self._claim = claim
        self._metrics = metrics
        self._announce = announce
        self._announce_node = announce_node
        self._listed: dict[int, tuple[VirtualNpu, ...]] = {}
        self._cutting: Counter[int] = Counter()
        self._not_given: set[tuple[int, int]] = set()
        self._is_settled = False
        self._announced: set[tuple[str, str]] = set()
        self._told: set[tuple[int, int]] = set()
        self._retries: dict[tuple[int, int], tuple[Backoff, float]] = {}
        self._orphans: set[str] = set()
        self._guessed: set[str] = set()
        self._first_seen_s: dict[tuple[int, int], float] = {}
        self._well_claimed: set[str] = set()
        self._unverified: set[str] = set()
        self._wanted: Observable[None] = Observable(None)
        self._settling = asyncio.Lock()

    # For calls of the kubelet.

    @contextmanager
    def cutting(self, chips: Iterable[int]) -> Iterator[None]:
        """Give back nothing of these chips meanwhile but what ``clear`` does."""
        own = list(chips)
        self._cutting.update(own)
        try:
            yield
        finally:
            self._cutting.subtract(own)

    async def create(self, chip: int, template: str, within_s: float) -> VirtualNpu:
        """Cut a vNPU out of a chip, or raise DriverError."""
        vnpu = await self._cutter.create(chip, template, within_s)
        self._not_given.discard((chip, vnpu.vdev_id))
        self._first_seen_s[chip, vnpu.vdev_id] = -math.inf
        self._listed[chip] = (*self._listed.get(chip, ()), vnpu)
        return vnpu

    def not_given(self, vnpu: VirtualNpu) -> None:
        """Give back a vNPU that no pod has got."""
        self._not_given.add((vnpu.phy_id, vnpu.vdev_id))
        self._wanted.set(None)

    def lists(self, vnpu: VirtualNpu) -> bool:
        """Return whether the driver had a vNPU when it was last asked."""
        return vnpu in self._listed.get(vnpu.phy_id, ())

    def holder(self, vdev_id: int) -> str | None:
        """Return the pod that was given a vNPU with an id; None if there is none."""
        return next(
            (each.pod for each in self._ledger.holding if each.vnpu is not None and each.vnpu.vdev_id == vdev_id), None
        )

    async def clear(self, chip: int, within_s: float) -> Division:
        """Give back what nobody uses of a chip; return how it is cut then.

        Raises:
            DriverError: the driver does not answer in time.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + within_s
        if any(chip in each.chips for each in self._ledger.handovers.kept.values()):
            await self.settle()
        division = await self._look(chip, until_s - loop.time())
        if any(self._is_unused(each) for each in division.vnpus):
            await self.settle()
            for vnpu in [each for each in division.vnpus if self._is_unused(each)]:
                await self._give_back(vnpu, until_s - loop.time())
            division = await self._look(chip, until_s - loop.time())
        return division

    # The loop.

    async def restore(self) -> None:
        """Rebuild the ledger after a start."""
        for attempt in range(FIRST_TRIES):
            if attempt:
                await asyncio.sleep(RETRY_S)
            await self._look_at_all()
            if await self.settle():
                break

    async def catch_up(self) -> None:
        """Add what another instance of the plugin gave to pods since this one rebuilt its ledger."""
        if any(pod.live and pod.count and pod.uid not in self._ledger.handovers for pod in self._ledger.pods):
            await self._look_at_all()
            await self.settle()

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

    async def run(self) -> None:
        """Follow the pods until cancelled."""
        loop = asyncio.get_running_loop()
        sources = (self._ledger.changes, self._wanted)
        backoff = Backoff(first_s=RETRY_S, limit_s=RETRY_LIMIT_S)
        look_at_s = loop.time()
        before: object = None
        while True:
            versions = [source.version for source in sources]
            self._repair_claims()
            self._verify()
            if self._open():
                await self.settle()
            if loop.time() >= look_at_s:
                await self._look_at_all()
                look_at_s = loop.time() + LOOK_S
            is_left = await self._sweep()
            if not (is_left or self._open()):
                backoff.reset()
                before = None
                await wait_for_change(sources, versions, max(look_at_s - loop.time(), 0.0))
                continue
            state = (self._open(), is_left)
            if state != before:
                before, wait_s = state, RETRY_S
                backoff.reset()
            else:
                wait_s = backoff.next_s()
            if await wait_for_change(sources, versions, min(wait_s, self._due_in_s())):
                await asyncio.sleep(0.05)  # the kubelet limits how often its ledger is read

    def _open(self) -> frozenset[str]:
        """Return the uids of pods whose state the kubelet's ledger has to tell."""
        ledger = self._ledger
        unsettled = {each.uid for each in ledger.pods if each.past_admission} & ledger.handovers.unconfirmed
        missing = {each.uid for each in ledger.handovers if ledger.pods.get(each.uid) is None}
        ended = {uid for uid in ledger.handovers.kept if (pod := ledger.pods.get(uid)) is None or not pod.live}
        open_ = {*ended, *unsettled, *missing, *(pod.uid for pod in self._unexplained())}
        return frozenset(open_ if self._is_settled else {*open_, ""})

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
        vnpu = _named(pod)
        if vnpu is None:
            return pod.claimed and pod.given is not None
        return any(each.vdev_id == vnpu.vdev_id for each in self._listed.get(vnpu.phy_id, ()))

    # What the kubelet's ledger says.

    async def settle(self) -> bool:
        """Let the kubelet's ledger decide which pod has what; return False if it can't be read."""
        async with self._settling:
            return await self._settle()

    async def _settle(self) -> bool:
        admitted = {pod.uid for pod in self._ledger.pods if pod.past_admission}
        before = dict(self._ledger.handovers.answers)
        ledger = await self._read()
        if ledger is None:
            self._is_settled = False
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
        self._is_settled = (
            not newer
            and not self._unexplained()
            and all(self._ledger.explains(key, frozenset(ids)) for key, ids in held.items() if ids)
        )
        found = frozenset(number for ids in held.values() for number in ids)
        self._ledger.took(found, self._ledger.left)
        return True

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
                handovers.forget(uid)

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
            self._unverified.add(pod.uid)
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
        claimed = _named(pod)
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
        if not any(each == claimed for each in self._listed.get(claimed.phy_id, ())):
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
        if chip not in self._listed:
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
            for each in self._listed.get(chip, ())
            if each.template == pod.template
            and not self._ledger.owns(each)
            and (each.phy_id, each.vdev_id) not in self._others()
            and (each.phy_id, each.vdev_id) not in self._not_given
        ]
        if sum(each.in_container == pod.past_admission for each in fits) != 1:
            self._guessed.add(pod.uid)
        return min(fits, key=lambda each: (each.in_container != pod.past_admission, each.vdev_id), default=None)

    def _repair_claims(self) -> None:
        """Write claims again that somebody changed."""
        well_claimed = set()
        for each in self._ledger.handovers.cores():
            pod = self._ledger.pods.get(each.uid)
            if pod is None or not pod.live:
                continue
            named = _named(pod)
            has_vnpu = named is None or each.vnpu is None or named.vdev_id == each.vnpu.vdev_id
            if pod.claimed and pod.real == each.chip_set and has_vnpu:
                well_claimed.add(pod.uid)
            elif pod.uid in self._well_claimed and each.name:
                log.warning("repairing a claim that was changed", pod=pod.key, pod_uid=pod.uid)
                self._claim(each)
        self._well_claimed = well_claimed

    def _verify(self) -> None:
        """Tell the pods whose vNPUs the driver no longer has, once it has been asked about their chips."""
        for each in self._ledger.handovers.cores():
            pod, vnpu = self._ledger.pods.get(each.uid), each.vnpu
            if each.uid in self._unverified and vnpu is not None and vnpu.phy_id in self._listed and pod is not None:
                self._unverified.discard(each.uid)
                if not any(listed.vdev_id == vnpu.vdev_id for listed in self._listed[vnpu.phy_id]):
                    self._announce_without(pod, f"the driver no longer has its vNPU {vnpu.vdev_id}")

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

    # What the driver has.

    async def _look_at_all(self) -> None:
        async def look(chip: int) -> None:
            try:
                await self._look(chip, CALL_S)
            except DriverError as error:
                log.warning("it is unknown how a chip is cut", chip=chip_name(chip), error=error.message)

        async with asyncio.TaskGroup() as tasks:
            for chip in self._chips():
                tasks.create_task(look(chip))

    async def _look(self, chip: int, within_s: float) -> Division:
        division = await self._cutter.division(chip, within_s)
        self._listed[chip] = division.vnpus
        now_s, keys = asyncio.get_running_loop().time(), [(chip, each.vdev_id) for each in division.vnpus]
        others = {key: seen_s for key, seen_s in self._first_seen_s.items() if key[0] != chip}
        self._first_seen_s = others | {key: self._first_seen_s.get(key, now_s) for key in keys}
        self._not_given = {
            (phy_id, vdev_id)
            for phy_id, vdev_id in self._not_given
            if phy_id != chip or any(each.vdev_id == vdev_id for each in division.vnpus)
        }
        return division

    def _is_unused(self, vnpu: VirtualNpu) -> bool:
        key = (vnpu.phy_id, vnpu.vdev_id)
        if self._belongs(vnpu):
            return False
        if key in self._not_given:
            return True
        # The instance before this one may be giving it to a pod right now, also if another one has died in between.
        is_new = asyncio.get_running_loop().time() < self._first_seen_s.get(key, math.inf) + HANDING_OVER_S
        return self._is_settled and not is_new and not self._may_be_mistaken(vnpu)

    def _belongs(self, vnpu: VirtualNpu) -> bool:
        """Return whether a vNPU is that of a pod, or a live pod claims it, whatever else is known of the pod."""
        key = (vnpu.phy_id, vnpu.vdev_id)
        return self._ledger.owns(vnpu) or key in self._others() or key in self._claimed_by_pods()

    def _claimed_by_pods(self) -> set[tuple[int, int]]:
        """Return the vNPUs that live pods claim, as pairs of chip and id."""
        known = {each.uid for each in self._ledger.holding}  # what these have is known, whatever they claim
        named = (_named(pod) for pod in self._ledger.pods if pod.live and pod.count and pod.uid not in known)
        return {(vnpu.phy_id, vnpu.vdev_id) for vnpu in named if vnpu is not None}

    def _due_in_s(self) -> float:
        """Return how long it takes until another vNPU is no longer new, or may be tried again."""
        old_s = (seen_s + HANDING_OVER_S for seen_s in self._first_seen_s.values())
        again_s = (at_s for _, at_s in self._retries.values())
        now_s = asyncio.get_running_loop().time()
        return min((at_s - now_s for at_s in (*old_s, *again_s) if at_s > now_s), default=math.inf)

    def _may_be_mistaken(self, vnpu: VirtualNpu) -> bool:
        """Return whether a pod can have this vNPU although another is taken for its own: they look alike."""
        self._guessed &= {each.uid for each in self._ledger.holding}
        return any(
            each.uid in self._guessed and (each.chips, each.template) == ((vnpu.phy_id,), vnpu.template)
            for each in self._ledger.holding
        )

    async def _sweep(self) -> bool:
        """Give back what nobody uses; return whether something is left that should be given back."""
        usable = {*self._chips()}
        await self._look_again(usable)
        listed = [vnpu for vnpus in self._listed.values() for vnpu in vnpus]
        for vnpu in listed:
            if self._ledger.owns(vnpu):
                # once its pod has ended, it is unused at once
                self._first_seen_s[vnpu.phy_id, vnpu.vdev_id] = -math.inf
        if any(self._is_unused(vnpu) for vnpu in listed):
            await self.settle()  # what is given back is judged by what the kubelet's ledger says now
        left: dict[tuple[int, int], VirtualNpu] = {}
        for vnpu in [vnpu for vnpus in self._listed.values() for vnpu in vnpus]:
            chip = vnpu.phy_id
            if self._belongs(vnpu) or self._cutting[chip] > 0:
                continue
            # Judged right before it is given back: a call of the kubelet may have come meanwhile.
            gone = chip in usable and self._is_unused(vnpu) and await self._tried(vnpu)
            if not gone and not self._belongs(vnpu) and vnpu in self._listed.get(chip, ()):
                left[chip, vnpu.vdev_id] = vnpu
        self._told &= left.keys()
        self._retries = {key: each for key, each in self._retries.items() if key in left}
        self._ledger.took(self._ledger.kubelet_ids, left)
        return bool(left or self._not_given)

    async def _look_again(self, usable: set[int]) -> None:
        """Ask the driver about chips with vNPUs that no pod has got, and about those that it did not list before."""
        for chip in sorted(({chip for chip, _ in self._not_given} | usable - self._listed.keys()) & usable):
            try:
                await self._look(chip, CALL_S)
            except DriverError as error:
                log.warning("it is unknown how a chip is cut", chip=chip_name(chip), error=error.message)

    async def _tried(self, vnpu: VirtualNpu) -> bool:
        key, now_s = (vnpu.phy_id, vnpu.vdev_id), asyncio.get_running_loop().time()
        backoff, at_s = self._retries.get(key, (Backoff(first_s=RETRY_S, limit_s=RETRY_LIMIT_S), now_s))
        if now_s < at_s:
            return False
        error = "a container has it"
        try:
            if await self._give_back(vnpu, CALL_S):
                self._retries.pop(key, None)
                return True
        except DriverError as refused:
            error = refused.message
        wait_s = backoff.next_s()
        self._retries[key] = (backoff, now_s + wait_s)
        name = chip_name(vnpu.phy_id)
        log.warning("a vNPU is left", chip=name, vnpu=vnpu.vdev_id, error=error, retry_s=round(wait_s, 2))
        return False

    async def _give_back(self, vnpu: VirtualNpu, within_s: float) -> bool:
        """Give back a vNPU that nobody uses; return False if a container has it all the same."""
        chip, key = vnpu.phy_id, (vnpu.phy_id, vnpu.vdev_id)
        if await self._cutter.destroy(vnpu, within_s) == "in use":
            if key not in self._told:
                self._told.add(key)
                self._announce_node(
                    IN_USE,
                    f"the vNPU {vnpu.vdev_id} of {chip_name(chip)} belongs to no pod, but the driver says that a "
                    "container has it: it is left, and its AI cores can't be used",
                    True,  # noqa: FBT003 - a callback's plain word
                )
            return False
        self._not_given.discard(key)
        self._listed[chip] = tuple(each for each in self._listed.get(chip, ()) if each.vdev_id != vnpu.vdev_id)
        return True


def _named(pod: NodePod) -> VirtualNpu | None:
    """Return the vNPU that a pod's claim names; None if it names none."""
    if not pod.claimed or pod.given is None or pod.given.vnpu is None:
        return None
    return replace(VirtualNpu.named(pod.given.vnpu), vfg_id=pod.given.group)


def _ids(ledger: KubeletLedger, key: str) -> set[int]:
    return {number for held in ledger.pods.get(key, {}).values() for number in held}
