"""Waits after failures, by key: each wait is twice as long as the wait before it. No I/O.

The clocks of client-go's ItemBackoff (k/k:staging/src/k8s.io/client-go/util/flowcontrol/backoff.go), without jitter.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

_REMEMBERED_S: Final = 24 * 3600.0
"""How long after its last failure the failures of a key are remembered."""


@dataclass(slots=True)
class _Failures:
    times: int
    last_s: float


class ItemBackoff(Generic[Key]):
    """Remembers failures.

    Args:
        monotonic: the clock.
        first_s: the first wait, in seconds.
        longest_s: the longest wait.
        free: so many failures of a key cost it nothing.
    """

    def __init__(self, monotonic: Callable[[], float], first_s: float, longest_s: float, *, free: int = 0) -> None:
        self._monotonic = monotonic
        self._first_s = first_s
        self._longest_s = longest_s
        self._free = free
        self._failures: dict[Key, _Failures] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._failures

    def failed(self, key: Key) -> None:
        """Begin the next wait of a key."""
        now_s = self._monotonic()
        self._failures = {known: each for known, each in self._failures.items() if now_s - each.last_s < _REMEMBERED_S}
        last = self._failures.setdefault(key, _Failures(0, now_s))
        last.times, last.last_s = last.times + 1, now_s

    def succeeded(self, key: Key) -> None:
        """Forget the failures of a key."""
        self._failures.pop(key, None)

    def is_waiting(self, key: Key) -> bool:
        """Whether the wait of a key has not ended."""
        last = self._failures.get(key)
        return last is not None and self.since_s(key) < self._wait_s(last.times - self._free)

    def times(self, key: Key) -> int:
        """How often a key has failed, as far as is remembered."""
        last = self._failures.get(key)
        return last.times if last is not None else 0

    def since_s(self, key: Key) -> float:
        """How long ago the last failure of a key was; infinite if none is remembered."""
        last = self._failures.get(key)
        return self._monotonic() - last.last_s if last is not None else float("inf")

    def _wait_s(self, times: int) -> float:
        return min(self._first_s * 2.0 ** min(times - 1, 30), self._longest_s) if times > 0 else 0.0
