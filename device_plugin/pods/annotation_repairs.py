"""Puts right the annotations by which others know a pod's chips, if somebody has changed them since the allocation.

The allocator writes the chips on the pod once, with the Binding, and the device plugin claims them; from then on the
allocation is the truth. A change has no effect in this program, but others read the annotations. Somebody who writes
them again and again is answered less and less often.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeAlias

import structlog

from ascend.annotations import KUBELET_IDS, PREDICATE_TIME, REAL
from ascend.rate_limiters import ItemBackoff, loop_time_s
from device_plugin.ledger.allocations import Allocation, Allocations
from device_plugin.ledger.node_pods import NodePod, NodePods
from device_plugin.ledger.pod_annotations import grant_text
from device_plugin.metrics import Metrics

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

REPAIRED: Final = "NPUAnnotationRepaired"

SPACING_S: Final = 0.2
"""The time between two repairs of a pod, so that the watch can show the first one."""
QUICK: Final = 8
"""How many repairs of a pod are made with it; afterwards the time doubles from ``SLOW_S`` to ``LIMIT_S``."""
SLOW_S: Final = 1.0
LIMIT_S: Final = 60.0
FORGET_S: Final = 600.0
"""After this time without a repair, a pod's repairs are quick again."""


class WritesClaim(Protocol):
    """Writes a claim on a pod."""

    def __call__(self, allocation: Allocation, others: Mapping[str, str | None] = ..., /) -> None:
        """Write the claim and further annotations; None removes an annotation."""


_Aspect: TypeAlias = Literal["grant", "claim", "ids"]


@dataclass(slots=True)
class _Seen:
    """What has been seen of a pod's annotations.

    Attributes:
        allocation: the allocation it is compared with.
        foreign: those of other types of devices that it had when that was first seen.
        right: what was right once.
    """

    allocation: Allocation
    foreign: frozenset[str]
    right: set[_Aspect] = field(default_factory=set)


class AnnotationRepairs:
    """Looks for changed annotations of the pods with one type of devices.

    Args:
        pods: the node's pods.
        allocations: what they were given.
        claim: writes a claim again.
        announce: receives a pod, a reason and a sentence.
        metrics: counts repairs.
    """

    def __init__(
        self,
        pods: NodePods,
        allocations: Allocations,
        claim: WritesClaim,
        announce: Callable[[NodePod, str, str], None],
        metrics: Metrics,
    ) -> None:
        self._pods = pods
        self._allocations = allocations
        self._claim = claim
        self._announce = announce
        self._metrics = metrics
        self._seen: dict[str, _Seen] = {}
        self._repairs = ItemBackoff[str](
            loop_time_s, SLOW_S, LIMIT_S, free=QUICK - 1, free_s=SPACING_S, remembered_s=FORGET_S
        )

    def look(self) -> float | None:
        """Repair what was changed and is due; return in how many seconds something else is due, None if nothing is."""
        self._seen = {uid: seen for uid, seen in self._seen.items() if uid in self._allocations}
        waits_s = []
        for allocation in tuple(self._allocations):
            pod = self._pods.get(allocation.uid)
            if pod is None or not pod.live:
                continue
            seen = self._seen.setdefault(pod.uid, _Seen(allocation, pod.foreign))
            if not _is_same(seen.allocation, allocation):
                seen.right.clear()  # it is about to be claimed anew
            seen.allocation, seen.foreign = allocation, seen.foreign & pod.foreign
            changed = tuple(self._foreign_annotations(pod, allocation, seen))
            if not changed:
                continue
            if not self._repairs.is_waiting(pod.uid):
                self._repair(pod, allocation, seen, changed)
            waits_s.append(self._repairs.due_s(pod.uid) - loop_time_s())
        return min(waits_s, default=None)

    def _foreign_annotations(self, pod: NodePod, allocation: Allocation, seen: _Seen) -> Iterator[str]:
        """Yield the annotations that somebody has changed or added since the allocation."""
        claim_is_right = has_claim(pod, allocation)
        aspects: dict[_Aspect, bool] = {
            "grant": _has_grant(pod, allocation),
            "claim": claim_is_right,
            "ids": pod.counted == self._pods.device_type.join_sorted(allocation.kubelet_ids),
        }
        seen.right |= {aspect for aspect, is_right in aspects.items() if is_right}
        # What was written on a pod before this program knew it may be wrong for reasons of MindCluster's plugin, and
        # the allocator heeds both annotations then. It is not if the kubelet and the claim say the same.
        is_known = self._is_given_here(allocation) or (claim_is_right and allocation.matches_kubelet)
        if not aspects["grant"] and ("grant" in seen.right or (pod.placed and is_known)):
            yield self._pods.device_type.resource
        # A claim that was never right is about to be written.
        if not claim_is_right and "claim" in seen.right and allocation.name:
            if not pod.claimed and pod.real:
                yield PREDICATE_TIME
            else:
                yield REAL
        if not aspects["ids"] and "ids" in seen.right:
            yield KUBELET_IDS
        yield from sorted(pod.foreign - seen.foreign)

    def _is_given_here(self, allocation: Allocation) -> bool:
        answers = self._allocations.answers.values()
        return any((answer.uid, answer.chips) == (allocation.uid, allocation.chips) for answer in answers)

    def _repair(self, pod: NodePod, allocation: Allocation, seen: _Seen, changed: tuple[str, ...]) -> None:
        self._repairs.fail(pod.uid)
        device_type = self._pods.device_type
        own: dict[str, str | None] = {
            device_type.resource: grant_text(allocation.chips, allocation.template, device_type)
        }
        removed: dict[str, str | None] = dict.fromkeys(pod.foreign - seen.foreign)
        self._claim(allocation, removed | (own if device_type.resource in changed else {}))
        several = len(changed) > 1
        sentence = (
            f"the annotation{'s' if several else ''} {', '.join(changed)} {'do' if several else 'does'} not say what "
            f"the pod was given, {allocation.name or 'a vNPU'}: put right, and without effect on this node"
        )
        log.warning("repairing annotations that were changed", pod=pod.key, pod_uid=pod.uid, annotations=changed)
        self._metrics.annotation_repairs.inc()
        self._announce(pod, REPAIRED, sentence)


def _is_same(one: Allocation, other: Allocation) -> bool:
    return (one.chips, one.kubelet_ids, one.vnpu) == (other.chips, other.kubelet_ids, other.vnpu)


def _has_grant(pod: NodePod, allocation: Allocation) -> bool:
    return pod.grant is not None and (pod.grant.chips, pod.template) == (allocation.chips, allocation.template)


def has_claim(pod: NodePod, allocation: Allocation) -> bool:
    """Return whether a pod has the claim of an allocation."""
    if not pod.claimed or pod.real != allocation.chip_set:
        return False
    named, own = pod.claimed_vnpu, allocation.vnpu
    return named is None or own is None or named.vdev_id == own.vdev_id
