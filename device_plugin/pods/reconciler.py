"""Keeps the plugin's ledger and the kubelet's in agreement, completes claims, and announces what does not match.

Runs once before the plugin registers, and again once for every pod that is seen admitted: the calls for its containers
named no pod, and the kubelet's ledger tells which pod they were about. It also runs for a pod with containers (or a
claim) but no allocation, for an allocation to a pod that the watch does not show, for a vNPU that was cut for a pod
until nobody can use it, and for a claim that somebody changed. Otherwise the kubelet is not asked.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path

import structlog

from ascend.chips import chip_set
from ascend.daemon.observable import wait_for_change
from ascend.errors import Unreachable
from ascend.kube.objects import Pod
from device_plugin.kubelet.pod_resources import PodResources, read_ledger
from device_plugin.ledger.adoption import explains, without_chips
from device_plugin.ledger.allocations import Allocation
from device_plugin.ledger.node_pods import NodePod
from device_plugin.ledger.pod_annotations import grant_text
from device_plugin.metrics import Metrics
from device_plugin.pods.annotation_repairs import AnnotationRepairs, WritesClaim, has_claim
from device_plugin.pods.devices import Devices
from device_plugin.pods.notices import MISMATCH, WITHOUT, PodNotices

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

RETRY_S = 1.0
"""The shortest time between two readings of the kubelet's ledger; the kubelet limits the rate to a few per second."""
RETRY_LIMIT_S = 30.0
"""The longest time, if one reading after another resolves nothing."""
FIRST_TRIES = 3


