"""The nodes that may be nominated, and the nominations that give way to a pod of higher priority; no I/O."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

from allocator.decision.engine import DecisionEngine
from allocator.state.reservation import Reservation, Stage
from ascend.errors import Refusal
from ascend.kube.objects import Pod

AVOID_S: Final = 30.0
"""A node that the scheduler has turned down is not nominated for this time."""


class Candidates:
    """The nodes that may be nominated.

    A node that lacks CPU but has free chips would be the best one for pod after pod, and each of them would be filtered
    on all nodes after all.

    Args:
        engine: tells the pods of gangs, and where pods fit.
        monotonic: the clock.
    """

    def __init__(self, engine: DecisionEngine, monotonic: Callable[[], float]) -> None:
        self._cluster = engine.cluster
        self._engine = engine
        self._monotonic = monotonic
        self._until_s: dict[str, float] = {}

    def avoid(self, node: str) -> None:
        """The scheduler has turned a node down that was nominated."""
        self._until_s[node] = self._monotonic() + AVOID_S

    def of(self, pod: Pod) -> Collection[str] | None:
        """The nodes that may be nominated for a pod; None for every node."""
        if self._engine.is_of_gang(pod):
            return None  # the plan applies the node selectors and affinities of all its pods
        now_s = self._monotonic()
        for name in [name for name, until_s in self._until_s.items() if until_s <= now_s]:
            del self._until_s[name]
        selected = self._cluster.labels.only(pod.spec.node_requirements)
        if not self._until_s:
            return selected
        return _Except(self._cluster.index.entries if selected is None else selected, self._until_s)

    def in_the_way(self, pod: Pod, names: Collection[str] | None, nominated: Iterable[str]) -> list[str]:
        """The nominated pods of lower priority without whose reservations a pod fits that was refused.

        Args:
            pod: the pod.
            names: names of the nodes it may be placed on; None for every node.
            nominated: the uids of nominated pods that the scheduler has not filtered yet.

        Returns:
            Their uids; empty if the pod would not fit without them either.
        """
        nodes = {uid: held.node for uid in nominated if (held := self._lower(uid, pod.priority)) is not None}
        try:
            fitting = self._engine.fitting_without(pod, names, nodes) if nodes else ()
        except Refusal:
            return []
        if not fitting:
            return []
        if self._engine.is_of_gang(pod):
            return list(nodes)
        # The node on which the fewest of them give way.
        numbers = Counter(nodes.values())
        best = min(fitting, key=lambda name: (numbers[name], name))
        return [uid for uid, node in nodes.items() if node == best]

    def _lower(self, uid: str, priority: int) -> Reservation | None:
        """What is reserved for a pod, if that is of lower priority, and no seat of a gang."""
        seen, held = self._cluster.pods.get(uid), self._engine.ledger.get(uid)
        if seen is None or seen.priority >= priority or held is None:
            return None
        return held if held.stage is Stage.RESERVED and not held.plan else None


class _Except(Collection[str]):
    """Names without some of them; only membership is tested of thousands of names in most decisions."""

    def __init__(self, names: Collection[str], excepted: Collection[str]) -> None:
        self._names = names
        self._excepted = frozenset(excepted)

    def __contains__(self, name: object) -> bool:
        return name not in self._excepted and name in self._names

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._names if name not in self._excepted)

    def __len__(self) -> int:
        return len(self._names) - sum(name in self._names for name in self._excepted)
