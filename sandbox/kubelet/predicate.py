"""Whether the kubelet lets a pod in at all, by counts and node labels, before any device is given (predicate.go)."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ascend.kube.objects import Node
from sandbox.kubelet.ledger import Ledger
from sandbox.pods import FullPod, matches


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a pod is not let in.

    Attributes:
        reason: of the pod's status, CamelCase.
        message: a sentence, without "Pod was rejected: ".
    """

    reason: str
    message: str


def find_rejection(pod: FullPod, node: Node, others: Iterable[FullPod], ledger: Ledger) -> Rejection | None:
    """The first reason against a pod, or None.

    Requests for resources that the Node does not have are dropped in silence: only an explicit 0 refuses
    (spec/kubernetes.md §1.6 "silent skip").

    Raises:
        InvalidValue: a quantity is not a whole number.
    """
    allocatable = _quantities(node.status.allocatable)
    if ledger.holds_any(pod.uid):
        # A pod that holds devices must get in again although the plugin has not registered yet (§1.13).
        for resource, devices in ledger.in_use.items():
            allocatable[resource] = max(allocatable.get(resource, 0), len(devices))
    used: Counter[str] = Counter()
    for other in others:
        used.update(other.requests)
    for resource, asked in pod.requests.items():
        if resource in allocatable and asked > allocatable[resource] - used[resource]:
            return Rejection(
                f"OutOf{resource}",
                f"Node didn't have enough resource: {resource}, requested: {asked}, used: {used[resource]},"
                f" capacity: {allocatable[resource]}",
            )
    if not matches(pod.node_selector, node.metadata.labels):
        return Rejection("NodeAffinity", "Predicate NodeAffinity failed")
    return None


def _quantities(quantities: Mapping[str, str]) -> dict[str, int]:
    return {name: int(text) for name, text in quantities.items() if text.isascii() and text.isdigit()}
