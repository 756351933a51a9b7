"""Where a pod fits of all nodes, as kube-scheduler filters them, and why it waits.

Why it waits is said by its Event, and to a tenant who asks. Nodes that the node selector or the required node affinity
of a pod excludes refuse it, too. No I/O.
"""

from collections.abc import Mapping
from typing import Final

from allocator.decision.engine import DecisionEngine
from allocator.decision.filtered import Filtered
from allocator.rules.request import requested_what
from allocator.rules.scheduled import verdict_on
from allocator.rules.summary import sum_up_nodes
from allocator.state.cluster import Cluster
from ascend.errors import Refusal
from ascend.grammar import count
from ascend.kube.objects import Pod, PodSpec
from ascend.reasons import Category, Reason
from ascend.turn import Steps, Turn

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
    if not pod.spec.restricts_nodes:
        return filtered
    mismatch = _Mismatches(cluster, pod.spec).of
    fitting, refused = list[str](), filtered.refused
    for number, (name, refusal) in enumerate(refused.items(), start=1):
        if not number % _STEP:
            yield
        if refusal.reason.category not in _STRONGER and (excluded := mismatch(name)) is not None:
            refused[name] = excluded  # another value leaves the order as it is
    for number, name in enumerate(filtered.fitting, start=1):
        if not number % _STEP:
            yield
        if (excluded := mismatch(name)) is None:
            fitting.append(name)
        else:
            refused[name] = excluded
    yield
    return Filtered(fitting, refused)


async def judge(cluster: Cluster, engine: DecisionEngine, pod: Pod) -> Filtered | Refusal:
    """Where a pod would fit now, and why not elsewhere; or why its request is invalid on every node.

    Other tasks run meanwhile.
    """
    seat = await engine.preview(pod)
    try:
        turn = Turn()
        filtered = await turn.share_between(filter_all(cluster, engine, pod, seat))
        await turn.share()  # thousands of refusals are counted next
        return filtered
    except Refusal as refusal:
        return refusal.without_frames()


def why_unplaced(engine: DecisionEngine, pod: Pod, judged: Filtered | Refusal) -> Refusal | None:
    """Why a pod waits; None for a pod that fits and has no known obstacle to its placement."""
    if isinstance(judged, Refusal):
        return judged
    if not judged.fitting:
        refusal = sum_up_nodes(pod.key, requested_what(pod), judged.refusals)
        return Refusal(refusal.reason, refusal.message + _awaited(judged))
    gang, obstacles, verdict = engine.gang_of(pod), engine.gangs.obstacles, verdict_on(pod)
    obstacle = obstacles.of(gang) if gang is not None else obstacles.of_pod(pod)
    if obstacle is not None:
        why = obstacle.why
    elif verdict is not None:
        why = f"its scheduler refuses it: {verdict.message}"
    else:
        return None
    where = "for its gang" if gang is not None else f"on {count(len(judged.fitting), 'node')}"
    message = f"pod {pod.key}: {requested_what(pod)} can be had {where}, but {why}"
    return Refusal(Reason.REFUSED_BY_SCHEDULER, message)


class _Mismatches:
    """Why selector and affinity exclude nodes: thousands have the same labels of the selector, and share it."""

    def __init__(self, cluster: Cluster, spec: PodSpec) -> None:
        self._cluster = cluster
        self._spec = spec
        self._known: dict[tuple[str | None, ...], Refusal] = {}

    def of(self, name: str) -> Refusal | None:
        """Why they exclude a node; None if they don't."""
        if self._cluster.labels.admits(name, self._spec):
            return None
        record = self._cluster.nodes.get(name)
        labels = record.node.metadata.labels if record is not None and record.node is not None else {}
        values = tuple(map(labels.get, self._spec.node_selector))
        if values not in self._known:
            self._known[values] = _mismatch(self._spec.node_selector, labels)
        return self._known[values]


def _mismatch(selector: Mapping[str, str], labels: Mapping[str, str]) -> Refusal:
    differences = [
        f"{key}={value}, but the node has {f'{key}={labels[key]}' if key in labels else 'no such label'}"
        for key, value in sorted(selector.items())
        if labels.get(key) != value
    ]
    if not differences:
        return Refusal(Reason.NODE_SELECTOR_MISMATCH, "the pod's required node affinity excludes the node")
    return Refusal(Reason.NODE_SELECTOR_MISMATCH, f"the pod's node selector requires {'; '.join(differences)}")


def _awaited(judged: Filtered) -> str:
    """What a pod waits for that every node refuses, a part of a sentence."""
    categories = {reason.category for reason in judged.reasons}
    if Category.OCCUPIED in categories:
        return "; it waits until other pods end"
    return "; it waits until such a node can be used" if Category.NODE in categories else ""
