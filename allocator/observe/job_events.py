"""Events on pods about their jobs: each sentence once for each job."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from allocator.observe.refusal_events import Publish
from allocator.state.cluster import Cluster
from ascend.kube.events import Regarding
from ascend.kube.objects import Pod

_REMEMBERED: Final = 10_000
"""Jobs that were told; beyond it the one that was told first is forgotten."""

_DUE: Final = 1_000
"""Jobs of a namespace that are still to be told; others are told when a pod of theirs appears later."""

_AT_ONCE: Final = 2
"""Jobs that are judged in one call: that may take as long as a decision, and most of the rate of Events is left for
refused pods."""


class JobEvents:
    """Posts Events on a waiting pod of each job that there is something to say about.

    Only the leader posts. A new leader looks at all waiting pods once: it doesn't know what the last one has posted.
    A job whose name was used before, by a job whose pods are gone with their Events, is told again.

    Args:
        cluster: nodes, pods and jobs.
        publish: posts an Event soon.
        leads: whether this allocator leads.
        reason: the reason of the Events.
        topic: what is to be judged about a pod that has appeared, "" for nothing. Called for every new pod. A topic
            that was told to the job as a sentence is not judged again.
        sentences: what there is to say about a pod of such a job. Called from ``post``.
    """

    def __init__(
        self,
        cluster: Cluster,
        publish: Publish,
        leads: Callable[[], bool],
        *,
        reason: str,
        topic: Callable[[Pod], str],
        sentences: Callable[[Pod], Sequence[str]],
    ) -> None:
        self._cluster = cluster
        self._publish = publish
        self._leads = leads
        self._reason = reason
        self._topic = topic
        self._sentences = sentences
        self._led = False
        # By namespace, which take turns; then by job and topic.
        self._due: OrderedDict[str, OrderedDict[tuple[str, str], Pod]] = OrderedDict()
        self._told: OrderedDict[str, dict[str, str]] = OrderedDict()  # by job and sentence: the uid of the pod
        cluster.waiting.subscribe(self._on_pod)

    def post(self) -> None:
        """Post what is due, as far as the rate of Events allows. Call it periodically."""
        led, self._led = self._led, self._leads()
        if not self._led:
            self._due.clear()
            return
        if not led:
            for pod in self._cluster.waiting:
                self._on_pod(pod)
        for _ in range(_AT_ONCE):
            if not self._due:
                return
            namespace, of_namespace = next(iter(self._due.items()))
            self._due.move_to_end(namespace)
            due, pod = next(iter(of_namespace.items()))
            if self._tell(due[0], pod):
                del of_namespace[due]
                if not of_namespace:
                    del self._due[namespace]

    def _tell(self, job: str, pod: Pod) -> bool:
        """Post what the job was not told yet; returns whether all of that will be posted."""
        regarding = Regarding("Pod", pod.name, pod.metadata.namespace, pod.uid)
        for sentence in self._sentences(pod):
            if sentence in self._told.get(job, ()):
                continue
            if not self._publish(regarding, self._reason, sentence, action="Notify"):
                return False
            self._told.setdefault(job, {})[sentence] = pod.uid
            if len(self._told) > _REMEMBERED:
                self._told.popitem(last=False)
        return True

    def _on_pod(self, pod: Pod) -> None:
        if not self._led or not (topic := self._topic(pod)):
            return
        job = self._cluster.jobs.job_of(pod)
        key = str(job.key)
        if job.present + job.gated <= 1 and pod.uid not in self._told.get(key, {}).values():
            self._told.pop(key, None)
        if topic not in self._told.get(key, ()):
            due = self._due.setdefault(pod.metadata.namespace, OrderedDict())
            if len(due) < _DUE:
                due.setdefault((key, topic), pod)
