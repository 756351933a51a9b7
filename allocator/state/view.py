"""An index as it is for somebody for whom some reservations or promises don't count: few nodes have more left.

A question must not change the index. So the nodes with another vacancy are beside it, and it answers for the others: a
view is valid as long as the index does not change.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from typing import Final, NamedTuple

from allocator.rules.request import ChipRequest
from allocator.rules.verdicts import Fit
from allocator.state.index import NodeIndex
from allocator.state.node import Offer
from allocator.state.ranking import Bucket, Ranking
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.reasons import Reason


class Without(NamedTuple):
    """What does not count in a question.

    Attributes:
        pods: the uids of pods: neither what they hold nor what is reserved for them counts.
        owners: the owners of promises.
        priority: promises of lower priority don't count either.
    """

    pods: Collection[str] = ()
    owners: Collection[str] = ()
    priority: float = -math.inf

    @classmethod
    def of(cls, pod: Pod, pods: Iterable[str] = (), owners: Iterable[str] = ()) -> "Without":
        """For a pod: what is reserved for it, and what is promised to it or to lower priorities; and more.

        The pod should take what is promised to others only if it fits nowhere else.
        """
        return cls({pod.uid, *pods}, (pod.uid, *owners), pod.priority)


AS_IT_IS: Final = Without()
WITHOUT_PROMISES: Final = Without(priority=math.inf)


class IndexView(NodeIndex):
    """An index of which some nodes have something else left.

    Args:
        index: the index.
        offers: what these nodes have left; all of them can be used, since no reservation or promise changes that.
    """

    def __init__(self, index: NodeIndex, offers: Mapping[str, Offer]) -> None:
        super().__init__(index.topology.fork(offers))
        del self.entries  # merged when they are read first: they may be thousands
        self._index, self._changed, self.version = index, NodeIndex(self.topology), index.version
        for name, offer in offers.items():
            if isinstance(bucket := index.entries[name], Bucket):
                self.topology.drop(name, bucket)
            self._changed.put(name, offer)

    def ranking(self, request: ChipRequest) -> Ranking:
        """The ranking for a request: that of the index, whose buckets have the verdicts already."""
        return self._index.ranking(request)

    def refusals(self) -> Counter[Reason]:
        """The number of unusable nodes, by reason: those of the index, as all nodes with other offers can be used."""
        return self._index.refusals()

    @cached_property
    def entries(self) -> Mapping[str, Bucket | Refusal]:  # type: ignore[override] # never set
        """By node name: the bucket of a usable node, the refusal of an unusable one."""
        return {**self._index.entries, **self._changed.entries}

    @cached_property
    def buckets(self) -> Collection[Bucket]:
        """The buckets that have nodes."""
        changed = self._changed.entries
        smaller = {self._index.entries[name] for name in changed}
        others = (bucket.without(changed) if bucket in smaller else bucket for bucket in self._index.buckets)
        return [*filter(None, others), *self._changed.buckets]

    def count_entries(self, candidates: Iterable[str] | None) -> Iterable[tuple[Bucket | Refusal | None, int]]:
        """The number of candidates in each bucket, or with each refusal, as of an index."""
        if not isinstance(candidates, frozenset):
            return super().count_entries(candidates)
        # The index keeps its count, and few nodes differ.
        counts = Counter(dict(self._index.count_entries(candidates)))
        for name, entry in self._changed.entries.items():
            if name in candidates:
                counts[self._index.entries.get(name)] -= 1
                counts[entry] += 1
        return (+counts).items()

    def best(self, request: ChipRequest, candidates: Collection[str] | None = None) -> tuple[str, Fit] | None:
        """The best node for a request, as of an index."""
        verdict = self.ranking(request).verdict
        fits = ((fit.key, bucket.first, fit) for bucket in self.buckets if isinstance(fit := verdict(bucket), Fit))
        if (first := min(fits, default=None)) is None:
            return None
        _, name, fit = first
        return (name, fit) if candidates is None or name in candidates else self.best_among(request, candidates)
