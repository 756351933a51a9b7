"""The refusal of many nodes as one: what a pod's Event, a scheduler and the command line show alike."""

from collections import Counter
from collections.abc import Mapping

from ascend.errors import Refusal

MIXED = "NoNodeFits"
"""The reason where nodes give different ones."""

_NO_CANDIDATES = frozenset({"NotAnNpuNode", "UnknownNode"})
"""Reasons of nodes nobody would have expected to fit."""


def sum_up(pod: str, chips: int, reasons: Mapping[str, int]) -> Refusal:
    """Why a pod fits nowhere.

    Args:
        pod: ``namespace/name``.
        chips: how many it asks for.
        reasons: how many nodes refuse it for which reason.

    Returns:
        The reason all NPU nodes share, or ``NoNodeFits``; the sentence counts those of all nodes.
    """
    # In an order of its own, so that the same state gives the same sentence and Events of it one series.
    ordered = sorted(reasons.items(), key=lambda each: (-each[1], each[0]))
    telling = [reason for reason, _ in ordered if reason not in _NO_CANDIDATES] or [reason for reason, _ in ordered]
    reason = telling[0] if len(telling) == 1 else MIXED
    counts = ", ".join(f"{count} {reason}" for reason, count in ordered) or "there are none"
    total = sum(reasons.values())
    return Refusal(reason, f"pod {pod}: {chips} chips fit on none of {total} nodes: {counts}")


def count_reasons(refusals: Mapping[Refusal, int]) -> Counter[str]:
    """How many nodes refuse for which reason.

    Args:
        refusals: of how many nodes each is.
    """
    reasons: Counter[str] = Counter()
    for refusal, count in refusals.items():
        reasons[refusal.reason] += count
    return reasons


def sum_up_nodes(pod: str, chips: int, refusals: Mapping[Refusal, int]) -> Refusal:
    """Why a pod fits nowhere, from every node's own refusal; a sentence they all say is the pod's.

    Args:
        pod: ``namespace/name``.
        chips: how many it asks for.
        refusals: of how many nodes each is.
    """
    sentences = {refusal.message: refusal for refusal in refusals}
    if len(sentences) == 1:
        (only,) = sentences.values()
        return Refusal(only.reason, only.message)
    return sum_up(pod, chips, count_reasons(refusals))
