"""What a shell is offered that only a cluster knows: names of pods.

Whoever presses Tab waits for it, on a line half typed: so there is a limit to it, and whatever goes wrong, nothing is
offered and nothing is said.
"""

import asyncio
import os
import threading

from ascend.kube.objects import PODS, Pod
from npuctl.documents import STDIN
from npuctl.manifests import read_manifests
from npuctl.source import Source

LIMIT_S = 2.0
"""Longer nobody waits for a completion."""


def end_in_time(otherwise: str) -> threading.Timer:
    """End this process after ``LIMIT_S``, unless the timer that is returned is cancelled before.

    A name server that is silent is waited for in a thread nobody can interrupt, and an orderly end would wait for it.

    Args:
        otherwise: what is printed then.
    """

    def end() -> None:
        os.write(1, otherwise.encode())
        os._exit(0)

    timer = threading.Timer(LIMIT_S, end)
    timer.daemon = True
    timer.start()
    return timer


def pod_names(begun: str, namespace: str | None, source: Source) -> list[str]:
    """The pods that ask for chips, by name, or as ``namespace/name`` where a namespace is begun with.

    Args:
        begun: how the name begins.
        namespace: where they are; None for the one that would be meant.
        source: where to look.
    """
    named, slash, _ = begun.rpartition("/")
    place = named or namespace or source.namespace()
    try:
        pods = asyncio.run(_pods(source, place))
    except Exception:  # noqa: BLE001 - a traceback would end up in the middle of what is being typed
        return []
    names = (each.name for each in pods if each.metadata.namespace == place and each.requests_chips)
    return sorted(text for name in names if (text := f"{named}{slash}{name}").startswith(begun))


async def _pods(source: Source, namespace: str) -> list[Pod]:
    if STDIN in source.files:
        return []  # the shell's own
    if source.files:
        return list(read_manifests(source.files).snapshot.pods)
    async with await source.connect() as client:
        return await client.list_objects(PODS, namespace)
