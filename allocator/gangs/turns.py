"""The order in which gangs try again after they have released their seats.

A plan knows chips; a scheduler knows everything else (CPU, affinity, host ports, taints). So a gang may hold seats that
its scheduler refuses to some of its pods, for example because another gang holds the CPU next to them, and vice versa.
Such a gang releases all its seats, and steps back: it tries again when no gang that stepped back before it is
still trying. Two gangs that stand in each other's way can't do so twice, because only one of them tries at a time.

When its turn comes, the gang does not rely on its first plan. First each of its pods is offered to its scheduler while
the gang holds nothing, which tells on which nodes each pod may be at all; then all are planned on these nodes. What the
scheduler refuses beside peers that hold their seats already is remembered as the most pods of the gang on that node, so
no two tries are alike, and the tries of a gang end.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from allocator.rules.job import JobKey

TURN_S: Final = 20.0
"""How long a gang whose turn it is may take until its first Binding is held; then it is the next one's turn.
kube-scheduler tries a refused pod again after at most 10 s."""


@dataclass(slots=True)
class Setback:
    """What is known of a gang that has released its seats.

    Attributes:
        priority: of its pods; gangs of higher priority try first.
        offers: the names of the nodes that the scheduler has offered for each pod, by uid, while its gang held nothing.
        limits: the most pods of the gang on a node, by name of the node, as far as the scheduler has refused more.
    """

    priority: int
    offers: dict[str, frozenset[str]] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    _known: dict[frozenset[str], frozenset[str]] = field(default_factory=dict)

    def offer(self, uid: str, nodes: Collection[str]) -> None:
        """Record the nodes that a scheduler offers for a pod; equal sets are kept once."""
        names = frozenset(nodes)
        self.offers[uid] = self._known.setdefault(names, names)

    def refuse(self, uid: str, node: str, beside: int) -> None:
        """Record that a scheduler no longer offers a node for a pod, with so many pods of the gang there."""
        if beside:
            self.limits[node] = min(beside, self.limits.get(node, beside))
        elif node in self.offers.get(uid, ()):
            self.offer(uid, self.offers[uid] - {node})

    def forget_offers(self) -> None:
        """Forget where pods may be: the cluster changes until it is the gang's turn again."""
        self.offers.clear()
        self._known.clear()


class Turns:
    """The gangs that have released their seats.

    Args:
        monotonic: the clock.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._waiting: dict[JobKey, Setback] = {}
        self._since_s = 0.0

    def __iter__(self) -> Iterator[JobKey]:
        return iter(tuple(self._waiting))

    @property
    def setbacks(self) -> Mapping[JobKey, Setback]:
        """The gangs that have stepped back, in the order in which they try again."""
        return MappingProxyType(self._waiting)

    def get(self, job: JobKey) -> Setback | None:
        """What is known of a gang that has stepped back; None if it has not."""
        return self._waiting.get(job)

    def ahead_of(self, job: JobKey) -> JobKey | None:
        """The gang whose turn it is, if this one has to wait for it; None if it may try."""
        if job not in self._waiting:
            return None
        first = next(iter(self._waiting))
        return None if first == job else first

    def step_back(self, job: JobKey, priority: int) -> None:
        """Put a gang behind all others of its priority that have stepped back."""
        first = next(iter(self._waiting), None)
        setback = self._waiting.pop(job, None) or Setback(priority)
        setback.priority = priority
        setback.forget_offers()
        behind = [key for key, other in self._waiting.items() if other.priority < priority]
        self._waiting[job] = setback
        for key in behind:
            self._waiting[key] = self._waiting.pop(key)
        if first == job or next(iter(self._waiting)) != first:
            self._since_s = self._monotonic()

    def leave(self, job: JobKey) -> None:
        """Remove a gang that has started or is gone."""
        if next(iter(self._waiting), None) == job:
            self._since_s = self._monotonic()
        self._waiting.pop(job, None)

    def pass_on(self, is_trying: Callable[[JobKey], bool]) -> None:
        """End the turn of a gang that has not made use of it in time.

        Args:
            is_trying: whether Bindings of a gang are held.
        """
        first = next(iter(self._waiting), None)
        if first is not None and not is_trying(first) and self._monotonic() - self._since_s >= TURN_S:
            self.end_turn(first)

    def end_turn(self, job: JobKey) -> None:
        """End the turn of a gang that does not fit now: it starts from scratch when its turn comes again."""
        setback = self._waiting.get(job)
        if setback is not None:
            setback.limits.clear()
            self.step_back(job, setback.priority)
