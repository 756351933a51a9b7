"""Events on pods of jobs that run against the advice of the hardware's makers: one for each job.

Which jobs these are is said by ``advise`` in ``allocator/superpods/choice.py``.
"""

from collections.abc import Callable, Sequence
from typing import Final

from allocator.observe.job_events import JobEvents
from allocator.observe.refusal_events import Publish
from allocator.rules.job_products import wants_super_pod
from allocator.rules.job_settings import with_settings
from allocator.state.cluster import Cluster
from ascend.kube.objects import Pod

FEW_SUPER_PODS: Final = "FewSuperPods"
"""The reason of the Events."""


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
