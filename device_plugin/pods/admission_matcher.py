"""Answers the kubelet's admission calls: which devices it should prefer for a container, and what the container gets.

The kubelet admits one pod at a time, its containers one after another, and waits for the answer, so every answer has a
hard limit (``CAP_S``). Normally no request to the API server is needed: the watch has shown the pod, and the claim is
written after the answer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from ascend.annotations import Grant
from ascend.chips import chip_set
from ascend.daemon.observable import Observable
from ascend.errors import AscendError, InvalidValue, Refusal
from ascend.reasons import Category, Reason
from ascend.slices import choose
from device_plugin.health.snapshot import Snapshot
from device_plugin.ledger.admission import Candidate, UnofferedChips, chips_for, known_ids
from device_plugin.ledger.chip_choice import Chooser
from device_plugin.ledger.handovers import HandOver, HandOvers, Part
from device_plugin.ledger.node_pods import NodePod, NodePods
from device_plugin.ledger.stand_ins import counted_for, stand_ins
from device_plugin.pods.admitted_pod import AdmittedPodFinder
from device_plugin.pods.container_edits import ContainerEdits

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

CAP_S = 4.0
"""The longest the kubelet waits for an Allocate."""
PREFER_CAP_S = 1.0
"""The longest it waits for a preferred allocation, which may be empty."""
LIST_AFTER_S = 2.0
"""How long Allocate waits for the kubelet to list the pod; without the kubelet's list, for the watch to show it before
it lists the node's pods at the API server once."""
PREFER_LIST_AFTER_S = 0.4
"""The same for a preferred allocation: without one the kubelet takes any ids, not those of the chips given."""
REFRESH_S = 1.0
"""How long Allocate waits for the watch to catch up before it refuses a pod that the watch has not shown."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to an Allocate call.

    Attributes:
        handover: everything the pod was given so far.
        part: the chips of this container.
        edits: what the kubelet adds to the container.
    """

    handover: HandOver
    part: Part
    edits: ContainerEdits


class Admits(Protocol):
    """Answers the kubelet's calls about one type of devices.

    Attributes:
        chooser: chooses for pods that no allocator has placed; None to refuse these.
    """

    chooser: Chooser | None

    def begin(self) -> None:
        """Note that a kubelet, which may have just started, is about to be sent our devices."""

    @property
    def is_admitting(self) -> bool:
        """Whether a call of the kubelet is being answered."""

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], count: int) -> list[str]:
        """Return the preferred device ids for the container under admission; empty if in doubt."""

    async def allocate(self, device_ids: Sequence[str]) -> Answer:
        """Give a container what is written on its pod, or raise Refusal."""


