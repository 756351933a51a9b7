"""The nodes offered to each pod of a gang: the scheduler filters them, or preempts on them.

For most gangs it is enough to know it of one pod, since they are made from one template. It is recorded pod by pod if
they differ, once the gang has stepped back, and while it has seats: its pods may exclude each other (anti-affinity,
CPU), and its scheduler judges each of them beside those that it has accepted.
"""

from collections.abc import Collection, Mapping
from copy import copy
from typing import Final

import msgspec

from allocator.gangs.start_queue import StartQueue
from allocator.rules.victims import Suggestion
from allocator.state.job import Job
from allocator.state.ledger import Ledger
from ascend.kube.objects import Pod

_MOST_GANGS: Final = 64
"""The most gangs that are remembered."""


class Offered(msgspec.Struct, frozen=True):
    """What a scheduler has said of a pod in its last cycle.

    Attributes:
        filtered: names of the nodes that have passed its own filters.
        undisrupted: names of the nodes on which it would preempt pods, without violating a PodDisruptionBudget.
        suggested: names of all nodes on which it would preempt pods.
        beside: the uids of the pods of the gang whose Bindings were held.
        is_open: whether the cycle may still go on: it filters first, and preempts then.
    """

    filtered: frozenset[str] = frozenset()
    undisrupted: frozenset[str] = frozenset()
    suggested: frozenset[str] = frozenset()
    beside: frozenset[str] = frozenset()
    is_open: bool = False

    def nodes(self, *, is_disrupting: bool = True) -> frozenset[str]:
        """The nodes on which the pod may be, if others may be preempted there."""
        return self.filtered | (self.suggested if is_disrupting else self.undisrupted)


class OfferedNodes:
    """Remembers what schedulers offer for the pods of gangs.

    Args:
        ledger: says which Bindings are held.
        queue: says which gangs have stepped back, or wait for those.
    """

    def __init__(self, ledger: Ledger, queue: StartQueue) -> None:
        self._ledger = ledger
        self._queue = queue
        self._last: dict[str, Collection[str]] = {}
        self._pods: dict[str, dict[str, Offered]] = {}
        self._sets: dict[str, dict[frozenset[str], frozenset[str]]] = {}

    def is_by_pod(self, job: Job) -> bool:
        """Whether it matters which pod of a gang a node was offered for."""
        plan = job.key.plan
        has_seats = self._ledger.plans.of(plan).unused or self._ledger.plans.of(plan).held
        return bool(has_seats) or self._queue.get(job) is not None or job.is_mixed

    def last(self, job: Job) -> Collection[str]:
        """The nodes on which a pod of a gang was filtered last."""
        return self._last.get(job.key.plan, ())

    def on_filter(self, pod: Pod, job: Job, nodes: Collection[str]) -> None:
        """A pod that does not fit was filtered on these nodes."""
        self._last.pop(job.key.plan, None)
        self._last[job.key.plan] = copy(nodes)  # of thousands only what was sent
        if len(self._last) > _MOST_GANGS:
            oldest = next(iter(self._last))
            for memo in (self._last, self._pods, self._sets):
                memo.pop(oldest, None)
        if self.is_by_pod(job):
            names = self._share(job, frozenset(nodes))
            self._note(pod, job, Offered(filtered=names, beside=self.held_uids(job), is_open=True))

    def on_suggestion(self, pod: Pod, job: Job, nodes: Mapping[str, Suggestion]) -> None:
        """A scheduler would preempt pods on these nodes for a pod."""
        self._last.setdefault(job.key.plan, ())
        if not self.is_by_pod(job):
            return
        known, held = self._pods.get(job.key.plan, {}).get(pod.uid), self.held_uids(job)
        filtered = known.filtered if known is not None and known.is_open and known.beside == held else frozenset[str]()
        undisrupted = self._share(job, frozenset(name for name, hint in nodes.items() if not hint.pdb_violations))
        self._note(pod, job, Offered(filtered, undisrupted, self._share(job, frozenset(nodes)), held))

    def of(self, pod: Pod, job: Job) -> Offered | None:
        """The nodes offered to a pod beside the pods held now; None if none were offered."""
        known = self._pods.get(job.key.plan, {}).get(pod.uid)
        if known is not None and known.beside == self.held_uids(job):
            return known
        node, promise = pod.status.nominated_node_name, self._ledger.promises.get(job.key.plan)
        if self.held_uids(job) or promise is None or promise.drains or node not in promise.chips:
            return None
        names = frozenset({node})  # pods end there for it, perhaps chosen by another leader
        return Offered(names, names, names)

    def held_uids(self, job: Job) -> frozenset[str]:
        """The uids of the pods of a gang whose Bindings are held."""
        return frozenset(self._ledger.plans.of(job.key.plan).held)

    def _note(self, pod: Pod, job: Job, offered: Offered) -> None:
        pods = self._pods.setdefault(job.key.plan, {})
        pods[pod.uid] = offered
        if len(pods) > len(job.pods) + 1:
            for uid in [uid for uid in pods if uid not in job.pods and uid != pod.uid]:
                del pods[uid]

    def _share(self, job: Job, names: frozenset[str]) -> frozenset[str]:
        """Equal sets are kept once: they have thousands of names."""
        sets = self._sets.setdefault(job.key.plan, {})
        if len(sets) > len(job.pods) + 2:
            sets.clear()
        return sets.setdefault(names, names)
