"""Sentences for a pod's author about other pods: their existence, but no names from other namespaces.

Refusals name pods and jobs as ``pod namespace/name`` and ``job namespace/name``; the log has these sentences unchanged.
"""

import re
from typing import Final

_NAMED: Final = re.compile(r"\b(pod|job) ([a-z0-9][-a-z0-9]*)/\S+?(?=[,;:.]?(?:\s|$))")


def told_in(namespace: str, sentence: str) -> str:
    """A sentence as it is told in a namespace: without the names of pods and jobs of others."""

    def named(found: re.Match[str]) -> str:
        kind, where = found.groups()
        return found[0] if where == namespace else f"a {kind} of another namespace"

    return _NAMED.sub(named, sentence)
