"""Nodes indexed by their vacancies, so that the best one is found without examining all.

See docs/architecture.md#decisions.

Nodes with equal vacancies share a bucket, and the verdict on a request is the same for a whole bucket. A change of a
node moves it from one bucket to another; a ranking is updated only when it is used next.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, cast

from allocator.rules.request import ChipRequest
from allocator.rules.vacancy import Vacancy
from allocator.rules.verdicts import Fit, Verdict, capacity
from allocator.state.location import Location
from allocator.state.node import Offer, unknown_node
from allocator.state.ranking import Bucket, CandidateCount, Ranking
from allocator.state.topology import Topology
from ascend.errors import Refusal
from ascend.reasons import Reason
from ascend.turn import Steps, at_once

MAX_RANKINGS: Final = 64
"""The most requests with a cached ranking; beyond it the least recently used one is dropped."""

_SPARE_JOURNAL = 1024
_SPARE_BUCKETS = 64
_STEP: Final = 256
"""After so many nodes of a copy there may be a pause."""


class NodeIndex:
    """Every node, in a bucket or with its refusal.

    Args:
        topology: where the nodes are, without any usable node yet.

    Attributes:
        topology: where the nodes are, and the usable ones of each SuperPod and rack.
        entries: by node name: the bucket of a usable node, the refusal of an unusable one.
    """

    def __init__(self, topology: Topology | None = None) -> None:
        self.topology = topology if topology is not None else Topology()
        self._entries: dict[str, Bucket | Refusal] = {}
        self.entries: Mapping[str, Bucket | Refusal] = self._entries
        self._buckets: dict[Vacancy, Bucket] = {}
        self._refusals: Counter[Reason] = Counter()
        self._rankings: dict[ChipRequest, Ranking] = {}
        self._count = CandidateCount(frozenset())
        # Buckets that are new, or have another first node, since the rankings were last rebuilt.
        self._journal: list[Bucket] = []
        self.version = 0
        """Incremented on every change."""

    @property
    def buckets(self) -> Collection[Bucket]:
        """The buckets that have nodes."""
        return [bucket for bucket in self._buckets.values() if bucket.names]

    def copy(self, names: Iterable[str]) -> Steps["NodeIndex"]:
        """A copy with the named nodes, as they are at the moment of copying; there may be pauses between nodes."""
        copy = NodeIndex(self.topology.copy())
        alike: dict[Bucket, Bucket] = {}  # in the copy; finding it by vacancy takes longer
        for number, name in enumerate(names, start=1):
            entry = self.entries.get(name)
            if not isinstance(entry, Bucket):
                copy.put(name, entry if entry is not None else unknown_node(name))
            else:
                bucket = alike.get(entry)
                if bucket is None:
                    bucket = alike[entry] = copy._buckets.setdefault(entry.vacancy, Bucket(entry.vacancy))
                bucket.add(name)
                copy._enter(name, bucket)
            if not number % _STEP:
                yield
        return copy

    def put(self, name: str, offer: Offer) -> None:
        """Add a node, or move it to the bucket of its offer."""
        self.version += 1
        self._leave(name, self._entries.get(name))
        if isinstance(offer, Refusal):
            self._refusals[offer.reason] += 1
            self._set(name, offer)
            return
        bucket = self._buckets.get(offer)
        if bucket is None:
            self._sweep()
            bucket = self._buckets[offer] = Bucket(offer)
        if bucket.add(name):
            self._note(bucket)
        self._enter(name, bucket)

    def drop(self, name: str) -> None:
        """Remove a node."""
        self.version += 1
        self._leave(name, self._entries.get(name))
        self._count.move(name, self._entries.pop(name, None), None)

    def _set(self, name: str, entry: Bucket | Refusal) -> None:
        self._count.move(name, self._entries.get(name), entry)
        self._entries[name] = entry

    def _enter(self, name: str, bucket: Bucket) -> None:
        self._set(name, bucket)
        if self.topology.locations:
            self.topology.put(name, bucket)

    def _leave(self, name: str, old: Bucket | Refusal | None) -> None:
        if isinstance(old, Bucket):
            old.discard(name)
            if self.topology.locations:
                self.topology.drop(name, old)
        elif old is not None:
            self._refusals[old.reason] -= 1

    def locate(self, name: str, location: Location) -> None:
        """Set where a node is."""
        entry = self._entries.get(name)
        if self.topology.locate(name, location, entry if isinstance(entry, Bucket) else None):
            self.version += 1

    def best(self, request: ChipRequest, candidates: Collection[str] | None = None) -> tuple[str, Fit] | None:
        """The best node for a request, the first by name of equally good ones; None if it fits on none.

        Args:
            request: what the pod requests.
            candidates: names of nodes; None for every node.
        """
        ranking = self.ranking(request)
        if ranking.read_to < 0:
            ranking.clear()
            ranking.add(self.buckets)
        else:
            ranking.add(dict.fromkeys(self._journal[ranking.read_to :]))  # the same ones change again and again
        ranking.read_to = len(self._journal)
        best = ranking.best()
        # A scheduler that names every node with enough chips has named the best of all; the other names are not
        # examined.
        if best is None or candidates is None or best[0] in candidates:
            return best
        return self.best_among(request, candidates)

    def best_among(self, request: ChipRequest, candidates: Collection[str]) -> tuple[str, Fit] | None:
        """The best of the candidates for a request, all of which are examined; None if it fits on none."""
        entries, ranking = self.entries, self.ranking(request)
        found = set(map(entries.get, candidates))
        judged = ((entry, ranking.verdict(entry)) for entry in found if isinstance(entry, Bucket))
        fits = {entry: fit for entry, fit in judged if not isinstance(fit, Refusal)}
        key = min((fit.key for fit in fits.values()), default=None)
        tier = {entry: fit for entry, fit in fits.items() if fit.key == key}
        named = ((name, tier.get(entry)) for name in candidates if isinstance(entry := entries.get(name), Bucket))
        # Names are compared only between nodes that fit equally well.
        best_named = ((name, fit) for name, fit in named if fit is not None) if tier else ()
        return min(best_named, key=lambda named: named[0], default=None)

    def verdicts(self, request: ChipRequest, candidates: Collection[str] | None = None) -> dict[str, Verdict]:
        """The verdict on a request for every node, by name.

        Args:
            request: what the pod requests.
            candidates: names of nodes; None for every node.
        """
        return self._judge(request, candidates)[0]

    def partition(
        self, request: ChipRequest, candidates: Collection[str] | None = None
    ) -> tuple[list[str], dict[str, Refusal]]:
        """The nodes on which a request fits, in the order of the candidates, and the refusals of the others.

        Args:
            request: what the pod requests.
            candidates: names of nodes; None for every node.
        """
        verdicts, distinct = self._judge(request, candidates)
        if all(isinstance(verdict, Refusal) for verdict in distinct):
            # It fits nowhere, the common case with many candidates: there is nothing to partition.
            return [], cast("dict[str, Refusal]", verdicts)
        refused = {name: verdict for name, verdict in verdicts.items() if isinstance(verdict, Refusal)}
        return [name for name in verdicts if name not in refused], refused

    def _judge(
        self, request: ChipRequest, candidates: Collection[str] | None
    ) -> tuple[dict[str, Verdict], Iterable[Verdict]]:
        """The verdict for every node, and the distinct verdicts among them."""
        ranking, names = self.ranking(request), self.entries if candidates is None else candidates
        entries = list(map(self.entries.get, names))
        # Each bucket is judged once, however many nodes it has.
        judged = {entry: ranking.verdict(entry) if isinstance(entry, Bucket) else entry for entry in set(entries)}
        verdicts = dict(zip(names, map(judged.__getitem__, entries), strict=True))
        if None in judged:
            known = {name: unknown_node(name) if verdict is None else verdict for name, verdict in verdicts.items()}
            return known, known.values()
        return cast("dict[str, Verdict]", verdicts), cast("Iterable[Verdict]", judged.values())

    def vacancy_for(self, request: ChipRequest, name: str) -> Vacancy | None:
        """What a node has left; None if the request does not fit there."""
        entry = self.entries.get(name)
        if isinstance(entry, Bucket) and isinstance(self.ranking(request).verdict(entry), Fit):
            return entry.vacancy
        return None

    def ranking(self, request: ChipRequest) -> Ranking:
        """The ranking for a request."""
        ranking = self._rankings.pop(request, None)
        if ranking is None:
            if len(self._rankings) == MAX_RANKINGS:
                self._drop_ranking(next(iter(self._rankings)))
            ranking = Ranking(request)
        self._rankings[request] = ranking
        return ranking

    def refusals(self) -> Counter[Reason]:
        """The number of unusable nodes, by reason."""
        return +self._refusals

    def reasons(self, request: ChipRequest, candidates: Iterable[str] | None = None) -> Counter[Reason]:
        """The number of nodes that refuse a request, by reason.

        Args:
            request: what the pod requests.
            candidates: names of nodes; None for every node.
        """
        return self._reasons(self.ranking(request).verdict, candidates)

    def reasons_when_full(self, request: ChipRequest, candidates: Iterable[str] | None = None) -> Counter[Reason]:
        """The same after as many pods with this request as fit were placed, one after the other."""
        return self._reasons(lambda bucket: capacity(bucket.vacancy, request)[1], candidates)

    def buckets_of(self, candidates: Iterable[str] | None) -> Iterator[tuple[Bucket, int]]:
        """The buckets of the candidates, and the number of candidates in each; None for every node."""
        for entry, number in self.count_entries(candidates):
            if isinstance(entry, Bucket):
                yield entry, number

    def count(self, candidates: Iterable[str] | None) -> Steps[None]:
        """Count candidates with pauses, as ``buckets_of`` and ``reasons`` would do in one piece: it may take 50 ms."""
        if isinstance(candidates, frozenset) and not self._count.is_of(candidates):
            self._count = counting = CandidateCount(candidates)
            yield from counting.fill(self.entries, _STEP)

    def _reasons(self, judged: Callable[[Bucket], Verdict], candidates: Iterable[str] | None) -> Counter[Reason]:
        reasons = self.refusals() if candidates is None else Counter()
        for entry, count in self.count_entries(candidates):
            verdict = judged(entry) if isinstance(entry, Bucket) else entry or unknown_node("")
            if isinstance(verdict, Refusal):
                reasons[verdict.reason] += count
        return reasons

    def count_entries(self, candidates: Iterable[str] | None) -> Iterable[tuple[Bucket | Refusal | None, int]]:
        """The number of candidates in each bucket, or with each refusal; None for every usable node.

        Counting the nodes of a bucket is many times faster than judging each.
        """
        if candidates is None:
            return ((bucket, len(bucket)) for bucket in self.buckets)
        if not isinstance(candidates, frozenset):
            return Counter(map(self.entries.get, candidates)).items()
        if not self._count.is_of(candidates):
            self._count = CandidateCount(candidates)
            at_once(self._count.fill(self.entries, len(candidates)))
        return self._count.by_entry.items()

    def _sweep(self) -> None:
        # An empty bucket is kept for its cached verdicts, since another node often gets the same vacancy; not forever.
        if len(self._buckets) > 2 * len(self._entries) + _SPARE_BUCKETS:
            self._buckets = {vacancy: bucket for vacancy, bucket in self._buckets.items() if bucket}

    def _note(self, bucket: Bucket) -> None:
        if len(self._journal) > 4 * len(self._buckets) + _SPARE_JOURNAL:
            self._journal.clear()
            for ranking in self._rankings.values():
                ranking.read_to = -1
        self._journal.append(bucket)

    def _drop_ranking(self, request: ChipRequest) -> None:
        number = self._rankings.pop(request).number
        for bucket in self._buckets.values():
            bucket.verdicts.pop(number, None)
