"""The nodes ranked for a request, so that the best one is found without examining all.

Equal requests recur, so each has a ranking that is updated when it is used: the index's journal lists the buckets that
are new, or have another first node, since the last use. Buckets that fit equally well share a tier; the best node is
the first by name of the first tier. Outdated heap entries are dropped when they come up.
"""

import heapq
from bisect import insort
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import count, islice
from typing import Final

from allocator.rules.request import ChipRequest
from allocator.rules.vacancy import Vacancy
from allocator.rules.verdicts import Fit, Verdict, judge
from ascend.errors import Refusal
from ascend.rules.placement import OrderKey
from ascend.turn import Steps

_NUMBERS: Final = count()


class Bucket:
    """The nodes with equal vacancies.

    Attributes:
        vacancy: what each of them has left.
        names: their names; the garbage collector does not walk a dict of texts.
        first: the first of them; empty if there is none.
        verdicts: the verdicts of rankings on them, by number: with the rankings, copies of an index would be cycles.
    """

    __slots__ = ("_heap", "first", "names", "vacancy", "verdicts")

    def __init__(self, vacancy: Vacancy) -> None:
        self.vacancy = vacancy
        self.verdicts: dict[int, Verdict] = {}
        self.names: dict[str, None] = {}
        self.first = ""
        self._heap: list[str] = []

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def add(self, name: str) -> bool:
        """Add a node; returns whether it is the first by name now."""
        self.names[name] = None
        # A name that was removed and added again may be in the heap twice; at most about half of the heap is outdated.
        if len(self._heap) > 2 * len(self.names) + 8:
            self._heap = sorted(self.names)
        else:
            heapq.heappush(self._heap, name)
        if self.first and self.first < name:
            return False
        self.first = name
        return True

    def discard(self, name: str) -> None:
        """Remove a node; its heap entry stays until it comes up."""
        self.names.pop(name, None)
        if name == self.first:
            while self._heap and self._heap[0] not in self.names:
                heapq.heappop(self._heap)
            self.first = self._heap[0] if self._heap else ""

    def without(self, names: Collection[str]) -> "Bucket":
        """The other nodes with this vacancy, for reading."""
        others = Bucket(self.vacancy)
        others.names, others.verdicts = self.names.copy(), self.verdicts
        for name in names:
            others.names.pop(name, None)
        others.first = self.first if self.first not in names else min(others.names, default="")
        return others


class Ranking:
    """The buckets ranked for one request.

    Attributes:
        request: what is requested.
        number: distinguishes it from all other rankings.
    """

    def __init__(self, request: ChipRequest) -> None:
        self.request = request
        self.number = next(_NUMBERS)
        self.read_to = -1
        """The position up to which the index's journal was read; negative if all buckets must be added again."""
        # The buckets of each tier, a heap by the first node each had when it was added; a serial number breaks ties.
        self._tiers: dict[OrderKey, list[tuple[str, int, Bucket]]] = {}
        self._keys: list[OrderKey] = []
        self._serial = 0
        # The first node with which each bucket was added last; its other entries are outdated.
        self._added: dict[Bucket, str] = {}

    def verdict(self, bucket: Bucket) -> Verdict:
        """The verdict on the request, the same for every node of a bucket."""
        verdict = bucket.verdicts.get(self.number)
        if verdict is None:
            verdict = bucket.verdicts[self.number] = judge(bucket.vacancy, self.request)
        return verdict

    def clear(self) -> None:
        """Remove all buckets."""
        self._tiers.clear()
        self._keys.clear()
        self._added.clear()

    def add(self, buckets: Iterable[Bucket]) -> None:
        """Add buckets that are new, or have another first node."""
        for bucket in buckets:
            first = bucket.first
            if not first or self._added.get(bucket) == first:
                continue
            verdict = bucket.verdicts.get(self.number) or self.verdict(bucket)
            if isinstance(verdict, Fit):
                tier = self._tiers.get(verdict.key)
                if tier is None:
                    tier = self._tiers[verdict.key] = []
                    insort(self._keys, verdict.key)
                heapq.heappush(tier, self._entry(first, bucket))

    def best(self) -> tuple[str, Fit] | None:
        """The best node and how the request fits there; None if it fits on none."""
        while self._keys:
            tier = self._tiers[self._keys[0]]
            while tier:
                first, _, bucket = tier[0]
                if bucket.first == first:
                    fit = bucket.verdicts[self.number]
                    assert isinstance(fit, Fit)  # noqa: S101 - else it would not be in a tier
                    return first, fit
                self._drop_first(tier)
            del self._tiers[self._keys.pop(0)]
        return None

    def _drop_first(self, tier: list[tuple[str, int, Bucket]]) -> None:
        first, _, bucket = tier[0]
        if self._added.get(bucket) != first:
            heapq.heappop(tier)  # added with another first node since
        elif bucket.first:
            heapq.heapreplace(tier, self._entry(bucket.first, bucket))
        else:
            heapq.heappop(tier)
            del self._added[bucket]

    def _entry(self, first: str, bucket: Bucket) -> tuple[str, int, Bucket]:
        self._serial += 1
        self._added[bucket] = first
        return first, self._serial, bucket


class CandidateCount:
    """How many candidates are in each bucket, or refused by each refusal.

    Plans ask for the same candidates again and again while nodes change, so a change moves a candidate.

    Attributes:
        names: the candidates.
        by_entry: their numbers; those of unknown nodes are at None.
    """

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names
        self.by_entry: Counter[Bucket | Refusal | None] = Counter()
        self._counted: AbstractSet[str] = set()

    def is_of(self, names: frozenset[str]) -> bool:
        """Whether these are the candidates, and all of them are counted."""
        return names is self.names is self._counted

    def fill(self, entries: Mapping[str, Bucket | Refusal], step: int) -> Steps[None]:
        """Count all candidates; there may be a pause after each step."""
        names, counted = iter(self.names), set[str]()
        self._counted = counted
        while some := list(islice(names, step)):
            self.by_entry.update(map(entries.get, some))
            counted.update(some)
            yield
        self._counted = self.names

    def move(self, name: str, old: Bucket | Refusal | None, new: Bucket | Refusal | None) -> None:
        """Take over that a node has another entry."""
        if name in self._counted:
            self.by_entry[old] -= 1
            if not self.by_entry[old]:
                del self.by_entry[old]
            self.by_entry[new] += 1
