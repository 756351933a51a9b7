"""Events on pods of jobs that run, but not as well as others would, or not with more pods: one for each job.

Which jobs run against the advice of the hardware's makers is said by ``advise`` in ``allocator/superpods/choice.py``.
"""

from collections.abc import Callable, Sequence
from typing import Final

from allocator.decision.scaling import against_scaling
from allocator.observe.job_events import JobEvents
from allocator.observe.refusal_events import Publish
from allocator.rules.job_products import wants_super_pod
from allocator.rules.job_settings import with_settings
from allocator.rules.request import ChipRequest
from allocator.state.cluster import Cluster
from ascend.kube.objects import Pod

FEW_SUPER_PODS: Final = "FewSuperPods"
"""The reason of the Events about the advice."""
CANNOT_SCALE: Final = "CannotScale"
"""The reason of the Events about jobs of one pod whose number of chips several pods could not have."""


def advice(
    cluster: Cluster, advise: Callable[[Pod], Sequence[str]], publish: Publish, leads: Callable[[], bool]
) -> JobEvents:
    """Events for jobs with more blocks than advised.

    Args:
        cluster: nodes, pods and jobs.
        advise: what the makers advise against in the job of a pod, sentences. It takes as long as a decision.
        publish: posts an Event soon.
        leads: whether this allocator leads.
    """

    def topic(pod: Pod) -> str:
        return "blocks" if wants_super_pod(with_settings(pod, cluster.jobs.job_of(pod).settings)) else ""

    return JobEvents(cluster, publish, leads, reason=FEW_SUPER_PODS, topic=topic, sentences=advise)


def scaling(
    cluster: Cluster, request_of: Callable[[Pod], ChipRequest], publish: Publish, leads: Callable[[], bool]
) -> JobEvents:
    """Events for jobs of one pod that can't be scaled up.

    Args:
        cluster: nodes, pods and jobs.
        request_of: reads what a pod requests; it raises a Refusal for an invalid one.
        publish: posts an Event soon.
        leads: whether this allocator leads.
    """

    def topic(pod: Pod) -> str:
        return "scaling" if pod.requests_chips and cluster.jobs.job_of(pod).is_only_so_far(pod) else ""

    def sentences(pod: Pod) -> tuple[str, ...]:
        return against_scaling(pod, cluster, request_of)

    return JobEvents(cluster, publish, leads, reason=CANNOT_SCALE, topic=topic, sentences=sentences)
