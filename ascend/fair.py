"""Rates and turns that one namespace can't take from the others. No I/O.

Whoever may create objects in one namespace can create thousands of them, and each may cost an Event, a line of the log
or a request. So a namespace has a rate of its own below that of all, and what waits takes turns by namespace.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from ascend.rate_limiters import TokenBucket

T = TypeVar("T")

_OWN: Final = 1 / 2
"""The part of the rate and of the burst of all that one namespace may have."""
_FOR_QUIET: Final = 1 / 5
"""The part of the burst of all that is left for namespaces that have used at most one of theirs lately."""
_REMEMBERED: Final = 1000
"""Namespaces, before those are forgotten that have been quiet for long."""


class FairRate:
    """A rate with a burst, of which each namespace may use half.

    The last fifth of the burst of all is for namespaces that have not used theirs lately, so that even many busy ones
    leave something to a quiet one. What concerns no namespace, as a node, is limited by the rate of all alone.

    Args:
        burst: how much may happen at once, of all namespaces.
        refill_s: the seconds after which one more may happen.
        monotonic: the clock.
    """

    def __init__(self, burst: int, refill_s: float, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._refill_s = refill_s
        self._all = TokenBucket(burst, refill_s, monotonic)
        self._own: dict[str, TokenBucket] = {}

    def take(self, namespace: str) -> bool:
        """Whether something may happen now on account of a namespace; empty for none. It counts if it may."""
        left = self._all.left()
        if namespace:
            own = self._bucket(namespace)
            own_left = own.left()
            is_quiet = own_left >= own.burst - 1
            if own_left < 1 or (not is_quiet and left < self._all.burst * _FOR_QUIET + 1):
                return False
        if left < 1:
            return False
        self._all.spend()
        if namespace:
            own.spend()
        return True

    def _bucket(self, namespace: str) -> TokenBucket:
        own = self._own.get(namespace)
        if own is None:
            if len(self._own) >= _REMEMBERED:
                self._own = {name: bucket for name, bucket in self._own.items() if bucket.left() < bucket.burst}
            own = TokenBucket(max(self._all.burst * _OWN, 1), self._refill_s / _OWN, self._monotonic)
            self._own[namespace] = own
        return own


def in_turn(items: Iterable[T], namespace_of: Callable[[T], str]) -> Iterator[T]:
    """Items so that namespaces take turns: the first of each, then the second of each; in their order otherwise."""
    waiting: defaultdict[str, list[T]] = defaultdict(list)
    for item in items:
        waiting[namespace_of(item)].append(item)
    rows = [iter(queue) for queue in waiting.values()]
    while rows:
        left = []
        for row in rows:
            for item in row:
                yield item
                left.append(row)
                break
        rows = left
