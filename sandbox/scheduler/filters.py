"""The filters: why a pod does not fit on a node, in the words and the order of kube-scheduler's own plugins."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ascend.kube.objects import Node
from sandbox.pods import CPU, FullPod, matches, millicores


def filter_node(pod: FullPod, node: Node, requested: Mapping[str, int]) -> list[str]:
    """Return the reasons of the first in-tree filter that rejects the node; empty if all accept it.

    Args:
        pod: the pod.
        node: the node.
        requested: how much of every resource the pods on the node request, including assumed ones; CPU in millicores.

    Raises:
        InvalidValue: a quantity of the pod is not a whole number.
    """
    if node.spec.unschedulable:
        return ["node(s) were unschedulable"]
    if pod.node_name and pod.node_name != node.name:
        return ["node(s) didn't match the requested node name"]
    # There is no node controller to taint a node that is not ready, so readiness itself is checked.
    taints = [(taint.key, taint.effect) for taint in node.spec.taints]
    if not node.is_ready:
        taints.append(("node.kubernetes.io/not-ready", "NoSchedule"))
    for key, effect in taints:
        if effect in {"NoSchedule", "NoExecute"} and not _tolerates(pod.spec.get("tolerations") or (), key, effect):
            return [f"node(s) had untolerated taint {{{key}: }}"]
    if not matches(pod.node_selector, node.metadata.labels):
        return ["node(s) didn't match Pod's node affinity/selector"]
    allocatable = {name: int(text) for name, text in node.status.allocatable.items() if text.isdigit()}
    allocatable[CPU] = millicores(node.status.allocatable.get(CPU, "0"))
    return [
        f"Insufficient {name}"
        for name, amount in pod.scheduling_requests.items()
        if amount > allocatable.get(name, 0) - requested.get(name, 0)
    ]


def fit_error(nodes: int, reasons: Iterable[str]) -> str:
    """Return the message of the PodScheduled condition and the FailedScheduling event (framework/types.go, FitError).

    Args:
        nodes: the number of nodes.
        reasons: the reasons of every rejected node.
    """
    if not nodes:
        return "no nodes available to schedule pods"
    histogram = sorted(f"{count} {reason}" for reason, count in Counter(reasons).items())
    return f"0/{nodes} nodes are available:" + (f" {', '.join(histogram)}." if histogram else "")


def _tolerates(tolerations: Iterable[Mapping[str, Any]], key: str, effect: str) -> bool:
    return any(
        toleration.get("key", key) == key and toleration.get("effect", effect) == effect and not toleration.get("value")
        for toleration in tolerations
    )
