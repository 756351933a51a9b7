"""What is said in Events on the pods of a job, once for each job.

* It asks for something without effect here: a row of ``allocator.rules.unsupported``, or a pod group of a kind that is
  not served.
* It runs, but not as well as others would: the makers of the hardware advise against it (``advise`` in
  ``allocator/superpods/choice.py``).
* Its one pod has a number of chips that several pods could not have: it can't be scaled up.
"""

from collections.abc import Callable
from typing import Final

import structlog

from allocator.decision.engine import DecisionEngine
from allocator.observe.job_events import JobEvents
from allocator.observe.refusal_events import Publish
from allocator.rules.job_products import wants_super_pod
from allocator.rules.job_settings import with_settings
from allocator.state.cluster import Cluster
from ascend.kube.objects import Pod

log = structlog.get_logger()

REASON: Final = "WithoutEffect"
FEW_SUPER_PODS: Final = "FewSuperPods"
CANNOT_SCALE: Final = "CannotScale"
"""The reasons of the Events."""


def notices(cluster: Cluster, publish: Publish, leads: Callable[[], bool]) -> JobEvents:
    """Events for jobs that ask for something without effect.

    Args:
        cluster: nodes, pods and jobs.
        publish: posts an Event soon.
        leads: whether this allocator leads.
    """

    def topic(pod: Pod) -> str:
        group = cluster.jobs.unserved_group(cluster.jobs.job_of(pod))
        return "; ".join((*cluster.jobs.without_effect(pod), *((group,) if group is not None else ())))

    def sentences(pod: Pod) -> tuple[str, ...]:
        return (said,) if (said := topic(pod)) else ()  # less may be said than when the pod appeared

    return JobEvents(cluster, publish, leads, reason=REASON, topic=topic, sentences=sentences)


def advice(engine: DecisionEngine, publish: Publish, leads: Callable[[], bool]) -> JobEvents:
    """Events for jobs with more blocks than advised; the arguments are as for ``notices``."""
    cluster = engine.cluster

    def topic(pod: Pod) -> str:
        return "blocks" if wants_super_pod(with_settings(pod, cluster.jobs.job_of(pod).settings)) else ""

    return JobEvents(cluster, publish, leads, reason=FEW_SUPER_PODS, topic=topic, sentences=engine.advice)


def scaling(engine: DecisionEngine, publish: Publish, leads: Callable[[], bool]) -> JobEvents:
    """Events for jobs of one pod that can't be scaled up; the arguments are as for ``notices``."""
    cluster = engine.cluster

    def topic(pod: Pod) -> str:
        return "scaling" if pod.requests_chips and cluster.jobs.job_of(pod).is_only_so_far(pod) else ""

    return JobEvents(cluster, publish, leads, reason=CANNOT_SCALE, topic=topic, sentences=engine.against_scaling)


def log_ignored(node: str, names: tuple[str, ...]) -> None:
    """Log the devices in a node's annotation that are neither chips nor vNPUs."""
    log.warning("devices of a node are neither chips nor vNPUs: ignored", node=node, devices=list(names))


def log_switches(sentence: str) -> None:
    """Log what can't be read of the table of leaf switches."""
    log.warning("the table of leaf switches has an error", error=sentence)


def log_hyper_nodes(sentence: str) -> None:
    """Log what can't be read of HyperNodes, or is doubtful."""
    log.warning("a HyperNode has an error", error=sentence)


def log_unreadable(sentence: str) -> None:
    """Log what ClusterD says and can't be read."""
    log.warning("what ClusterD says can't be read: ignored", error=sentence)
