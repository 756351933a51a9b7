"""The queue of gangs that have been in each other's way: one of them at a time tries to start.

A plan knows chips; a scheduler knows everything else (CPU, affinity, host ports, taints). So a gang may hold chips
while its scheduler refuses some of its pods, because another gang holds the CPU next to them, and vice versa. And
Bindings that another scheduler posts for several gangs at once may each wait for the chips of another gang. Gangs that
try one after the other can't do so.

The gangs have turns in rounds: within a round, those that have started in part come first, then those of the highest
priority, then those that have tried least often, then the oldest. A turn ends when the gang starts, when its try fails,
when it makes no progress, and at once when it has no prospects. A gang whose try has failed waits for the next round,
and so does a gang that joins the queue, unless it comes before the gang whose turn it is: a gang of high priority that
never starts can't keep others from trying.

Every second turn is that of a gang that has not tried yet, and such a gang does not wait for long for one that has
tried and holds nothing: its scheduler may try a pod again only after some time if its Binding has failed. It is the
oldest, or, if the last turn was in vain, the newest: a gang that can start does not wait until all gangs that can't
have tried.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from allocator.rules.job import JobKey
from allocator.state.job import Job

TURN_S: Final = 20.0
"""How long a gang whose turn it is may take for its next step: a further pod is filtered, or a Binding is held or made.
kube-scheduler tries a refused pod again after at most 10 s."""
IDLE_S: Final = 3.0
"""The same for one that has tried and holds nothing, while others have not tried yet."""


@dataclass(slots=True)
class Wait:
    """A gang that waits for a turn, and the state of a gang that has released its seats.

    Attributes:
        job: the ``first_version`` of the job.
        rank: its place among the gangs of a round.
        round: gangs of an earlier round come first.
        tries: how often it has tried in vain.
        offers: the names of the nodes that the scheduler has offered for each pod, by uid, while the gang held nothing.
        limits: the most pods of the gang on a node, by name of the node, as far as the scheduler has refused more.
        nodes: the names of the nodes of its last plan.
        why: what kept it from starting then, a part of a sentence.
        may_keep: whether its next try keeps its chips from others: its last one has released them to others.
        has_kept: whether its try has kept chips from a pod of a lower priority.
    """

    job: int
    rank: tuple[bool, int, str, str]
    round: int = 0
    tries: int = 0
    offers: dict[str, frozenset[str]] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    nodes: frozenset[str] = frozenset()
    why: str = ""
    may_keep: bool = False
    has_kept: bool = False
    _known: dict[frozenset[str], frozenset[str]] = field(default_factory=dict)

    @property
    def order(self) -> tuple[int, tuple[bool, int], int, tuple[str, str]]:
        """The order of turns."""
        return self.round, self.rank[:2], self.tries, self.rank[2:]

    def offer(self, uid: str, nodes: Collection[str]) -> None:
        """Record the nodes that a scheduler offers for a pod; equal sets are kept once."""
        names = frozenset(nodes)
        self.offers[uid] = self._known.setdefault(names, names)

    def refuse(self, uid: str, node: str, beside: int) -> None:
        """Record that a scheduler no longer offers a node for a pod, beside so many pods of the gang there."""
        if beside:
            self.limits[node] = min(beside, self.limits.get(node, beside))
        elif node in self.offers.get(uid, ()):
            self.offer(uid, self.offers[uid] - {node})

    def forget_offers(self) -> None:
        """Forget where pods may be: the cluster changes until the next turn."""
        self.offers.clear()
        self._known.clear()


class StartQueue:
    """The gangs that wait for a turn.

    Args:
        jobs: all jobs.
        monotonic: the clock.
        has_started: whether a gang need not wait any more.
        holds: whether Bindings of a gang are held.
        has_prospects: whether a gang could start in its turn, as far as is known.
        started: called with a gang that has started, and does not wait any more.
    """

    def __init__(
        self,
        jobs: Mapping[JobKey, Job],
        monotonic: Callable[[], float],
        has_started: Callable[[Job], bool],
        holds: Callable[[Job], bool],
        *,
        has_prospects: Callable[[Job], bool] = lambda _job: True,
        started: Callable[[JobKey], None] = lambda _job: None,
    ) -> None:
        self._jobs = jobs
        self._monotonic = monotonic
        self._has_started = has_started
        self._holds = holds
        self._has_prospects = has_prospects
        self._started = started
        self._waiting: dict[JobKey, Wait] = {}
        self._first: JobKey | None = None
        self._in_vain = 0  # tries since a gang has started last
        self._favours_new = False
        self.revision = 0
        """Changes with the gangs that wait."""
        self.since_s = 0.0
        """Since when the gang whose turn it is has made no progress."""
        self.began_s = 0.0
        """When the turn began."""

    def __len__(self) -> int:
        return len(self._waiting)

    def get(self, job: Job) -> Wait | None:
        """What is known of a gang that waits; None of any other."""
        wait = self._waiting.get(job.key)
        return wait if wait is not None and wait.job == job.first_version else None

    @property
    def first(self) -> Job | None:
        """The gang whose turn it is."""
        self._choose()
        return self._jobs[self._first] if self._first is not None else None

    def _choose(self) -> None:
        first = self._first
        is_able = first is not None and self._still_waits(first) and self._is_able(first)
        if first is not None and is_able and not (self._favours_new and self._is_idle(first)):
            return
        able = [key for key in tuple(self._waiting) if self._still_waits(key) and self._is_able(key)]
        new = [key for key in able if self._favours_new and not self._waiting[key].tries]
        if is_able and not new:
            return
        if new and self._in_vain:
            self._first = max(new, key=lambda key: self._waiting[key].rank[2:])
        else:
            self._first = min(new or able, key=lambda key: self._waiting[key].order, default=None)
        self._favours_new = not new
        self.since_s = self.began_s = self._monotonic()

    def _is_able(self, key: JobKey) -> bool:
        """Whether a gang could start in its turn."""
        return self._holds(self._jobs[key]) or self._has_prospects(self._jobs[key])

    def _is_idle(self, key: JobKey) -> bool:
        """Whether the gang whose turn it is gives way to a new one: it has tried, and makes no use of its turn."""
        wait, silent_s = self._waiting[key], self._monotonic() - self.since_s
        has_begun = not wait.rank[0] or self._holds(self._jobs[key])
        return bool(wait.tries) and not has_begun and silent_s >= IDLE_S

    def ahead_of(self, job: Job) -> Job | None:
        """The gang whose turn it is; None if this gang may try."""
        if self.get(job) is None or (self._first is None and not self._is_able(job.key)):
            return None
        first = self.first
        return None if first is job else first

    def preceding(self, priority: int) -> Iterator[tuple[JobKey, Wait]]:
        """The gangs of at least this priority that have tried and could start in their next turn."""
        for key, wait in tuple(self._waiting.items()):
            if not wait.tries or -wait.rank[1] < priority or not self._still_waits(key):
                continue
            if self._has_prospects(self._jobs[key]):
                yield key, wait

    def join(self, job: Job, *, has_begun: bool = False) -> None:
        """Let a gang wait for a turn; no effect on one that waits already.

        Args:
            job: the gang.
            has_begun: whether it has started in part.
        """
        wait = self.get(job)
        if wait is None:
            self.leave(job.key)  # a former job of its name
            self._put(job, _new(job, has_begun=has_begun))
        elif has_begun:
            wait.rank = (False, *wait.rank[1:])

    def lead(self, job: Job) -> None:
        """Give a gang the next turn, unless one of a higher priority waits for it."""
        self.join(job)
        own = self._waiting[job.key].rank[:2]
        if all(wait.rank[:2] >= own or not self._is_able(key) for key, wait in self._waiting.items()):
            self._first, self.since_s = job.key, self._monotonic()
            self.began_s, self._favours_new = self.since_s, True  # it may have taken the turn of a new one

    def fail(self, job: Job) -> Wait:
        """A gang has tried in vain: it waits for a turn in the next round."""
        known = self.get(job)
        wait = known or _new(job)
        self._first = self._first if self._first != job.key else None
        self._in_vain += 1
        wait.tries += 1
        wait.nodes = frozenset()
        wait.forget_offers()
        self._put(job, wait, is_next=known is not None)
        return wait

    def _put(self, job: Job, wait: Wait, *, is_next: bool = False) -> None:
        current = self._waiting.get(self._first) if self._first is not None else None
        current = current or min(self._waiting.values(), key=lambda other: other.order, default=None)
        if current is not None:
            is_before = not is_next and wait.rank[:2] < current.rank[:2]
            wait.round = current.round + (not is_before)
            if is_before:
                self._first = None
        self._waiting[job.key] = wait
        self.revision += 1
        self._choose()

    def advance(self, job: Job) -> None:
        """The gang whose turn it is makes progress."""
        if job.key == self._first:
            self.since_s = self._monotonic()

    def leave(self, job: JobKey, *, is_vain: bool = False) -> None:
        """Remove a gang that does not wait for a turn any more."""
        self.revision += self._waiting.pop(job, None) is not None
        if job == self._first:
            self._first, self._in_vain = None, self._in_vain + 1 if is_vain else 0

    def pass_on(self) -> None:
        """Forget started and deleted gangs, and end the turn of a gang that has made no progress for long."""
        for key in tuple(self._waiting):
            self._still_waits(key)
        first = self.first
        if first is not None and not self._holds(first) and self._monotonic() - self.since_s >= TURN_S:
            self.fail(first)

    def _still_waits(self, key: JobKey) -> bool:
        """Whether a gang of the queue still waits; a gang that has started or is deleted is forgotten."""
        job = self._jobs.get(key)
        if job is None or job.first_version != self._waiting[key].job:
            self.leave(key)
        elif self._has_started(job):
            self.leave(key)
            self._started(key)
        else:
            return True
        return False


def _new(job: Job, *, has_begun: bool = False) -> Wait:
    return Wait(job.first_version, (not has_begun, -priority_of(job), created(job), job.key.plan))


def created(job: Job) -> str:
    """When the last pod of a gang was created."""
    return max((pod.metadata.creation_timestamp or "" for pod in job.pods.values()), default="")


def priority_of(job: Job) -> int:
    """The highest priority of the pods of a gang."""
    return max((pod.priority for pod in job.pods.values()), default=0)
