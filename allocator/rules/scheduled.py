"""What the schedulers of pods say of them, in the condition PodScheduled; for gangs, why they don't start."""

import re
from collections.abc import Collection, Iterator
from enum import Enum, auto
from typing import Final

from ascend.grammar import some
from ascend.kube.objects import Condition, Pod
from ascend.reasons import Category, Reason

_OF_GANG: Final = (Reason.GANG_INCOMPLETE, Reason.GANG_STEPPED_BACK, Reason.GANG_AWAITED)


def _saying(*categories: Category) -> re.Pattern[str]:
    """A refusal by the allocator for such a reason."""
    return re.compile(rf"\b(?:{'|'.join(reason for reason in Reason if reason.category in categories)})\b")


_OWN: Final = _saying(Category.INCOMPLETE, Category.PLACEMENT, Category.OCCUPIED, Category.ALLOCATOR)
"""The allocator's reasons that end when other pods end or come: the scheduler's own filters had accepted the node."""
_ASKED: Final = _saying(Category.REQUEST, Category.MISMATCH, Category.NOT_NPU, Category.NODE)
"""The allocator's other reasons for nodes that have passed the scheduler's own filters."""
_CHIPS: Final = re.compile("Insufficient huawei[.]com/")
"""The scheduler's own count of chips, in messages of kube-scheduler and Volcano."""
_PREEMPTION: Final = re.compile(r"preemption: 0/(\d+) nodes are available: (\d+) Preemption is not helpful")
"""On how many of the nodes the pod would not fit whatever ended there."""
_NAMES: Final = re.compile(r'"[^"]*"|\{[^}]*\}|\[[^]]*\]|Insufficient (?!huawei[.]com/)\S+')
"""Names of claims, of plugins and of other resources, keys of taints."""
_OF_CYCLE: Final = re.compile(r"^minCount \(\d+\) |^pod group is unschedulable|^\d+/\d+ placements are available")
"""What kube-scheduler writes on the other pods of a group if it can't place one of them."""
_OF_PEERS: Final = re.compile(r"(?<![\w./-])(?:pod ?group|gang|permit)(?![\w-]|[.]\w)", re.IGNORECASE)
"""What plugins for gangs write on a pod because of its peers; a name that has such a word as a part is none."""


def verdict_on(pod: Pod) -> Condition | None:
    """The scheduler's verdict on a pod; None before the first try, also if the condition still tells of gates."""
    verdict = next((condition for condition in pod.status.conditions if condition.type == "PodScheduled"), None)
    had_gates = verdict is not None and verdict.reason == "SchedulingGated" and not pod.spec.scheduling_gates
    return None if had_gates else verdict


def is_refusal(verdict: Condition, *ignored: Reason) -> bool:
    """Whether a scheduler has refused a pod itself, and not because its gang could not be planned yet."""
    of_gang = any(reason in verdict.message for reason in (*_OF_GANG, *ignored))
    return verdict.reason == "Unschedulable" and not of_gang and _OF_CYCLE.search(verdict.message) is None


class Refused(Enum):
    """For what a scheduler has refused a pod on every node by its own filters."""

    CHIPS = auto()
    """On some node perhaps for nothing but the chips that it counts itself."""

    OTHER = auto()
    """What no pod with chips gives back by ending."""

    NEVER = auto()
    """What no pod at all gives back by ending."""


def refused_by_filters(verdict: Condition) -> Refused | None:
    """For what a scheduler has refused a pod on every node by its own filters; None if some node has passed them.

    kube-scheduler counts the nodes for each reason, and says on how many of them preemption can't help. A node that
    lacks CPU as well as chips may have both when its pods end, so it counts as lacking chips, unless preemption can't
    help on any node.
    """
    message = _NAMES.sub("", verdict.message)
    if verdict.status != "False" or verdict.reason not in {"Unschedulable", "SchedulerError"}:
        return None
    if any(pattern.search(message) for pattern in (_OWN, _OF_PEERS, _OF_CYCLE)):
        return None
    helpless = _PREEMPTION.search(message)
    if helpless is not None and helpless[1] == helpless[2]:
        return Refused.NEVER
    return Refused.CHIPS if _CHIPS.search(message) else Refused.OTHER


def was_asked(verdict: Condition) -> bool:
    """Whether a scheduler has asked the allocator for a pod: some node passed the scheduler's filters."""
    return refused_by_filters(verdict) is None or _ASKED.search(_NAMES.sub("", verdict.message)) is not None


def refused(pod: Pod, verdict: Condition) -> str:
    """That its scheduler has refused a pod, and why, a part of a sentence."""
    return f"pod {pod.key} was refused: {verdict.message.rstrip('.')}"


def keys_of(pods: Collection[Pod]) -> str:
    """The names of the first pods of several, by name, and the number of the others."""
    return some(sorted(pod.key for pod in pods))


def holdups(waiting: Collection[Pod], needed: int) -> Iterator[str]:
    """A sentence for each pod that keeps a fitting gang from starting, as far as the schedulers say.

    Args:
        waiting: the pods that wait for chips.
        needed: how many of them have to start together.
    """
    verdicts = [(pod, verdict_on(pod)) for pod in waiting]
    obstacles = [
        (pod, verdict) for pod, verdict in verdicts if verdict and is_refusal(verdict, Reason.GANG_DOES_NOT_FIT)
    ]
    if obstacles:
        if len(waiting) - len(obstacles) < needed:
            yield from (refused(*obstacle) for obstacle in obstacles)
        return
    untried = [pod for pod, verdict in verdicts if verdict is None]
    has_stepped_back = any(verdict and Reason.GANG_STEPPED_BACK in verdict.message for _, verdict in verdicts)
    if has_stepped_back and len(waiting) - len(untried) < needed:
        for pod in untried:
            scheduler = f"its scheduler{f', {name},' if (name := pod.spec.scheduler_name) else ''}"
            yield f"pod {pod.key}: {scheduler} has not tried it, or tries it now"
