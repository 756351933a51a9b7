"""The record of decisions: one log line and one count for each, and an Event for whom it may concern."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import structlog

from allocator.bound import Bound, PodRef
from allocator.bulletin import Bulletin
from allocator.decide import Filtered
from allocator.metrics import AllocatorMetrics
from allocator.preempt import Sacrifice
from allocator.rules.request import counted_chips
from allocator.rules.summary import sum_up_nodes
from ascend.annotations import Grant
from ascend.chips import join_names
from ascend.errors import AscendError, Refusal
from ascend.kube.objects import Pod

log = structlog.get_logger()

_NO_NODES: Final[Mapping[str, int]] = {}


class Journal:
    """Writes down what was decided.

    Args:
        metrics: where it is counted.
        bulletin: where a pod's owner reads it.
        monotonic: the clock for durations.
    """

    def __init__(
        self, metrics: AllocatorMetrics, bulletin: Bulletin, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._metrics = metrics
        self._bulletin = bulletin
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
        outcome = "failed"
        if isinstance(result, Refusal):
            outcome = "refused"
            self._bulletin.refused(ref, result, action="Bind")
        self._metrics.decisions.labels(outcome, result.reason).inc()
        line.warning("did not bind a pod", reason=result.reason, error=result.message)

    def kept(self, pod: Pod, bound: Bound) -> None:
        """Chips were reserved for a caller that binds by itself."""
        self._metrics.decisions.labels("reserved", "").inc()
        log.info("reserved chips for a pod", pod=pod.key, pod_uid=pod.uid, node=bound.node, **_chips(bound.grant))

    def not_injected(self, ref: PodRef, node: str, error: AscendError) -> None:
        """The Binding of another scheduler was refused."""
        self._metrics.decisions.labels("refused" if isinstance(error, Refusal) else "failed", error.reason).inc()
        if isinstance(error, Refusal):
            self._bulletin.refused(ref, error, action="Binding")
        log.info("refused a Binding", pod=ref.key, pod_uid=ref.uid, node=node, reason=error.reason, error=error.message)

    def refused(self, pod: Pod, refusal: Refusal, *, nodes: Mapping[str, int] = _NO_NODES) -> None:
        """A pod was refused altogether.

        Args:
            pod: the pod.
            refusal: why.
            nodes: how many nodes gave which reason, where nodes were asked.
        """
        self._metrics.decisions.labels("refused", refusal.reason).inc()
        ref = PodRef(pod.metadata.namespace, pod.name, pod.uid)
        self._bulletin.refused(ref, refusal, action="Filter")
        line = log.bind(pod=pod.key, pod_uid=pod.uid, request=counted_chips(pod))
        line.info("refused a pod", reason=refusal.reason, error=refusal.message, refused=dict(nodes))

    def filtered(self, pod: Pod, filtered: Filtered) -> None:
        """A pod was told where it fits; reasons are counted, not listed, for there may be thousands of nodes."""
        reasons = filtered.reasons
        if filtered.fitting:
            fitting = len(filtered.fitting)
            log.debug("filtered nodes", pod=pod.key, pod_uid=pod.uid, fitting=fitting, refused=dict(reasons))
            return
        self.refused(pod, sum_up_nodes(pod.key, counted_chips(pod), filtered.refusals), nodes=dict(reasons))

    def preempts(self, pod: Pod, chosen: Sacrifice | None) -> None:
        """A scheduler was told whom a pod displaces; whether it does so is its business."""
        if chosen is None:
            log.info("nobody makes room for a pod", pod=pod.key, pod_uid=pod.uid)
            return
        victims = [each.pod or each.uid for each in chosen.victims]
        log.info("chose who makes room for a pod", pod=pod.key, pod_uid=pod.uid, node=chosen.node, victims=victims)


def _chips(grant: Grant) -> dict[str, str | int]:
    return {"request": len(grant.chips), "chips": join_names(grant.chips)}
