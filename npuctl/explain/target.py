"""Finds the pods that an argument names: a pod, or the pods of a job or of another controller, as with kubectl."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from allocator.rules.job import find_job
from ascend.errors import InvalidValue
from ascend.jobs.core import SINGLE
from ascend.jobs.leader_worker_set import NAME as LEADER_WORKER_SET_NAME
from ascend.jobs.table import TABLE, WORKLOADS
from ascend.kube.objects import Pod

_POD: Final = "pod"
_JOB: Final = "job"
_SHORT_NAMES: Final = {
    "po": _POD,
    "rc": "replicationcontroller",
    "pg": "podgroup",
    **{short: row.kind.lower() for row in WORKLOADS.values() for short in row.short_names},
}
_FORMS: Final = (
    "give a pod as NAME, NAMESPACE/NAME or pod/NAME, and the pods of a job as job/NAME, with -n for its namespace"
)


def _known() -> frozenset[str]:
    """The kinds of jobs and of what creates their pods."""
    rows = *(row.kind for row in TABLE.workloads.values()), *(kind.name.partition(".")[0] for kind in TABLE.kinds)
    return frozenset(name.lower() for name in rows if name not in {"", SINGLE} and " " not in name)


def _kinds() -> str:
    return f"kinds are {', '.join((_POD, *sorted(_known())))}, and that of any other controller of a pod"


class ExplainTarget(NamedTuple):
    """The pods that an argument names.

    Attributes:
        pods: one pod, or the pods of a job that request chips (all if none does).
        job: ``namespace/name`` of the job; None if a pod was named.
    """

    pods: Sequence[Pod]
    job: str | None = None


def require_name(argument: str) -> None:
    """Accept an argument that has all parts of a form of ``find_target``, whether its pods exist or not.

    Raises:
        InvalidValue: a part of it is missing.
    """
    left, slash, right = argument.partition("/")
    if not argument:
        problem = "the name is empty"
    elif not left:
        problem = f"'{argument}' has neither a kind nor a namespace before the slash"
    elif slash and not right:
        problem = f"'{argument}' has no name after the slash"
    else:
        return
    raise InvalidValue(f"{problem}; {_FORMS}; {_kinds()}")


def find_target(argument: str, namespace: str | None, pods: Sequence[Pod], default: Callable[[], str]) -> ExplainTarget:
    """Find the pods that an argument names.

    ``a/b`` is the pod ``b`` in the namespace ``a`` if it exists, else it is ``TYPE/NAME``.

    Args:
        argument: ``NAME``, ``NAMESPACE/NAME`` or ``TYPE/NAME``, accepted by ``require_name``.
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
        return ExplainTarget(exact)
    if "/" in right:
        raise InvalidValue(f"'{argument}' has more than one slash; {_FORMS}; {_kinds()}")
    kind = _kind(left)
    if kind == _POD:
        return _pod(right, namespace or default(), pods)
    where = namespace or default()
    owned = [pod for pod in pods if pod.metadata.namespace == where and (kind, right) in belongs_to(pod)]
    if owned:
        return ExplainTarget([pod for pod in owned if pod.requests_chips] or owned, f"{where}/{right}")
    if kind in _known():
        raise InvalidValue(f"there are no pods of {kind} {where}/{right}")
    if all(pod.metadata.namespace != left for pod in pods):
        known = f"{left} is neither a namespace with pods nor a kind; {_kinds()}"
        raise InvalidValue(f"there is no pod {argument}{_elsewhere(right, pods)}; {known}")
    if namespace not in {None, left}:
        raise InvalidValue(f"pod {argument} is not in the namespace {namespace}; {_FORMS}")
    raise InvalidValue(f"there is no pod {argument}{_elsewhere(right, pods)}; {_FORMS}")


def _pod(name: str, namespace: str, pods: Sequence[Pod]) -> ExplainTarget:
    found = [pod for pod in pods if pod.key == f"{namespace}/{name}"]
    if not found:
        raise InvalidValue(f"there is no pod {namespace}/{name}{_elsewhere(name, pods)}")
    return ExplainTarget(found)


def _elsewhere(name: str, pods: Sequence[Pod]) -> str:
    keys = ", ".join(pod.key for pod in pods if pod.name == name)
    return f"; there is {keys}" if keys else ""


def is_known(typed: str) -> bool:
    """Whether a word before a slash is a kind, and not a namespace."""
    return _kind(typed) in {_POD, *_known()}


def _kind(typed: str) -> str:
    """The kind that a type means: singular, plural, short name, or with its API group."""
    kind = typed.partition(".")[0].lower()
    return _SHORT_NAMES.get(kind, kind.removesuffix("s"))


def belongs_to(pod: Pod) -> Iterator[tuple[str, str]]:
    """Yield kind and name of the objects by which users may name a pod: the job, the owner, and the owner's owner."""
    job, owner = find_job(pod), pod.metadata.controller
    if job.kind != SINGLE:
        yield _JOB, job.name
        yield job.kind.partition(".")[0].lower(), job.name
    yield "leaderworkerset", pod.metadata.labels.get(LEADER_WORKER_SET_NAME, "")
    if owner is None:
        return
    yield owner.kind.lower(), owner.name
    for row in WORKLOADS.values():
        if owner.kind == row.creates == "ReplicaSet":  # of a Deployment that was not submitted, there is no suffix yet
            yield row.kind.lower(), owner.name.removesuffix(f"-{pod.metadata.labels.get('pod-template-hash')}")
        elif owner.kind == row.creates:
            yield row.kind.lower(), owner.name.rpartition(row.infix)[0]
