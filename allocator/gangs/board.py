"""The vacancies of nodes while the pods of a gang are placed one after the other."""

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from allocator.rules.request import ChipRequest
from allocator.rules.vacancy import Vacancy
from allocator.rules.verdicts import Fit, Verdict, capacity, judge
from allocator.state.index import NodeIndex
from allocator.state.ranking import Bucket
from ascend.errors import Refusal
from ascend.reasons import Category, Reason
from ascend.rules.placement import OrderKey
from ascend.takes import Take
from ascend.turn import Steps

_STEP = 32
"""After so many seats there is a pause."""
_FEW = 16
"""Up to this number of candidates are examined one by one; with more, all nodes are examined, bucket by bucket."""


class Board:
    """The vacancies of the nodes after the seats taken so far.

    Args:
        index: the nodes.
        limits: the most seats on a node, by name of the node; a node that is missing has no limit.
        peers: names of the nodes with other pods of the job.
    """

    def __init__(self, index: NodeIndex, limits: Mapping[str, int], peers: Collection[str]) -> None:
        self._index = index
        self._limits = limits
        self._peers = peers
        self._seats: Counter[str] = Counter()
        self._changed: dict[str, Vacancy] = {}

    def take(
        self, request: ChipRequest, number: int, candidates: Collection[str] | None
    ) -> Steps[list[tuple[str, Take]]]:
        """Take nodes and chips for ``number`` pods, or for as many as fit."""
        if number == 1 and not self._changed and not self._limits and not self._peers:
            return self._take_one(request, candidates)
        heap: list[_Entry] = []
        for entry in self._entries(request, candidates):
            heap.append(entry)
            yield
        heapq.heapify(heap)
        memo: dict[int, tuple[Vacancy, dict[Take, tuple[Vacancy, Verdict]]]] = {}
        taken: list[tuple[str, Take]] = []
        while heap and len(taken) < number:
            entry = heap[0]
            if self._is_full(entry.name, request):
                heapq.heappop(heap)
                if (following := entry.following()) is not None:
                    heapq.heappush(heap, following)
                continue
            taken.append((entry.name, entry.fit.take))
            if not len(taken) % _STEP:
                yield
            self._seats[entry.name] += 1
            # Equal nodes stay equal, so each step is computed once. Looked up by identity, which is much faster than
            # by value; the memo holds the vacancy so that its identity is not reused.
            _, steps = memo.setdefault(id(entry.vacancy), (entry.vacancy, {}))
            step = steps.get(entry.fit.take)
            if step is None:
                left = entry.vacancy.without(entry.fit.take)
                step = steps[entry.fit.take] = (left, judge(left, request))
            left, verdict = step
            self._changed[entry.name] = left
            following = entry.following()
            if following is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, following)
            if isinstance(verdict, Fit):
                heapq.heappush(heap, _Entry(verdict.key, entry.name, left, verdict, iter(())))
        return taken

    def _is_full(self, name: str, request: ChipRequest) -> bool:
        if request.is_spread and (name in self._peers or self._seats[name]):
            return True
        return name in self._limits and self._seats[name] >= self._limits[name]

    def room(self, request: ChipRequest, candidates: Collection[str] | None) -> int:
        """How many pods with this request fit on the nodes of the index, regardless of limits; places none of them."""
        buckets = self._index.buckets_of(candidates)
        room = sum(nodes * capacity(bucket.vacancy, request)[0] for bucket, nodes in buckets)
        return room - (len(self._with_peers(request, candidates)) if request.is_spread else 0)

    def keepers(self, candidates: Collection[str] | None) -> Counter[str]:
        """What chips of these nodes are kept for, and on how many nodes."""
        found: Counter[str] = Counter()
        for bucket, nodes in self._index.buckets_of(candidates):
            if bucket.vacancy.keeper:
                found[bucket.vacancy.keeper] += nodes
        return found

    def _with_peers(self, request: ChipRequest, candidates: Collection[str] | None) -> list[str]:
        """The nodes that refuse a request only because a pod of the job is there."""
        names = (*self._peers, *self._seats) if request.is_spread else ()
        found = []
        for name in names:
            entry = self._index.entries.get(name)
            if isinstance(entry, Bucket) and (candidates is None or name in candidates):
                vacancy = self._changed.get(name, entry.vacancy)
                if isinstance(judge(vacancy, request), Fit):
                    found.append(name)
        return found

    def _take_one(self, request: ChipRequest, candidates: Collection[str] | None) -> list[tuple[str, Take]]:
        # The index finds the best node for one pod without examining the others.
        best = self._index.best(request, candidates)
        vacancy = self._index.vacancy_for(request, best[0]) if best is not None else None
        if best is None or vacancy is None:
            return []
        name, fit = best
        self._seats[name] += 1
        self._changed[name] = vacancy.without(fit.take)
        return [(name, fit.take)]

    def reasons(self, request: ChipRequest, candidates: Collection[str] | None, *, is_full: bool) -> Counter[Reason]:
        """The number of nodes that would refuse one more pod with this request, by reason.

        Args:
            request: what the pod requests.
            candidates: names of nodes; None for every node.
            is_full: as many pods with this request as fit were placed, none of them on the board.
        """
        shared = len(self._with_peers(request, candidates))
        if is_full:
            return self._index.reasons_when_full(request, candidates)
        reasons = self._index.reasons(request, candidates)
        entries, ranking = self._index.entries, self._index.ranking(request)
        for name, vacancy in self._changed.items():
            entry = entries[name]
            if isinstance(entry, Bucket) and (candidates is None or name in candidates):
                for verdict, change in ((ranking.verdict(entry), -1), (judge(vacancy, request), 1)):
                    if isinstance(verdict, Refusal):
                        reasons[verdict.reason] += change
        reasons[Reason.PEER_ON_NODE] += shared
        return +reasons

    def broken_rule(self, request: ChipRequest, candidates: Collection[str] | None) -> str:
        """The sentence of the rule by which a product never takes this request, in parentheses; empty without one."""
        for bucket, _ in self._index.buckets_of(candidates):
            verdict = judge(bucket.vacancy, request)
            if isinstance(verdict, Refusal) and verdict.reason.category is Category.REQUEST:
                return f" ({verdict.message})"
        return ""

    def _entries(self, request: ChipRequest, candidates: Collection[str] | None) -> Iterator["_Entry"]:
        ranking = self._index.ranking(request)
        if candidates is not None and len(candidates) <= _FEW:
            yield from self._entries_of(request, candidates)
            return
        for bucket in self._index.buckets:
            fit = ranking.verdict(bucket)
            if isinstance(fit, Fit):
                names: Iterable[str] = bucket.names
                if self._changed:
                    names = (name for name in names if name not in self._changed)
                if candidates is not None:
                    names = filter(candidates.__contains__, names)
                ordered = _in_order(names)  # most of thousands are never asked for
                if (first := next(ordered, None)) is not None:
                    yield _Entry(fit.key, first, bucket.vacancy, fit, ordered)
        for name, vacancy in self._changed.items():
            verdict = judge(vacancy, request)
            if isinstance(verdict, Fit) and (candidates is None or name in candidates):
                yield _Entry(verdict.key, name, vacancy, verdict, iter(()))

    def _entries_of(self, request: ChipRequest, candidates: Collection[str]) -> Iterator["_Entry"]:
        for name in candidates:
            entry, vacancy = self._index.entries.get(name), self._changed.get(name)
            if vacancy is None and isinstance(entry, Bucket):
                vacancy = entry.vacancy
            if vacancy is None:
                continue
            verdict = judge(vacancy, request)
            if isinstance(verdict, Fit):
                yield _Entry(verdict.key, name, vacancy, verdict, iter(()))


def _in_order(names: Iterable[str]) -> Iterator[str]:
    heap = list(names)
    heapq.heapify(heap)
    while heap:
        yield heapq.heappop(heap)


class _Entry:
    """The next node of a bucket, or a node on which a seat was taken."""

    __slots__ = ("fit", "name", "others", "sort", "vacancy")

    def __init__(self, key: OrderKey, name: str, vacancy: Vacancy, fit: Fit, others: Iterator[str]) -> None:
        self.sort = (key, name)
        self.name = name
        self.vacancy = vacancy
        self.fit = fit
        self.others = others

    def __lt__(self, other: "_Entry") -> bool:
        return self.sort < other.sort

    def following(self) -> "_Entry | None":
        """The bucket's next node."""
        name = next(self.others, None)
        return None if name is None else _Entry(self.sort[0], name, self.vacancy, self.fit, self.others)
