"""The nodes' verdicts on refused pods: each sentence with its nodes once, for any number of pods."""

from collections import defaultdict
from typing import TypeVar

import msgspec

from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from npuctl.offline_allocator import OfflineAllocator

T = TypeVar("T")


class NodesRefusal(msgspec.Struct, frozen=True):
    """Nodes that refuse a pod with the same sentence.

    Attributes:
        reason: why.
        message: the sentence.
        nodes: the number of the set of these nodes, from 0.
    """

    reason: Reason
    message: str
    nodes: int


class NodeVerdicts:
    """Numbers what nodes say of pods. Pods with equal requests are judged once for each state of the cluster."""

    def __init__(self, allocator: OfflineAllocator) -> None:
        self._allocator = allocator
        self._verdicts: dict[tuple[int, ...], int] = {}
        self._refusals: dict[NodesRefusal, int] = {}
        self._node_sets: dict[tuple[str, ...], int] = {}
        self._last: dict[object, tuple[int, int]] = {}

    @property
    def verdicts(self) -> tuple[tuple[int, ...], ...]:
        """All verdicts by their number: the numbers of their refusals."""
        return tuple(self._verdicts)

    @property
    def refusals(self) -> tuple[NodesRefusal, ...]:
        """All refusals by their number."""
        return tuple(self._refusals)

    @property
    def node_sets(self) -> tuple[tuple[str, ...], ...]:
        """All sets of nodes by their number."""
        return tuple(self._node_sets)

    def number(self, pod: Pod) -> int:
        """Return the number of the verdict on a pod that fits on no node now."""
        key, version = self._key(pod), self._allocator.cluster.index.version
        known = self._last.get(key)
        if known is not None and known[0] == version:
            return known[1]
        by_refusal = defaultdict[Refusal, list[str]](list)
        for node, refusal in self._allocator.refusals(pod).items():
            by_refusal[refusal].append(node)
        alike = defaultdict[tuple[Reason, str], list[str]](list)
        for refusal, nodes in by_refusal.items():
            alike[refusal.reason, refusal.message] += nodes
        ordered = sorted(alike.items(), key=lambda item: (-len(item[1]), item[0]))
        said = [NodesRefusal(*why, _number_in(self._node_sets, tuple(sorted(nodes)))) for why, nodes in ordered]
        number = _number_in(self._verdicts, tuple(_number_in(self._refusals, refusal) for refusal in said))
        # The choice of what is kept for others may have changed the cluster.
        self._last[key] = self._allocator.cluster.index.version, number
        return number

    def _key(self, pod: Pod) -> object:
        """What tells pods apart for the nodes, as far as it does not change with the cluster."""
        engine = self._allocator.engine
        gang, job = engine.gang_of(pod), self._allocator.job_of(pod)
        try:
            request = engine.request_of(pod)
        except Refusal as refusal:
            return refusal.reason, refusal.message
        own = job.key if gang is not None or request.is_spread else None
        promised = pod.uid if self._allocator.ledger.promises.get(pod.uid) is not None else ""
        return request, own, promised, pod.priority, pod.spec.node_requirements


def _number_in(known: dict[T, int], value: T) -> int:
    return known.setdefault(value, len(known))
