"""Answers the kubelet's admission calls: the preferred devices of a container, and the container's allocation.

The kubelet admits one pod at a time, its containers one after another, and waits for the answer, so every answer has a
hard limit (``CAP_S``). Normally no request to the API server is needed: the watch has shown the pod, and the claim is
written after the answer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

import structlog

from ascend.annotations import Grant
from ascend.chips import chip_set
from ascend.daemon.observable import Observable
from ascend.errors import AscendError, InvalidValue, Refusal
from ascend.reasons import Category, Reason
from device_plugin.device_types import CORES
from device_plugin.health.snapshot import Snapshot
from device_plugin.ledger.admission import AdmissionCandidate, UnofferedChips, known_ids
from device_plugin.ledger.allocations import Allocation
from device_plugin.ledger.chip_choice import Chooser
from device_plugin.ledger.node_pods import NodePod
from device_plugin.pods.admitted_pod import AdmittedPodFinder
from device_plugin.pods.devices import Answer, Devices, Preference

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

CAP_S = 4.0
"""The longest the kubelet waits for an Allocate."""
MARGIN_S: Final = 0.3
"""What is left of that when the driver's time for cutting a chip is over."""
PREFER_CAP_S = 1.0
"""The longest it waits for a preferred allocation, which may be empty."""
LIST_AFTER_S = 2.0
"""How long Allocate waits for the kubelet to list the pod; without the kubelet's list, for the watch to show it before
it lists the node's pods at the API server once."""
PREFER_LIST_AFTER_S = 0.4
"""The same for a preferred allocation: without one the kubelet takes any ids, not those of the chips given."""
REFRESH_S = 1.0
"""How long Allocate waits for the watch to catch up before it refuses a pod that the watch has not shown."""


