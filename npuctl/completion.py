"""Shell completion: names of objects and contexts, and the protocol of kubectl's plugins.

The user waits for it at a half-typed line. So its time is limited, and after an error it offers nothing.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from allocator.rules.job import find_job
from ascend.chips import RESOURCE
from ascend.daemon.exits import EXIT_FAILURE
from ascend.kube.objects import NODES, PODS, KubeObject, Resource, T
from npuctl.explain.target import belongs_to, is_known
from npuctl.output import OutputFailed
from npuctl.reading.files import STDIN
from npuctl.reading.manifests import read_manifests
from npuctl.reading.source import Source

LIMIT_S: Final = 2.0
"""The time limit of a completion."""

_NO_FILES: Final = ":4"
NO_CANDIDATES: Final = f"{_NO_FILES}\n"
"""What ``kubectl_complete-npu`` prints when the time is over."""

_FILES: Final = ":0"
_FILE_OPTIONS: Final = frozenset({"-f", "--filename", "--config", "--kubeconfig"})


def end_in_time(otherwise: str) -> threading.Timer:
    """End this process after ``LIMIT_S``, unless the returned timer is cancelled before.

    ``otherwise`` is printed then. The end is not orderly: that would wait for the thread that asks a name server.
    """

    def end() -> None:
        try:
            os.write(1, otherwise.encode())
        except OSError as error:
            if not isinstance(error, BrokenPipeError):
                os.write(2, f"npuctl: {OutputFailed.by(error)}\n".encode())
            os._exit(EXIT_FAILURE)
        os._exit(0)

    timer = threading.Timer(LIMIT_S, end)
    timer.daemon = True
    timer.start()
    return timer


def names(what: str, typed: str, namespace: str | None, source: Source) -> list[str]:
    """Return the names that begin like what was typed; none after an error.

    Args:
        what: ``pods`` (by name, as ``namespace/name`` or ``kind/name`` if a slash was typed), ``jobs``, ``nodes``,
            ``namespaces``, or ``contexts``, ``clusters`` or ``users`` of the kubeconfig.
        typed: the incomplete word.
        namespace: the namespace of pods and jobs; None if not given.
        source: where the objects come from.
    """
    try:
        found = list(_FINDERS[what](typed, namespace, source))
    except Exception:  # noqa: BLE001 - a traceback would be printed into the line that is being typed
        return []
    # A line that is being typed shows no control characters, and a shell could not complete an escaped one.
    return sorted({name for name in found if name.startswith(typed) and name.isprintable()})


def _pods(typed: str, namespace: str | None, source: Source) -> Iterator[str]:
    left, slash, _ = typed.rpartition("/")
    is_kind = bool(slash) and is_known(left)
    searched = namespace or source.namespace() if is_kind or not slash else left
    for pod in asyncio.run(_list(PODS, source, searched)):
        if pod.metadata.namespace != searched or not pod.requests_chips:
            continue
        if not is_kind:
            yield f"{left}{slash}{pod.name}"
        if is_kind or (typed and not slash):
            yield from (f"{kind}/{name}" for kind, name in belongs_to(pod) if name and (not slash or kind == left))


def _jobs(typed: str, namespace: str | None, source: Source) -> Iterator[str]:
    left, slash, _ = typed.rpartition("/")
    for pod in asyncio.run(_list(PODS, source, left or namespace or "")):
        if pod.requests_chips and (left or namespace) in {None, "", pod.metadata.namespace}:
            job = find_job(pod)
            yield f"{job.namespace}/{job.name}" if slash or namespace is None else job.name


def _nodes(_typed: str, _namespace: str | None, source: Source) -> Iterator[str]:
    for node in asyncio.run(_list(NODES, source)):
        if any(resource.startswith(RESOURCE) for resource in node.status.allocatable):
            yield node.name


def _namespaces(_typed: str, _namespace: str | None, source: Source) -> Iterator[str]:
    if source.files:
        yield from (pod.metadata.namespace for pod in asyncio.run(_list(PODS, source)))
    else:
        yield from (obj.name for obj in asyncio.run(_list(_NAMESPACES, source)))


_NAMESPACES: Final = Resource(KubeObject, "Namespace", "api/v1", "namespaces", namespaced=False)
_FINDERS: Final[dict[str, Callable[[str, str | None, Source], Iterable[str]]]] = {
    "pods": _pods,
    "jobs": _jobs,
    "nodes": _nodes,
    "namespaces": _namespaces,
    "contexts": lambda _typed, _namespace, source: source.names_in("contexts"),
    "clusters": lambda _typed, _namespace, source: source.names_in("clusters"),
    "users": lambda _typed, _namespace, source: source.names_in("users"),
}


async def _list(resource: Resource[T], source: Source, namespace: str = "") -> list[T]:
    if STDIN in source.files:
        return []  # standard input is the shell's
    if source.files:
        objects = read_manifests(source.files).objects
        return [obj for some in objects.by_kind.values() for obj in some if isinstance(obj, resource.type)]
    async with await source.connect() as client:
        return await client.list_objects(resource, namespace)


def complete_for_kubectl(command: Any, words: Sequence[str]) -> list[str]:
    """Return the lines that ``kubectl_complete-npu`` prints for ``kubectl npu …`` (KEP 2379).

    Each candidate is a line. The last line tells the shell whether to offer files: only after an option that takes one.

    Args:
        command: the npuctl command.
        words: the words after ``kubectl npu``; the last one is incomplete or empty.
    """
    *before, typed = words or ("",)
    if before and before[-1] in _FILE_OPTIONS:
        return [_FILES]
    while before and (chosen := getattr(command, "commands", {}).get(before[0])) is not None:
        command = chosen
        del before[0]
    if typed.startswith("-"):
        names = [option for param in command.params for option in param.opts if option.startswith("--")]
    else:
        names = list(getattr(command, "commands", {})) or _values(command, before, typed)
    return [*sorted(name for name in names if name.startswith(typed)), _NO_FILES]


def _values(command: Any, before: list[str], typed: str) -> list[str]:
    """The values of the last option, or of the next argument."""
    context = command.make_context(command.name, list(before), resilient_parsing=True)
    arguments = [
        param for param in command.params if param.param_type_name == "argument" and not context.params[param.name]
    ]
    options = [param for param in command.params if before and before[-1] in param.opts and not param.is_flag]
    return [item.value for parameter in (*options, *arguments)[:1] for item in parameter.shell_complete(context, typed)]
