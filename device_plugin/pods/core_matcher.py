"""Answers the kubelet's calls for AI cores: cuts a vNPU for the pod under admission, or gives it whole chips.

See docs/spec/vnpu.md#dynamic-vnpus-in-allocate.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import structlog

from ascend.chips import ChipSet, chip_name
from ascend.daemon.observable import Observable
from ascend.errors import AscendError, DriverError, InvalidValue, Refusal
from ascend.reasons import Reason
from ascend.templates import TEMPLATES
from device_plugin.device_types import CORES, WHOLE_CHIPS, DeviceType, number_of
from device_plugin.driver import VirtualNpu
from device_plugin.health.snapshot import Snapshot
from device_plugin.ledger.chip_choice import Chooser
from device_plugin.ledger.core_admission import check_cores
from device_plugin.ledger.cores import CoreLedger, core_handover, kind_of
from device_plugin.ledger.handovers import HandOver
from device_plugin.ledger.node_pods import NodePod
from device_plugin.pods.admission_matcher import (
    CAP_S,
    LIST_AFTER_S,
    PREFER_CAP_S,
    PREFER_LIST_AFTER_S,
    REFRESH_S,
    Answer,
)
from device_plugin.pods.admitted_pod import AdmittedPodFinder
from device_plugin.pods.container_edits import ContainerEdits
from device_plugin.pods.core_keeper import CoreKeeper

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

MARGIN_S: Final = 0.3
"""What is left of the time of a call when the driver's time is over."""
NODE_S: Final = 0.05
"""How often it is looked for the device node of a vNPU that was just created."""
BEHIND: Final = frozenset({Reason.CHIP_HELD, Reason.NO_RESOURCE})
"""Refusals that can come from a pod whose end the watch has not shown yet."""


