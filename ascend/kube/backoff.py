"""How long to wait before trying again."""

import random


class Backoff:
    """Waiting times with jitter: ``first_s``, twice that, … up to ``limit_s``, each between half and full."""

    def __init__(self, first_s: float = 0.1, limit_s: float = 30.0) -> None:
        self._first_s = first_s
        self._limit_s = limit_s
        self._next_s = first_s

    def reset(self) -> None:
        """Start again at the first waiting time, after a success."""
        self._next_s = self._first_s

    def next_s(self) -> float:
        """The next waiting time in seconds."""
        wait_s = self._next_s
        self._next_s = min(wait_s * 2, self._limit_s)
        return wait_s * random.uniform(0.5, 1.0)  # noqa: S311 - jitter is no secret

    def after(self, error: Exception) -> float:
        """Return the next waiting time in seconds, at least the server's Retry-After."""
        return max(self.next_s(), getattr(error, "retry_after_s", None) or 0.0)
