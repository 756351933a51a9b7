"""Where a pod fits of all nodes, as kube-scheduler filters them.

Nodes that its node selector or its required node affinity excludes refuse it, too.
"""

from collections.abc import Mapping
from typing import Final

from allocator.decision.engine import DecisionEngine
from allocator.decision.filtered import Filtered
from allocator.state.cluster import Cluster
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.reasons import Category, Reason
from ascend.turn import Steps

_STRONGER: Final = {Category.INCOMPLETE, Category.NOT_NPU}
"""With these reasons a label would not help."""
_STEP: Final = 1024
"""After so many nodes there may be a pause."""


def filter_all(cluster: Cluster, engine: DecisionEngine, pod: Pod, seat: str | None = None) -> Steps[Filtered]:
    """Where a pod fits now of all nodes, and why not on the others; reserves nothing.

    Nodes that change during a pause are judged as before or after it.

    Args:
        cluster: nodes, pods and jobs.
        engine: decides.
        pod: the pod.
        seat: the result of the engine's ``preview``.

    Raises:
        Refusal: the pod's request is invalid on every node.
    """
    filtered = yield from engine.filtering(pod, None, seat)
    selector = pod.spec.node_selector
    if not pod.spec.restricts_nodes:
        return filtered
    selected, refused = frozenset(cluster.labels.admitting(pod.spec)), dict(filtered.refused)
    mismatches = dict[tuple[str | None, ...], Refusal]()  # thousands of nodes have the same labels of the selector
    for number, name in enumerate(list(cluster.nodes), start=1):
        if not number % _STEP:
            yield
        record = cluster.nodes.get(name)
        if name in selected or record is None or (name in refused and refused[name].reason.category in _STRONGER):
            continue
        labels = record.node.metadata.labels if record.node is not None else {}
        values = tuple(map(labels.get, selector))
        if values not in mismatches:
            mismatches[values] = _mismatch(selector, labels)
        refused[name] = mismatches[values]
    yield
    return Filtered([name for name in filtered.fitting if name in selected], refused)


def _mismatch(selector: Mapping[str, str], labels: Mapping[str, str]) -> Refusal:
    differences = [
        f"{key}={value}, but the node has {f'{key}={labels[key]}' if key in labels else 'no such label'}"
        for key, value in sorted(selector.items())
        if labels.get(key) != value
    ]
    if not differences:
        return Refusal(Reason.NODE_SELECTOR_MISMATCH, "the pod's required node affinity excludes the node")
    return Refusal(Reason.NODE_SELECTOR_MISMATCH, f"the pod's node selector requires {'; '.join(differences)}")
