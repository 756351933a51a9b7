"""Events on pods of jobs that run against the advice of the hardware's makers: one for each job.

Which jobs these are is said by ``advise`` in ``allocator/superpods/choice.py``.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from allocator.observe.refusal_events import Publish
from allocator.rules.job_products import wants_super_pod
from allocator.rules.job_settings import with_settings
from allocator.state.cluster import Cluster
from ascend.kube.events import Regarding
from ascend.kube.objects import Pod

FEW_SUPER_PODS: Final = "FewSuperPods"
"""The reason of the Events."""

_REMEMBERED: Final = 10_000
"""Jobs that are remembered; beyond it the oldest is forgotten."""
_AT_ONCE: Final = 2
"""Jobs that are judged in one call: that takes as long as a decision."""


class Advice:
    """Posts an Event on a pod of each job with more blocks than advised.

    Only the leader posts. A new leader judges all jobs that wait once.

    Args:
        cluster: nodes, pods and jobs.
        advice: what the makers advise against in the job of a pod, sentences.
        publish: posts an Event soon.
        leads: whether this allocator leads.
    """

    def __init__(
        self,
        cluster: Cluster,
        advice: Callable[[Pod], Sequence[str]],
        publish: Publish,
        leads: Callable[[], bool],
    ) -> None:
        self._cluster = cluster
        self._advice = advice
        self._publish = publish
        self._leads = leads
        self._led = False
        self._due: OrderedDict[str, Pod] = OrderedDict()
        self._told: OrderedDict[tuple[str, str], None] = OrderedDict()
        cluster.waiting.subscribe(self._appeared)

    def post(self) -> None:
        """Judge jobs whose pods have appeared, and post what there is to say. Call it periodically."""
        led, self._led = self._led, self._leads()
        if not self._led:
            self._due.clear()
            return
        if not led:
            for pod in self._cluster.waiting:
                self._appeared(pod)
        for _ in range(min(len(self._due), _AT_ONCE)):
            job, pod = next(iter(self._due.items()))
            for sentence in self._advice(pod):
                told = job, sentence
                if told in self._told:
                    continue
                regarding = Regarding("Pod", pod.name, pod.metadata.namespace, pod.uid)
                if not self._publish(regarding, FEW_SUPER_PODS, sentence, action="Notify"):
                    return
                self._told[told] = None
                if len(self._told) > _REMEMBERED:
                    self._told.popitem(last=False)
            del self._due[job]

    def _appeared(self, pod: Pod) -> None:
        job = self._cluster.jobs.job_of(pod)
        if self._led and wants_super_pod(with_settings(pod, job.settings)) and len(self._due) < _REMEMBERED:
            self._due[str(job.key)] = pod