class Reconciler:
    """Keeps allocations complete and drops those of pods that are gone.

    Args:
        socket: the kubelet's pod-resources socket.
        devices: one type of devices, and what pods have of them.
        kubelet_pods: returns the kubelet's own list of pods.
        claim: writes a claim on the pod, with more annotations after somebody has changed them.
        metrics: counts mismatches.
        notices: tells pods what does not match.
    """

    def __init__(
        self,
        socket: Path,
        devices: Devices,
        *,
        kubelet_pods: Callable[[], Awaitable[list[Pod]]],
        claim: WritesClaim,
        metrics: Metrics,
        notices: PodNotices,
    ) -> None:
        self._socket = socket
        self._devices = devices
        self._ledger = devices.ledger
        self._pods = devices.ledger.pods
        self._allocations = devices.ledger.allocations
        self._device_type = devices.ledger.device_type
        self._kubelet_pods = kubelet_pods
        self._claim = claim
        self._metrics = metrics
        self._notices = notices
        self._repairs = AnnotationRepairs(self._pods, self._allocations, claim, notices.announce, metrics)
        self._disputed: set[str] = set()
        """Uids of pods whose claim is contradicted by that of another pod."""
        self._one_at_a_time = asyncio.Lock()

    async def restore(self) -> None:
        """Rebuild the ledger after a start; if the kubelet does not answer, believe the pods' claims."""
        for attempt in range(FIRST_TRIES):
            if attempt:
                await asyncio.sleep(RETRY_S)
            await self._devices.look()
            if not any(pod.live and pod.count for pod in self._pods) or await self.settle():
                break
        else:
            for pod in self._pods_without_allocation():
                if (believed := self._devices.believe(pod)) is not None:
                    log.warning("believing a claim, the kubelet's ledger can't be read", pod=pod.key)
                    self._allocations.add(believed)
                    self._allocations.unconfirmed.add(pod.uid)
                    self._allocations.believed.add(pod.uid)

    async def catch_up(self) -> None:
        """Add the allocations that the former instance of the plugin made after this instance rebuilt its ledger."""
        if any(pod.live and pod.count and pod.uid not in self._allocations for pod in self._pods):
            await self._devices.look()
            await self.settle()

    async def run(self) -> None:
        """Follow the pods until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_annotations())
            tasks.create_task(self._follow_ledger())

    async def _follow_annotations(self) -> None:
        sources = (self._pods.changes, self._allocations.changes)
        while True:
            versions = [source.version for source in sources]
            due_in_s = self._repairs.look()
            self._announce_mismatches()
            await wait_for_change(sources, versions, within_s=due_in_s)

    async def _follow_ledger(self) -> None:
        loop = asyncio.get_running_loop()
        # Others let the ledger be settled too, and a reading of theirs can fail.
        sources = (self._pods.changes, self._allocations.changes, self._ledger.is_settled)
        suspects: dict[str, Allocation] = {}
        tried: set[str] = set()
        wait_s, read_s = RETRY_S, -RETRY_S
        while True:
            versions = [source.version for source in sources]
            orphans = self._orphans()
            unresolved = orphans.keys() | self._unresolved_uids()
            if not unresolved:
                suspects, tried = {}, set()
                await wait_for_change(sources, versions)
                continue
            due_s = read_s + (wait_s if unresolved == tried else RETRY_S)
            if loop.time() < due_s:
                await wait_for_change(sources, versions, within_s=due_s - loop.time())
                continue
            # An orphan may be a new allocation to a pod that the watch is about to show: it is dropped the second time.
            await self.settle(
                {uid: allocation for uid, allocation in orphans.items() if suspects.get(uid) is allocation}
            )
            wait_s = min(2 * wait_s, RETRY_LIMIT_S) if unresolved == tried else RETRY_S
            suspects, tried, read_s = orphans, unresolved, loop.time()

    async def forget_lost(self) -> None:
        """Drop allocations that a restarted kubelet does not know: it had ended before storing them.

        The new kubelet admits such a pod again, and the pod must be found waiting.
        """
        uncertain = [pod for pod in self._pods if pod.uid in self._allocations and pod.live and not pod.past_admission]
        ledger = await self._read() if uncertain else None
        if ledger is None:
            return
        for pod in uncertain:
            held = ledger.pods.get(pod.key, {})
            truth = None
            # An entry of two pods of one name may be that of the other one.
            if pod.key not in ledger.ambiguous and self._devices.is_its_own(pod, held, admitted=False, is_known=False):
                truth = self._devices.adopt(pod, held, admitted=False)
            if truth is not None:
                self._allocations.add(truth)
            else:
                log.info("the kubelet does not know an allocation", pod=pod.key, pod_uid=pod.uid)
                self._allocations.drop(pod.uid)

    def _announce_mismatches(self) -> None:
        """Announce pods whose chips differ from the kubelet's ledger; forget announcements of pods that are gone."""
        self._notices.look()
        for allocation in self._allocations:
            pod = self._pods.get(allocation.uid)
            if pod is not None and not allocation.matches_kubelet:
                given = self._device_type.join(allocation.chips)
                counted = self._device_type.join_sorted(allocation.kubelet_ids)
                self._notices.tell(
                    pod,
                    MISMATCH,
                    f"it was given {given} as the allocator decided, but the kubelet's ledger has {counted}",
                )

    def _unresolved_uids(self) -> set[str]:
        """Return the uids of pods whose devices only the kubelet's pod resources tell; "" for unknown pods."""
        unconfirmed = {pod.uid for pod in self._pods if pod.past_admission and pod.uid in self._allocations.unconfirmed}
        others = {""} if self._devices.must_be_settled and not self._ledger.is_settled.value else set()
        return (
            unconfirmed | {pod.uid for pod in self._pods_without_allocation()} | self._allocations.kept.keys() | others
        )

    def _pods_without_allocation(self) -> list[NodePod]:
        """Return live pods that request chips and have containers or a claim, but no allocation."""
        return [
            pod
            for pod in self._pods
            if pod.live
            and pod.count
            and (pod.past_admission or pod.claimed)
            and pod.uid not in self._allocations
            and not self._notices.runs_without(pod.uid)
            and pod.uid not in self._disputed
        ]

    def _orphans(self) -> dict[str, Allocation]:
        """Return allocations to pods that the watch has not shown, or no longer shows, by uid."""
        return {
            allocation.uid: allocation for allocation in self._allocations if self._pods.get(allocation.uid) is None
        }

    async def _read(self) -> PodResources | None:
        try:
            return await read_ledger(self._socket, self._device_type)
        except Unreachable as error:
            log.warning("can't read the kubelet's ledger", error=error.message)
            return None

    async def settle(self, drop: Mapping[str, Allocation] | None = None) -> bool:
        """Let the kubelet's ledger decide which pod each allocation is to.

        Args:
            drop: the allocations to drop if the ledger does not have them, by uid.

        Returns:
            False if the ledger can't be read.
        """
        async with self._one_at_a_time:
            is_settled = await self._settle(drop or {})
        if bool(is_settled) != self._ledger.is_settled.value:
            self._ledger.is_settled.set(bool(is_settled))
        return is_settled is not None

    async def _settle(self, drop: Mapping[str, Allocation]) -> bool | None:
        """Return whether the ledger leaves nothing unexplained; None if it can't be read."""
        # What the watch shows as admitted now was in the kubelet's ledger before that is read.
        admitted = {pod.uid for pod in self._pods if pod.past_admission}
        before = self._allocations.answers
        ledger, known = await self._read_with_pods()
        if ledger is None:
            return None
        answers = self._allocations.answers
        # The ledger may be older than calls that were answered meanwhile.
        newer = {number for ids in answers if answers[ids] is not before.get(ids) for number in ids}
        for uid, allocation in drop.items():
            if self._allocations.get(uid) is allocation and not _is_in(ledger, allocation):
                log.info("the kubelet does not know an allocation", pod=allocation.pod, pod_uid=uid)
                self._allocations.drop(uid)
        self._devices.compare(ledger, newer)
        found = {
            pod.uid: (pod, held)
            for pod in self._pods
            if (held := self._differing(pod, ledger, newer, known, admitted=pod.uid in admitted)) is not None
        }
        for pod, held in found.values():
            self._take_from_others(pod, held, found.keys())
        # Pods whose claim tells what they have come first: the others have what is left.
        for pod, held in sorted(found.values(), key=lambda entry: (not entry[0].claimed, entry[0].order)):
            if (truth := self._devices.adopt(pod, held, admitted=pod.uid in admitted)) is not None:
                answered = self._allocations.answers_to(pod.uid)
                calls = [answered.get(frozenset(part.kubelet_ids)) for part in truth.parts]
                self._enter(pod, truth, mistaken=any(call is not None and call.uid != pod.uid for call in calls))
        self._enter_claims(ledger, admitted)
        entries = ((key, {number for ids in held.values() for number in ids}) for key, held in ledger.pods.items())
        return (
            not newer
            and not self._pods_without_allocation()
            and all(self._ledger.explains(key, ids) for key, ids in entries if ids)
        )

    def _enter_claims(self, ledger: PodResources, admitted: Collection[str]) -> None:
        """Enter the claims of admitted pods without devices in the kubelet's pod resources: a checkpoint can be lost.

        A claim is weaker than an allocation, and of two claims to a chip neither is entered: both pods hold it.
        """
        self._disputed &= {pod.uid for pod in self._pods}
        claims = [
            (pod, believed)
            for pod in self._pods_without_allocation()
            if pod.uid in admitted
            and ledger.pods.get(pod.key) == {}
            and (believed := self._devices.believe(pod)) is not None
        ]
        known = self._ledger.holding
        for pod, believed in claims:
            if any(believed.overlaps(other) for other in known if other.uid != pod.uid):
                self._announce_without(pod, [ask.container for ask in pod.container_requests])
            elif any(believed.overlaps(other) for _, other in claims if other is not believed):
                self._disputed.add(pod.uid)
                self._tell(
                    pod,
                    f"its claim has {believed.name}, that of another pod too, and the kubelet's ledger has nothing",
                )
            else:
                self._allocations.add(believed)
                self._allocations.believed.add(pod.uid)
                self._tell(
                    pod,
                    f"it keeps {believed.name}, which its claim has, but the kubelet's ledger has nothing for it: was "
                    "the kubelet's checkpoint lost? If its containers were started since, delete the pod",
                )

    def _tell(self, pod: NodePod, sentence: str) -> None:
        self._metrics.mismatches.inc()
        self._notices.tell(pod, MISMATCH, sentence)

    async def _read_with_pods(self) -> tuple[PodResources | None, set[str] | None]:
        """Read the kubelet's ledger, and the uids of the pods it knows if an entry may be that of an earlier pod.

        The ledger has no uids. A kubelet that knows a pod has an entry for it in a ledger that is read later, and two
        for two pods of a name. The uids are None if they don't matter, or can't be read.
        """
        ledger = await self._read()
        if ledger is None or not any(
            ledger.pods.get(pod.key) and not pod.past_admission and pod.uid not in self._allocations
            for pod in self._pods
        ):
            return ledger, None
        try:
            known = {pod.uid for pod in await self._kubelet_pods()}
        except Unreachable as error:
            log.info("can't ask the kubelet which pods it knows", error=error.message)
            return ledger, None
        return await self._read(), known

    def _differing(
        self, pod: NodePod, ledger: PodResources, newer: set[int], known: set[str] | None, *, admitted: bool
    ) -> dict[str, tuple[int, ...]] | None:
        """Return the kubelet's pod resources of a pod, by container; None if they are known or prove nothing.

        Args:
            pod: the pod.
            ledger: the kubelet's.
            newer: the device ids of calls that were answered while it was read.
            known: the uids of the pods that the kubelet knows; None if all, or if that is unknown.
            admitted: whether the watch had shown the pod as admitted before the ledger was read.
        """
        is_known = admitted or (known is not None and pod.uid in known)
        is_judged = pod.live and pod.count and (known is None or is_known) and pod.key not in ledger.ambiguous
        held, allocation = ledger.pods.get(pod.key), self._allocations.get(pod.uid)
        if held is None or not is_judged or not newer.isdisjoint(number for ids in held.values() for number in ids):
            return None
        if allocation is not None and not (admitted and held and not explains(allocation, held)):
            if admitted and held:
                self._allocations.confirm(allocation)
                self._allocations.believed.discard(pod.uid)
            elif admitted:
                self._allocations.unconfirmed.discard(pod.uid)
            return None
        # Of a pod that is not seen admitted yet, the entry may be that of an earlier pod whose deletion has been seen.
        others = [*self._ledger.holding, *(() if admitted else self._allocations.answers.values())]
        if any(other.uid != pod.uid and other.pod == pod.key and explains(other, held) for other in others):
            return None  # the entry belongs to an earlier or later pod of the name
        if admitted and (lacking := without_chips(pod, held)):
            if not held and self._devices.believe(pod) is not None:
                return None  # judged after all that the ledger has
            self._announce_without(pod, lacking)
            if not held:
                return None
        return held if self._devices.is_its_own(pod, held, admitted=admitted, is_known=is_known) else None

    def _take_from_others(self, pod: NodePod, held: Mapping[str, tuple[int, ...]], settled: Collection[str]) -> None:
        """Take back the devices that different pods were given by the calls for this pod."""
        # A kubelet that lost its checkpoint may give ids again: only the pod of the last answer for them was mistaken.
        answers, ids = self._allocations.answers, {frozenset(own) for own in held.values()}
        spared = {*settled, *self._allocations.believed}
        for other in [allocation for allocation in self._ledger.holding if allocation.uid not in spared]:
            same = (frozenset(part.kubelet_ids) for part in other.parts)
            if any(ids_of_part in ids and answers.get(ids_of_part, other).uid == other.uid for ids_of_part in same):
                self._take_away(other, pod)

    def _take_away(self, other: Allocation, pod: NodePod) -> None:
        log.warning("an allocation belongs to another pod", pod=other.pod, pod_uid=other.uid, owner=pod.key)
        self._allocations.take_away(other.uid)

    def _enter(self, pod: NodePod, truth: Allocation, *, mistaken: bool) -> None:
        """Enter what a pod was given.

        Args:
            pod: the pod.
            truth: what it was given.
            mistaken: whether a call for it was taken for another pod's.
        """
        for other in [
            allocation for allocation in self._allocations if allocation.uid in self._allocations.believed - {pod.uid}
        ]:
            if other.overlaps(truth):
                self._take_away(other, pod)  # it was only believed
        self._allocations.add(truth)
        log.info("adopted from the kubelet's ledger", pod=pod.key, pod_uid=pod.uid, chips=truth.name)
        grant = pod.grant
        swapped = mistaken and (grant is None or (grant.chip_set, pod.template) != (truth.chip_set, truth.template))
        if swapped or not truth.matches_kubelet:
            self._metrics.mismatches.inc()
        if swapped:
            written = grant_text(grant.chips, pod.template, self._device_type) if grant is not None else "nothing"
            self._notices.tell(
                pod,
                MISMATCH,
                f"it was given {truth.name}, but the allocator wrote {written} on it: the kubelet could "
                "not be asked which of several pods it admitted",
            )
        elif pod.problem is not None or (grant is None and not pod.claimed):
            log.warning("a pod holds devices without a usable annotation", pod=pod.key, error=pod.problem)
        if truth.name and not has_claim(pod, truth):
            self._claim(truth)

    def _announce_without(self, pod: NodePod, lacking: Collection[str]) -> None:
        one = len(lacking) == 1
        self._notices.tell(
            pod,
            WITHOUT,
            f"container{'' if one else 's'} {', '.join(lacking)} request{'s' if one else ''} {self._device_type.nouns} "
            f"and run{'s' if one else ''} without: the kubelet did not know the resource when it admitted the pod; "
            "delete the pod",
        )


def _is_in(ledger: PodResources, allocation: Allocation) -> bool:
    """Return whether the entry of a pod's name has the ids of this allocation, and not of another pod of the name."""
    ids = chip_set(chip for held in ledger.pods.get(allocation.pod, {}).values() for chip in held)
    return bool(ids) and not ids & ~chip_set(allocation.kubelet_ids)
