"""Why a pod waits, by the verdict of all nodes: as its Event says it, and as a tenant is told who asks. No I/O."""

from allocator.decision.all_nodes import filter_all
from allocator.decision.engine import DecisionEngine
from allocator.decision.filtered import Filtered
from allocator.rules.request import requested_what
from allocator.rules.scheduled import verdict_on
from allocator.rules.summary import sum_up_nodes
from allocator.state.cluster import Cluster
from ascend.errors import Refusal
from ascend.grammar import count
from ascend.kube.objects import Pod
from ascend.reasons import Category, Reason
from ascend.turn import Turn


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


def _awaited(judged: Filtered) -> str:
    """What a pod waits for that every node refuses, a part of a sentence."""
    categories = {reason.category for reason in judged.reasons}
    if Category.OCCUPIED in categories:
        return "; it waits until other pods end"
    return "; it waits until such a node can be used" if Category.NODE in categories else ""
