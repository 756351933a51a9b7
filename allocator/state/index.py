"""Nodes sorted by what they have left, so that the best one is found without walking them (design, decision 4).

Nodes with equal vacancies share a bucket. There are at most a few hundred different vacancies however many nodes
there are, and the verdict on a request is the same for a whole bucket, so a decision over all nodes looks at buckets
only. Within a bucket the first node by name wins: a heap whose outdated entries are dropped when they surface.
"""

import heapq
from collections import Counter
from collections.abc import Mapping

from allocator.rules.request import Ask
from allocator.rules.vacancy import Fit, Vacancy, Verdict, judge
from allocator.state.node import Offer
from ascend.errors import Refusal


class Bucket:
    """The nodes that have exactly this left.

    Args:
        vacancy: what they have left.
    """

    __slots__ = ("_heap", "_names", "_verdicts", "vacancy")

    def __init__(self, vacancy: Vacancy) -> None:
        self.vacancy = vacancy
        self._names: set[str] = set()
        self._heap: list[str] = []
        self._verdicts: dict[Ask, Verdict] = {}

    def __len__(self) -> int:
        return len(self._names)

    def add(self, name: str) -> None:
        """Put a node in."""
        self._names.add(name)
        # A name that left and came back may be in the heap twice; half of it being waste is the limit.
        if len(self._heap) > 2 * len(self._names) + 8:
            self._heap = sorted(self._names)
        else:
            heapq.heappush(self._heap, name)

    def discard(self, name: str) -> None:
        """Take a node out; its heap entry stays until it surfaces."""
        self._names.discard(name)

    def first(self) -> str:
        """The first node by name."""
        while self._heap[0] not in self._names:
            heapq.heappop(self._heap)
        return self._heap[0]

    def verdict(self, ask: Ask) -> Verdict:
        """The verdict on a pod, the same for every node in here."""
        verdict = self._verdicts.get(ask)
        if verdict is None:
            verdict = self._verdicts[ask] = judge(self.vacancy, ask)
        return verdict


class NodeIndex:
    """Where every node stands: in a bucket, or refused."""

    def __init__(self) -> None:
        self._standing: dict[str, Bucket | Refusal] = {}
        self._buckets: dict[Vacancy, Bucket] = {}
        self._refusals: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._standing)

    @property
    def standing(self) -> Mapping[str, Bucket | Refusal]:
        """The bucket of every node that can be used, the refusal of every other."""
        return self._standing

    def put(self, name: str, offer: Offer) -> None:
        """Enter a node, or move it to where it belongs now."""
        self.drop(name)
        if isinstance(offer, Refusal):
            self._refusals[offer.reason] += 1
            self._standing[name] = offer
            return
        bucket = self._buckets.get(offer)
        if bucket is None:
            bucket = self._buckets[offer] = Bucket(offer)
        bucket.add(name)
        self._standing[name] = bucket

    def drop(self, name: str) -> None:
        """Forget a node."""
        old = self._standing.pop(name, None)
        if isinstance(old, Bucket):
            old.discard(name)
            if not old:
                del self._buckets[old.vacancy]
        elif old is not None:
            self._refusals[old.reason] -= 1

    def best(self, ask: Ask) -> tuple[str, Fit] | None:
        """The best of all nodes for a pod, the first by name of equally good ones; None where it fits nowhere."""
        best: tuple[str, Fit] | None = None
        for bucket in self._buckets.values():
            verdict = bucket.verdict(ask)
            if isinstance(verdict, Refusal) or (best is not None and verdict.key > best[1].key):
                continue
            name = bucket.first()
            if best is None or (verdict.key, name) < (best[1].key, best[0]):
                best = (name, verdict)
        return best

    def reasons(self, ask: Ask) -> Counter[str]:
        """How many nodes refuse a pod for which reason."""
        reasons = +self._refusals
        for bucket in self._buckets.values():
            verdict = bucket.verdict(ask)
            if isinstance(verdict, Refusal):
                reasons[verdict.reason] += len(bucket)
        return reasons