class CoreMatcher:
    """Matches each call with a pod, and answers it.

    Args:
        snapshots: the node's chips.
        ledger: of AI cores.
        keeper: cuts chips, and gives back what nobody uses.
        finder: finds the container under admission.
        refresh: waits until the watch of the node's pods has caught up with the API server.
        whole: returns the chips that pods hold which do not request AI cores.
        inject: returns what a container with devices of a type gets, or raises Refusal.
        on_handover: receives a pod's hand-over when its annotations have to be written.

    Attributes:
        chooser: unused: only an allocator chooses which chip is cut.
    """

    def __init__(
        self,
        *,
        snapshots: Observable[Snapshot | None],
        ledger: CoreLedger,
        keeper: CoreKeeper,
        finder: AdmittedPodFinder,
        refresh: Callable[[], Awaitable[None]],
        whole: Callable[[], ChipSet],
        inject: Callable[[tuple[int, ...], DeviceType], ContainerEdits],
        on_handover: Callable[[HandOver], None],
    ) -> None:
        self._snapshots = snapshots
        self._ledger = ledger
        self._keeper = keeper
        self._finder = finder
        self._refresh = refresh
        self._whole = whole
        self._inject = inject
        self._on_handover = on_handover
        self._one_at_a_time = asyncio.Lock()
        self.chooser: Chooser | None = None

    def begin(self) -> None:
        """Note that a kubelet, which may have just started, is about to be sent our devices."""
        self._finder.begin()

    @property
    def is_admitting(self) -> bool:
        """Whether a call of the kubelet is being answered."""
        return self._one_at_a_time.locked()

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], count: int) -> list[str]:
        """Return the cores of the pod's chips first, then others; empty if in doubt. Any cores would do."""
        if count <= 0:
            return []
        try:
            async with asyncio.timeout(PREFER_CAP_S), self._one_at_a_time:
                candidate, _ = await self._finder.find(count, PREFER_LIST_AFTER_S)
            numbers, included = [*map(CORES.parse, available)], [*map(CORES.parse, must_include)]
        except (AscendError, TimeoutError):
            return []
        own = self._own(candidate.pod)
        rest = sorted({*numbers} - {*included}, key=lambda number: (number not in own, number))
        found = [*included, *rest][:count]
        return [CORES.device_name(each) for each in found] if len(found) == count else []

    def _own(self, pod: NodePod) -> set[int]:
        """Return the numbers of the cores of the chips written on a pod."""
        snapshot = self._snapshots.value
        kind = kind_of(snapshot.server) if snapshot is not None else None
        if snapshot is None or kind is None or pod.grant is None:
            return set()
        indexes = [index for index, chip in enumerate(snapshot.chips) if chip.chip_id in pod.grant.chips]
        return {index * kind.cores + each for index in indexes for each in range(kind.cores)}

    async def allocate(self, device_ids: Sequence[str]) -> Answer:
        """Cut a vNPU for a container, or give it whole chips.

        Args:
            device_ids: the ids the kubelet chose.

        Raises:
            Refusal: it gets none; the sentence is for the pod's owner.
        """
        until_s = asyncio.get_running_loop().time() + CAP_S
        try:
            async with asyncio.timeout(CAP_S), self._one_at_a_time:
                return await self._allocate(device_ids, until_s - MARGIN_S)
        except TimeoutError:
            raise Refusal(Reason.TIMED_OUT, f"no decision within {CAP_S:.0f} s") from None

    async def _allocate(self, device_ids: Sequence[str], until_s: float) -> Answer:
        try:
            ids = tuple(map(CORES.parse, device_ids))
        except InvalidValue as error:
            raise Refusal(Reason.UNKNOWN_DEVICE, error.message) from error
        if not ids:
            raise Refusal(Reason.UNKNOWN_DEVICE, "the kubelet names no device")
        try:
            candidate, _ = await self._finder.find(len(ids), LIST_AFTER_S)
        except Refusal:
            # Only now: while a pod may be waiting, the ids can be its own, left over from a pod that has ended.
            for each in self._ledger.handovers:
                if set(each.kubelet_ids) == set(ids):
                    return Answer(each, each.parts[0], self._edits(each))
            raise
        pod = candidate.pod
        try:
            with self._keeper.cutting(pod.grant.chips if pod.grant is not None else ()):
                handover, edits = await self._given(pod, ids, until_s)
                self._ledger.handovers.give(handover, ids)
        except (Refusal, asyncio.CancelledError):
            self._ledger.handovers.refused.add(pod.uid)
            raise
        self._on_handover(handover)
        log.info("handed over", pod=pod.key, pod_uid=pod.uid, given=handover.name, cores=len(ids))
        return Answer(handover, handover.parts[0], edits)

    async def _given(self, pod: NodePod, ids: tuple[int, ...], until_s: float) -> tuple[HandOver, ContainerEdits]:
        pod = await self._checked(pod)
        grant = pod.grant
        if grant is None:
            raise Refusal(Reason.INTERNAL, "a pod without annotation was not refused")
        await self._clear(pod, grant.chips, until_s)
        if not pod.template:
            handover = core_handover(pod, ids, grant.chips, "", None)
            return handover, self._edits(handover)
        kept = self._ledger.handovers.kept.get(pod.uid)
        vnpu = kept.vnpu if kept is not None and (kept.chips, kept.template) == (grant.chips, pod.template) else None
        if vnpu is not None and self._keeper.lists(vnpu):
            handover = core_handover(pod, ids, grant.chips, pod.template, vnpu)
            return handover, await self._edits_soon(handover, until_s)
        vnpu = await self._create(pod, grant.chips[0], until_s)
        with self._unless_given(vnpu):
            if self._ledger.pods.has_moved_on(pod.uid):
                raise Refusal(Reason.NO_SUCH_POD, f"pod {pod.key} has ended before it got its vNPU")
            handover = core_handover(pod, ids, grant.chips, pod.template, vnpu)
            return handover, await self._edits_soon(handover, until_s)

    @contextmanager
    def _unless_given(self, vnpu: VirtualNpu) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._keeper.not_given(vnpu)
            raise

    async def _checked(self, pod: NodePod) -> NodePod:
        """Return the pod as it may have its chips; if the watch is behind, judge by the API server's present state."""
        try:
            self._check(pod)
        except Refusal as refusal:
            if refusal.reason not in BEHIND:
                raise
            try:
                async with asyncio.timeout(REFRESH_S):
                    await self._refresh()
            except TimeoutError:
                raise refusal from None
            seen = self._ledger.pods.get(pod.uid)
            if seen is None or self._ledger.pods.has_moved_on(pod.uid):
                self._ledger.pods.ended_unseen(pod)
                raise Refusal(Reason.NO_SUCH_POD, f"pod {pod.key} has ended before it got its chips") from None
            await self._keeper.settle()
            self._check(seen)
            return seen
        return pod

    def _check(self, pod: NodePod) -> None:
        snapshot = self._snapshots.value
        if snapshot is None or (kind := kind_of(snapshot.server)) is None:
            raise Refusal(Reason.NOT_READY, "the driver has not been read yet")
        check_cores(pod, snapshot, kind, self._ledger, self._whole())

    async def _clear(self, pod: NodePod, chips: Sequence[int], until_s: float) -> None:
        """Give back what nobody uses of the pod's chips, and check what the driver says is left of them.

        Raises:
            Refusal: too little is left, or the driver does not say what.
        """
        loop = asyncio.get_running_loop()
        template = TEMPLATES.get(pod.template)
        for chip in chips:
            try:
                division = await self._keeper.clear(chip, until_s - loop.time())
            except DriverError as error:
                raise Refusal(Reason.SEGMENT_FAILED, f"{chip_name(chip)}: {error.message}") from error
            if template is None:
                if division.vnpus:
                    vdev_id = division.vnpus[0].vdev_id
                    raise Refusal(Reason.NO_RESOURCE, f"{chip_name(chip)} is cut: it has the vNPU {vdev_id}")
                continue
            known = self._ledger.handovers.kept.get(pod.uid)
            if known is not None and known.vnpu in division.vnpus:
                continue
            cores, cpus = division.free_cores, division.free_cpus
            if (cores is not None and cores < template.cores) or (cpus is not None and cpus < template.cpus):
                raise Refusal(
                    Reason.NO_RESOURCE,
                    f"{chip_name(chip)}: the driver has {cores} AI cores left of it, {template.name} takes "
                    f"{template.cores}",
                )

    async def _create(self, pod: NodePod, chip: int, until_s: float) -> VirtualNpu:
        within_s = until_s - asyncio.get_running_loop().time()
        try:
            vnpu = await self._keeper.create(chip, pod.template, within_s)
        except DriverError as error:
            raise Refusal(
                Reason.SEGMENT_FAILED, f"no vNPU of {pod.template} on {chip_name(chip)}: {error.message}"
            ) from error
        if (holder := self._keeper.holder(vnpu.vdev_id)) is not None:
            self._keeper.not_given(vnpu)
            raise Refusal(
                Reason.SEGMENT_FAILED,
                f"the driver has given the id {vnpu.vdev_id} again, of a vNPU that pod {holder} was given and that is "
                "gone: delete that pod",
            )
        return vnpu

    async def _edits_soon(self, handover: HandOver, until_s: float) -> ContainerEdits:
        """Return the edits once the device node of a new vNPU exists."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                return self._edits(handover)
            except Refusal as refusal:
                if refusal.reason is not Reason.DEVICE_NODE_MISSING or loop.time() >= until_s:
                    raise
            await asyncio.sleep(NODE_S)

    def _edits(self, handover: HandOver) -> ContainerEdits:
        if not handover.template:
            edits = self._inject(handover.chips, WHOLE_CHIPS)
        else:
            vnpu = handover.vnpu.vnpu if handover.vnpu is not None else None
            if vnpu is None:
                raise Refusal(Reason.SEGMENT_FAILED, f"the vNPU of pod {handover.pod} is gone")
            edits = self._inject((number_of(vnpu),), DeviceType(vnpu.suffix))
        return replace(edits, envs={**edits.envs, **job_environment(len(handover.chips))})


def job_environment(count: int) -> dict[str, str]:
    """Return what a container with this many chips, or with one vNPU, needs to know about its job."""
    names = (
        "MS_LOCAL_WORKER",
        "MS_WORKER_NUM",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "CM_WORKER_SIZE",
        "CM_LOCAL_WORKER",
    )
    return dict.fromkeys(names, str(count)) | {"LOCAL_RANK": ",".join(map(str, range(count)))}