class AdmissionMatcher:
    """Matches each admission call with a container of a pod, and answers it.

    Args:
        snapshots: the node's chips.
        pods: the node's pods.
        handovers: the plugin's ledger.
        finder: finds the container under admission.
        refresh: waits until the watch of the node's pods has caught up with the API server.
        inject: returns what a container with these chips gets, or raises Refusal.
        on_handover: receives a pod's hand-over whenever its annotations have to be written.

    Attributes:
        chooser: chooses chips for pods that no allocator has placed; None to refuse these.
    """

    def __init__(
        self,
        *,
        snapshots: Observable[Snapshot | None],
        pods: NodePods,
        handovers: HandOvers,
        finder: AdmittedPodFinder,
        refresh: Callable[[], Awaitable[None]],
        inject: Callable[[tuple[int, ...]], ContainerEdits],
        on_handover: Callable[[HandOver], None],
    ) -> None:
        self._snapshots = snapshots
        self._pods = pods
        self._device_type = pods.device_type
        self._handovers = handovers
        self._finder = finder
        self._refresh = refresh
        self._inject = inject
        self._on_handover = on_handover
        self._one_at_a_time = asyncio.Lock()
        self._preferred: tuple[Candidate, tuple[int, ...]] | None = None
        self._unoffered = UnofferedChips(pods)
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
                offered = known_ids(available, self._device_type)
                ids = await self._choose(candidate, must_include, offered)
                if ids is None and (chips := await self._choose(candidate, must_include, None)) is not None:
                    others = [each for each in self._handovers if each.uid != candidate.pod.uid]
                    self._unoffered.note(set(chips) - offered - counted_for(others))
                    # A vNPU has its own id always: who reads the kubelet's ledger without our claims relies on that.
                    ids = stand_ins(chips, offered, others) if not self._device_type.suffix else None
        except (AscendError, TimeoutError) as error:
            log.info("no preferred allocation", count=count, error=str(error) or "no pod in time")
            return []
        if ids is None:
            log.info(
                "no preferred allocation", pod=candidate.pod.key, error="the kubelet can't allocate the pod's chips"
            )
            return []
        # A guess is good enough for a preferred allocation, but not for handing chips over: Allocate looks again.
        self._preferred = None if is_guess else (candidate, ids)
        return [self._device_type.device_name(chip_id) for chip_id in ids]

    async def allocate(self, device_ids: Sequence[str]) -> Answer:
        """Give a container its part of the chips written on its pod.

        Args:
            device_ids: the ids the kubelet chose.

        Raises:
            Refusal: it gets none; the sentence is for the pod's owner.
        """
        try:
            async with asyncio.timeout(CAP_S), self._one_at_a_time:
                return await self._allocate(device_ids)
        except TimeoutError:
            raise Refusal(Reason.TIMED_OUT, f"no decision within {CAP_S:.0f} s") from None

    async def _allocate(self, device_ids: Sequence[str]) -> Answer:
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
                if (earlier := self._repeated(self._handovers, kubelet_ids)) is not None:
                    return earlier
                raise
        self._preferred = None
        pod = candidate.pod
        known = self._handovers.get(pod.uid)
        # The kubelet never gives a container the chips that another one of its pod keeps, so the call is repeated.
        if known is not None and (earlier := self._repeated([known], kubelet_ids, kept=True)) is not None:
            return earlier
        try:
            chips = await self._chips_now(pod, kubelet_ids)
            part = self._part(candidate, chips, kubelet_ids)
            self._unoffered.check(pod, part)
            edits = self._inject(part.chips)
        except (Refusal, asyncio.CancelledError):
            # A call that runs out of time is a refusal too: until the watch shows the rejection, the pod looks pending.
            self._handovers.refused.add(pod.uid)
            raise
        handover = (
            known.plus(part)
            if known is not None
            else HandOver.of_parts(pod.uid, pod.key, chips, (part,), pod.device_type)
        )
        self._handovers.give(handover, kubelet_ids)
        if known is None or chip_set(known.kubelet_ids) != chip_set(handover.kubelet_ids):
            self._on_handover(handover)
        log.info(
            "handed over",
            pod=pod.key,
            pod_uid=pod.uid,
            container=part.container,
            chips=self._device_type.join(part.chips),
            kubelet_ids=self._device_type.join(kubelet_ids),
        )
        return Answer(handover, part, edits)

    def _part(self, candidate: Candidate, chips: Sequence[int], kubelet_ids: tuple[int, ...]) -> Part:
        """Return the kubelet's own choice if the pod may have it: it reuses an init container's chips in any order."""
        pod, ask = candidate.pod, candidate.ask
        known = self._handovers.get(pod.uid)
        kept = known.kept if known is not None else {}
        given = choose(ask, pod.container_requests, chips, kept=kept, must_include=kubelet_ids)
        if given is None and pod.device_type.suffix:
            written, chosen = self._device_type.join(chips), self._device_type.join(kubelet_ids)
            raise Refusal(
                Reason.CHIP_NOT_FREED, f"{written} is written on the pod, but the kubelet has chosen {chosen}"
            )
        if given is None:
            given = choose(ask, pod.container_requests, chips, kept=kept)
        if given is None:
            raise Refusal(
                Reason.NO_CHIPS_LEFT, f"container {ask.container}: other containers of its pod have its chips"
            )
        return Part(ask.container, ask.keeps, given, kubelet_ids)

    async def _choose(
        self, candidate: Candidate, must_include: Sequence[str], among: Collection[int] | None
    ) -> tuple[int, ...] | None:
        """Return the container's chips if the kubelet can allocate them (``among``; None: any), else None."""
        included = known_ids(must_include, self._device_type)
        if len(included) < len(set(must_include)):
            return None
        chips = await self._chips_now(candidate.pod, among or ())
        known = self._handovers.get(candidate.pod.uid)
        return choose(
            candidate.ask,
            candidate.pod.container_requests,
            chips,
            kept=known.kept if known is not None else {},
            among=among,
            must_include=included,
        )

    def _recognise(self, kubelet_ids: Sequence[int]) -> Candidate | None:
        """Return the container that these ids were just preferred for, if it still waits."""
        if self._preferred is None or set(self._preferred[1]) != set(kubelet_ids):
            return None
        return self._finder.still(self._preferred[0])

    def _repeated(
        self, handovers: Iterable[HandOver], kubelet_ids: Sequence[int], *, kept: bool = False
    ) -> Answer | None:
        """Return the answer given before, if the kubelet repeats the call of a container because it lost the answer."""
        for handover in handovers:
            for part in handover.parts:
                if set(part.kubelet_ids) == set(kubelet_ids) and (part.keeps or not kept):
                    return Answer(handover, part, self._inject(part.chips))
        return None

    async def _chips_now(self, pod: NodePod, wanted: Collection[int]) -> tuple[int, ...]:
        """Return the pod's chips; if the watch is behind, judge by the API server's present state.

        Chips are chosen here for a pod that no allocator has placed, if possible those that the kubelet has chosen or
        can allocate (``wanted``).

        If the watch has not shown the pod, it may not have shown the end of the earlier holder of its chips either: the
        allocator, which gave the chips to this pod, had seen that. If it has not shown the holder, that may have been
        created and deleted unseen.
        """
        try:
            return self._chips_for(pod, wanted)
        except Refusal as refusal:
            if not self._is_behind(pod, refusal):
                raise
            log.info("the watch is behind", pod=pod.key, pod_uid=pod.uid, error=refusal.message)
            handed = [each.uid for each in self._handovers]
            try:
                async with asyncio.timeout(REFRESH_S):
                    await self._refresh()
            except TimeoutError:
                raise refusal from None
        for uid in handed:
            if self._pods.get(uid) is None:
                self._handovers.drop(
                    uid
                )  # created and deleted unseen: the watch now knows every pod given chips before
        seen = self._pods.get(pod.uid)
        if seen is None or self._pods.has_moved_on(pod.uid):
            self._pods.ended_unseen(pod)
            raise Refusal(Reason.NO_SUCH_POD, f"pod {pod.key} has ended before it got its chips")
        return self._chips_for(seen, wanted)

    def _is_behind(self, pod: NodePod, refusal: Refusal) -> bool:
        """Return whether the watch has not shown this pod, or a holder of its chips, which is why it is refused."""
        if pod.grant is None:  # the kubelet counts enough chips as free
            return refusal.reason.category is Category.OCCUPIED
        if refusal.reason is not Reason.CHIP_HELD:
            return False
        holders = (each.uid for each in self._handovers if each.chip_set & pod.held)
        return any(self._pods.get(uid) is None for uid in (pod.uid, *holders))

    def _chips_for(self, pod: NodePod, wanted: Collection[int]) -> tuple[int, ...]:
        snapshot = self._snapshots.value
        if snapshot is None:
            raise Refusal(Reason.NOT_READY, "the driver has not been read yet")
        known = self._handovers.get(pod.uid)
        if known is not None:  # whatever has been written on it between the calls for its containers
            pod = replace(pod, grant=Grant(known.chips, None), held=known.chip_set, problem=None)
        elif self.chooser is not None and pod.grant is None and pod.problem is None:
            pod = self.chooser.placed(pod, snapshot, wanted)
        others = {each.pod: each.chip_set for each in self._handovers if each.uid != pod.uid}
        return chips_for(pod, snapshot, others, self._pods, own=known.chip_set if known is not None else 0)
