"""Waits that double with each failure, and rates with a burst. No I/O.

The model are the rate limiters of client-go (k/k:staging/src/k8s.io/client-go/util/workqueue/default_rate_limiters.go):
``ItemBackoff`` is its ItemExponentialFailureRateLimiter, ``TokenBucket`` its BucketRateLimiter.
"""

import asyncio
import math
import random
from collections.abc import Callable, Hashable, Iterator
from itertools import takewhile
from typing import Final, Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)

_DAY_S: Final = 24 * 3600.0


def doubled_s(first_s: float, failures: int, longest_s: float) -> float:
    """The wait in seconds after so many failures: 0 after none, ``first_s`` after the first, then twice as long."""
    # 2.0 to the power of a larger number could overflow, long after any limit is reached.
    return min(first_s * 2.0 ** min(failures - 1, 64), longest_s) if failures > 0 else 0.0


def loop_time_s() -> float:
    """The clock of the running event loop, in seconds."""
    return asyncio.get_running_loop().time()


class Backoff:
    """The waits of a loop that tries again, with jitter: each is between half of the doubled wait and all of it."""

    def __init__(self, first_s: float = 0.1, limit_s: float = 30.0) -> None:
        self._first_s = first_s
        self._limit_s = limit_s
        self._failures = 0

    def reset(self) -> None:
        """Start again at the first waiting time, after a success."""
        self._failures = 0

    def next_s(self) -> float:
        """The next waiting time in seconds."""
        self._failures += 1
        wait_s = doubled_s(self._first_s, self._failures, self._limit_s)
        return wait_s * random.uniform(0.5, 1.0)  # noqa: S311 - jitter is no secret

    def after(self, error: Exception) -> float:
        """Return the next waiting time in seconds, at least the server's Retry-After."""
        return max(self.next_s(), getattr(error, "retry_after_s", None) or 0.0)


class _Failures(NamedTuple):
    times: int
    last_s: float


class ItemBackoff(Generic[Key]):
    """The waits after failures, by key.

    Args:
        monotonic: the clock, in seconds.
        first_s: the first wait that is longer than ``free_s``.
        longest_s: the longest wait.
        free: so many failures of a key cost it ``free_s`` each.
        free_s: the wait after each of these.
        remembered_s: how long after its last failure the failures of a key are remembered; longer than any wait.
    """

    def __init__(
        self,
        monotonic: Callable[[], float],
        first_s: float,
        longest_s: float,
        *,
        free: int = 0,
        free_s: float = 0.0,
        remembered_s: float = _DAY_S,
    ) -> None:
        self._monotonic = monotonic
        self._first_s = first_s
        self._longest_s = longest_s
        self._free = free
        self._free_s = free_s
        self._remembered_s = remembered_s
        self._failures: dict[Key, _Failures] = {}  # in the order of the last failures

    def __contains__(self, key: object) -> bool:
        return key in self._failures

    def __iter__(self) -> Iterator[Key]:
        return iter(tuple(self._failures))

    def fail(self, key: Key) -> float:
        """Begin the next wait of a key; return its seconds."""
        now_s = self._monotonic()
        old = takewhile(lambda known: now_s - self._failures[known].last_s >= self._remembered_s, self._failures)
        for known in tuple(old):
            del self._failures[known]
        last = self._failures.pop(key, None)
        times = last.times + 1 if last is not None else 1
        self._failures[key] = _Failures(times, now_s)
        return self._wait_s(times)

    def forget(self, key: Key) -> None:
        """Forget the failures of a key, after a success."""
        self._failures.pop(key, None)

    def due_s(self, key: Key) -> float:
        """When the wait of a key ends, by the clock; minus infinity if no failure is remembered."""
        last = self._failures.get(key)
        return last.last_s + self._wait_s(last.times) if last is not None else -math.inf

    def is_waiting(self, key: Key) -> bool:
        """Whether the wait of a key has not ended."""
        return self.due_s(key) > self._monotonic()

    def since_s(self, key: Key) -> float:
        """The seconds since the last failure of a key; infinite if none is remembered."""
        last = self._failures.get(key)
        return self._monotonic() - last.last_s if last is not None else math.inf

    def _wait_s(self, times: int) -> float:
        return doubled_s(self._first_s, times - self._free, self._longest_s) if times > self._free else self._free_s


class TokenBucket:
    """Tokens that arrive at a steady rate. More may be spent than are left, for which later spenders wait.

    Args:
        burst: the most tokens that are saved.
        refill_s: the seconds in which a token arrives.
        monotonic: the clock, in seconds.
    """

    __slots__ = ("_filled_s", "_monotonic", "_refill_s", "_tokens", "burst")

    def __init__(self, burst: float, refill_s: float, monotonic: Callable[[], float]) -> None:
        self.burst = burst
        self._refill_s = refill_s
        self._monotonic = monotonic
        self._tokens = burst
        self._filled_s = -math.inf

    def left(self) -> float:
        """The tokens that are left; negative if more were spent."""
        now_s = self._monotonic()
        self._tokens = min(self.burst, self._tokens + (now_s - self._filled_s) / self._refill_s)
        self._filled_s = now_s
        return self._tokens

    def spend(self, tokens: float = 1.0) -> float:
        """Spend tokens.

        Returns:
            The seconds until those are made up for that had been spent without being left.
        """
        wait_s = max(-self.left() * self._refill_s, 0.0)
        self._tokens -= tokens
        return wait_s

    def pause(self, for_s: float) -> None:
        """Have no token left for so many seconds."""
        self._tokens = min(self.left(), -for_s / self._refill_s)
