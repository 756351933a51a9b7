"""Whether a job of one pod can be scaled up: authors are told at the first pod, not by the refusal of the second."""

from collections.abc import Callable

from allocator.rules.request import ChipRequest
from allocator.rules.validity import rule_against_several
from allocator.state.cluster import Cluster
from ascend.annotations import INDEPENDENT
from ascend.errors import Refusal
from ascend.kube.objects import Pod


def against_scaling(pod: Pod, cluster: Cluster, request_of: Callable[[Pod], ChipRequest]) -> tuple[str, ...]:
    """Why the job of a pod can't be scaled up, a sentence; none if it can, or if it has several pods already.

    Args:
        pod: the pod.
        cluster: nodes, pods and jobs.
        request_of: reads what a pod requests; it raises a Refusal for an invalid one.
    """
    job = cluster.jobs.job_of(pod)
    try:
        request = request_of(pod) if job.is_only_so_far(pod) else None
    except Refusal:
        return ()
    if request is None or not request.is_for_chips:
        return ()
    there = cluster.labels.products(pod.spec)
    rule = rule_against_several(request.chips, there if request.products is None else there & request.products)
    if rule is None:
        return ()
    sentence = (
        f"if {job.kind} {job.key} is scaled up, its further pods may be refused: {rule}; if they don't communicate "
        f'collectively, give all of them the annotation {INDEPENDENT}: "true"'
    )
    return (sentence,)
