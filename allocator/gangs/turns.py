"""The order in which gangs try again after they have released their seats.

A plan knows chips; a scheduler knows everything else (CPU, affinity, host ports, taints). So a gang may hold seats that
its scheduler refuses to some of its pods, for example because another gang holds the CPU next to them, and vice versa.
Such a gang releases all its seats, and steps back: it tries again when no gang that stepped back before it is
still trying. Two gangs that stand in each other's way can't do so twice, because only one of them tries at a time.

A gang without prospects has no turn, and nobody waits for it: its scheduler offers no node for a pod that it needs
(``gangs/obstacles.py``). It keeps its place, and has its turn when the scheduler asks for that pod again.

A gang that has not tried yet leaves the nodes of the last try to the gangs of the same or a higher priority that have
stepped back: it would only fail there as well, and take from them what they lack. If it doesn't fit elsewhere, it waits
for a turn like them, without a try in vain; after a few seconds the next turn is its own, and every second one at most
that of such a gang. So neither those that can't start nor those that come anew keep the others from trying.

When its turn comes, the gang does not rely on its first plan. First each of its pods is offered to its scheduler while
the gang holds nothing, which tells on which nodes each pod may be at all; then all are planned on these nodes. What the
scheduler refuses beside peers that hold their seats already is remembered, so that no two tries are alike.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from allocator.gangs.obstacles import Obstacles
from allocator.rules.job import JobKey
from allocator.state.job import Job
from allocator.state.ledger import Ledger

TURN_S: Final = 20.0
"""How long a gang whose turn it is may take until its scheduler filters a further pod of it, or its first Binding is
held; then it is the next one's turn. kube-scheduler tries a refused pod again after at most 10 s."""

NEW_WAITS_S: Final = 5.0
"""How long a gang that has not tried yet waits for those that have stepped back."""

_MOST_CONFLICTS: Final = 1000


@dataclass(slots=True)
class Setback:
    """What is known of a gang that has released its seats.

    Attributes:
        job: the ``first_version`` of the job.
        priority: of its pods; gangs of higher priority try first.
        round: gangs of an earlier round try before those of a later one.
        offers: the names of the nodes that the scheduler has offered for each pod, by uid, while its gang held nothing.
        limits: the most pods of the gang on a node, by name of the node, as far as the scheduler has refused more.
        conflicts: names of nodes, each with uids of pods that the scheduler has not accepted there together.
        tries: how often the gang has stepped back; 0 if it waits for the first try.
        nodes: the names of the nodes of its last plan.
        why: what kept it from starting then, a part of a sentence.
        since: when its last pod was created, and its name.
        joined_s: since when it waits, if it has not tried yet.
    """

    job: int
    priority: int
    round: int = 0
    offers: dict[str, frozenset[str]] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    conflicts: set[tuple[str, frozenset[str]]] = field(default_factory=set)
    tries: int = 0
    nodes: frozenset[str] = frozenset()
    why: str = ""
    since: tuple[str, str] = ("", "")
    joined_s: float = 0.0
    _known: dict[frozenset[str], frozenset[str]] = field(default_factory=dict)

    def offer(self, uid: str, nodes: Collection[str]) -> None:
        """Record the nodes that a scheduler offers for a pod; equal sets are kept once."""
        names = frozenset(nodes)
        self.offers[uid] = self._known.setdefault(names, names)

    def refuse(self, uid: str, node: str, beside: Collection[str]) -> None:
        """Record that a scheduler no longer offers a node for a pod, with these pods of the gang there (uids)."""
        if beside:
            self.limits[node] = min(len(beside), self.limits.get(node, len(beside)))
            if len(self.conflicts) < _MOST_CONFLICTS:
                self.conflicts.add((node, frozenset((uid, *beside))))
        elif node in self.offers.get(uid, ()):
            self.offer(uid, self.offers[uid] - {node})

    def precedes(self, other: "Setback") -> bool:
        """Whether the gang tries before another one that began to wait earlier.

        Of those that have not tried yet the older one does, which nodes drain for (``decision/earmarks.py``).
        """
        own, others = (self.round, -self.priority), (other.round, -other.priority)
        return own < others or (own == others and not self.tries and not other.tries and self.since < other.since)

    def start_over(self) -> None:
        """Forget what could not be together: the cluster may have changed, or it was not the reason."""
        self.limits.clear()
        self.conflicts.clear()

    def forget_offers(self) -> None:
        """Forget where pods may be: the cluster changes until it is the gang's turn again."""
        self.offers.clear()
        self._known.clear()


