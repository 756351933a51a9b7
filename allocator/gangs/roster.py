"""Who of a gang has a place, and who needs one.

A scheduler asks for pod after pod of a gang that waits, and between two questions other pods come and go: what is found
out about the gang's own pods is remembered until one of them changes.
"""

from bisect import insort
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from allocator.rules.job import JobKey
from allocator.rules.request import Ask
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from allocator.state.ledger import Ledger
from ascend.errors import Refusal
from ascend.kube.objects import Pod

_MOST: Final = 256
"""Gangs remembered; beyond, the one not asked about for longest is forgotten."""

_Version: TypeAlias = tuple[int, int, int, bool]
"""What the asks of a gang's pods hang on: the pods, their places, the minimum, and whether that is known."""


class Entry(NamedTuple):
    """A pod that needs a seat.

    Attributes:
        rank: its number within the gang.
        pod: the pod.
        ask: what it asks of a node, or what is wrong with that.
    """

    rank: int
    pod: Pod
    ask: Ask | Refusal


class Roster:
    """Finds who of a gang needs a seat.

    Args:
        cluster: what is seen.
        ledger: what is decided.
        ask_of: what a pod asks of a node.
    """

    def __init__(self, cluster: Cluster, ledger: Ledger, ask_of: Callable[[Pod], Ask]) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._ask_of = ask_of
        self._known: dict[JobKey, tuple[_Version, list[Entry]]] = {}

    def in_need(self, pod: Pod, ask: Ask, job: Job) -> tuple[list[Entry], int]:
        """The pods that need a seat when one of them is asked about, by rank, and how many of them must get one.

        Args:
            pod: the one that is asked about; it needs one, wherever it has a seat now.
            ask: what it asks of a node.
            job: the gang.
        """
        others = job.size - (pod.uid in job.pods)
        # Where all others have a place nobody has to be looked for: that is so whenever a pod has to leave its own.
        if self._cluster.peers.placed(job.key, pod.uid) < min(job.min_available, others):
            waiting = [each for each in self._waiting(job) if each.pod.uid != pod.uid]
            insort(waiting, Entry(job.rank_of(pod), pod, ask), key=_rank)
            size = len(job.pods) + (pod.uid not in job.pods)
            needed = job.min_available - (size - len(waiting))
            if needed > 0:
                return waiting, needed
        # The gang stands: this pod is one more, or takes the place of one that has ended.
        return [Entry(job.rank_of(pod), pod, ask)], 1

    def placed(self, pod: Pod, job: Job) -> dict[int, str]:
        """The nodes that the other pods have their places on, by rank."""
        nodes: dict[int, str] = {}
        for rank, each in job.ranked():
            held = self._ledger.get(each.uid)
            node = each.spec.node_name or (held.node if held is not None else "")
            if node and each.uid != pod.uid:
                nodes[rank] = node
        return nodes

    def _waiting(self, job: Job) -> list[Entry]:
        moved, lacks_group = self._cluster.peers.version(job.key), self._cluster.jobs.lacks_group(job)
        version = job.version, moved, job.min_available, lacks_group
        known = self._known.pop(job.key, None)
        if known is None or known[0] != version:
            known = (
                version,
                [
                    Entry(rank, each, self._ask(each))
                    for rank, each in job.ranked()
                    if each.waits_for_chips and self._ledger.get(each.uid) is None
                ],
            )
            if len(self._known) >= _MOST:
                del self._known[next(iter(self._known))]
        self._known[job.key] = known
        return known[1]

    def _ask(self, pod: Pod) -> Ask | Refusal:
        try:
            return self._ask_of(pod)
        except Refusal as refusal:
            return refusal.with_traceback(None)


def _rank(entry: Entry) -> int:
    return entry.rank
