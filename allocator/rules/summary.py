"""Sentences of refusals for Events, schedulers and the command line: one for many nodes, and what a namespace is told.

Refusals name pods and jobs as ``pod namespace/name`` and ``job namespace/name``; the log has these sentences unchanged.
A pod's author is told that other pods exist, but no names from other namespaces.
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Final

from allocator.rules.cores import HAS_NO_CORES
from allocator.rules.vnpus import HAS_NONE
from ascend.errors import Refusal
from ascend.grammar import count
from ascend.reasons import Category, Reason

_NOTHING: Final = (HAS_NONE, HAS_NO_CORES)
"""What the sentences end with of nodes that have nothing of the kind."""
_NAMED: Final = re.compile(r"\b(pod|job) ([a-z0-9][-a-z0-9]*)/\S+?(?=[,;:.]?(?:\s|$))")


def example(sentences: Mapping[str, str]) -> str:
    """The node whose sentence is shown for several with one reason: the first that has something, else the first.

    Args:
        sentences: why each node refuses, by its name.
    """
    return min(sentences, key=lambda node: sentences[node].endswith(_NOTHING))


def sum_up(pod: str, what: str, reasons: Mapping[Reason, int]) -> Refusal:
    """Summarize why a pod fits on no node.

    Args:
        pod: ``namespace/name``.
        what: what it requests, as in ``2 chips``.
        reasons: the number of nodes for each reason.

    Returns:
        The reason that all NPU nodes share, or ``NoNodeFits``; the sentence counts the reasons of all nodes.
    """
    # In a defined order, so that the same state gives the same sentence, and its Events are one series.
    ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    relevant = [reason for reason, _ in ordered if reason.category is not Category.NOT_NPU]
    relevant = relevant or [reason for reason, _ in ordered]
    reason = relevant[0] if len(relevant) == 1 else Reason.NO_NODE_FITS
    if not ordered:
        return Refusal(reason, f"pod {pod}: {what} requested, and there are no nodes")
    counts = ", ".join(f"{number} {reason}" for reason, number in ordered)
    total = count(sum(reasons.values()), "node")
    return Refusal(
        reason, f"pod {pod}: {what} {'fits' if what.startswith('1 ') else 'fit'} on none of {total}: {counts}"
    )


def count_reasons(refusals: Mapping[Refusal, int]) -> Counter[Reason]:
    """The number of nodes for each reason.

    Args:
        refusals: the number of nodes for each refusal.
    """
    reasons: Counter[Reason] = Counter()
    for refusal, number in refusals.items():
        reasons[refusal.reason] += number
    return reasons


def sum_up_nodes(pod: str, what: str, refusals: Mapping[Refusal, int]) -> Refusal:
    """Summarize why a pod fits on no node, from the refusals of the nodes; a sentence that all share is kept.

    Args:
        pod: ``namespace/name``.
        what: what it requests, as in ``2 chips``.
        refusals: the number of nodes for each refusal.
    """
    sentences = {refusal.message: refusal for refusal in refusals}
    if len(sentences) == 1:
        (only,) = sentences.values()
        return Refusal(only.reason, only.message)
    return sum_up(pod, what, count_reasons(refusals))


def told_in(namespace: str, sentence: str) -> str:
    """A sentence as it is told in a namespace: without the names of pods and jobs of others."""

    def named(found: re.Match[str]) -> str:
        kind, where = found.groups()
        return found[0] if where == namespace else f"a {kind} of another namespace"

    return _NAMED.sub(named, sentence)
