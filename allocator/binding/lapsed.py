"""Pods of gangs that have passed their scheduler's filters, and for whose Binding the scheduler waits no more.

kube-scheduler accounts for a pod as long as it waits for the answer to its request to bind it, which is a minute. When
the request is refused it tries the pod again after some seconds. Meanwhile it accounts for the pod if it is nominated:
it counts the pod on that node for every pod of no higher priority. kube-scheduler 1.34 clears the nomination in the
step in which it gives a Binding up; so for a moment nothing is accounted for, until it is written again
(``allocator/nomination/nominator.py``). kube-scheduler 1.35 does not clear it.

So that the pod passed the filters counts on, unless there is evidence to the contrary: the scheduler refuses the pod,
the node changes, or another pod has come to the node. A gang starts only when the nominations of such pods were there
for ``SETTLED_S``: until then, Bindings in flight have become visible.

A further pod that the scheduler accepts on the node before that, or one of higher priority, may have been accepted
without regard to this one. Then the node is in doubt until the scheduler accepts any of the pods there while it counts
all others: so they fit together. No pod has to come before another one for that, and other nodes are not in doubt: so a
gang gets on however many of its pods share a node.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final

from allocator.rules.scheduled import is_refusal, verdict_on
from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from allocator.state.node import read_by_schedulers
from allocator.state.reservation import Reservation
from ascend.kube.objects import Condition, Pod

SETTLED_S: Final = 1.0
"""How long a nomination was seen before a gang relies on it."""


@dataclass(slots=True)
class _Lapsed:
    """A pod whose Binding is not waited for.

    Attributes:
        plan: the plan of its gang.
        node: its node.
        priority: its priority.
        state: the state of the node when its scheduler gave up.
        verdict: the condition PodScheduled of the pod at that time.
        nominated_s: since when the pod was seen nominated for the node after its scheduler had given up; None if it is
            not.
    """

    plan: str
    node: str
    priority: int
    state: object
    verdict: Condition | None
    nominated_s: float | None = None


class LapsedHolds:
    """The pods whose Bindings are not waited for.

    Args:
        cluster: nodes, pods and jobs.
        ledger: the reservations.
        monotonic: the clock.
    """

    def __init__(self, cluster: Cluster, ledger: Ledger, monotonic: Callable[[], float]) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._monotonic = monotonic
        self._lapsed: dict[str, _Lapsed] = {}
        self._by_plan: dict[str, dict[str, None]] = {}
        self._doubted: set[str] = set()  # nodes on which no pod was accepted with regard to all others

    def __contains__(self, uid: object) -> bool:
        return uid in self._lapsed

    def __len__(self) -> int:
        return len(self._lapsed)

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._lapsed))

    def node_of(self, uid: str) -> str | None:
        """The node of a pod whose Binding is not waited for; None of any other."""
        lapsed = self._lapsed.get(uid)
        return lapsed.node if lapsed is not None else None

    def of(self, plan: str) -> Collection[str]:
        """The uids of the pods of a plan whose Bindings are not waited for."""
        return tuple(self._by_plan.get(plan, ()))

    def add(self, pod: Pod, held: Reservation) -> None:
        """The scheduler of a pod gives its Binding up."""
        state = self._state(held.node)
        self._lapsed[pod.uid] = _Lapsed(held.plan, held.node, pod.priority, state, verdict_on(pod))
        self._by_plan.setdefault(held.plan, {})[pod.uid] = None

    def discard(self, uid: str) -> None:
        """A pod has no seat any more, or its Binding is waited for again, or posted; no effect on others."""
        lapsed = self._lapsed.pop(uid, None)
        if lapsed is not None:
            of_plan = self._by_plan[lapsed.plan]
            del of_plan[uid]
            if not of_plan:
                del self._by_plan[lapsed.plan]
            if self._lapsed.keys().isdisjoint(self._ledger.on(lapsed.node)):
                self._doubted.discard(lapsed.node)

    def on_acceptance(self, pod: Pod, node: str, *, is_further: bool) -> bool:
        """A scheduler has accepted a pod on a node; return whether that ends a doubt about the pods there.

        Args:
            pod: the pod.
            node: its node.
            is_further: whether the pod has not been accepted there before.
        """
        is_doubted = node in self._doubted
        lapsed = (self._lapsed.get(uid) for uid in self._ledger.on(node))
        if all(hold is None or (hold.priority >= pod.priority and self._is_counted(hold)) for hold in lapsed):
            self._doubted.discard(node)
        elif is_further:
            self._doubted.add(node)
        return is_doubted and node not in self._doubted

    def has_ended(self, pod: Pod) -> bool:
        """Look whether anything shows that the scheduler would no longer accept a pod on its node."""
        lapsed = self._lapsed[pod.uid]
        verdict, is_nominated = verdict_on(pod), pod.status.nominated_node_name == lapsed.node
        if verdict == lapsed.verdict or not is_nominated:
            lapsed.nominated_s = None
        elif lapsed.nominated_s is None:
            lapsed.nominated_s = self._monotonic()
        is_refused = verdict is not None and verdict != lapsed.verdict and is_refusal(verdict)
        return is_refused or self._state(lapsed.node) != lapsed.state

    def is_settled(self, uid: str) -> bool:
        """Whether the scheduler accounts for a pod on its node, beside all the pods accepted there.

        It is not for a pod whose Binding is waited for.
        """
        lapsed = self._lapsed.get(uid)
        return lapsed is not None and lapsed.node not in self._doubted and self._is_counted(lapsed)

    def _is_counted(self, lapsed: _Lapsed) -> bool:
        return lapsed.nominated_s is not None and self._monotonic() - lapsed.nominated_s >= SETTLED_S

    def _state(self, node: str) -> object:
        """What a scheduler's filters depend on, apart from the pods it has accounted for itself."""
        record = self._cluster.nodes.get(node)
        if record is None or record.node is None:
            return None
        return record.arrivals, *read_by_schedulers(record.node)
