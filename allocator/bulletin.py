"""Tells under ``kubectl describe pod`` why a pod is refused, as Events.

A scheduler asks again and again for a pod that waits, and thousands may wait at once, so an Event is posted when the
reason is another one or the last one is a while ago, and only so many a second altogether. A pod that was left out is
told of when it is asked about the next time.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from allocator.bound import PodRef
from ascend.errors import Refusal
from ascend.kube.events import Regarding

REMIND_S = 300.0
"""A reason that stays is told again after this time; the sentence's numbers may have changed."""

RATE_PER_S = 5.0
BURST = 50


class Publish(Protocol):
    """Posts an Event soon."""

    def __call__(self, regarding: Regarding, reason: str, note: str, *, action: str) -> None:
        """Returns at once."""


@dataclass(frozen=True, slots=True)
class _Told:
    reason: str
    at_s: float


class Bulletin:
    """Posts Events on pods that are refused.

    Args:
        publish: posts one.
        monotonic: the clock for rates.
    """

    def __init__(self, publish: Publish, monotonic: Callable[[], float]) -> None:
        self._publish = publish
        self._monotonic = monotonic
        self._told: OrderedDict[str, _Told] = OrderedDict()
        self._tokens = float(BURST)
        self._filled_s = monotonic()

    def __len__(self) -> int:
        return len(self._told)

    def refused(self, ref: PodRef, refusal: Refusal, *, action: str) -> None:
        """A pod was refused.

        Args:
            ref: the pod.
            refusal: why.
            action: what it was refused, a CamelCase word.
        """
        now_s = self._monotonic()
        self._forget(now_s)
        told = self._told.get(ref.uid)
        if (told is not None and told.reason == refusal.reason) or not self._may(now_s):
            return
        self._told[ref.uid] = _Told(refusal.reason, now_s)
        self._told.move_to_end(ref.uid)
        regarding = Regarding("Pod", ref.name, ref.namespace, ref.uid)
        self._publish(regarding, refusal.reason, refusal.message, action=action)

    def _forget(self, now_s: float) -> None:
        # In order of their times, so that every entry is looked at once.
        while self._told:
            uid, told = next(iter(self._told.items()))
            if now_s - told.at_s < REMIND_S:
                return
            del self._told[uid]

    def _may(self, now_s: float) -> bool:
        self._tokens = min(self._tokens + (now_s - self._filled_s) * RATE_PER_S, BURST)
        self._filled_s = now_s
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
