"""The first plans of a new leader."""

from allocator.gangs.gangs import Gangs
from allocator.gangs.gradual import GradualPlans
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from allocator.state.ledger import Ledger
from ascend.errors import Refusal
from ascend.turn import Turn


async def resume_gangs(cluster: Cluster, ledger: Ledger, gangs: Gangs, plans: GradualPlans) -> list[Job]:
    """Plan the rest of every gang that has both bound and waiting pods, before any call is answered.

    Returns:
        The gangs whose rest does not fit.
    """
    turn = Turn()
    stuck = []
    for job in cluster.jobs:
        await turn.share()
        if not job.is_gang:
            continue
        waiting = [pod for pod in job.pods.values() if pod.waits_for_chips]
        if not waiting or len(waiting) == job.size:
            continue
        waiting.sort(key=lambda pod: (job.rank_of(pod), pod.name))
        for pod in waiting:
            if ledger.get(pod.uid) is not None:
                continue
            try:
                request = gangs.request_of(pod)
            except Refusal:
                continue  # an invalid pod does not keep the others from their seats
            await plans.make(pod, job, None)
            gangs.prune()
            try:
                gangs.place(pod, request, job, None)
            except Refusal:
                stuck.append(job)
            break
    return stuck
