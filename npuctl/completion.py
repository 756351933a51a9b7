"""Shell completion: the names of pods, and the protocol of kubectl's plugins.

The user waits for it at a half-typed line. So its time is limited, and after an error it offers nothing.
"""

import asyncio
import os
import threading
from collections.abc import Sequence
from typing import Any, Final

from ascend.kube.objects import PODS, Pod
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
        os.write(1, otherwise.encode())
        os._exit(0)

    timer = threading.Timer(LIMIT_S, end)
    timer.daemon = True
    timer.start()
    return timer


def pod_names(typed: str, namespace: str | None, source: Source) -> list[str]:
    """Return the pods that request chips, by name, or as ``namespace/name`` if a slash was typed."""
    left, slash, _ = typed.rpartition("/")
    searched = left or namespace or source.namespace()
    try:
        pods = asyncio.run(_pods(source, searched))
    except Exception:  # noqa: BLE001 - a traceback would be printed into the line that is being typed
        return []
    # A line that is being typed shows no control characters, and a shell could not complete an escaped one.
    names = (
        each.name
        for each in pods
        if each.metadata.namespace == searched and each.requests_chips and each.name.isprintable()
    )
    return sorted(text for name in names if (text := f"{left}{slash}{name}").startswith(typed))


async def _pods(source: Source, namespace: str) -> list[Pod]:
    if STDIN in source.files:
        return []  # standard input is the shell's
    if source.files:
        return list(read_manifests(source.files).objects.pods)
    async with await source.connect() as client:
        return await client.list_objects(PODS, namespace)


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
        names = [option for each in command.params for option in each.opts if option.startswith("--")]
    else:
        names = list(getattr(command, "commands", {})) or _values(command, before, typed)
    return [*sorted(name for name in names if name.startswith(typed)), _NO_FILES]


def _values(command: Any, before: list[str], typed: str) -> list[str]:
    """The values of the last option, or of the next argument."""
    context = command.make_context(command.name, list(before), resilient_parsing=True)
    arguments = [
        each for each in command.params if each.param_type_name == "argument" and not context.params[each.name]
    ]
    options = [each for each in command.params if before and before[-1] in each.opts and not each.is_flag]
    return [item.value for each in (*options, *arguments)[:1] for item in each.shell_complete(context, typed)]
