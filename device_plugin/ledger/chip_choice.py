"""Chooses chips for pods that no allocator has placed: a scheduler that only counts devices has bound them.

The rule is that of the server's product (docs/spec/affinity-rules.md, docs/spec/products.md#policies-and-rules), as the
allocator applies it: on 910A servers, for example, up to 4 chips are of one ring.

MindCluster's plugin gives pods other chips than the ids that the kubelet chose
(docs/spec/hand-over.md#kubelet-ids-and-real-chips). While its pods run, the id of a free chip may be theirs. There
are as many free ids as free chips, so each pod can get its chips under other ids: those of chips that other pods
have. The ids of free chips stay free for the pods that will get these chips, and the difference ends with the pods
that have it.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from ascend.annotations import Grant
from ascend.chips import ChipSet, chip_ids, chip_set
from ascend.errors import Refusal
from ascend.grammar import count
from ascend.kube.objects import Node
from ascend.products import Product
from ascend.reasons import Reason
from ascend.rules.families import RULES, refuse_number
from ascend.rules.identity import SERVER_TYPE, identify
from device_plugin.health.snapshot import Snapshot
from device_plugin.ledger.allocations import Allocation, DeviceLedger
from device_plugin.ledger.node_pods import NodePod


class Chooser(Protocol):
    """Chooses what a pod gets that no allocator has placed."""

    def place(self, pod: NodePod, snapshot: Snapshot, wanted: Collection[int]) -> NodePod:
        """Return the pod with the chosen devices as if an allocator had written them on the pod, or raise Refusal.

        Args:
            pod: the pod under admission, without anything written on it.
            snapshot: the node's devices.
            wanted: those that the kubelet can allocate, or has chosen.
        """


class VnpuChooser:
    """Takes the kubelet's own choice of vNPUs: all of a size are alike.

    Args:
        ledger: what pods have of this size.
    """

    def __init__(self, ledger: DeviceLedger) -> None:
        self._ledger = ledger

    def place(self, pod: NodePod, snapshot: Snapshot, wanted: Collection[int]) -> NodePod:
        """Return the pod with the chosen vNPU as if an allocator had written it on the pod; see ``Chooser``.

        Raises:
            Refusal: what the kubelet has chosen is unhealthy, or held by another pod.
        """
        known = self._ledger.allocations.get(pod.uid)
        free = free_devices(pod, snapshot, self._ledger)
        chips = known.chips if known is not None else chip_ids(free & chip_set(wanted))[: pod.count]
        if len(chips) < pod.count:
            raise Refusal(
                Reason.NOT_ENOUGH_CHIPS, f"no {pod.device_type.name} that the kubelet has chosen is healthy and free"
            )
        return replace(pod, grant=Grant(chips, None), held=chip_set(chips))


class ChipChooser:
    """Chooses among the chips that no pod has or waits for.

    A chip that is free by our ledger but not for the kubelet may be that of a pod which this plugin does not know yet:
    it got its chips from the plugin before, and is neither claimed nor seen admitted. It is not chosen.

    Args:
        node: the Node as read at the start of the plugin; its labels name the product.
        ledger: what pods have of the node's chips.
    """

    def __init__(self, node: Node, ledger: DeviceLedger) -> None:
        self._node = node
        self._ledger = ledger
        self._last: tuple[str, tuple[int, ...]] = ("", ())
        self._offered: tuple[str, ChipSet] = ("", 0)

    def place(self, pod: NodePod, snapshot: Snapshot, wanted: Collection[int]) -> NodePod:
        """Return the pod with the chosen chips as if an allocator had written them on the pod.

        Args:
            pod: the pod under admission, without chips written on it.
            snapshot: the node's chips.
            wanted: the physical ids of the chips that the kubelet can allocate, or has chosen for a container: they are
                taken if the rule allows it. Others are taken only if it has offered them for this pod before, or counts
                them for a pod that has other chips.

        Raises:
            Refusal: the product does not allow the number of chips, or the free ones are too few or not linked.
        """
        known = self._ledger.allocations.get(pod.uid)
        chips = known.chips if known is not None else self._choose(pod, snapshot, chip_set(wanted))
        self._last = pod.uid, chips
        return replace(pod, grant=Grant(chips, None), held=chip_set(chips))

    def _choose(self, pod: NodePod, snapshot: Snapshot, wanted: ChipSet) -> tuple[int, ...]:
        product = self._product(snapshot)
        if pod.count not in product.requests:
            raise refuse_number(product, pod.count, distributed=False)
        free = free_devices(pod, snapshot, self._ledger) & product.all_chips & self._known_free(pod, wanted)
        uid, last = self._last
        # What was preferred for the pod's first container stays, unless the kubelet has chosen other chips for it.
        if uid == pod.uid and not chip_set(last) & ~free and not wanted & ~chip_set(last):
            return last
        rule = RULES[product.family]
        for among in (wanted & free, free):
            if among.bit_count() >= pod.count:
                placement = rule.place(product, among, pod.count)
                if placement is not None:
                    return placement.chips
        if free.bit_count() < pod.count:
            healthy = snapshot.healthy.bit_count()
            raise Refusal(
                Reason.NOT_ENOUGH_CHIPS,
                f"{count(pod.count, 'chip')} requested, {free.bit_count()} free of {healthy} healthy",
            )
        raise rule.refuse(product, free, pod.count)

    def _product(self, snapshot: Snapshot) -> Product:
        metadata, by_driver = self._node.metadata, {SERVER_TYPE: f"{snapshot.server.chip_type}-"}
        return identify(self._node.name, metadata.labels | by_driver, metadata.annotations, snapshot.all_chips)

    def _known_free(self, pod: NodePod, wanted: ChipSet) -> ChipSet:
        """Return the chips whose ids the kubelet can allocate to this pod, or counts for a pod of our ledger."""
        uid, offered = self._offered
        self._offered = pod.uid, wanted | (offered if uid == pod.uid else 0)
        return self._offered[1] | chip_set(counted_for(self._ledger.allocations))


def free_devices(pod: NodePod, snapshot: Snapshot, ledger: DeviceLedger) -> ChipSet:
    """Return the devices that a pod may get: the devices that no further pod has or waits for."""
    return snapshot.healthy & ~snapshot.recovering & ~snapshot.closed_to_new_pods & ~ledger.used_by_others(pod.uid)


def counted_for(others: Iterable[Allocation]) -> set[int]:
    """Return the device ids that the kubelet's ledger has for these pods."""
    return {chip for other in others for chip in other.kubelet_ids}


def substitute_ids(
    chips: Sequence[int], offered: Collection[int], others: Collection[Allocation]
) -> tuple[int, ...] | None:
    """Return the device ids to prefer for a container's chips.

    Args:
        chips: the physical ids of the container's chips.
        offered: the device ids that the kubelet can allocate.
        others: what other pods were given.

    Returns:
        None if a chip's id is not offered for another reason than that the kubelet counts it for one of these pods, or
        if there are too few ids of chips that these pods have.
    """
    missing = [chip for chip in chips if chip not in offered]
    if not counted_for(others).issuperset(missing):
        return None
    spare = sorted({chip for other in others for chip in other.chips}.intersection(offered).difference(chips))
    if len(spare) < len(missing):
        return None
    return (*(chip for chip in chips if chip in offered), *spare[: len(missing)])
