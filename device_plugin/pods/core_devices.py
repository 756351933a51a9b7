"""AI cores: a vNPU is cut for the pod under admission, or the pod gets whole chips.

See docs/spec/vnpu.md#dynamic-vnpus-in-allocate.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from ascend.chips import ChipSet, chip_name, chip_set
from ascend.errors import DriverError, Refusal
from ascend.reasons import Reason
from ascend.templates import TEMPLATES, Divisible
from device_plugin.device_types import WHOLE_CHIPS, DeviceType, number_of
from device_plugin.driver import VirtualNpu
from device_plugin.health.snapshot import Snapshot
from device_plugin.ledger.admission import AdmissionCandidate
from device_plugin.ledger.allocations import Allocation, ContainerPart
from device_plugin.ledger.core_admission import check_cores
from device_plugin.ledger.cores import CoreLedger, core_allocation, kind_of
from device_plugin.ledger.node_pods import NodePod
from device_plugin.pods.container_edits import ContainerEdits
from device_plugin.pods.core_adoption import CoreAdoption
from device_plugin.pods.core_keeper import CoreKeeper
from device_plugin.pods.cut_vnpus import CutVnpus
from device_plugin.pods.devices import Answer, Inject, Preference
from device_plugin.pods.notices import PodNotices

NODE_S: Final = 0.05
"""How often it is looked for the device node of a vNPU that was just created."""


class CoreDevices(CoreAdoption):
    """AI cores, out of which vNPUs are cut for pods.

    Args:
        ledger: what pods have of them.
        vnpus: what the driver has.
        keeper: gives back what nobody uses.
        others: returns the vNPUs of pods that request static vNPUs, as pairs of chip and id.
        whole: returns the chips that pods hold which do not request AI cores.
        inject: returns what a container with devices of a type gets.
        notices: tells pods what does not match.
    """

    def __init__(
        self,
        ledger: CoreLedger,
        vnpus: CutVnpus,
        keeper: CoreKeeper,
        *,
        others: Callable[[], set[tuple[int, int]]],
        whole: Callable[[], ChipSet],
        inject: Inject,
        notices: PodNotices,
    ) -> None:
        super().__init__(ledger, vnpus, others=others, notices=notices)
        self._keeper = keeper
        self._whole = whole
        self._inject = inject

    async def check(self, pod: NodePod, snapshot: Snapshot) -> tuple[int, ...]:
        """Return the chips that are written on a pod, if it may have them, or a part; see ``check_cores``."""
        kind = _kind(snapshot)
        kept = chip_set(chip for allocation in self.ledger.allocations.kept.values() for chip in allocation.chips)
        if pod.grant is not None and kept & pod.grant.chip_set:
            await self._keeper.settle()  # the pod that had it may have ended since the kubelet's ledger was read
        return check_cores(pod, snapshot, kind, self.ledger, self._whole())

    def prefer(
        self,
        candidate: AdmissionCandidate,
        chips: Sequence[int],
        snapshot: Snapshot,
        *,
        offered: Collection[int],
        included: Collection[int],
    ) -> Preference:
        """Return the cores of the pod's chips first, then others: any would do."""
        cores = _kind(snapshot).cores
        indexes = [index for index, chip in enumerate(snapshot.chips) if chip.chip_id in chips]
        own = {index * cores + number for index in indexes for number in range(cores)}
        rest = sorted({*offered} - {*included}, key=lambda number: (number not in own, number))
        ids = (*sorted(included), *rest)[: candidate.ask.count]
        return Preference(ids if len(ids) == candidate.ask.count else None)

    async def realize(
        self, candidate: AdmissionCandidate, chips: tuple[int, ...], kubelet_ids: tuple[int, ...], until_s: float
    ) -> Answer:
        """Cut a vNPU for a container, or give it whole chips; see ``Devices``."""
        pod = candidate.pod
        with self._keeper.cutting(chips):
            await self._clear(pod, chips, until_s)
            kept = self.ledger.allocations.kept.get(pod.uid)
            if not pod.template:
                return self._answer(core_allocation(pod, kubelet_ids, chips, "", None))
            # A kubelet that has lost the allocation asks again: the pod keeps the vNPU that was cut for it.
            own = kept.vnpu if kept is not None and (kept.chips, kept.template) == (chips, pod.template) else None
            if own is not None and own in self._vnpus:
                return await self._answer_soon(core_allocation(pod, kubelet_ids, chips, pod.template, own), until_s)
            vnpu = await self._create(pod, chips[0], until_s)
            with self._unless_given(vnpu):
                if self.ledger.pods.has_moved_on(pod.uid):
                    raise Refusal(Reason.NO_SUCH_POD, f"pod {pod.key} has ended before it got its vNPU")
                return await self._answer_soon(core_allocation(pod, kubelet_ids, chips, pod.template, vnpu), until_s)

    @contextmanager
    def _unless_given(self, vnpu: VirtualNpu) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._vnpus.not_given(vnpu)
            raise

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
            known = self.ledger.allocations.kept.get(pod.uid)
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
            vnpu = await self._vnpus.create(chip, pod.template, within_s)
        except DriverError as error:
            raise Refusal(
                Reason.SEGMENT_FAILED, f"no vNPU of {pod.template} on {chip_name(chip)}: {error.message}"
            ) from error
        holders = (
            allocation
            for allocation in self.ledger.holding
            if allocation.vnpu is not None and allocation.vnpu.vdev_id == vnpu.vdev_id
        )
        if (holder := next(holders, None)) is not None:
            self._vnpus.not_given(vnpu)
            raise Refusal(
                Reason.SEGMENT_FAILED,
                f"the driver has given the id {vnpu.vdev_id} again, of a vNPU that pod {holder.pod} was given and that "
                "is gone: delete that pod",
            )
        return vnpu

    async def _answer_soon(self, allocation: Allocation, until_s: float) -> Answer:
        """Return the answer once the device node of a new vNPU exists."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                return self._answer(allocation)
            except Refusal as refusal:
                if refusal.reason is not Reason.DEVICE_NODE_MISSING or loop.time() >= until_s:
                    raise
            await asyncio.sleep(NODE_S)

    def _answer(self, allocation: Allocation) -> Answer:
        part = allocation.parts[0]
        return Answer(allocation, part, self.edits(allocation, part))

    def edits(self, allocation: Allocation, part: ContainerPart) -> ContainerEdits:
        """Return what the kubelet adds to a container with whole chips or a vNPU, or raise Refusal."""
        if not allocation.template:
            edits = self._inject(part.chips, WHOLE_CHIPS)
        else:
            vnpu = allocation.vnpu.vnpu if allocation.vnpu is not None else None
            if vnpu is None:
                raise Refusal(Reason.SEGMENT_FAILED, f"the vNPU of pod {allocation.pod} is gone")
            edits = self._inject((number_of(vnpu),), DeviceType(vnpu.suffix))
        return replace(edits, envs={**edits.envs, **job_environment(len(allocation.chips))})


def _kind(snapshot: Snapshot) -> Divisible:
    kind = kind_of(snapshot.server)
    if kind is None:
        raise Refusal(Reason.NOT_READY, "the driver has not been read yet")
    return kind


def job_environment(count: int) -> dict[str, str]:
    """Return the environment about the job, for a container with this many chips or with one vNPU."""
    names = (
        "MS_LOCAL_WORKER",
        "MS_WORKER_NUM",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "CM_WORKER_SIZE",
        "CM_LOCAL_WORKER",
    )
    return dict.fromkeys(names, str(count)) | {"LOCAL_RANK": ",".join(map(str, range(count)))}
