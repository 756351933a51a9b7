"""Promises: chips, or a part of one, that are kept for a pod or a gang before it can be placed.

A pod that preempts waits until its victims have terminated. Their chips are promised to it from the moment the victims
are chosen: pods of lower or equal priority can't take them when they become free. A promise names chips, whether they
are held now or not, and ends when its owner is bound or deleted, when the owner is nominated elsewhere, when a pod of
higher priority takes some of the chips, or at a time. For a pod that requests a vNPU, or AI cores of a part of a chip,
it names the part in the same way.

Promised chips count as taken for every pod. Whoever may use them asks a view in which they don't
(``allocator/state/view.py``), so decisions cost nothing more while there are no promises.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from allocator.state.job import Job
from ascend.chips import ChipSet
from ascend.cores import Cut
from ascend.kube.objects import Pod
from ascend.takes import Take
from ascend.vnpus import Vnpu


class Promise(msgspec.Struct, frozen=True, eq=False):
    """Chips, or a part of one, kept for one owner.

    Attributes:
        owner: the uid of a pod, or the name of a gang's plan (``JobKey.plan``).
        what: what they are kept for, in sentences: ``pod ns/name`` or ``job ns/name``.
        priority: pods of higher priority may take the chips.
        chips: by node; none on its node for a part.
        due_s: when it ends at the latest, on the ledger's clock.
        drains: these are kept for a job that waits, and may be in use: it does not end if others take some chips.
        since: when that pod, or the last pod of that gang, was created.
        part: the vNPU, on the only node; None for chips.
    """

    owner: str
    what: str
    priority: int
    chips: Mapping[str, ChipSet]
    due_s: float
    drains: bool = False
    since: str = ""
    part: Vnpu | Cut | None = None

    def overlaps(self, node: str, chips: ChipSet, part: Vnpu | Cut | None) -> bool:
        """Whether both can't be had on a node: this, and these chips or this vNPU.

        Two vNPUs that are cut when their pods start may fit on one chip.
        """
        own, cut = self.chips.get(node, 0), isinstance(part, Cut) and 1 << part.chip
        own_cut = isinstance(self.part, Cut) and 1 << self.part.chip
        if own & (chips | cut) or own_cut & chips:
            return True
        return isinstance(part, Vnpu) and part == self.part


class Promises:
    """All promises; no two of them name the same chip, or the same vNPU that was cut beforehand.

    Args:
        monotonic: the clock.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic
        self._by_owner: dict[str, Promise] = {}
        self._by_node: dict[str, set[str]] = {}  # the owners
        self._changed: Callable[[str], None] = lambda _node: None

    def subscribe(self, changed: Callable[[str], None]) -> None:
        """Set the callback for changes; it gets each node with other promised chips than before."""
        self._changed = changed

    def __len__(self) -> int:
        return len(self._by_owner)

    def __iter__(self) -> Iterator[Promise]:
        return iter(list(self._by_owner.values()))

    def get(self, owner: str) -> Promise | None:
        """The promise of a pod or a gang."""
        return self._by_owner.get(owner)

    def on(self, node: str, ignoring: Collection[str] = (), priority: float = -math.inf) -> Sequence[Promise]:
        """The promises on a node, by owner.

        Args:
            node: the node.
            ignoring: the owners of promises that don't count.
            priority: promises of lower priority don't count either.
        """
        if node not in self._by_node:
            return ()
        here = (self._by_owner[owner] for owner in sorted(self._by_node[node]) if owner not in ignoring)
        return [promise for promise in here if promise.priority >= priority]

    def ignored(self, owners: Collection[str], priority: float) -> list[Promise]:
        """The promises to these owners, and those of lower priority."""
        promises = self._by_owner.values()
        return [promise for promise in promises if promise.priority < priority or promise.owner in owners]

    def behind(self, owner: str, priority: int, since: str) -> list[str]:
        """The waiting jobs that come after a gang of their priority: in its turn it may take what is kept for them.

        Args:
            owner: the name of the gang's plan.
            priority: its priority.
            since: when its last pod was created.
        """
        alike = (promise for promise in self._by_owner.values() if promise.drains and promise.priority == priority)
        return [promise.owner for promise in alike if (promise.since, promise.owner) > (since, owner)]

    def keep(self, promise: Promise) -> None:
        """Add a promise, replacing that of the same owner and those that overlap with it."""
        changed = set(self._remove(promise.owner))
        for node, chips in promise.chips.items():
            for other in self.on(node):
                if other.overlaps(node, chips, promise.part):
                    changed.update(self._remove(other.owner))
        self._put(promise)
        self._notify(changed.union(promise.chips))

    def adjust(self, owner: str, chips: Mapping[str, ChipSet]) -> None:
        """Let a promise name other chips, which nobody else was promised."""
        promise = self._by_owner[owner]
        changed = {
            node for node in {*chips, *promise.chips} if chips.get(node, 0) != promise.chips.get(node, 0)
        }  # fmt: skip
        if changed:
            self._remove(owner)
            self._put(replace(promise, chips=chips))
            self._notify(changed)

    def renew(self, owner: str, due_s: float) -> None:
        """Let a promise end at another time."""
        self._by_owner[owner] = replace(self._by_owner[owner], due_s=due_s)

    def drop(self, owner: str) -> Promise | None:
        """Remove the promise of a pod or a gang; None if there is none."""
        promise = self._by_owner.get(owner)
        if promise is not None:
            self._notify(self._remove(owner))
        return promise

    def settle(self, pod: Pod, job: Job) -> None:
        """End the promise to a pod without need, or to its job once the job has started."""
        bound, nominated = bool(pod.spec.node_name), pod.status.nominated_node_name
        own = self._by_owner.get(pod.uid)
        if own is not None and (bound or not pod.waits_for_chips or (nominated and nominated not in own.chips)):
            self.drop(pod.uid)
        if bound and job.key.plan in self._by_owner:
            started = sum(bool(job.pods[uid].spec.node_name) for uid in job.placed)
            if started >= job.min_available:
                self.drop(job.key.plan)

    def taken(self, node: str, take: Take, owners: Collection[str]) -> None:
        """Something was reserved: the promises of others that overlap with it end.

        Args:
            node: the node.
            take: the chips, or the vNPU.
            owners: the pod that they were reserved for, and its gang.
        """
        for promise in self.on(node):
            is_taken = promise.overlaps(node, take.chip_set, take.vnpu or take.cut)
            if is_taken and promise.owner not in owners and not promise.drains:
                self.drop(promise.owner)

    def expire(self) -> list[Promise]:
        """Remove the promises that are due, and return them."""
        now_s = self.monotonic()
        due = [promise for promise in self._by_owner.values() if promise.due_s <= now_s]
        for promise in due:
            self.drop(promise.owner)
        return due

    def _notify(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            self._changed(node)

    def _put(self, promise: Promise) -> None:
        self._by_owner[promise.owner] = promise
        for node in promise.chips:
            self._by_node.setdefault(node, set()).add(promise.owner)

    def _remove(self, owner: str) -> Iterable[str]:
        promise = self._by_owner.pop(owner, None)
        if promise is None:
            return ()
        for node in promise.chips:
            owners = self._by_node[node]
            owners.discard(owner)
            if not owners:
                del self._by_node[node]
        return promise.chips
