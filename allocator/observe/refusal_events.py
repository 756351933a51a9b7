"""Events on pods that are refused: why a pod is pending, as ``kubectl describe pod`` shows it.

Schedulers retry pending pods again and again, and thousands may be pending, so an Event is posted only if the reason
has changed or the last one was some time ago. A pod whose Event was dropped by the rate limit gets one when it is
retried, or looked at again (``allocator/observe/unasked.py``).
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

from allocator.binding.binding import PodRef
from allocator.rules.summary import told_in
from ascend.errors import Refusal
from ascend.kube.events import Regarding

REMIND_S: Final = 300.0
"""An unchanged reason is posted again after this time; the sentence's numbers may have changed."""

REMIND_UNASKED_S: Final = 1800.0
"""The same for a pod that no scheduler asks for; an API server forgets Events after an hour, by default."""

REFILL_S: Final = 0.2
"""The recorder's rate after a burst: 5 Events per second."""


class Publish(Protocol):
    """Posts an Event soon; see ``ascend.kube.events.EventRecorder.publish``."""

    def __call__(self, regarding: Regarding, reason: str, note: str, *, action: str) -> bool:
        """Returns at once: whether the Event will be posted."""


class RefusalEvents:
    """Posts Events on refused pods.

    Args:
        publish: posts one.
        monotonic: the clock for reminders.
    """

    def __init__(self, publish: Publish, monotonic: Callable[[], float]) -> None:
        self._publish = publish
        self._monotonic = monotonic
        self._posted: OrderedDict[str, tuple[str, float]] = OrderedDict()  # by uid: the reason, and when

    def on_refusal(self, ref: PodRef, refusal: Refusal, *, action: str, remind_s: float = REMIND_S) -> bool:
        """A pod was refused.

        Args:
            ref: the pod.
            refusal: why.
            action: what was refused, a CamelCase word.
            remind_s: seconds after which an unchanged reason is posted again, at most ``REMIND_UNASKED_S``.

        Returns:
            Whether it has an Event with this reason, or will have one.
        """
        now_s = self._monotonic()
        self._forget(now_s)
        reason, posted_s = self._posted.get(ref.uid, ("", 0.0))
        if reason == refusal.reason and now_s - posted_s < remind_s:
            return True
        regarding = Regarding("Pod", ref.name, ref.namespace, ref.uid)
        note = told_in(ref.namespace, refusal.message)
        published = self._publish(regarding, refusal.reason, note, action=action)
        if published:
            self._posted[ref.uid] = refusal.reason, now_s
            self._posted.move_to_end(ref.uid)
        return published

    def _forget(self, now_s: float) -> None:
        # In order of their times, so each entry is examined once.
        while self._posted:
            uid, (_, posted_s) = next(iter(self._posted.items()))
            if now_s - posted_s < REMIND_UNASKED_S:
                return
            del self._posted[uid]
