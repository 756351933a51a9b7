"""Nodes sorted by what they have left, so that the best one is found without walking them (design, decision 4).

Nodes with equal vacancies share a bucket, and the verdict on a request is the same for a whole bucket. A change of a
node moves it from one bucket to another, and is no work for any ranking before that is asked.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, cast

from allocator.rules.request import ChipRequest
from allocator.rules.vacancy import Fit, Vacancy, Verdict, capacity
from allocator.state.node import Offer, unknown_node
from allocator.state.ranking import Bucket, Ranking
from ascend.errors import Refusal
from ascend.reasons import Reason

MAX_RANKINGS: Final = 64
"""Kinds of asks remembered; beyond, the one not used for longest is forgotten."""

_SPARE_JOURNAL = 1024
_SPARE_BUCKETS = 64


class NodeIndex:
    """Where every node stands: in a bucket, or refused."""

    def __init__(self) -> None:
        self._entries: dict[str, Bucket | Refusal] = {}
        self._buckets: dict[Vacancy, Bucket] = {}
        self._refusals: Counter[Reason] = Counter()
        self._rankings: dict[ChipRequest, Ranking] = {}
        # Buckets that are new or begin with another node, since the rankings were last made anew.
        self._journal: list[Bucket] = []
        self.version = 0
        """Another one after every change."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def buckets(self) -> Collection[Bucket]:
        """Nodes with equal vacancies, together; none is empty."""
        return [bucket for bucket in self._buckets.values() if bucket]

    @property
    def entries(self) -> Mapping[str, Bucket | Refusal]:
        """The bucket of every node that can be used, the refusal of every other."""
        return self._entries

    def put(self, name: str, offer: Offer) -> None:
        """Enter a node, or move it to where it belongs now."""
        self.drop(name)
        if isinstance(offer, Refusal):
            self._refusals[offer.reason] += 1
            self._entries[name] = offer
            return
        bucket = self._buckets.get(offer)
        if bucket is None:
            self._sweep()
            bucket = self._buckets[offer] = Bucket(offer)
        if bucket.add(name):
            self._note(bucket)
        self._entries[name] = bucket

    def drop(self, name: str) -> None:
        """Forget a node."""
        self.version += 1
        old = self._entries.pop(name, None)
        if isinstance(old, Bucket):
            old.discard(name)
        elif old is not None:
            self._refusals[old.reason] -= 1

    def best(self, request: ChipRequest, candidates: Collection[str] | None = None) -> tuple[str, Fit] | None:
        """The best node for a pod, the first by name of equally good ones; None where it fits on none.

        Args:
            request: what the pod asks for.
            candidates: names of nodes; None for every node.
        """
        best = self._best(request)
        # A scheduler that names every node with enough chips has named the best of all; no other name is looked at.
        if best is None or candidates is None or best[0] in candidates:
            return best
        entries, ranking = self._entries, self.ranking(request)
        places = set(map(entries.get, candidates))
        judged = ((place, ranking.verdict(place)) for place in places if isinstance(place, Bucket))
        fits = {place: fit for place, fit in judged if not isinstance(fit, Refusal)}
        key = min((fit.key for fit in fits.values()), default=None)
        tier = {place: fit for place, fit in fits.items() if fit.key == key}
        named = ((name, tier.get(place)) for name in candidates if isinstance(place := entries.get(name), Bucket))
        # Names are compared only where nodes fit equally well.
        best_named = ((name, fit) for name, fit in named if fit is not None) if tier else ()
        return min(best_named, key=lambda each: each[0], default=None)

    def verdicts(self, request: ChipRequest, candidates: Collection[str] | None = None) -> dict[str, Verdict]:
        """The verdict on a pod for every node, by name.

        Args:
            request: what the pod asks for.
            candidates: names of nodes; None for every node.
        """
        return self._judge(request, candidates)[0]

    def partition(
        self, request: ChipRequest, candidates: Collection[str] | None = None
    ) -> tuple[list[str], dict[str, Refusal]]:
        """The nodes a pod fits on, in the order of the candidates, and why not on the others.

        Args:
            request: what the pod asks for.
            candidates: names of nodes; None for every node.
        """
        verdicts, given = self._judge(request, candidates)
        if all(isinstance(verdict, Refusal) for verdict in given):
            # Where it fits nowhere, which is when many are asked about, there is nothing to part.
            return [], cast("dict[str, Refusal]", verdicts)
        refused = {name: verdict for name, verdict in verdicts.items() if isinstance(verdict, Refusal)}
        return [name for name in verdicts if name not in refused], refused

    def _judge(
        self, request: ChipRequest, candidates: Collection[str] | None
    ) -> tuple[dict[str, Verdict], Iterable[Verdict]]:
        """The verdict for every node, and all that were given; no name is looked at where all are known."""
        ranking, names = self.ranking(request), self._entries if candidates is None else candidates
        places = list(map(self._entries.get, names))
        # Each place is judged once, however many nodes stand there.
        judged = {place: ranking.verdict(place) if isinstance(place, Bucket) else place for place in set(places)}
        verdicts = dict(zip(names, map(judged.__getitem__, places), strict=True))
        if None in judged:
            known = {name: unknown_node(name) if verdict is None else verdict for name, verdict in verdicts.items()}
            return known, known.values()
        return cast("dict[str, Verdict]", verdicts), cast("Iterable[Verdict]", judged.values())

    def vacancy_for(self, request: ChipRequest, name: str) -> Vacancy | None:
        """What a node has left, where the pod fits on it."""
        place = self._entries.get(name)
        if isinstance(place, Bucket) and isinstance(self.ranking(request).verdict(place), Fit):
            return place.vacancy
        return None

    def ranking(self, request: ChipRequest) -> Ranking:
        """The verdicts on a request."""
        ranking = self._rankings.pop(request, None)
        if ranking is None:
            if len(self._rankings) == MAX_RANKINGS:
                self._forget(next(iter(self._rankings)))
            ranking = Ranking(request)
        self._rankings[request] = ranking
        return ranking

    def refusals(self) -> Counter[Reason]:
        """How many nodes can't be used by any pod, by reason."""
        return +self._refusals

    def reasons(self, request: ChipRequest, candidates: Iterable[str] | None = None) -> Counter[Reason]:
        """How many nodes refuse a pod for which reason.

        Args:
            request: what the pod asks for.
            candidates: names of nodes; None for every node.
        """
        ranking = self.ranking(request)
        return self._reasons(ranking.verdict, candidates)

    def reasons_when_full(self, request: ChipRequest, candidates: Iterable[str] | None = None) -> Counter[Reason]:
        """The same if as many such pods as fit were placed, one after the other, on what is there now."""
        return self._reasons(lambda bucket: capacity(bucket.vacancy, request)[1], candidates)

    def buckets_of(self, candidates: Iterable[str] | None) -> Iterator[tuple[Bucket, int]]:
        """The buckets of some nodes, and how many of these stand in each; None for every node."""
        for place, count in self._places(candidates):
            if isinstance(place, Bucket):
                yield place, count

    def _reasons(self, judged: Callable[[Bucket], Verdict], candidates: Iterable[str] | None) -> Counter[Reason]:
        reasons = self.refusals() if candidates is None else Counter()
        for place, count in self._places(candidates):
            verdict = judged(place) if isinstance(place, Bucket) else place or unknown_node("")
            if isinstance(verdict, Refusal):
                reasons[verdict.reason] += count
        return reasons

    def _places(self, candidates: Iterable[str] | None) -> Iterable[tuple[Bucket | Refusal | None, int]]:
        # Nodes that stand in one bucket are counted many times faster than they are judged.
        if candidates is None:
            return ((bucket, len(bucket)) for bucket in self.buckets)
        return Counter(map(self._entries.get, candidates)).items()

    def _best(self, request: ChipRequest) -> tuple[str, Fit] | None:
        ranking = self.ranking(request)
        if ranking.read_to < 0:
            ranking.clear()
            for bucket in self.buckets:
                ranking.enter(bucket)
        else:
            for bucket in self._journal[ranking.read_to :]:
                ranking.enter(bucket)
        ranking.read_to = len(self._journal)
        return ranking.best()

    def _sweep(self) -> None:
        # What a node leaves another soon comes to, and an empty bucket remembers its verdicts; but not for ever.
        if len(self._buckets) > 2 * len(self._entries) + _SPARE_BUCKETS:
            self._buckets = {vacancy: bucket for vacancy, bucket in self._buckets.items() if bucket}

    def _note(self, bucket: Bucket) -> None:
        if len(self._journal) > 4 * len(self._buckets) + _SPARE_JOURNAL:
            self._journal.clear()
            for ranking in self._rankings.values():
                ranking.read_to = -1
        self._journal.append(bucket)

    def _forget(self, request: ChipRequest) -> None:
        ranking = self._rankings.pop(request)
        for bucket in self._buckets.values():
            bucket.verdicts.pop(ranking, None)
