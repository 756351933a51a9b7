"""Why a node is not for a pod, in the words of kube-scheduler's own plugins and in their order."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ascend.kube.objects import Node
from sandbox.pods import FullPod, matches


def find_obstacle(pod: FullPod, node: Node, used: Mapping[str, int]) -> list[str]:
    """The reasons of the first in-tree filter that is against the node; empty where none is.

    Args:
        pod: the pod.
        node: the node.
        used: what pods on the node take of every extended resource, assumed ones included.

    Raises:
        InvalidValue: a quantity of the pod is not a whole number.
    """
    if node.spec.unschedulable:
        return ["node(s) were unschedulable"]
    if pod.node_name and pod.node_name != node.name:
        return ["node(s) didn't match the requested node name"]
    # Without a node controller nobody taints a node that is not ready, so readiness itself counts.
    taints = [(each.key, each.effect) for each in node.spec.taints]
    if not node.is_ready:
        taints.append(("node.kubernetes.io/not-ready", "NoSchedule"))
    for key, effect in taints:
        if effect in {"NoSchedule", "NoExecute"} and not _tolerates(pod.spec.get("tolerations") or (), key, effect):
            return [f"node(s) had untolerated taint {{{key}: }}"]
    if not matches(pod.node_selector, node.metadata.labels):
        return ["node(s) didn't match Pod's node affinity/selector"]
    allocatable = {name: int(text) for name, text in node.status.allocatable.items() if text.isdigit()}
    return [
        f"Insufficient {name}"
        for name, asked in pod.requests.items()
        if asked > allocatable.get(name, 0) - used.get(name, 0)
    ]


def describe_misfit(nodes: int, reasons: Iterable[str]) -> str:
    """The sentence of the PodScheduled condition and of the FailedScheduling event (framework/types.go, FitError).

    Args:
        nodes: how many nodes there are.
        reasons: of every node that was refused, one or more.
    """
    if not nodes:
        return "no nodes available to schedule pods"
    histogram = sorted(f"{count} {reason}" for reason, count in Counter(reasons).items())
    return f"0/{nodes} nodes are available:" + (f" {', '.join(histogram)}." if histogram else "")


def _tolerates(tolerations: Iterable[Mapping[str, Any]], key: str, effect: str) -> bool:
    return any(
        each.get("key", key) == key and each.get("effect", effect) == effect and not each.get("value")
        for each in tolerations
    )