class AdmissionMatcher:
    """Matches each admission call with a container of a pod, and answers it.

    Args:
        snapshots: the node's devices; for AI cores its chips.
        devices: the type of devices that the calls are about.
        finder: finds the container under admission.
        refresh: waits until the watch of the node's pods has caught up with the API server.
        on_allocation: receives a pod's allocation whenever its annotations have to be written.

    Attributes:
        chooser: chooses devices for pods that no allocator has placed; None to refuse these.
    """

    def __init__(
        self,
        *,
        snapshots: Observable[Snapshot | None],
        devices: Devices,
        finder: AdmittedPodFinder,
        refresh: Callable[[], Awaitable[None]],
        on_allocation: Callable[[Allocation], None],
    ) -> None:
        self._snapshots = snapshots
        self._devices = devices
        self._pods = devices.ledger.pods
        self._device_type = devices.ledger.device_type
        self._allocations = devices.ledger.allocations
        self._finder = finder
        self._refresh = refresh
        self._on_allocation = on_allocation
        self._one_at_a_time = asyncio.Lock()
        self._preferred: tuple[AdmissionCandidate, tuple[int, ...]] | None = None
        self._unoffered = UnofferedChips(self._pods)
        self.chooser: Chooser | None = None

    def begin(self) -> None:
        """Note that a kubelet, which may have just started, is about to be sent our devices."""
        self._unoffered.begin()
        self._finder.begin()

    @property
    def is_admitting(self) -> bool:
        """Whether a call of the kubelet is being answered."""
        return self._one_at_a_time.locked()

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], count: int) -> list[str]:
        """Return the preferred device ids for the container under admission; empty if in doubt.

        See docs/architecture.md#decisions.
        """
        self._preferred = None
        self._unoffered.note(())
        if count <= 0:
            return []
        try:
            async with asyncio.timeout(PREFER_CAP_S), self._one_at_a_time:
                candidate, is_guess = await self._finder.find(count, PREFER_LIST_AFTER_S)
                ids, unoffered = await self._preference(candidate, available, must_include)
        except (AscendError, TimeoutError) as error:
            log.info("no preferred allocation", requested=count, error=str(error) or "no pod in time")
            return []
        self._unoffered.note(unoffered)
        if ids is None:
            log.info(
                "no preferred allocation", pod=candidate.pod.key, error="the kubelet can't allocate the pod's chips"
            )
            return []
        # A guess is good enough for a preferred allocation, but not for handing chips over: Allocate looks again.
        self._preferred = None if is_guess else (candidate, ids)
        return [self._device_type.device_name(number) for number in ids]

    async def _preference(
        self, candidate: AdmissionCandidate, available: Sequence[str], must_include: Sequence[str]
    ) -> Preference:
        offered, included = known_ids(available, self._device_type), known_ids(must_include, self._device_type)
        if len(included) < len(set(must_include)):
            return Preference(None)
        candidate, chips = await self._now(candidate, offered)
        return self._devices.prefer(candidate, chips, self._snapshot, offered=offered, included=included)

    async def allocate(self, device_ids: Sequence[str]) -> Answer:
        """Give a container its part of the pod's annotated devices.

        Args:
            device_ids: the ids the kubelet chose.

        Raises:
            Refusal: it gets none; the sentence is for the pod's owner.
        """
        until_s = asyncio.get_running_loop().time() + CAP_S - MARGIN_S
        try:
            async with asyncio.timeout(CAP_S), self._one_at_a_time:
                return await self._allocate(device_ids, until_s)
        except TimeoutError:
            raise Refusal(Reason.TIMED_OUT, f"no decision within {CAP_S:.0f} s") from None

    async def _allocate(self, device_ids: Sequence[str], until_s: float) -> Answer:
        try:
            kubelet_ids = tuple(map(self._device_type.parse, device_ids))
        except InvalidValue as error:
            raise Refusal(Reason.UNKNOWN_DEVICE, error.message) from error
        if not kubelet_ids:
            raise Refusal(Reason.UNKNOWN_DEVICE, "the kubelet names no device")
        candidate = self._recognise(kubelet_ids)
        if candidate is None:
            try:
                candidate, _ = await self._finder.find(len(kubelet_ids), LIST_AFTER_S)
            except Refusal:
                # Only now: while a pod may be waiting, the ids can be its own, left over from a pod that has ended.
                if (earlier := self._repeat_answer(self._allocations, kubelet_ids)) is not None:
                    return earlier
                raise
        self._preferred = None
        known = self._allocations.get(candidate.pod.uid)
        # The kubelet never gives a container the chips that another one of its pod keeps, so the call is repeated.
        if known is not None and (earlier := self._repeat_answer([known], kubelet_ids, kept=True)) is not None:
            return earlier
        try:
            current, chips = await self._now(candidate, kubelet_ids)
            answer = await self._devices.realize(current, chips, kubelet_ids, until_s)
            self._unoffered.check(current.pod, answer.part)
        except (Refusal, asyncio.CancelledError):
            # A call that runs out of time is a refusal too: until the watch shows the rejection, the pod looks pending.
            self._allocations.refused.add(candidate.pod.uid)
            raise
        # No await from the answer to here: what was cut for the pod has an owner before anything unused is given back.
        allocation, part = answer.allocation, answer.part
        self._allocations.give(allocation, kubelet_ids)
        if known is None or chip_set(known.kubelet_ids) != chip_set(allocation.kubelet_ids):
            self._on_allocation(allocation)
        given = allocation.name if self._device_type == CORES else self._device_type.join(part.chips)
        counted = self._device_type.join(kubelet_ids)
        log.info(
            "handed over",
            pod=allocation.pod,
            pod_uid=allocation.uid,
            container=part.container,
            chips=given,
            kubelet_ids=counted,
        )
        return answer

    def _recognise(self, kubelet_ids: Sequence[int]) -> AdmissionCandidate | None:
        """Return the waiting container for which the kubelet was just told to prefer these ids."""
        if self._preferred is None or set(self._preferred[1]) != set(kubelet_ids):
            return None
        return self._finder.still(self._preferred[0])

    def _repeat_answer(
        self, allocations: Iterable[Allocation], kubelet_ids: Sequence[int], *, kept: bool = False
    ) -> Answer | None:
        """Return the answer given before, if the kubelet repeats the call of a container because it lost the answer."""
        for allocation in allocations:
            for part in allocation.parts:
                if set(part.kubelet_ids) == set(kubelet_ids) and (part.keeps or not kept):
                    return Answer(allocation, part, self._devices.edits(allocation, part))
        return None

    async def _now(
        self, candidate: AdmissionCandidate, wanted: Collection[int]
    ) -> tuple[AdmissionCandidate, tuple[int, ...]]:
        """Return the container, and the chips of its part, if need be after the watch has caught up.

        Chips are chosen here for a pod that no allocator has placed, if possible those that the kubelet has chosen or
        can allocate (``wanted``).

        If the watch has not shown the pod, it may not have shown the end of the earlier holder of its chips either: the
        allocator, which gave the chips to this pod, had seen that. If it has not shown the holder, that may have been
        created and deleted unseen.
        """
        pod = candidate.pod
        try:
            return await self._check(candidate, wanted)
        except Refusal as refusal:
            if not self._is_behind(pod, refusal):
                raise
            log.info("the watch is behind", pod=pod.key, pod_uid=pod.uid, error=refusal.message)
            handed = [allocation.uid for allocation in self._allocations]
            try:
                async with asyncio.timeout(REFRESH_S):
                    await self._refresh()
            except TimeoutError:
                raise refusal from None
        for uid in handed:
            if self._pods.get(uid) is None:
                # Created and deleted unseen: the watch now knows every pod that was given chips before.
                self._allocations.drop(uid)
        seen = self._pods.get(pod.uid)
        if seen is None or self._pods.has_moved_on(pod.uid):
            self._pods.ended_unseen(pod)
            raise Refusal(Reason.NO_SUCH_POD, f"pod {pod.key} has ended before it got its chips")
        return await self._check(replace(candidate, pod=seen), wanted)

    def _is_behind(self, pod: NodePod, refusal: Refusal) -> bool:
        """Return whether the refusal may come from a late watch: pod or holder is not shown yet."""
        if pod.grant is None:  # the kubelet counts enough chips as free
            return refusal.reason.category is Category.OCCUPIED
        if refusal.reason not in {Reason.CHIP_HELD, Reason.NO_RESOURCE}:
            return False
        holders = (allocation.uid for allocation in self._allocations if allocation.chip_set & pod.held)
        return any(self._pods.get(uid) is None for uid in (pod.uid, *holders))

    @property
    def _snapshot(self) -> Snapshot:
        if (snapshot := self._snapshots.value) is None:
            raise Refusal(Reason.NOT_READY, "the driver has not been read yet")
        return snapshot

    async def _check(
        self, candidate: AdmissionCandidate, wanted: Collection[int]
    ) -> tuple[AdmissionCandidate, tuple[int, ...]]:
        pod, snapshot = candidate.pod, self._snapshot
        known = self._allocations.get(pod.uid)
        if known is not None:  # whatever has been written on it between the calls for its containers
            grant, held = Grant(known.chips, None), known.chip_set
            pod = replace(pod, grant=grant, template=known.template, held=held, problem=None)
        elif self.chooser is not None and pod.grant is None and pod.problem is None:
            pod = self.chooser.place(pod, snapshot, wanted)
        chips = await self._devices.check(pod, snapshot)
        return candidate if pod is candidate.pod else replace(candidate, pod=pod), chips
