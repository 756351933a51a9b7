"""The record of decisions: one log line and one count for each."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from allocator.commit import Bound, PodRef
from allocator.decide import Filtered
from allocator.metrics import AllocatorMetrics
from allocator.preempt import Sacrifice
from ascend.annotations import Grant
from ascend.chips import join_names
from ascend.errors import AscendError, Refusal
from ascend.kube.objects import Pod

log = structlog.get_logger()


class Journal:
    """Writes down what was decided.

    Args:
        metrics: where it is counted.
        monotonic: the clock for durations.
    """

    def __init__(self, metrics: AllocatorMetrics, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._monotonic = monotonic

    @contextmanager
    def timed(self, kind: str) -> Iterator[None]:
        """Measure the answer to one question of a scheduler."""
        started_s = self._monotonic()
        try:
            yield
        finally:
            self._metrics.duration_s.labels(kind).observe(self._monotonic() - started_s)

    def bind_ended(self, ref: PodRef, node: str, result: Bound | AscendError, duration_s: float) -> None:
        """A pod was bound, or it was not."""
        line = log.bind(pod=ref.key, pod_uid=ref.uid, node=node, duration_s=round(duration_s, 6))
        if isinstance(result, Bound) and result.repeated:
            self._metrics.decisions.labels("repeated", "").inc()
            line.info("answered again for a bound pod", bound_to=result.node, **_chips(result.grant))
            return
        if isinstance(result, Bound):
            self._metrics.decisions.labels("bound", "").inc()
            line.info("bound a pod", **_chips(result.grant))
            return
        outcome = "refused" if isinstance(result, Refusal) else "failed"
        self._metrics.decisions.labels(outcome, result.reason).inc()
        line.warning("did not bind a pod", reason=result.reason, error=result.message)

    def kept(self, pod: Pod, bound: Bound) -> None:
        """Chips were reserved for a caller that binds by itself."""
        self._metrics.decisions.labels("reserved", "").inc()
        log.info("reserved chips for a pod", pod=pod.key, pod_uid=pod.uid, node=bound.node, **_chips(bound.grant))

    def refused(self, pod: Pod, refusal: Refusal) -> None:
        """A pod was refused altogether."""
        self._metrics.decisions.labels("refused", refusal.reason).inc()
        log.info("refused a pod", pod=pod.key, pod_uid=pod.uid, reason=refusal.reason, error=refusal.message)

    def filtered(self, pod: Pod, filtered: Filtered) -> None:
        """A pod was told where it fits; reasons are counted, not listed, for there may be thousands of nodes."""
        reasons = filtered.reasons
        if not filtered.fitting:
            reason = reasons.most_common(1)[0][0] if reasons else "NoCandidates"
            self._metrics.decisions.labels("refused", reason).inc()
        level = log.debug if filtered.fitting else log.info
        level("filtered nodes", pod=pod.key, pod_uid=pod.uid, fitting=len(filtered.fitting), refused=dict(reasons))

    def preempts(self, pod: Pod, chosen: Sacrifice | None) -> None:
        """A scheduler was told whom a pod displaces; whether it does so is its business."""
        if chosen is None:
            log.info("nobody makes room for a pod", pod=pod.key, pod_uid=pod.uid)
            return
        victims = [each.pod or each.uid for each in chosen.victims]
        log.info("chose who makes room for a pod", pod=pod.key, pod_uid=pod.uid, node=chosen.node, victims=victims)


def _chips(grant: Grant) -> dict[str, str | int]:
    return {"request": len(grant.chips), "chips": join_names(grant.chips)}
