"""Finds the pods that an argument names: a pod, or the pods of a job or of another controller, as with kubectl."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from allocator.rules.job import SINGLE, find_job
from ascend.errors import InvalidValue
from ascend.kube.objects import Pod

_POD: Final = "pod"
_JOB: Final = "job"
_SHORT_NAMES: Final = {
    "po": _POD,
    "vj": _JOB,
    "vcjob": _JOB,
    "rs": "replicaset",
    "sts": "statefulset",
    "deploy": "deployment",
    "pg": "podgroup",
}
_FORMS: Final = "give a pod as NAME, NAMESPACE/NAME or pod/NAME, and the pods of a job as job/NAME"


class Target(NamedTuple):
    """The pods that an argument names.

    Attributes:
        pods: one pod, or the pods of a job that request chips (all if none does).
        job: ``namespace/name`` of the job; None if a pod was named.
    """

    pods: Sequence[Pod]
    job: str | None = None


def find_target(argument: str, namespace: str | None, pods: Sequence[Pod], default: Callable[[], str]) -> Target:
    """Find the pods that an argument names.

    ``a/b`` is the pod ``b`` in the namespace ``a`` if it exists, else it is ``TYPE/NAME``.

    Args:
        argument: ``NAME``, ``NAMESPACE/NAME`` or ``TYPE/NAME``.
        namespace: the namespace; None if not given.
        pods: all pods.
        default: returns the namespace if none is given.

    Raises:
        InvalidValue: there is no such pod.
    """
    left, slash, right = argument.partition("/")
    if not slash:
        return _pod(left, namespace or default(), pods)
    exact = [pod for pod in pods if pod.key == argument and namespace in {None, left}]
    if exact:
        return Target(exact)
    kind = _kind(left)
    if kind == _POD:
        return _pod(right, namespace or default(), pods)
    where = namespace or default()
    owned = [pod for pod in pods if pod.metadata.namespace == where and _is_of(pod, kind, right)]
    if owned:
        return Target([pod for pod in owned if pod.requests_chips] or owned, f"{where}/{right}")
    if kind == _JOB:
        raise InvalidValue(f"there are no pods of job {where}/{right}")
    if namespace not in {None, left}:
        raise InvalidValue(f"pod {argument} is not in the namespace {namespace}; {_FORMS}")
    raise InvalidValue(f"there is no pod {argument}{_elsewhere(right, pods)}; {_FORMS}")


def _pod(name: str, namespace: str, pods: Sequence[Pod]) -> Target:
    found = [pod for pod in pods if pod.key == f"{namespace}/{name}"]
    if not found:
        raise InvalidValue(f"there is no pod {namespace}/{name}{_elsewhere(name, pods)}")
    return Target(found)


def _elsewhere(name: str, pods: Sequence[Pod]) -> str:
    keys = ", ".join(pod.key for pod in pods if pod.name == name)
    return f"; there is {keys}" if keys else ""


def _kind(typed: str) -> str:
    """The kind that a type means: singular, plural, short name, or with its API group."""
    kind = typed.partition(".")[0].lower()
    return _SHORT_NAMES.get(kind, kind.removesuffix("s"))


def _is_of(pod: Pod, kind: str, name: str) -> bool:
    job, owner = find_job(pod), pod.metadata.controller
    if job.name == name and job.kind != SINGLE and kind in {_JOB, job.kind.partition(".")[0].lower()}:
        return True
    if owner is None:
        return False
    if kind == "deployment" and owner.kind == "ReplicaSet":
        return owner.name == f"{name}-{pod.metadata.labels.get('pod-template-hash')}"
    return (owner.kind.lower(), owner.name) == (kind, name)
