"""The facts of owners in the core API about their pods: number and time limit."""

import math
from datetime import datetime
from typing import NamedTuple

from ascend.jobs.kind import JobFacts
from ascend.kube.objects import Pod


class Owned(NamedTuple):
    """What an owner of the core API says of its pods.

    Attributes:
        size: the desired number of pods at one time.
        is_one_by_one: a pod is created only when the one before it is ready.
        uid: its uid.
        limit_s: the time after its start at which its pods are ended; None for no limit.
        started: when it started, as the API server writes it; empty if that is unknown.
        settings: the keys of settings of its job that are written on itself, each as a label or an annotation.
        failures_left: how many more pods of a Job may fail; None if that is not limited.
        ignores_disruptions: whether a Job does not count failed pods with the condition DisruptionTarget.
    """

    size: int
    is_one_by_one: bool = False
    uid: str = ""
    limit_s: int | None = None
    started: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    failures_left: int | None = None
    ignores_disruptions: bool = False


def end_of(pod: Pod, owner: Owned | None, source: JobFacts | None, now_s: float) -> float:
    """When a pod has to have ended, by ``activeDeadlineSeconds`` of the pod, its Job or its Kubeflow job.

    Args:
        pod: the pod; if it has not started yet, its limit counts from now on.
        owner: what its controller says, if that is known.
        source: what the object says from which an operator has created it.
        now_s: the time, Unix seconds.

    Returns:
        Unix seconds; infinite if there is no limit.
    """
    own_s = _end(pod.spec.active_deadline_seconds, pod.status.start_time or "", now_s)
    if source is not None:
        own_s = min(own_s, _end(source.limit_s, source.started, now_s))
    controller = pod.metadata.controller
    if owner is None or controller is None or controller.uid != owner.uid:
        return own_s
    return min(own_s, _end(owner.limit_s, owner.started, now_s))


def _end(limit_s: int | None, started: str, now_s: float) -> float:
    if limit_s is None:
        return math.inf
    try:
        return (datetime.fromisoformat(started).timestamp() if started else now_s) + limit_s
    except ValueError:
        return now_s + limit_s
