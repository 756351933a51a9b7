"""Explains pods to those who may read their namespace, but not the cluster.

The namespace says what a pod requests, which gates it has, where it is, and whether its request is invalid everywhere.
Why nodes refuse it only the cluster shows. The allocator says that, without the names of other namespaces, to whoever
may get the pod: in the answer to a PodExplanation that is created in a dry run (``allocator/serving/explanations.py``);
or if it can't be asked, in its last Event on the pod.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from allocator.decision.explained import Explained
from allocator.settings import Settings
from ascend.errors import ApiError, Unreachable
from ascend.kube.answers import decode
from ascend.kube.client import KubeClient
from ascend.kube.objects import CORE_EVENTS, EXPLANATIONS, Pod
from ascend.printable import printable
from ascend.reasons import Category, Reason
from npuctl.explain.answer import Explanation
from npuctl.explain.explanation import explain
from npuctl.output import warn
from npuctl.reading.objects import ClusterObjects

_ALLOCATOR: Final = "ascend-allocator"
_FAULT: Final = "NPUFault"
"""The reason of the device plugin's Events on the pods of a chip that breaks."""
_REASONS: Final[Mapping[str, Reason]] = {reason.value: reason for reason in Reason}


class _Object(msgspec.Struct):
    uid: str = ""


class _Series(msgspec.Struct, rename="camel"):
    last_observed_time: str = ""


class _Event(msgspec.Struct, rename="camel"):
    """An Event of the core API, which the ClusterRole ``view`` has, and not that of ``events.k8s.io``."""

    reason: str = ""
    message: str = ""
    reporting_component: str = ""
    event_time: str | None = None
    series: _Series | None = None
    involved_object: _Object | None = None

    @property
    def last(self) -> str:
        """When it was posted last; RFC 3339."""
        return (self.series.last_observed_time if self.series is not None else "") or self.event_time or ""


class _Events(msgspec.Struct):
    items: list[_Event] | None = None


class _PodExplanation(msgspec.Struct):
    status: Explained


async def explain_own(
    pods: Sequence[Pod], objects: ClusterObjects, client: KubeClient, settings: Settings, now_ns: int
) -> tuple[Explanation, ...]:
    """Explain pods of a namespace by its objects, and by what the allocator says.

    Args:
        pods: the pods, of one namespace.
        objects: those of the namespace.
        client: the API server.
        settings: the allocator's.
        now_ns: the time, Unix nanoseconds.

    Raises:
        ApiError: the API server refused to list the Events.
        Unreachable: it did not answer.
    """
    judged = await explain(pods, objects, settings, now_ns)
    told = await _ask([pod for pod, answer in zip(pods, judged, strict=True) if _waits(answer, pod)], client)
    answers = [_with_answer(answer, told[answer.name]) if answer.name in told else answer for answer in judged]
    namespace = pods[0].metadata.namespace
    listed = decode(await client.request("GET", CORE_EVENTS.path(namespace=namespace)), _Events, "list of Events").items
    verdicts, faults = dict[str, _Event](), dict[str, _Event]()
    for event in sorted(listed or (), key=lambda event: event.last):
        uid = event.involved_object.uid if event.involved_object is not None else ""
        if event.reporting_component == _ALLOCATOR and event.reason in _REASONS:
            verdicts[uid] = event
        elif event.reason == _FAULT:
            faults[uid] = event
    return tuple(
        _with_fault(
            answer if pod.name in told else _with_verdict(answer, pod, verdicts.get(pod.uid)), faults.get(pod.uid)
        )
        for answer, pod in zip(answers, pods, strict=True)
    )


def _waits(answer: Explanation, pod: Pod) -> bool:
    return answer.state in {"waits", "fits", "preempts"} and not pod.spec.node_name


async def _ask(pods: Sequence[Pod], client: KubeClient) -> dict[str, Explained]:
    """What the allocator says of pods, by name, until it does not answer."""
    found = dict[str, Explained]()
    for pod in pods:
        question = {"metadata": {"name": pod.name}, "spec": {"uid": pod.uid}}
        body = {"apiVersion": EXPLANATIONS.api_version, "kind": EXPLANATIONS.kind, **question}
        path = EXPLANATIONS.path(namespace=pod.metadata.namespace)
        try:
            answered = await client.request("POST", path, query={"dryRun": "All"}, body=body)
            told = decode(answered, _PodExplanation, "PodExplanation").status
        except (ApiError, Unreachable) as error:
            warn(f"the allocator does not say why pod {pod.key} waits, so its last Event counts: {error.message}")
            break
        if told.state in {"waits", "fits"}:
            found[pod.name] = told
    return found


def _with_answer(answer: Explanation, told: Explained) -> Explanation:
    """The allocator's present answer on a waiting pod, for users who may not read nodes."""
    cure = _REASONS[told.reason].cure.replace("`", "") if told.reason in _REASONS else ""
    return replace(
        _blank(answer),
        state=told.state,
        reason=printable(told.reason),
        message=printable(told.message),
        told=told,
        advice=(cure,) if cure else (),
    )


def _blank(answer: Explanation) -> Explanation:
    """An answer without what follows from no node at all."""
    return replace(
        answer, state="waits", groups=(), nodes={}, candidates=(), remedies=(), examined=0, ahead=(), blocks=()
    )


def _with_verdict(answer: Explanation, pod: Pod, event: _Event | None) -> Explanation:
    """The allocator's answer on a waiting pod, for users who may not read nodes."""
    if not _waits(answer, pod):
        return answer
    own = _REASONS.get(answer.reason)
    # The allocator's settings are not known here, and a request may be valid by these alone.
    if own is not None and own.category is Category.REQUEST and (event is None or event.reason == own.value):
        return replace(answer, groups=(), nodes={}, ahead=())
    blank = _blank(answer)
    needs = f"who may list nodes and the pods of all namespaces is told more by npuctl explain {pod.key}"
    if event is None:
        condition = next((scheduled for scheduled in pod.status.conditions if scheduled.type == "PodScheduled"), None)
        reason = condition.reason if condition is not None and condition.reason else pod.status.phase
        says = f"its scheduler says: {blank.scheduler}" if blank.scheduler else "no scheduler has tried it"
        message = f"the allocator has posted no Event on it yet; {says}"
        return replace(blank, reason=printable(reason) or "Pending", message=message, advice=(needs,))
    cure = _REASONS[event.reason].cure.replace("`", "")
    message = printable(event.message)
    return replace(blank, reason=event.reason, message=message, said_at=event.last, advice=(cure, needs))


def _with_fault(answer: Explanation, event: _Event | None) -> Explanation:
    if event is None or answer.state != "placed":
        return answer
    return replace(answer, warnings=(*answer.warnings, f"{event.reason}: {printable(event.message)}"))
