"""Events on pods that ask for something without effect here: one for each job.

What that is: a row of ``allocator.rules.unsupported``, or a pod group of a kind that is not served.
"""

from collections.abc import Callable
from typing import Final

import structlog

from allocator.observe.job_events import JobEvents
from allocator.observe.refusal_events import Publish
from allocator.state.cluster import Cluster
from ascend.kube.objects import Pod

log = structlog.get_logger()

REASON: Final = "WithoutEffect"
"""The reason of the Events."""


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


def log_ignored(node: str, names: tuple[str, ...]) -> None:
    """Log the devices in a node's annotation that are neither chips nor vNPUs."""
    log.warning("devices of a node are neither chips nor vNPUs: ignored", node=node, devices=list(names))


def log_switches(sentence: str) -> None:
    """Log what can't be read of the table of leaf switches."""
    log.warning("the table of leaf switches has an error", error=sentence)


def log_unreadable(sentence: str) -> None:
    """Log what ClusterD says and can't be read."""
    log.warning("what ClusterD says can't be read: ignored", error=sentence)