class Turns:
    """The gangs that have released their seats, and those that wait for them.

    Args:
        jobs: all jobs.
        ledger: the reservations; its clock counts.
        obstacles: says which gangs have no prospects.
    """

    def __init__(self, jobs: Mapping[JobKey, Job], ledger: Ledger, obstacles: Obstacles) -> None:
        self._jobs = jobs
        self._ledger = ledger
        self._monotonic = ledger.monotonic
        self._obstacles = obstacles
        self._waiting: dict[JobKey, Setback] = {}
        self._first: JobKey | None = None
        self._since_s = 0.0
        self._favours_new = True

    def get(self, job: Job) -> Setback | None:
        """What is known of a gang that has stepped back or waits for its turn; None of any other."""
        found = self._waiting.get(job.key)
        return found if found is not None and found.job == job.first_version else None

    def ahead_of(self, job: Job) -> JobKey | None:
        """The gang whose turn it is, if this one has to wait for it; None if it may try."""
        if self.get(job) is None:
            return None
        first = self._choose()
        return None if first == job.key else first

    def _choose(self) -> JobKey | None:
        """The gang whose turn it is: the first with prospects, or a new one that has waited for long."""
        able = [key for key in self._waiting if self._has_prospects(key)]
        first, now_s = next(iter(able), None), self._monotonic()
        if self._favours_new:
            new = [key for key in able if self._is_new(key) and now_s - self._waiting[key].joined_s >= NEW_WAITS_S]
            first = min(new, key=lambda key: self._waiting[key].since, default=first)
        if first != self._first:
            self._first, self._since_s = first, now_s
        return first

    def _is_new(self, key: JobKey) -> bool:
        """Whether a gang has not tried yet."""
        return key in self._waiting and not self._waiting[key].tries

    def _has_prospects(self, key: JobKey) -> bool:
        """Whether a gang has seats, or its scheduler offers nodes for the pods that it needs."""
        job = self._jobs.get(key)
        return job is not None and (bool(self._ledger.held(key.plan)) or not self._is_stuck(job))

    def _is_stuck(self, job: Job) -> bool:
        """Whether its scheduler offers no node for a pod that a gang needs."""
        return self._obstacles.of(job) is not None or self._obstacles.refusal(job, of_chips=True) is not None

    def step_back(self, job: Job, nodes: frozenset[str], why: str) -> None:
        """Put a gang behind all others of its priority that have stepped back, and behind all that wait for a turn.

        Only a gang that has not had its turn yet, and has a higher priority than the one whose turn it is, tries before
        others that wait: one of high priority that never starts must not keep them from trying.

        Args:
            job: the gang.
            nodes: the names of the nodes of its plan.
            why: what kept it from starting, a part of a sentence.
        """
        self._put_back(job, nodes).why = why

    def _put_back(self, job: Job, nodes: frozenset[str] = frozenset()) -> Setback:
        known = self.get(job)
        setback = known or Setback(job.first_version, 0)
        if job.key == self._first:
            self._favours_new = bool(setback.tries)
        setback.forget_offers()
        setback.tries += 1
        setback.nodes = nodes
        self._enqueue(job, setback, is_back=known is not None)
        return setback

    def join(self, job: Job) -> None:
        """Let a gang that has not tried yet wait for its turn, as if it had stepped back."""
        if self.get(job) is None:
            since = created(job), job.key.plan
            setback = Setback(job.first_version, 0, since=since, joined_s=self._monotonic())
            self._enqueue(job, setback, is_back=False)

    def preceding(self, job: Job) -> list[tuple[JobKey, Setback]]:
        """The gangs that have stepped back and come before one that has not tried yet."""
        if not self._waiting or self.get(job) is not None:
            return []
        priority = _priority(job)
        return [
            (key, each)
            for key, each in self._waiting.items()
            if each.tries and each.priority >= priority and self._has_prospects(key)
        ]

    def _enqueue(self, job: Job, setback: Setback, *, is_back: bool) -> None:
        first = next(iter(self._waiting), None)
        current = self._waiting[first] if first is not None else None
        setback.priority = _priority(job)
        if current is not None:
            setback.round = current.round + (is_back or setback.priority <= current.priority)
        self._waiting.pop(job.key, None)
        behind = [key for key, other in self._waiting.items() if setback.precedes(other)]
        self._waiting[job.key] = setback
        for key in behind:
            self._waiting[key] = self._waiting.pop(key)
        if job.key == self._first:
            self._first = None

    def extend(self) -> None:
        """Let the gang whose turn it is have as much time again: its scheduler is filtering its pods."""
        self._since_s = self._monotonic()

    def leave(self, job: JobKey) -> None:
        """Remove a gang that has started or is gone."""
        if job == self._first:
            self._first, self._favours_new = None, True
        self._waiting.pop(job, None)

    def pass_on(self, is_trying: Callable[[JobKey], bool]) -> None:
        """End the turn of a gang that has not made use of it in time, and forget gangs that are gone.

        Args:
            is_trying: whether Bindings of a gang are held.
        """
        for key, setback in tuple(self._waiting.items()):
            if key not in self._jobs or self._jobs[key].first_version != setback.job:
                self.leave(key)
        first = self._choose()
        if first is not None and not is_trying(first) and self._monotonic() - self._since_s >= TURN_S:
            self.end_turn(self._jobs[first])

    def end_turn(self, job: Job) -> None:
        """End the turn of a gang that does not fit now: it starts from scratch when its turn comes again.

        A gang that has not tried yet waits for room then, like any other.
        """
        setback = self.get(job)
        if setback is not None and not setback.tries:
            self.leave(job.key)
        elif setback is not None:
            setback.start_over()
            self._put_back(job)


def created(job: Job) -> str:
    """When the last pod of a gang was created."""
    return max((pod.metadata.creation_timestamp or "" for pod in job.pods.values()), default="")


def _priority(job: Job) -> int:
    return max((pod.priority for pod in job.pods.values()), default=0)
