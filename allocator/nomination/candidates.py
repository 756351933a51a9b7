"""The nodes that may be nominated, as the scheduler has not turned them down; no I/O."""

from collections.abc import Callable, Collection, Iterator
from typing import Final

from allocator.decision.engine import DecisionEngine
from allocator.state.cluster import Cluster
from ascend.kube.objects import Pod

AVOID_S: Final = 30.0
"""A node that the scheduler has turned down is not nominated for this time."""


class Candidates:
    """The nodes that may be nominated.

    A node that lacks CPU but has free chips would be the best one for pod after pod, and each of them would be filtered
    on all nodes after all.

    Args:
        cluster: nodes, pods and jobs.
        engine: tells the pods of gangs.
        monotonic: the clock.
    """

    def __init__(self, cluster: Cluster, engine: DecisionEngine, monotonic: Callable[[], float]) -> None:
        self._cluster = cluster
        self._engine = engine
        self._monotonic = monotonic
        self._until_s: dict[str, float] = {}

    def avoid(self, node: str) -> None:
        """The scheduler has turned a node down that was nominated."""
        self._until_s[node] = self._monotonic() + AVOID_S

    def of(self, pod: Pod) -> Collection[str] | None:
        """The nodes that may be nominated for a pod; None for every node."""
        if self._engine.is_of_gang(pod):
            return None  # the plan applies the node selectors of all its pods
        now_s = self._monotonic()
        for name in [name for name, until_s in self._until_s.items() if until_s <= now_s]:
            del self._until_s[name]
        selector = pod.spec.node_selector
        selected = self._cluster.labels.select(selector) if selector else None
        if not self._until_s:
            return selected
        return _Except(self._cluster.index.entries if selected is None else selected, self._until_s)


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
