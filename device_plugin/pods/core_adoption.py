"""The vNPUs of pods, or the chips of their AI cores, by the kubelet, the driver and annotations.

The kubelet's ids are numbers of cores that say nothing about chips. After a restart the vNPUs of pods are known by
their annotations (AscendReal); those of a pod whose claim was not written are found by the chip and the template that
the allocator wrote on it.
"""

from collections.abc import Callable, Collection
from dataclasses import replace

from ascend.chips import chip_name
from ascend.templates import TEMPLATES, divisible_kinds
from device_plugin.device_types import CORES
from device_plugin.driver import VirtualNpu
from device_plugin.kubelet.pod_resources import PodResources
from device_plugin.ledger.adoption import is_as_requested
from device_plugin.ledger.allocations import Allocation
from device_plugin.ledger.cores import CoreLedger, core_allocation
from device_plugin.ledger.node_pods import NodePod
from device_plugin.pods.cut_vnpus import CutVnpus
from device_plugin.pods.devices import Held
from device_plugin.pods.notices import MISMATCH, WITHOUT, PodNotices


class CoreAdoption:
    """The half of ``Devices`` that the ledger of AI cores follows the kubelet's by.

    Args:
        ledger: what pods have of them.
        vnpus: what the driver has.
        others: returns the vNPUs of pods that request static vNPUs, as pairs of chip and id.
        notices: tells pods what does not match.
    """

    must_be_settled = True

    def __init__(
        self,
        ledger: CoreLedger,
        vnpus: CutVnpus,
        *,
        others: Callable[[], set[tuple[int, int]]],
        notices: PodNotices,
    ) -> None:
        self.ledger = ledger
        self._vnpus = vnpus
        self._others = others
        self._notices = notices

    async def look(self) -> None:
        """Ask the driver which vNPUs there are."""
        await self._vnpus.look_at_all()

    def compare(self, ledger: PodResources, newer: Collection[int]) -> None:
        """Forget what pods had that have ended by the watch and by the kubelet's ledger."""
        allocations = self.ledger.allocations
        for uid, kept in [*allocations.kept.items()]:
            pod = self.ledger.pods.get(uid)
            if pod is not None and pod.live:
                continue  # a new kubelet admits it again
            ids = _ids(ledger.pods.get(kept.pod, {})).intersection(kept.kubelet_ids)
            # The entry of a name may be that of the pod's successor, to which the kubelet has given the same ids.
            heir = any(other.pod == kept.pod and ids.issubset(other.kubelet_ids) for other in allocations)
            if not ids or (heir and kept.pod not in ledger.ambiguous) or ids.issubset(newer):
                self.ledger.forget(kept)
        self.ledger.took(frozenset(number for held in ledger.pods.values() for number in _ids(held)), self.ledger.left)

    def is_its_own(self, pod: NodePod, held: Held, *, admitted: bool, is_known: bool) -> bool:
        """Return whether an entry of the kubelet's ledger belongs to this pod; see ``Devices``."""
        known = self.ledger.allocations.get(pod.uid)
        has_own_ids = known is not None and _ids(held).issubset(known.kubelet_ids)
        # A pod that the kubelet is about to ask for has an entry without ids already.
        return is_as_requested(pod, held) and (admitted or (bool(held) and (is_known or has_own_ids)))

    def adopt(self, pod: NodePod, held: Held, *, admitted: bool) -> Allocation | None:  # noqa: ARG002 - it has one container
        """Return the allocation that explains an entry; None if what the pod has is unknown.

        What is unknown is not given back as long as the pod lives.
        """
        ids = tuple(sorted(_ids(held)))
        allocations = self.ledger.allocations
        known = allocations.answers_to(pod.uid).get(frozenset(ids))
        if known is None or self._is_given_again(known):
            known = {allocation.uid: allocation for allocation in self._certain}.get(pod.uid)
        if known is not None:
            return core_allocation(pod, ids, known.chips, known.template, known.vnpu)
        claimed = self._standing_claim(pod)
        if claimed is not None and claimed not in self._assigned_vnpus():
            return core_allocation(pod, ids, (claimed.phy_id,), claimed.template, claimed)
        return self._allocation_as_written(pod, ids)

    def _is_given_again(self, answer: Allocation) -> bool:
        """Return whether a pod has the devices of an earlier answer whose holder has ended."""
        ids = {*answer.kubelet_ids}
        return any({*other.kubelet_ids} != ids and other.overlaps(answer) for other in self._certain)

    def believe(self, pod: NodePod) -> Allocation | None:
        """Return the allocation that a pod's claim describes; None if the driver does not have its vNPU."""
        if not pod.claimed or pod.given is None or not pod.count:
            return None
        vnpu = claimed_vnpu(pod)
        if vnpu is not None:
            template = TEMPLATES.get(vnpu.template)
            is_possible = vnpu in self._vnpus and template is not None and template.cores == pod.count
        else:
            is_possible = any(len(pod.given.chips) * kind.cores == pod.count for kind in divisible_kinds())
        template_name = vnpu.template if vnpu is not None else ""
        return core_allocation(pod, (), pod.given.chips, template_name, vnpu) if is_possible else None

    def _tell_without(self, pod: NodePod, why: str) -> None:
        self._notices.tell(pod, WITHOUT, f"it runs without its vNPU: {why}; delete the pod")

    def _standing_claim(self, pod: NodePod) -> VirtualNpu | None:
        """Return the vNPU of a pod's claim, unless the allocator's annotation and the driver contradict the claim.

        If only the annotation does, one of the two was changed, and the pod may have the vNPU.
        """
        claimed = claimed_vnpu(pod)
        if claimed is None or pod.grant is None:
            return claimed
        if (pod.grant.chips, pod.template) == ((claimed.phy_id,), claimed.template):
            return claimed
        if claimed not in self._vnpus:
            return None
        what = f"it has the vNPU {claimed.vdev_id}, but its annotation {CORES.resource} says otherwise"
        self._notices.tell(pod, MISMATCH, what)
        return claimed

    def _allocation_as_written(self, pod: NodePod, ids: tuple[int, ...]) -> Allocation | None:
        """Return the allocation of a pod without a claim by the allocator's annotation; None if it is unknown."""
        if pod.grant is None or pod.problem is not None:
            return None
        if not pod.template:
            return core_allocation(pod, ids, pod.grant.chips, "", None)
        chip = pod.grant.chips[0]
        if not self._vnpus.is_known(chip):
            return None
        vnpu = self._likely(pod, chip)
        if vnpu is None:
            self._tell_without(pod, f"the driver has no vNPU of {pod.template} on {chip_name(chip)} for it")
        return core_allocation(pod, ids, pod.grant.chips, pod.template, vnpu)

    def _likely(self, pod: NodePod, chip: int) -> VirtualNpu | None:
        """Return a vNPU that a pod without a claim can have.

        All that fit are alike but for whether a container has them: a pod whose containers run has one that a container
        has, if there is such a one.
        """
        fits = [
            vnpu
            for vnpu in self._vnpus.on(chip)
            if vnpu.template == pod.template
            and vnpu not in self._assigned_vnpus()
            and (vnpu.phy_id, vnpu.vdev_id) not in self._others()
            and not self._vnpus.is_not_given(vnpu)
        ]
        if sum(fitting.in_container == pod.past_admission for fitting in fits) != 1:
            self.ledger.guessed.add(pod.uid)

        def order(vnpu: VirtualNpu) -> tuple[bool, bool, int]:
            return self.ledger.owns(vnpu), vnpu.in_container != pod.past_admission, vnpu.vdev_id

        return min(fits, key=order, default=None)

    @property
    def _certain(self) -> list[Allocation]:
        """The allocations that rest on more than the claim of a pod."""
        believed = self.ledger.allocations.believed
        return [allocation for allocation in self.ledger.holding if allocation.uid not in believed]

    def _assigned_vnpus(self) -> list[VirtualNpu | None]:
        return [allocation.vnpu for allocation in self._certain]


def claimed_vnpu(pod: NodePod) -> VirtualNpu | None:
    """Return the vNPU of a live pod's claim, as the driver lists it; None without a claim."""
    if pod.given is None or pod.claimed_vnpu is None:
        return None
    return replace(VirtualNpu.of_vnpu(pod.claimed_vnpu), vfg_id=pod.given.group)


def _ids(held: Held) -> set[int]:
    return {number for ids in held.values() for number in ids}
