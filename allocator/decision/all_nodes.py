"""Where a pod fits of all nodes, as kube-scheduler filters them: those outside its node selector refuse it, too."""

from collections.abc import Mapping
from typing import Final

from allocator.decision.engine import DecisionEngine
from allocator.decision.filtered import Filtered
from allocator.state.cluster import Cluster
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.reasons import Category, Reason

_STRONGER: Final = {Category.INCOMPLETE, Category.NOT_NPU}
"""With these reasons a label would not help."""


def filter_all(cluster: Cluster, engine: DecisionEngine, pod: Pod, seat: str | None = None) -> Filtered:
    """Where a pod fits now of all nodes, and why not on the others; reserves nothing.

    Args:
        cluster: nodes, pods and jobs.
        engine: decides.
        pod: the pod.
        seat: the result of the engine's ``preview``.

    Raises:
        Refusal: the pod's request is invalid on every node.
    """
    filtered = engine.filter(pod, None, seat)
    selector = pod.spec.node_selector
    if not selector:
        return filtered
    selected, refused = frozenset(cluster.labels.selected(selector)), dict(filtered.refused)
    for name, record in cluster.nodes.items():
        if name not in selected and not (name in refused and refused[name].reason.category in _STRONGER):
            refused[name] = _mismatch(selector, record.node.metadata.labels if record.node is not None else {})
    return Filtered([name for name in filtered.fitting if name in selected], refused)


def _mismatch(selector: Mapping[str, str], labels: Mapping[str, str]) -> Refusal:
    differences = (
        f"{key}={value}, but the node has {f'{key}={labels[key]}' if key in labels else 'no such label'}"
        for key, value in sorted(selector.items())
        if labels.get(key) != value
    )
    return Refusal(Reason.NODE_SELECTOR_MISMATCH, f"the pod's node selector requires {'; '.join(differences)}")
