"""Records decisions: a log line and a count for each, and an Event on refused pods."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Final

import structlog

from allocator.binding.binding import Assignment, PodRef
from allocator.decision.filtered import Filtered
from allocator.metrics import AllocatorMetrics
from allocator.observe.refusal_events import REMIND_UNASKED_S, RefusalEvents
from allocator.rules.request import counted_chips, requested_part, requested_what
from allocator.rules.summary import sum_up_nodes
from allocator.rules.victims import VictimSet
from ascend.annotations import Grant
from ascend.chips import join_names
from ascend.errors import AscendError, Refusal
from ascend.fair import FairRate
from ascend.kube.objects import Pod
from ascend.reasons import Reason

log = structlog.get_logger()
_ROOT: Final = logging.getLogger()

_LINES: Final = 400
_LINE_S: Final = 0.05
"""Lines about refusals that are logged at once, and the time until one more is; those of a namespace are limited to
half. A scheduler tries thousands of pods again and again."""
_NAMESPACES: Final = 1000
"""Namespaces of which lines that were left out are counted."""
_NO_NODES: Final[Mapping[Reason, int]] = {}


class Journal:
    """Records decisions.

    Args:
        metrics: counts them.
        events: posts Events on refused pods.
        monotonic: the clock for durations.
    """

    def __init__(
        self, metrics: AllocatorMetrics, events: RefusalEvents, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._decided = cache(metrics.decisions.labels)
        self._duration_s = cache(metrics.duration_s.labels)
        self._events = events
        self._monotonic = monotonic
        self._lines = FairRate(_LINES, _LINE_S, monotonic)
        self._left_out: Counter[str] = Counter()

    @contextmanager
    def measure(self, server: str, kind: str) -> Iterator[None]:
        """Measure the duration of one call of a scheduler.

        Args:
            server: the server that was called.
            kind: the kind of call.
        """
        started_s = self._monotonic()
        try:
            yield
        finally:
            self._duration_s(server, kind).observe(self._monotonic() - started_s)

    def bind_ended(self, ref: PodRef, node: str, result: Assignment | AscendError, duration_s: float) -> None:
        """An attempt to bind a pod has ended."""
        shown = {"pod": ref.key, "pod_uid": ref.uid, "node": node, "duration_s": round(duration_s, 6)}
        if isinstance(result, Assignment):
            self._decided("repeated" if result.repeated else "bound", "").inc()
            if result.repeated:
                log.info("the pod was bound before", **shown, bound_to=result.node, **_chips(result.grant))
            else:
                log.info("bound a pod", **shown, **_chips(result.grant))
            return
        outcome = "failed"
        if isinstance(result, Refusal):
            outcome = "refused"
            self._post_event(ref, result, "Bind")
        self._decided(outcome, result.reason).inc()
        log.warning("could not bind a pod", **shown, reason=result.reason, error=result.message)

    def _post_event(self, ref: PodRef, refusal: Refusal, action: str) -> None:
        if refusal.reason is not Reason.POD_UNKNOWN:  # a caller can invent any number of pods
            self._events.on_refusal(ref, refusal, action=action)

    def on_reservation(self, pod: Pod, assignment: Assignment) -> None:
        """Chips were reserved for a caller that binds the pod itself."""
        self._decided("reserved", "").inc()
        log.info(
            "reserved chips for a pod", pod=pod.key, pod_uid=pod.uid, node=assignment.node, **_chips(assignment.grant)
        )

    def not_injected(self, ref: PodRef, node: str, error: AscendError) -> None:
        """The Binding of another scheduler was refused."""
        self._decided("refused" if isinstance(error, Refusal) else "failed", error.reason).inc()
        if isinstance(error, Refusal):
            self._post_event(ref, error, "Binding")
        log.info("refused a Binding", pod=ref.key, pod_uid=ref.uid, node=node, reason=error.reason, error=error.message)

    def on_refusal(self, pod: Pod, refusal: Refusal, *, nodes: Mapping[Reason, int] = _NO_NODES) -> None:
        """A pod was refused on every node.

        Args:
            pod: the pod.
            refusal: why.
            nodes: the number of nodes for each reason, if nodes were examined.
        """
        self._decided("refused", refusal.reason).inc()
        self._events.on_refusal(PodRef.of(pod), refusal, action="Filter")
        if (left_out := self._may_log(pod.metadata.namespace)) is not None:
            line = log.bind(pod=pod.key, pod_uid=pod.uid, request=counted_chips(pod) or requested_part(pod))
            line.info("refused a pod", reason=refusal.reason, error=refusal.message, refused=dict(nodes), **left_out)

    def on_denial(self, refusal: Refusal) -> None:
        """A pod was not created; its creator shows why."""
        self._decided("refused", refusal.reason).inc()

    def on_gated_refusal(self, pod: Pod, refusal: Refusal) -> bool:
        """A gated pod has to wait; returns whether it has an Event that says why."""
        return self._events.on_refusal(PodRef.of(pod), refusal, action="Gate")

    def on_unasked_pod(self, pod: Pod, refusal: Refusal) -> bool:
        """Record a pod whose scheduler does not call; return whether the pod has an Event with the reason now."""
        return self._events.on_refusal(PodRef.of(pod), refusal, action="Wait", remind_s=REMIND_UNASKED_S)

    def on_filter(self, pod: Pod, filtered: Filtered) -> None:
        """A pod was filtered; reasons are counted, not listed, since there may be thousands of nodes."""
        if filtered.fitting:
            if _ROOT.isEnabledFor(logging.DEBUG):  # structlog finds that out later, and each pod has this line
                fitting, reasons = len(filtered.fitting), dict(filtered.reasons)
                log.debug("filtered nodes", pod=pod.key, pod_uid=pod.uid, fitting=fitting, refused=reasons)
            return
        reasons = filtered.reasons
        self.on_refusal(pod, sum_up_nodes(pod.key, requested_what(pod), filtered.refusals), nodes=dict(reasons))

    def preempts(self, pod: Pod, chosen: VictimSet | Refusal | None) -> None:
        """Victims were returned to a scheduler, which decides whether to preempt them; or there are none."""
        if chosen is None or isinstance(chosen, Refusal):
            if (left_out := self._may_log(pod.metadata.namespace)) is not None:
                why = {} if chosen is None else {"reason": chosen.reason, "error": chosen.message}
                log.info("no victims for a pod", pod=pod.key, pod_uid=pod.uid, **why, **left_out)
            return
        victims = [victim.pod or victim.uid for victim in chosen.victims]
        log.info("chose victims for a pod", pod=pod.key, pod_uid=pod.uid, node=chosen.node, victims=victims)

    def _may_log(self, namespace: str) -> dict[str, int] | None:
        """The number of omitted lines, for a line about a namespace's refused pod; None if the line is omitted, too."""
        if not self._lines.take(namespace):
            if namespace in self._left_out or len(self._left_out) < _NAMESPACES:
                self._left_out[namespace] += 1
            return None
        left_out = self._left_out.pop(namespace, 0)
        return {"left_out": left_out} if left_out else {}


def _chips(grant: Grant) -> dict[str, str | int]:
    if grant.vnpu is not None:
        return {"request": grant.vnpu.suffix, "vnpu": grant.vnpu.name}
    if grant.cut is not None:
        return {"request": f"{grant.cores} cores", "vnpu": grant.cut.name}
    return {"request": len(grant.chips), "chips": join_names(grant.chips)}
