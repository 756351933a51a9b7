"""Events on pods that ask for something without effect here: one for each job.

What that is: a row of ``allocator.rules.unsupported``, or a pod group of a kind that is not served.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import structlog

from allocator.observe.refusal_events import Publish
from allocator.state.cluster import Cluster
from ascend.kube.events import Regarding
from ascend.kube.objects import Pod

log = structlog.get_logger()

REASON: Final = "WithoutEffect"
"""The reason of the Events."""

_REMEMBERED: Final = 10_000
"""Jobs that were told; beyond it the one that was told first is forgotten."""


_AT_ONCE: Final = 2
"""Events in one call, so that most of the rate is left for refused pods."""


class Notices:
    """Posts an Event on the first pod of each job that asks for something without effect.

    Only the leader posts. A new leader looks at all waiting pods once: it doesn't know what the last one has posted.

    Args:
        cluster: nodes, pods and jobs.
        publish: posts an Event soon.
        leads: whether this allocator leads.
    """

    def __init__(self, cluster: Cluster, publish: Publish, leads: Callable[[], bool]) -> None:
        self._cluster = cluster
        self._publish = publish
        self._leads = leads
        self._led = False
        self._due: OrderedDict[tuple[str, str], Regarding] = OrderedDict()
        self._told: OrderedDict[tuple[str, str], str] = OrderedDict()  # the uid of the pod
        cluster.waiting.subscribe(self._appeared)

    def post(self) -> None:
        """Post what is due, as far as the rate of Events allows. Call it periodically."""
        led, self._led = self._led, self._leads()
        if not self._led:
            self._due.clear()
            return
        if not led:
            for pod in self._cluster.waiting:
                self._appeared(pod)
        for _ in range(min(len(self._due), _AT_ONCE)):
            told, regarding = next(iter(self._due.items()))
            if not self._publish(regarding, REASON, told[1], action="Notify"):
                return
            del self._due[told]
            self._told[told] = regarding.uid
            if len(self._told) > _REMEMBERED:
                self._told.popitem(last=False)

    def _appeared(self, pod: Pod) -> None:
        if not self._led:
            return
        job = self._cluster.jobs.job_of(pod)
        group = self._cluster.jobs.unserved_group(job)
        if sentences := (*self._cluster.jobs.without_effect(pod), *((group,) if group is not None else ())):
            told = str(job.key), "; ".join(sentences)
            if job.present + job.gated <= 1 and self._told.get(told) != pod.uid:
                self._told.pop(told, None)  # a job of the same name, whose pods are gone with their Events
            if told not in self._told and len(self._due) < _REMEMBERED:
                self._due.setdefault(told, Regarding("Pod", pod.name, pod.metadata.namespace, pod.uid))


def log_ignored(node: str, names: tuple[str, ...]) -> None:
    """Log the devices that a node names in its annotation and that are neither chips nor vNPUs."""
    log.warning("devices of a node are neither chips nor vNPUs: ignored", node=node, devices=list(names))


def log_unreadable(sentence: str) -> None:
    """Log what ClusterD says and can't be read."""
    log.warning("what ClusterD says can't be read: ignored", error=sentence)
