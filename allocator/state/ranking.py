"""The nodes as they suit one kind of ask: best first, without walking them.

Equal asks come again and again, so each has a ranking that is kept up to date when it is used: it reads in the index's
journal which buckets are new, or begin with another node, since it was used last. Buckets that fit equally well share a
tier; the best node is the first by name of the first tier. Entries that are outdated are dropped when they surface.
"""

import heapq
from bisect import insort
from collections.abc import Iterator

from allocator.rules.placement import OrderKey
from allocator.rules.request import ChipRequest
from allocator.rules.vacancy import Fit, Vacancy, Verdict, judge


class Bucket:
    """The nodes that have exactly this left.

    Args:
        vacancy: what they have left.
    """

    __slots__ = ("_heap", "_names", "vacancy", "verdicts")

    def __init__(self, vacancy: Vacancy) -> None:
        self.vacancy = vacancy
        self.verdicts: dict[Ranking, Verdict] = {}
        self._names: set[str] = set()
        self._heap: list[str] = []

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def add(self, name: str) -> bool:
        """Put a node in; whether it is the first by name now."""
        is_first = not self._names or name < self.first()
        self._names.add(name)
        # A name that left and came back may be in the heap twice; half of it being waste is the limit.
        if len(self._heap) > 2 * len(self._names) + 8:
            self._heap = sorted(self._names)
        else:
            heapq.heappush(self._heap, name)
        return is_first

    def discard(self, name: str) -> None:
        """Take a node out; its heap entry stays until it surfaces."""
        self._names.discard(name)

    def first(self) -> str:
        """The first node by name; there must be one."""
        while self._heap[0] not in self._names:
            heapq.heappop(self._heap)
        return self._heap[0]


class Ranking:
    """The buckets as they suit one ask.

    Args:
        ask: what is asked for.
    """

    def __init__(self, ask: ChipRequest) -> None:
        self.ask = ask
        self.read_to = -1
        """How much of the index's journal is taken in; negative: all buckets are to be taken in anew."""
        # Of each tier the buckets, as a heap by their first nodes when they were entered; a number tells equals apart.
        self._tiers: dict[OrderKey, list[tuple[str, int, Bucket]]] = {}
        self._keys: list[OrderKey] = []
        self._serial = 0
        # By which first node each bucket was entered last; other entries of it are outdated.
        self._entered: dict[Bucket, str] = {}

    def verdict(self, bucket: Bucket) -> Verdict:
        """The verdict on the ask, the same for every node of the bucket."""
        verdict = bucket.verdicts.get(self)
        if verdict is None:
            verdict = bucket.verdicts[self] = judge(bucket.vacancy, self.ask)
        return verdict

    def clear(self) -> None:
        """Start anew, with no bucket."""
        self._tiers.clear()
        self._keys.clear()
        self._entered.clear()

    def enter(self, bucket: Bucket) -> None:
        """Take in a bucket that is new, or begins with another node."""
        verdict = self.verdict(bucket) if bucket else None
        if isinstance(verdict, Fit):
            tier = self._tiers.get(verdict.key)
            if tier is None:
                tier = self._tiers[verdict.key] = []
                insort(self._keys, verdict.key)
            first = bucket.first()
            if self._entered.get(bucket) != first:
                heapq.heappush(tier, self._entry(first, bucket))

    def best(self) -> tuple[str, Fit] | None:
        """The best node and how the ask fits there; None where it fits on none."""
        while self._keys:
            tier = self._tiers[self._keys[0]]
            while tier:
                first, _, bucket = tier[0]
                if bucket and bucket.first() == first:
                    fit = self.verdict(bucket)
                    assert isinstance(fit, Fit)  # noqa: S101 - else it would not be in a tier
                    return first, fit
                self._drop_first(tier)
            del self._tiers[self._keys.pop(0)]
        return None

    def _drop_first(self, tier: list[tuple[str, int, Bucket]]) -> None:
        first, _, bucket = tier[0]
        if self._entered.get(bucket) != first:
            heapq.heappop(tier)  # it was entered by another node since
        elif bucket:
            heapq.heapreplace(tier, self._entry(bucket.first(), bucket))
        else:
            heapq.heappop(tier)
            del self._entered[bucket]

    def _entry(self, first: str, bucket: Bucket) -> tuple[str, int, Bucket]:
        self._serial += 1
        self._entered[bucket] = first
        return first, self._serial, bucket
