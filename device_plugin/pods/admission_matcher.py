"""Answers the kubelet: which devices to prefer for the container it admits, and what to give it.

The kubelet admits one pod at a time, its containers one after the other, and waits for us, so every answer has a hard
cap (``CAP_S``). Normally no round trip to the API server lies on the way: our watch has shown the pod, and the claim is
written behind the answer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import structlog

from ascend.chips import chip_name, chip_set, join_names, parse_chip_name
from ascend.daemon.observable import Observable
from ascend.errors import AscendError, InvalidValue, Refusal
from ascend.slices import choose
from device_plugin.health.snapshot import Snapshot
from device_plugin.ledger.admission import HELD, Candidate, UnofferedChips, chips_for, known_ids
from device_plugin.ledger.handovers import HandOver, HandOvers, Part
from device_plugin.ledger.node_pods import NodePod, NodePods
from device_plugin.pods.admitted_pod import AdmittedPodFinder
from device_plugin.pods.container_edits import ContainerEdits

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

CAP_S = 4.0
"""The longest the kubelet is made to wait for an Allocate."""
PREFER_CAP_S = 1.0
"""The longest it is made to wait for a preference, which may be empty."""
LIST_AFTER_S = 2.0
"""How long Allocate waits for the watch to show the pod before it asks the API server once."""
PREFER_LIST_AFTER_S = 0.4
"""The same for a preference: without one the kubelet takes any ids, and its ledger differs from what is handed over."""
REFRESH_S = 1.0
"""How long Allocate waits for our watch to catch up, where it refuses a pod that the watch has not shown."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What Allocate is answered.

    Attributes:
        handover: all that the pod was handed so far.
        part: what this container is handed.
        edits: what the kubelet is to put into the container.
    """

    handover: HandOver
    part: Part
    edits: ContainerEdits


class AdmissionMatcher:
    """Where an admission call is matched with a container of a pod and answered.

    Args:
        snapshots: the node's chips.
        pods: the node's pods.
        handovers: the ledger.
        admission: knows whom the kubelet is asking for.
        refresh: has the watch of the node's pods catch up with the API server; returns once it has.
        give: what a container with these chips is given, or Refusal.
        on_handover: told of a pod's hand-over, and of every change to what is to be written on the pod.
    """

    def __init__(
        self,
        *,
        snapshots: Observable[Snapshot | None],
        pods: NodePods,
        handovers: HandOvers,
        admission: AdmittedPodFinder,
        refresh: Callable[[], Awaitable[None]],
        give: Callable[[tuple[int, ...]], ContainerEdits],
        on_handover: Callable[[HandOver], None],
    ) -> None:
        self._snapshots = snapshots
        self._pods = pods
        self._handovers = handovers
        self._admission = admission
        self._refresh = refresh
        self._give = give
        self._on_handover = on_handover
        self._one_at_a_time = asyncio.Lock()
        self._preferred: tuple[Candidate, tuple[int, ...]] | None = None
        self._withheld = UnofferedChips(pods)

    def begin(self) -> None:
        """A kubelet that may have just started is about to be told of our devices."""
        self._withheld.begin()

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], count: int) -> list[str]:
        """The device ids for the container under admission; empty on any doubt (design, decision 2)."""
        self._preferred = None
        self._withheld.note(())
        if count <= 0:
            return []
        try:
            async with asyncio.timeout(PREFER_CAP_S), self._one_at_a_time:
                candidate, is_guess = await self._admission.find(count, PREFER_LIST_AFTER_S)
                chips = await self._choose(candidate, must_include, known_ids(available))
                if chips is None and (unoffered := await self._choose(candidate, must_include, None)) is not None:
                    self._withheld.note(set(unoffered) - known_ids(available))
        except (AscendError, TimeoutError) as error:
            log.info("no preference", count=count, error=str(error) or "no pod in time")
            return []
        if chips is None:
            log.info("no preference", pod=candidate.pod.key, error="the kubelet can't give the pod's chips")
            return []
        # A guess at whom the kubelet admits is good enough to lead it, not to hand chips over: Allocate asks it again.
        self._preferred = None if is_guess else (candidate, chips)
        return [chip_name(chip_id) for chip_id in chips]

    async def allocate(self, device_ids: Sequence[str]) -> Answer:
        """Hand a container its chips of those written on its pod.

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

    async def _allocate(self, device_ids: Sequence[str]) -> Answer:
        try:
            kubelet_ids = tuple(parse_chip_name(device_id) for device_id in device_ids)
        except InvalidValue as error:
            raise Refusal("UnknownDevice", error.message) from error
        if not kubelet_ids:
            raise Refusal("UnknownDevice", "the kubelet names no device")
        candidate, is_guess = self._recognise(kubelet_ids), False
        if candidate is None:
            try:
                candidate, is_guess = await self._admission.find(len(kubelet_ids), LIST_AFTER_S)
            except Refusal:
                # Only now: as long as a pod may be waiting, the ids may be its, left by one that has ended.
                if (earlier := self._repeated(self._handovers, kubelet_ids)) is not None:
                    return earlier
                raise
        self._preferred = None
        pod = candidate.pod
        known = self._handovers.get(pod.uid)
        # The kubelet never gives another container what one of the pod's keeps: it asks for that one again.
        if known is not None and (earlier := self._repeated([known], kubelet_ids, kept=True)) is not None:
            return earlier
        try:
            chips = await self._chips_now(pod)
            part = self._part(candidate, chips, kubelet_ids)
            self._withheld.check(pod, part)
            edits = self._give(part.chips)
        except (Refusal, asyncio.CancelledError):
            # Out of time is refused as well: until its rejection is on the watch, it would look as if it waited.
            self._handovers.turned_away.add(pod.uid)
            raise
        handover = known.plus(part) if known is not None else HandOver.of_parts(pod.uid, pod.key, chips, (part,))
        if is_guess:
            self._handovers.guessed.add(pod.uid)
        self._handovers.add(handover)
        if known is None or chip_set(known.kubelet_ids) != chip_set(handover.kubelet_ids):
            self._on_handover(handover)
        log.info(
            "handed over",
            pod=pod.key,
            pod_uid=pod.uid,
            container=part.container,
            chips=join_names(part.chips),
            kubelet_ids=join_names(kubelet_ids),
        )
        return Answer(handover, part, edits)

    def _part(self, candidate: Candidate, chips: Sequence[int], kubelet_ids: tuple[int, ...]) -> Part:
        """The kubelet's own choice where the pod may have it: it hands on an init container's chips as it likes."""
        pod, ask = candidate.pod, candidate.ask
        known = self._handovers.get(pod.uid)
        kept = known.kept if known is not None else {}
        given = choose(ask, pod.asks, chips, kept=kept, must_include=kubelet_ids)
        if given is None:
            given = choose(ask, pod.asks, chips, kept=kept)
        if given is None:
            raise Refusal("NoChipsLeft", f"container {ask.container}: its chips were given to others of its pod")
        return Part(ask.container, ask.keeps, given, kubelet_ids)

    async def _choose(
        self, candidate: Candidate, must_include: Sequence[str], among: Collection[int] | None
    ) -> tuple[int, ...] | None:
        """The chips to prefer: the container's if the kubelet can still give them (``among``, or all), else none."""
        if len(known_ids(must_include)) < len(set(must_include)):
            return None
        chips = await self._chips_now(candidate.pod)
        known = self._handovers.get(candidate.pod.uid)
        return choose(
            candidate.ask,
            candidate.pod.asks,
            chips,
            kept=known.kept if known is not None else {},
            among=among,
            must_include=known_ids(must_include),
        )

    def _recognise(self, kubelet_ids: Sequence[int]) -> Candidate | None:
        """The container whose set of chips we just told the kubelet to choose."""
        if self._preferred is None or set(self._preferred[1]) != set(kubelet_ids):
            return None
        return self._admission.still(self._preferred[0])

    def _repeated(
        self, handovers: Iterable[HandOver], kubelet_ids: Sequence[int], *, kept: bool = False
    ) -> Answer | None:
        """The answer already given: the kubelet asks again for a container whose answer it has lost."""
        for handover in handovers:
            for part in handover.parts:
                if set(part.kubelet_ids) == set(kubelet_ids) and (part.keeps or not kept):
                    return Answer(handover, part, self._give(part.chips))
        return None

    async def _chips_now(self, pod: NodePod) -> tuple[int, ...]:
        """The pod's chips, judged by what the API server knows now where our watch is behind.

        A watch that has not shown the pod may owe us the end of the one that had its chips, too: the allocator gave
        them to this pod because it had seen that.
        """
        try:
            return self._chips_for(pod)
        except Refusal as refusal:
            if refusal.reason != HELD or self._pods.get(pod.uid) is not None:
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
                self._handovers.drop(uid)  # came and went, all unseen: a pod handed chips before has to be known by now
        seen = self._pods.get(pod.uid)
        if seen is None or self._pods.has_moved_on(pod.uid):
            raise Refusal("NoSuchPod", f"pod {pod.key} has ended before it got its chips")
        return self._chips_for(seen)

    def _chips_for(self, pod: NodePod) -> tuple[int, ...]:
        snapshot = self._snapshots.value
        if snapshot is None:
            raise Refusal("NotReady", "the driver has not been read yet")
        others = {each.pod: each.held for each in self._handovers if each.uid != pod.uid}
        known = self._handovers.get(pod.uid)
        return chips_for(pod, snapshot, others, self._pods, own=known.held if known is not None else 0)
