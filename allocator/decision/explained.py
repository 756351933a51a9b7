"""What the author of a pod is told who asks why it waits: numbers, and no name of another namespace. No I/O.

The sentences are those of the pod's Event (``allocator/decision/unplaced.py``).
"""

from collections import Counter, defaultdict
from typing import Literal

import msgspec

from allocator.decision.engine import DecisionEngine
from allocator.decision.filtered import Filtered
from allocator.decision.unplaced import judge, why_unplaced
from allocator.rules.request import counted_chips
from allocator.rules.summary import example, told_in
from allocator.state.cluster import Cluster
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from ascend.turn import Turn


class ToldObstacle(msgspec.Struct, frozen=True):
    """Why some nodes refuse a pod: the reason, their number, and the sentence of one of them."""

    reason: str
    nodes: int
    message: str


class Predecessors(msgspec.Struct, frozen=True):
    """The waiting pods of other jobs that precede a pod by priority and age, and their requested chips."""

    pods: int = 0
    chips: int = 0


class Explained(msgspec.Struct, frozen=True):
    """Why a pod waits; the ``status`` of a PodExplanation.

    Attributes:
        state: what becomes of the pod; words as of ``npuctl explain``.
        reason: why it waits.
        message: the same as a sentence, that of its Event.
        node: its node, if it has one.
        fitting: the number of nodes on which it fits now.
        obstacles: why the others refuse it, the most frequent reason first.
        ahead: what comes before it.
    """

    state: Literal["finished", "placed", "terminating", "waits", "fits"]
    reason: str = ""
    message: str = ""
    node: str = ""
    fitting: int = 0
    obstacles: tuple[ToldObstacle, ...] = ()
    ahead: Predecessors = Predecessors()


async def explain(pod: Pod, cluster: Cluster, engine: DecisionEngine) -> Explained:
    """Explain why a pod with chips waits, if it does; other tasks run meanwhile."""
    if not pod.is_live:
        return Explained("finished")
    if (node := engine.settled_node(pod)) is not None:
        return Explained("placed", node=node)
    if pod.is_terminating:
        return Explained("terminating")
    where = pod.metadata.namespace
    if pod.is_gated:
        return Explained("waits", Reason.POD_GATED, f"pod {pod.key} has scheduling gates, so no scheduler considers it")
    ahead = await _ahead_of(pod, cluster)
    judged = await judge(cluster, engine, pod)
    why = why_unplaced(engine, pod, judged)
    filtered = judged if isinstance(judged, Filtered) else Filtered([], {})
    return Explained(
        "waits" if why is not None else "fits",
        why.reason if why is not None else "",
        told_in(where, why.message) if why is not None else "",
        fitting=len(filtered.fitting),
        obstacles=_obstacles(filtered, where),
        ahead=ahead,
    )


def _obstacles(filtered: Filtered, namespace: str) -> tuple[ToldObstacle, ...]:
    sentences = defaultdict[Reason, Counter[str]](Counter)
    for refusal, nodes in filtered.refusals.items():
        sentences[refusal.reason][refusal.message] += nodes
    found = (
        ToldObstacle(reason, said.total(), told_in(namespace, example({text: text for text in said})))
        for reason, said in sentences.items()
    )
    return tuple(sorted(found, key=lambda obstacle: (-obstacle.nodes, obstacle.reason)))


async def _ahead_of(pod: Pod, cluster: Cluster) -> Predecessors:
    turn, own, its_job = Turn(), _order(pod), cluster.jobs.job_of(pod).pods
    pods = chips = 0
    for other in list(cluster.waiting):
        await turn.share()
        if _order(other) < own and other.requests_chips and other.uid not in its_job:
            pods, chips = pods + 1, chips + counted_chips(other)
    return Predecessors(pods, chips)


def _order(pod: Pod) -> tuple[int, str]:
    """The order of kube-scheduler's queue."""
    return -pod.priority, pod.metadata.creation_timestamp or ""
